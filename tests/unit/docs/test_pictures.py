"""The picture of the documentation shows the page that the code renders now."""

from pathlib import Path

import pytest

from scripts import load_script


def test_the_picture_shows_the_page_of_today(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    tool = load_script("tools/picture_report.py")
    digest = tool.read_digest(tool.PICTURE)
    assert digest == tool.hash_page(tool.render_page(tmp_path)), "run python tools/picture_report.py"
