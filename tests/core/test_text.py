"""Text that cannot move a terminal's cursor."""

from __future__ import annotations

from enginebench.core.text import clean_lines, clean_text


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert clean_lines("a\x1b[31mb\x07\r\nc\td\u202e") == "a[31mb\nc\td"


def test_one_line_stays_one_line() -> None:
    assert clean_text("a\nb\tc\u2028d\x00") == "a b c d"
