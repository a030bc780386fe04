"""Latency against throughput: what each engine makes of larger batches, and the largest within a limit."""

from collections.abc import Sequence

from enginebench.core.names import format_precision
from enginebench.core.records import Estimate
from enginebench.report.numbers import show_figure
from enginebench.report.run.rows import Row
from enginebench.report.table import Column, Notes, Table, make_table


def list_batches(rows: Sequence[Row]) -> list[list[Row]]:
    """The engines of scope `compute` with a hot cache that have more than one batch, each by its batches.

    A batch that failed (out of memory) stays in the list, without numbers.
    """
    # Rows that were relabelled FP32 are not the FP32 rows of their engine, though both are called so.
    members: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row.scope == "compute" and row.cache == "hot" and row.status != "skipped":
            key = row.engine, _name_precision(row), row.requested_precision or "", row.bucket
            members.setdefault(key, []).append(row)
    return [sorted(found, key=lambda row: row.batch) for found in members.values() if len(found) > 1]


def _name_precision(row: Row) -> str:
    return format_precision(row.precision, row.recipe, row.mix)


def find_largest(series: Sequence[Row], p99_limit_ms: float) -> Row | None:
    """The largest batch that keeps to the limit, of those that can be relied on."""
    whole = [row for row in series if row.status == "ok" and row.validity != "invalid"]
    return next((row for row in reversed(whole) if row.p99_ms and row.p99_ms.value <= p99_limit_ms), None)


def make_batches(rows: Sequence[Row]) -> list[Table | Notes]:
    """Latency against throughput as figures, of engines that ran several batches."""
    series = list_batches(rows)
    rates = [next((row.throughput_per_s for row in one if row.throughput_per_s), None) for one in series]
    first = {id(row): rate for one, rate in zip(series, rates, strict=True) for row in one}

    def gain(row: Row) -> float | None:
        smallest = first[id(row)]
        return row.throughput_per_s / smallest if row.throughput_per_s and smallest else None

    columns = (
        Column("engine", lambda row: row.engine),
        Column("precision", _name_precision),
        Column("batch", lambda row: str(row.batch), lambda row: row.batch, align="right"),
        Column("p50 ms", lambda row: "~ " * (row.validity != "valid") + show_figure(_take(row.p50_ms), row.status),
               lambda row: _take(row.p50_ms), align="decimal"),
        Column("p99 ms", lambda row: show_figure(_take(row.p99_ms)) + ("" if is_supported(row) else "?"),
               lambda row: _take(row.p99_ms), align="decimal", hint="?: too few samples for this percentile"),
        Column("per second", lambda row: show_figure(row.throughput_per_s), lambda row: row.throughput_per_s,
               align="decimal"),
        Column("times smallest", lambda row: show_figure(gain(row)), gain, align="right"),
    )  # fmt: skip
    lines = [row for one in series for row in one]
    title = "Latency against throughput by batch"
    return [make_table(columns, lines, file="batches", title=title)] if lines else []


def is_supported(row: Row) -> bool:
    """Whether there are samples enough for a p99, where there is one."""
    return row.p99_ms is None or row.p99_ms.supported


def _take(estimate: Estimate | None) -> float | None:
    return estimate.value if estimate else None


def describe_limit(series: Sequence[Sequence[Row]], p99_limit_ms: float | None) -> list[str]:
    """A sentence for each engine: the largest batch whose p99 keeps to the limit. Empty without a limit."""
    if p99_limit_ms is None:
        return []
    return [f"{one[0].engine} {_name_precision(one[0])}: {_describe_largest(one, p99_limit_ms)}." for one in series]


def _describe_largest(series: Sequence[Row], p99_limit_ms: float) -> str:
    largest = find_largest(series, p99_limit_ms)
    if largest is None:
        doubtful = [row.status for row in series if row.p99_ms and row.p99_ms.value <= p99_limit_ms]
        kinds = dict.fromkeys("disturbed" if status == "ok" else "not finished" for status in doubtful)
        if kinds:
            return f"only batches whose configurations are {' or '.join(kinds)} meet p99 {p99_limit_ms:g} ms"
        return f"no batch that was measured within p99 {p99_limit_ms:g} ms"
    doubts = [] if is_supported(largest) else ["too few samples for a p99"]
    doubts += ["disturbed"] if largest.validity != "valid" else []
    doubts += ["modelled"] if largest.modelled else []
    doubt = f" ({', '.join(doubts)})" if doubts else ""
    return f"batch {largest.batch} is the largest within p99 {p99_limit_ms:g} ms{doubt}"
