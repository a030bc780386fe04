"""Stored runs look as they did: the tables and answers of `results/` are held against what was rendered before."""

from pathlib import Path

import pytest

from scripts import load_script

TOOL = load_script("tools/render_stored.py")
ARCHIVES: list[Path] = TOOL.list_archives()


def test_every_stored_run_is_held_against_something() -> None:
    assert len(ARCHIVES) > 10
    assert {path.name for path in TOOL.GOLDEN.iterdir()} == {TOOL.name_golden(archive) for archive in ARCHIVES}


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_stored_run_looks_as_it_did(archive: Path) -> None:
    golden = (TOOL.GOLDEN / TOOL.name_golden(archive)).read_text("utf-8")
    assert TOOL.render_archive(archive) == golden, "if that is meant: python tools/render_stored.py"
