"""All stored rows of a folder as one table: what it holds, and how it reads."""

from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import fields

from enginebench.core.names import format_precision
from enginebench.core.text import clean_text, count_of
from enginebench.report.csv_table import format_csv
from enginebench.report.numbers import format_significant, show_figure
from enginebench.report.table import Column, Section, make_notes, make_table

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


def identify_row(row: HistoryRow) -> str:
    """What two copies of a measured row have in common; a row without samples is like no other."""
    return f"{row.model} {row.id} {row.started_utc} {row.n} {row.p50_ms}" if row.n else row.path


def name_series(row: HistoryRow) -> str:
    """What must be alike for two rows to be points of one line."""
    parts = [row.model, format_precision(row.precision, row.recipe, row.mix), f"b{row.batch}"]
    parts += [row.scope] if row.scope != "compute" else []
    parts += [row.device] if row.device != "cpu" else []
    return clean_text(" ".join([*parts, f"{row.threads}t"]))


_FIELDS = tuple(Column(field.name, str, attrgetter(field.name)) for field in fields(HistoryRow))
_COLUMNS = (
    Column("started", lambda row: row.started_utc[:16], spare=1),
    Column("model", attrgetter("model")),
    Column("engine", attrgetter("engine")),
    Column("precision", lambda row: format_precision(row.precision, row.recipe, row.mix)),
    Column("batch", lambda row: str(row.batch), attrgetter("batch"), align="right", spare=2),
    Column("p50 ms", lambda row: _show_p50(row), attrgetter("p50_ms"), align="decimal"),
    Column("p99 ms", lambda row: show_figure(row.p99_ms), attrgetter("p99_ms"), align="decimal", spare=3),
    Column("n", lambda row: str(row.n), attrgetter("n"), align="right", spare=4),
)


def format_history_csv(rows: Sequence[HistoryRow]) -> str:
    """The table, its heading first; full precision."""
    return format_csv(_FIELDS, rows)


def list_history(document: HistoryDocument, last: int) -> list[Section]:
    """How many rows there are, the latest of them, the oldest first, and what cannot be read."""
    rows = document.rows[-last:] if last else ()
    hidden = max(0, len(document.rows) - last)
    title = f"{count_of(len(document.rows), 'rows')}" + (f", the latest {last} shown" if hidden else "")
    unread = [f"not read: {one.path}: {one.reason}" for one in document.unread[:10]]
    unread += [f"not read: {len(document.unread) - 10} files more"] if len(document.unread) > 10 else []
    table = [make_table(_COLUMNS, rows, file="history")] if rows else []
    return [Section(title=title, parts=(*table, *make_notes(unread)))]


def _show_p50(row: HistoryRow) -> str:
    if row.p50_ms is None:
        return row.status
    return ("~ " if row.validity != "valid" else "") + format_significant(row.p50_ms, 4)
