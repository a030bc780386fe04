"""docs/results.md: every table is what its stored rows give today."""

import re

from processes import ROOT
from scripts import load_script


def test_tables_are_those_of_the_stored_rows() -> None:
    tool = load_script("tools/render_results.py")
    text = tool.PAGE.read_text("utf-8")
    assert len(tool.BLOCK.findall(text)) >= 8
    assert tool.render_page(text) == text, "run python tools/render_results.py"


def test_every_stored_file_is_shown() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8") + (ROOT / "docs" / "fpga.md").read_text("utf-8")
    folders = [ROOT / "results" / name for name in ("cpu", "h200")]
    stored = [path.name for folder in folders for path in folder.glob("*") if path.suffix in (".xz", ".json")]
    assert len(stored) >= 12
    assert [name for name in stored if not re.search(re.escape(name), text)] == []
