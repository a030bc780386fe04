"""All stored rows of a folder as one table: what it holds, and how it reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import fields
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginebench.core.names import format_precision
from enginebench.core.text import clean_text, count_of
from enginebench.report.csv_table import format_cell
from enginebench.report.narrow import Fitted
from enginebench.report.numbers import format_significant

HISTORY_SCHEMA = "enginebench.history/1"


class HistoryRow(Struct, frozen=True, kw_only=True):
    """One stored row in figures: medians over its processes, without intervals. Times in ms."""

    path: str  # of the row's file, relative to the folder
    run: str  # the run's folder, relative to it
    id: str
    started_utc: str
    model: str
    engine: str
    engine_version: str | None
    precision: str
    recipe: str | None
    batch: int
    scope: str
    cache: str
    device: str
    threads: int
    status: str
    validity: str
    clock: str | None
    n: int
    processes: int
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    reference_ms: float | None  # the fixed kernel: shows a change of the machine
    metric: str | None  # that decides about the row
    score: float | None
    build_s: float | None
    size_bytes: int | None
    cpu_model: str | None
    gpu: str | None
    mix: str = ""  # which nodes stay in FP32 by choice


class Unread(Struct, frozen=True, kw_only=True):
    """A file that looks like a row and cannot be read."""

    path: str
    reason: str


class HistoryDocument(Struct, frozen=True, kw_only=True):
    """What `history --json` prints; the oldest row first."""

    schema: str = HISTORY_SCHEMA
    rows: tuple[HistoryRow, ...]
    unread: tuple[Unread, ...] = ()
    copies: int = 0  # rows that are stored twice, as in a baseline, and counted once


def name_doubt(row: HistoryRow) -> str:
    """`suspect` or `invalid`, of a row that has a median and is not valid."""
    return row.validity if row.validity != "valid" and row.p50_ms is not None else ""


def identify_row(row: HistoryRow) -> str:
    """What two copies of a measured row have in common; a row without samples is like no other."""
    return f"{row.model} {row.id} {row.started_utc} {row.n} {row.p50_ms}" if row.n else row.path


def name_series(row: HistoryRow) -> str:
    """What must be alike for two rows to be points of one line."""
    parts = [row.model, format_precision(row.precision, row.recipe, row.mix), f"b{row.batch}"]
    parts += [row.scope] if row.scope != "compute" else []
    parts += [row.device] if row.device != "cpu" else []
    return clean_text(" ".join([*parts, f"{row.threads}t"]))


def format_history_csv(rows: Sequence[HistoryRow]) -> str:
    """The table, its heading first; full precision."""
    names = [field.name for field in fields(HistoryRow)]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([format_cell(getattr(row, name)) for name in names])
    return buffer.getvalue()


def print_history(document: HistoryDocument, console: Console, last: int) -> None:
    """Prints the latest rows, the oldest of them first, and how many there are."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("started", "model", "engine", "prec."):
        table.add_column(heading, overflow="fold")
    for heading in ("batch", "p50 ms", "p99 ms", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in document.rows[-last:] if last else ():
        cells = [Text(clean_text(cell)) for cell in _list_cells(row)]
        if doubt := name_doubt(row):
            cells[5].append(f"\n{doubt}", style="bold")  # at the p50
        table.add_row(*cells)
    console.print(Fitted(table, [7, 6, 4, 0]))  # n, p99, batch, started
    hidden = max(0, len(document.rows) - last)
    console.print(Text(f"{count_of(len(document.rows), 'rows')}" + (f", the latest {last} shown" if hidden else "")))
    for unread in document.unread[:10]:
        console.print(Text(clean_text(f"not read: {unread.path}: {unread.reason}")))
    if len(document.unread) > 10:
        console.print(Text(f"not read: {len(document.unread) - 10} files more"))


def _list_cells(row: HistoryRow) -> list[str]:
    p50 = format_significant(row.p50_ms, 4) if row.p50_ms is not None else row.status
    p99 = format_significant(row.p99_ms) if row.p99_ms is not None else ""
    precision = format_precision(row.precision, row.recipe, row.mix)
    return [row.started_utc[:16], row.model, row.engine, precision, str(row.batch), p50, p99, str(row.n)]
