"""The documentation as data: its pages, their sections, tables and shell blocks."""

import re
from pathlib import Path

from processes import ROOT

PAGES = (ROOT / "README.md", ROOT / "SKILL.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

Table = list[dict[str, str]]


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def find_section(page: str, heading: str) -> str:
    """The text below a heading, up to the next heading of the same or a higher level."""
    lines, level = page.splitlines(), len(heading) - len(heading.lstrip("#"))
    assert heading in lines, f"the page has no line {heading!r}: write this section"
    start = lines.index(heading) + 1
    ends = (i for i, line in enumerate(lines[start:], start) if re.match(rf"#{{1,{level}}} ", line))
    return "\n".join(lines[start : next(ends, len(lines))])


def find_tables(text: str) -> list[Table]:
    """Every table of a text; a row is a dict of its cells by their headings."""
    blocks = re.findall(r"(?:^\|.*\|$\n?)+", text, re.MULTILINE)
    return [_read_table([_split_row(line) for line in block.splitlines()]) for block in blocks]


def _read_table(rows: list[list[str]]) -> Table:
    heading, _, *body = rows
    return [dict(zip(heading, row, strict=True)) for row in body]


def _split_row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def find_code(text: str) -> list[str]:
    """What stands between backticks, in order."""
    return re.findall(r"`([^`]+)`", text)


def find_shell_blocks(page: Path) -> list[str]:
    """The blocks fenced as ```sh, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
