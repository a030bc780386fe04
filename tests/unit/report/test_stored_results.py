"""Stored runs show what they showed: figures, states, warnings and heads of `results/` and of the older schemas."""

from pathlib import Path

import pytest

from processes import ROOT
from scripts import load_script

TOOL = load_script("tools/render_stored.py")
MEANT = "if that is meant: make tables"


def test_the_pictures_are_those_of_the_tool() -> None:
    pictures = {f"{TOOL.name_run(ROOT / path)}.txt" for path in TOOL.PICTURED}
    assert {path.name for path in TOOL.PICTURES.iterdir()} == {*pictures, TOOL.VERDICTS}


@pytest.mark.parametrize("path", TOOL.PICTURED)
def test_a_stored_run_shows_what_it_showed(path: str) -> None:
    with TOOL.open_run(ROOT / path) as document:
        picture = TOOL.render_picture(document)
    assert picture == (TOOL.PICTURES / f"{TOOL.name_run(ROOT / path)}.txt").read_text("utf-8"), MEANT


@pytest.mark.parametrize("path", TOOL.list_archives(), ids=lambda path: str(TOOL.name_run(path)))
def test_the_head_of_a_stored_run_takes_what_it_took(path: Path) -> None:
    lines = (TOOL.PICTURES / TOOL.VERDICTS).read_text("utf-8").splitlines()
    expected = dict(line.split(": ", 1) for line in lines)
    with TOOL.open_run(path) as document:
        shown = f"{len(document.rows)} configurations; {TOOL.render_verdict(document)}"
    assert shown == expected[TOOL.name_run(path)], MEANT
