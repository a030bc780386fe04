"""Sections as GitHub-flavoured markdown."""

import re
from collections.abc import Sequence

from enginebench.core.text import clean_text
from enginebench.report.table import Chart, Notes, Section, Table

# Everything that markdown or HTML could take for more than text.
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~&$]|(?<!\w)@|^[-+#=](?=\s|$)")
# Entities, not backslashes: table cells are split before backslashes in code are read.
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "&": "&amp;", "`": "&#96;", "@": "&#64;", "$": "&#36;"}


def escape(text: str) -> str:
    """Escape text so that markdown shows it unchanged: no markup, no HTML, no table cell that ends early, on one
    line."""
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), clean_text(text))


def format_sections(sections: Sequence[Section], level: int = 1, pictures: Sequence[str] = ()) -> str:
    """Format the page, its first title at `level`, others one below; only charts whose files are in `pictures`."""
    blocks: list[str] = []
    for section in sections:
        parts = [text for part in section.parts if (text := _format_part(part, pictures))]
        if parts and section.title:
            depth = level + 1 if blocks else level
            blocks.append(f"{'#' * depth} {escape(section.title)}")
        blocks += parts
    return "\n\n".join(blocks) + "\n"


def _format_part(part: Table | Notes | Chart, pictures: Sequence[str]) -> str:
    if isinstance(part, Notes):
        return _format_notes(part)
    if isinstance(part, Chart):
        name = f"{part.name}.png"
        return f"![{escape(part.description)}]({name})" if name in pictures else ""
    if part.brief or not part.columns:
        return ""
    marks = ["---" if column.align == "left" else "---:" for column in part.columns]  # figures on the right
    lines = [[escape(column.title) for column in part.columns], marks]
    lines += [[_break(escape(column.text(row))) for column in part.columns] for row in part.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _break(text: str) -> str:
    """Put the options of an ENGINE on a line beneath it, where a table may break between two of them."""
    name, colon, options = text.partition(":")
    return f"{name}<br>{options.replace(',', ', ')}" if colon and "=" in options and " " not in name else text


def _format_notes(notes: Notes) -> str:
    if notes.kind == "text":
        return "\n\n".join(escape(text) for _, text in notes.lines)
    if notes.kind == "command":
        return "\n".join(["```sh", *(clean_text(text).replace("```", "") for _, text in notes.lines), "```"])
    lines, last = [], ""
    for label, text in notes.lines:
        again = notes.kind == "head" and label == last
        lead = f"**{escape(label)}** " if label else ""
        lines.append(f"  <br>{escape(text)}" if again else f"- {lead}{escape(text)}")
        last = label
    return "\n".join(lines)
