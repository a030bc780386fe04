"""Stored runs look as they did: the tables and answers of `results/` are held against what was rendered before."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


def _load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("render_stored", ROOT / "tools" / "render_stored.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _load_tool()
ARCHIVES: list[Path] = TOOL.list_archives()


def test_every_stored_run_is_held_against_something() -> None:
    assert len(ARCHIVES) > 10
    assert {path.name for path in TOOL.GOLDEN.iterdir()} == {TOOL.name_golden(archive) for archive in ARCHIVES}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_stored_run_looks_as_it_did(archive: Path) -> None:
    golden = (TOOL.GOLDEN / TOOL.name_golden(archive)).read_text("utf-8")
    assert TOOL.render_archive(archive) == golden, "if that is meant: python tools/render_stored.py"
