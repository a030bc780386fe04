"""The break-even of configurations over the life of a process, and the parts of its start."""

from collections.abc import Sequence

from enginebench.report.charts import Point
from enginebench.report.numbers import format_ms
from enginebench.report.run.head import name_configurations
from enginebench.report.run.rows import Row, RunDocument, group_rows
from enginebench.report.table import Notes, Section, Table, list_texts, make_notes, make_table
from enginebench.stats.life import Lead, LifeCosts, find_leads

# The phases of a start in their order, with their names in a chart.
PHASES = ("import", "load", "first run")
# Points of a line over the number of calls, which is logarithmic.
_POINTS_PER_DECADE = 8


def list_life(document: RunDocument) -> list[Section]:
    """List the break-even, where a run was asked for the calls of a process; else nothing."""
    parts = make_break_evens(document)
    return [Section(title="Break-even", name="life", parts=tuple(parts))] if parts else []


def make_break_evens(document: RunDocument) -> list[Table | Notes]:
    """Make the table of each setting, with a note on what is missing; none if no calls were asked for."""
    if document.for_calls is None:
        return []
    names = name_configurations(document.rows)
    return [part for rows in group_rows(document.rows) for part in _make_break_even(rows, names)]


def list_costs(rows: Sequence[Row]) -> list[LifeCosts]:
    """List what each configuration that may be used costs once, in each process and with each call."""
    return [
        LifeCosts(
            id=row.id,
            build_s=row.costs.build_s or 0.0,
            start_s=row.times.import_s + row.times.start_s,
            call_s=row.mean_ms.value / 1e3,
            call_low_s=row.mean_ms.low / 1e3 if row.mean_ms.low is not None else None,
            call_high_s=row.mean_ms.high / 1e3 if row.mean_ms.high is not None else None,
        )
        for row in rows
        if row.times.import_s is not None
        and row.times.start_s is not None
        and row.mean_ms is not None
        and row.outputs != "changed"
        and row.validity != "implausible"
        and row.status != "failed"
    ]


def _make_break_even(rows: Sequence[Row], names: dict[str, str]) -> list[Table | Notes]:
    costs, cold_s = {one.id: one for one in list_costs(rows)}, {row.id: row.times.cold_start_s for row in rows}
    if not costs:
        return []
    lines, sure = list[tuple[str, ...]](), True
    for what, with_build in (("process", False), ("with build", True)):
        for lead in find_leads([*costs.values()], with_build=with_build):
            one = costs[lead.id]
            figures = (one.call_s, one.start_s, cold_s[lead.id] or 0.0, one.build_s)
            texts = (format_ms(seconds * 1e3) if seconds else "" for seconds in figures)
            lines.append((what, _format_calls(lead), names[lead.id], *texts))
            what, sure = "", sure and lead.sure
    columns = list_texts(("of", "calls of one process", "least time"), ("a call", "start", "from disk", "build, once"))
    missing = [names[row.id] for row in rows if row.p50_ms is not None and row.id not in costs and _may_be_used(row)]
    notes = ["From disk: the start with files that are not in the page cache."] if any(cold_s.values()) else []
    notes += [] if sure else ["?: the intervals of the times of a call do not show it."]
    notes += [f"Without: {', '.join(missing)}, whose start was not measured."] if missing else []
    title = "Which configuration takes the least time, by the number of calls"
    return [make_table(columns, lines, file="break_even", title=title), *make_notes(notes)]


def _may_be_used(row: Row) -> bool:
    return row.outputs != "changed" and row.validity != "implausible"


def _format_calls(lead: Lead) -> str:
    calls = f"{lead.first:,} to {lead.last:,}" if lead.last is not None else f"from {lead.first:,} on"
    if lead.first == lead.last:
        calls = f"{lead.first:,}"
    elif lead.first == 1 and lead.last is None:
        calls = "any number"
    return calls if lead.sure else f"{calls}?"


def follow_lives(document: RunDocument, labels: dict[str, str]) -> list[Point]:
    """List points of the time of a process over its number of calls, for the line of each configuration."""
    if document.for_calls is None:
        return []
    costs = [one for one in list_costs(document.rows) if one.id in labels]
    turns = [lead.first for lead in find_leads(costs)] if costs else []
    decades = len(str(max([document.for_calls, *turns]) * 10))
    counts = sorted({round(10 ** (i / _POINTS_PER_DECADE)) for i in range(decades * _POINTS_PER_DECADE + 1)})
    return [
        {"row": labels[one.id], "calls": n, "seconds": one.start_s + n * one.call_s, "what": _describe(one, n)}
        for one in costs
        for n in counts
    ]


def _describe(one: LifeCosts, n: int) -> str:
    return f"{format_ms((one.start_s + n * one.call_s) * 1e3)} for {n:,} calls"


def list_starts(document: RunDocument, labels: dict[str, str]) -> list[Point]:
    """List the phases of the start of each configuration, for a bar each."""
    points = []
    for row in document.rows:
        phases = (row.times.import_s, row.times.load_s, row.times.first_run_s)
        if document.for_calls is not None and row.id in labels:
            points += [
                {"row": labels[row.id], "stage": name, "order": order, "s": seconds}
                for order, (name, seconds) in enumerate(zip(PHASES, phases, strict=True))
                if seconds is not None
            ]
    return points
