"""The rows of a run as CSV after RFC 4180: CRLF line ends, cells quoted where they must be, one number a cell."""

from __future__ import annotations

import csv
import io

from enginebench.core.text import clean_text
from enginebench.report.run.columns import Cell, list_columns
from enginebench.report.run.rows import RunDocument


def format_csv(document: RunDocument) -> str:
    """The table, its heading first; full precision, empty cells for what was not measured."""
    columns = list_columns()
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(columns)
    for row in document.rows:
        writer.writerow([format_cell(take(row)) for take in columns.values()])
    return buffer.getvalue()


def format_cell(value: Cell) -> str:
    """A cell that no spreadsheet takes for a formula: text that begins with = + - or @ gets an apostrophe before it.

    Numbers stay numbers, also negative ones. Control characters are removed.

    Source: OWASP, "CSV Injection".
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    text = clean_text(value)
    return f"'{text}" if text.lstrip().startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
