"""The pictures of the documentation show the page that the code renders now."""

from pathlib import Path

import pytest

from scripts import load_script


@pytest.mark.parametrize("name", ["report-desktop.png", "report-phone.png"])
def test_a_picture_shows_the_page_of_today(name: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    tool = load_script("tools/picture_report.py")
    digest = tool.read_digest(tool.PICTURES / name)
    assert digest == tool.hash_page(tool.render_page(tmp_path)), "run python tools/picture_report.py"
