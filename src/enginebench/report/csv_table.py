"""Tables as CSV after RFC 4180: CRLF line ends, cells quoted where necessary, one number in a cell."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from enginebench.core.store import write_atomic
from enginebench.core.text import clean_text
from enginebench.report.table import Column, Value


def format_csv(columns: Sequence[Column], rows: Iterable[object]) -> str:
    """Format the headings, then a line for each row; full precision, empty cells for what was not measured."""
    takes = [column.value or column.text for column in columns]
    return format_lines([column.title for column in columns], ([take(row) for take in takes] for row in rows))


def format_lines(heading: Sequence[str], lines: Iterable[Sequence[Value]]) -> str:
    """Format a heading and lines of cells."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(heading)
    writer.writerows([format_cell(cell) for cell in line] for line in lines)
    return buffer.getvalue()


def write_table(path: Path, heading: Sequence[str], lines: Iterable[Sequence[Value]]) -> Path:
    write_atomic(path, format_lines(heading, lines).encode())
    return path


def format_cell(value: Value) -> str:
    """Format a cell so that no spreadsheet reads it as a formula: text that begins with = + - or @ gets an apostrophe.

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
