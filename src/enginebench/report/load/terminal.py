"""What `load` measured, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from enginebench.analyze.load.queueing import LoadPoint
from enginebench.core.caveats import find_sentence, format_caveat
from enginebench.core.records import Capacity, Caveat
from enginebench.core.text import clean_text, count_of
from enginebench.report.load.document import LoadDocument, describe_row
from enginebench.report.numbers import format_significant

# Times are in milliseconds; `queue` and `serve` are means, which add up to the mean latency.
COLUMNS = ("req/s", "done", "late", "p50 ms", "p90", "p99", "queue", "serve", "busy", "batch", "")


def print_load(document: LoadDocument, console: Console) -> None:
    """Prints every point, the capacities, the verdicts, and what is doubtful."""
    for row in document.rows:
        console.print(Text(clean_text(f"{document.model}, {document.scenario}: {describe_row(row)}"), style="bold"))
        points = [point for point in document.points if point.row == row.id]
        if row.reason:
            console.print(Text(clean_text(f"  {describe_reason(row.reason, measured=bool(points))}")))
        if points:
            console.print(build_points_table(points))
        if row.capacity is not None:
            console.print(Text(describe_capacity(row.capacity)))
    for line in (*describe_verdicts(document), *describe_doubts(document)):
        console.print(Text(clean_text(line)), soft_wrap=True)


def describe_reason(reason: str, *, measured: bool) -> str:
    """Why a configuration has no points, or no more of them."""
    return f"ended early: {reason}" if measured else f"not measured: {reason}"


def build_points_table(points: list[LoadPoint]) -> Table:
    """One line a point; a percentile that falls among requests that never ended is a dash."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for point in points:
        table.add_row(*list_cells(point))
    return table


def list_cells(point: LoadPoint) -> Iterator[str]:
    """The cells of a point, one for each of `COLUMNS`."""
    yield _show(point.qps if point.qps is not None else point.achieved_per_s)
    yield f"{point.completed}" if point.completed == point.offered else f"{point.completed}/{point.offered}"
    yield "" if point.late is None else str(point.late)
    for value in (point.p50_ms, point.p90_ms, point.p99_ms, point.queue_ms, point.service_ms):
        yield _show(value)
    yield "-" if point.utilisation is None else f"{point.utilisation:.0%}"
    yield _show(point.batch)
    yield "" if point.validity == "valid" else point.validity


def _show(value: float | None) -> str:
    return "-" if value is None else format_significant(value, 3)


def describe_capacity(capacity: Capacity) -> str:
    """The interval in words."""
    what = f"p{capacity.percentile:g} of at most {capacity.limit_ms:g} ms"
    why = {"settled": "", "budget": " (the search was ended before the ends met)", "nothing passes": ""}[capacity.ended]
    if capacity.suspect:
        why += "; suspect, because probes that it rests on were disturbed: see their warnings"
    if capacity.passes_qps is None:
        lowest = f"; it fails at {_show(capacity.fails_qps)} requests a second" if capacity.fails_qps else ""
        return f"Capacity: no rate that was tried holds {what}{lowest}{why}."
    fails = f"fails at {_show(capacity.fails_qps)}" if capacity.fails_qps else "no rate that was tried fails"
    return f"Capacity: passes at {_show(capacity.passes_qps)} requests a second, {fails}: {what}{why}."


def describe_verdicts(document: LoadDocument) -> Iterator[str]:
    """Who carries more than the first."""
    names = {row.id: describe_row(row) for row in document.rows}
    for verdict in document.verdicts:
        ratio = verdict.ratio
        between = f" ({ratio.low:.3f} to {ratio.high:.3f})" if ratio and ratio.low and ratio.high else ""
        times = f": {ratio.value:.3f} times its capacity{between}" if ratio else ""
        more = f". {verdict.repetitions_needed} rounds would show it" if verdict.repetitions_needed else ""
        why = f". {'; '.join(verdict.reasons)}" if verdict.reasons else ""
        yield f"{names[verdict.candidate]} against {names[verdict.base]}: {verdict.verdict}{times}{why}{more}."


def describe_doubts(document: LoadDocument) -> Iterator[str]:
    """Every doubt of every configuration; those that differ in their numbers alone in one sentence."""
    for row in document.rows:
        points = [point for point in document.points if point.row == row.id]
        alike: dict[object, list[Caveat]] = {}
        for caveat in [caveat for point in points for caveat in point.caveats]:
            alike.setdefault(find_sentence(caveat), []).append(caveat)
        for found in alike.values():
            where = f" ({len(found)} of {count_of(len(points), 'points')})" if len(points) > 1 else ""
            yield f"{describe_row(row)}{where}: {format_caveat(*found)}"
    yield from (format_caveat(caveat) for caveat in document.caveats)
