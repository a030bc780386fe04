"""What benchmarks and tools import of ours is there: nothing else runs most of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rooms import is_lifted

ROOT = Path(__file__).parents[3]
PLACES = [ROOT / place for place in ("src", "tests/helpers", "tests", "benchmarks", "tools", ".")]  # in this order
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/*.py")])


def find_module(name: str) -> Path | None:
    bases = [place / Path(*name.split(".")) for place in PLACES]
    return next((p for base in bases for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def list_names(path: Path) -> Iterator[str]:
    """The names that a module has, also those that only type checkers see."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def list_lost(path: Path) -> Iterator[str]:
    """The imports of ours in a file that find nothing."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or is_lifted(node.module or ""):
            continue
        module = find_module(node.module or "")
        if module is None and not (node.module or "").startswith("enginebench."):
            continue  # of a package from elsewhere
        names = set(list_names(module)) if module else set()
        for alias in node.names:
            if alias.name not in names and find_module(f"{node.module}.{alias.name}") is None:
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_is_there(script: Path) -> None:
    assert list(list_lost(script)) == []
