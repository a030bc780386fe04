"""Latency against throughput: what each engine makes of larger batches, and the largest within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from msgspec import Struct

from enginebench.core.names import format_precision
from enginebench.core.records import Validity
from enginebench.report.numbers import format_significant
from enginebench.report.run.rows import Row
from enginebench.report.table import Column, Notes, Table, make_table


class BatchLine(Struct, frozen=True, kw_only=True):
    """One batch of one engine; `gain` is its throughput over that of the engine's smallest batch."""

    engine: str
    precision: str
    batch: int
    p50_ms: float | None
    p99_ms: float | None
    images_per_s: float | None
    gain: float | None
    status: str
    validity: Validity
    marks: tuple[str, ...] = ()  # why the times are not to be taken as they stand
    p99_supported: bool = True  # whether there are samples enough for a p99


class BatchSeries(Struct, frozen=True, kw_only=True):
    """One engine over its batches. `largest` is the last line that keeps to the p99 limit, if one does."""

    engine: str
    precision: str
    lines: tuple[BatchLine, ...]
    largest: BatchLine | None = None


def list_batches(rows: Sequence[Row], p99_limit_ms: float | None = None) -> list[BatchSeries]:
    """The engines of scope `compute` with a hot cache that have more than one batch, in the order of the rows.

    A batch that failed (out of memory) stays in the list, without numbers.
    """
    # Rows that were relabelled FP32 are not the FP32 rows of their engine, though both are called so.
    members: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.scope == "compute" and row.cache == "hot" and row.status != "skipped":
            precision = format_precision(row.precision, row.recipe, row.mix)
            key = row.engine, precision, row.requested_precision or "", row.bucket
            members.setdefault(key, []).append(row)
    return [_make_series(key, found, p99_limit_ms) for key, found in members.items() if len(found) > 1]


def _make_series(key: tuple[str, str, str, str], rows: Sequence[Row], p99_limit_ms: float | None) -> BatchSeries:
    ordered = sorted(rows, key=lambda row: row.batch)
    first = next((row.throughput_per_s for row in ordered if row.throughput_per_s), None)
    lines = tuple(_make_line(row, first) for row in ordered)
    fitting = [x for x in lines if p99_limit_ms is not None and _is_whole(x) and _keeps(x, p99_limit_ms)]
    return BatchSeries(engine=key[0], precision=key[1], lines=lines, largest=fitting[-1] if fitting else None)


def _is_whole(line: BatchLine) -> bool:
    return line.status == "ok" and line.validity != "invalid"


def _keeps(line: BatchLine, p99_limit_ms: float) -> bool:
    return line.p99_ms is not None and line.p99_ms <= p99_limit_ms


def _make_line(row: Row, first: float | None) -> BatchLine:
    rate = row.throughput_per_s
    return BatchLine(
        engine=row.engine,
        precision=format_precision(row.precision, row.recipe, row.mix),
        batch=row.batch,
        p50_ms=row.p50_ms.value if row.p50_ms else None,
        p99_ms=row.p99_ms.value if row.p99_ms else None,
        images_per_s=rate,
        gain=rate / first if rate and first else None,
        status=row.status,
        validity=row.validity,
        marks=tuple(_list_marks(row)),
        p99_supported=row.p99_ms is not None and row.p99_ms.supported,
    )


_COLUMNS = (
    Column("engine", attrgetter("engine")),
    Column("precision", attrgetter("precision")),
    Column("batch", lambda line: str(line.batch), attrgetter("batch"), align="right"),
    Column("p50 ms", lambda line: ("~ " if line.validity != "valid" else "") + _show(line.p50_ms, line.status),
           attrgetter("p50_ms"), align="decimal"),
    Column("p99 ms", lambda line: _show(line.p99_ms) + ("" if line.p99_ms is None or line.p99_supported else "?"),
           attrgetter("p99_ms"), align="decimal", hint="?: too few samples for this percentile"),
    Column("per second", lambda line: _show(line.images_per_s), attrgetter("images_per_s"), align="decimal"),
    Column("times smallest", lambda line: _show(line.gain), attrgetter("gain"), align="right"),
)  # fmt: skip


def make_batches(rows: Sequence[Row]) -> list[Table | Notes]:
    """Latency against throughput as figures, of engines that ran several batches."""
    lines = [line for one in list_batches(rows) for line in one.lines]
    title = "Latency against throughput by batch"
    return [make_table(_COLUMNS, lines, file="batches", title=title)] if lines else []


def _show(value: float | None, missing: str = "") -> str:
    return format_significant(value) if value is not None else missing


def _list_marks(row: Row) -> list[str]:
    """Why a row's times are not to be taken as they stand: not finished, disturbed, modelled."""
    marks: list[str] = [row.status] if row.status != "ok" else []
    return marks + (["disturbed"] if row.validity != "valid" else []) + (["modelled"] if row.modelled else [])


def describe_limit(series: Sequence[BatchSeries], p99_limit_ms: float | None) -> list[str]:
    """A sentence for each engine: the largest batch whose p99 keeps to the limit. Empty without a limit."""
    if p99_limit_ms is None:
        return []
    return [f"{one.engine} {one.precision}: {_describe_largest(one, p99_limit_ms)}." for one in series]


def _describe_largest(series: BatchSeries, p99_limit_ms: float) -> str:
    largest = series.largest
    if largest is None and (doubtful := [line for line in series.lines if _keeps(line, p99_limit_ms)]):
        kinds = dict.fromkeys("disturbed" if line.status == "ok" else "not finished" for line in doubtful)
        return f"only batches whose rows are {' or '.join(kinds)} keep within p99 {p99_limit_ms:g} ms"
    if largest is None:
        return f"no batch that was measured within p99 {p99_limit_ms:g} ms"
    doubts = [] if largest.p99_supported else ["too few samples for a p99"]
    doubts += largest.marks
    doubt = f" ({', '.join(doubts)})" if doubts else ""
    return f"batch {largest.batch} is the largest within p99 {p99_limit_ms:g} ms{doubt}"
