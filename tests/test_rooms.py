"""Imports point one way: the rooms of the architecture, read from the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "enginebench"
LEAVES = {"models", "backends", "measure", "analyze", "fpga"}
ALLOWED = {
    "core": set(),
    **{room: {"core"} for room in LEAVES},
    "report": {"core", "analyze"},
    "workflow": {"core", "report", *LEAVES},
    "cli": {"core", "report", "workflow", *LEAVES},
}


def edges_of(path: Path, room: str) -> list[tuple[int, str]]:
    """(line, room) of every import of another room in a file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "enginebench" and len(parts) > 1 and parts[1] not in (room, "__version__"):
                found.append((node.lineno, parts[1]))
    return found


def wrong_edges(source: Path) -> list[str]:
    return [
        f"{path.relative_to(source)}:{line}: {room} imports {other}"
        for room, allowed in ALLOWED.items()
        for path in sorted((source / room).rglob("*.py"))
        for line, other in edges_of(path, room)
        if other not in allowed
    ]


def test_imports_point_one_way() -> None:
    assert wrong_edges(SOURCE) == []


def test_a_wrong_edge_is_named(tmp_path: Path) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "bad.py").write_text("from enginebench.models.zoo import BUILTIN\n")
    assert wrong_edges(tmp_path) == ["core/bad.py:1: core imports models"]


def test_only_the_registry_imports_backend_files() -> None:
    files = [p for p in SOURCE.rglob("*.py") if p.parent.name != "backends"]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("enginebench.backends."):
                assert node.module == "enginebench.backends.registry", f"{path}:{node.lineno}"


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_every_room_says_what_it_is(room: str) -> None:
    path = SOURCE / room / "__init__.py"
    if path.exists():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
