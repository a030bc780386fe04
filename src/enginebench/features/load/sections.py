"""Render the results of `load` as sections and charts: the capacities and verdicts, every point, and the warnings."""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

from enginebench.core.names import slug
from enginebench.core.records import Capacity
from enginebench.core.shapes import format_mix
from enginebench.features.load.document import LoadDocument, format_row
from enginebench.report.charts import GREY, ORANGE, Point, chart_rows, finish, import_altair
from enginebench.report.numbers import (
    UNITS_PER_MS,
    choose_unit,
    format_digits,
    format_in_unit,
    format_time,
    format_verdict,
    format_weight,
)
from enginebench.report.run.charts import PALETTE
from enginebench.report.run.remarks import gather_notes, name_having
from enginebench.report.run.sections import name_machine
from enginebench.report.table import Chart, Column, Section, make_notes, make_table
from enginebench.stats.queueing import LoadPoint, ShapePoint, find_busiest, strict_min_samples
from enginebench.stats.ranking import find_front

FOOTER = (
    "Latency runs from the moment at which a request was due. Percentiles: nearest rank over all requests. "
    "queue and serve: means."
)


ShapedPoint: TypeAlias = tuple[LoadPoint, ShapePoint]
RANKS = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}


def _figure(title: str, name: str, spare: int = 0) -> Column:
    take: Callable[[LoadPoint], float | None] = attrgetter(name)
    hint = "?: too few requests for this percentile" if name in RANKS else ""
    return Column(title, lambda point: _show_figure(point, name), take, align="decimal", spare=spare, hint=hint)


def _show_figure(point: LoadPoint, name: str) -> str:
    """A percentile that falls among requests that never ended is a dash; of too few requests it has a mark."""
    value = getattr(point, name)
    few = name in RANKS and value is not None and point.offered < strict_min_samples(RANKS[name], 0)
    shown = format_in_unit(value, "ms") if name.endswith("_ms") and value is not None else format_digits(value, "-")
    return shown + ("?" if few else "")


COLUMNS = (
    Column(
        "req/s",
        lambda point: ("~ " if point.validity != "valid" else "") + format_digits(_take_rate(point), "-"),
        lambda point: _take_rate(point),
        align="decimal",
    ),
    Column(
        "done",
        lambda p: f"{p.completed}" if p.completed == p.offered else f"{p.completed}/{p.offered}",
        lambda point: point.completed,
        align="right",
        spare=3,
    ),
    Column(
        "late",
        lambda point: str(point.late),
        lambda point: point.late,
        when=lambda points: any(point.late is not None for point in points),
        align="right",
    ),
    _figure("p50 ms", "p50_ms"),
    _figure("p90", "p90_ms", 2),
    _figure("p99", "p99_ms"),
    _figure("queue", "queue_ms", 4),
    _figure("serve", "service_ms", 4),
    Column(
        "busy",
        lambda point: "-" if point.utilisation is None else f"{point.utilisation:.0%}",
        lambda point: point.utilisation,
        align="right",
        spare=1,
    ),
    _figure("batch", "batch", 5),
    Column(
        "limit",
        lambda point: f"{name} {point.stages[name]:.0%}" if (name := find_busiest(point)) else "-",
        find_busiest,
        spare=6,
    ),
)


def _figure_of_shape(title: str, q: float, take: Callable[[ShapePoint], float | None]) -> Column:
    """Make the column of a percentile of one shape, with a mark where its requests are too few."""

    def show(pair: ShapedPoint) -> str:
        value = take(pair[1])
        few = value is not None and pair[1].offered < strict_min_samples(q, 0)
        return (format_in_unit(value, "ms") if value is not None else "-") + ("?" if few else "")

    return Column(title, show, lambda pair: take(pair[1]), align="decimal")


SHAPE_COLUMNS = (
    Column("req/s", lambda pair: format_digits(_take_rate(pair[0]), "-"), lambda pair: _take_rate(pair[0])),
    Column("shape", lambda pair: pair[1].name, lambda pair: pair[1].name),
    Column("of requests", lambda pair: format_weight(pair[1].weight), lambda pair: pair[1].weight, align="right"),
    Column(
        "done", lambda pair: f"{pair[1].completed}/{pair[1].offered}", lambda pair: pair[1].completed, align="right"
    ),
    _figure_of_shape("p50 ms", 0.5, lambda shape: shape.p50_ms),
    _figure_of_shape("p99", 0.99, lambda shape: shape.p99_ms),
)


def list_load(document: LoadDocument, pictures: Sequence[Chart] = ()) -> list[Section]:
    lines = [f"{format_row(row)}: {format_capacity(row.capacity)}" for row in document.rows if row.capacity]
    lines += format_verdicts(document)
    if not lines:
        lines += _format_highest(document)
    lines += (*_format_stages(document), *_format_seconds(document))
    device = next((row.engine.device for row in document.rows), "cpu")
    machine = name_machine(document.machine, device) if document.machine else ""
    mix = format_mix(document.rows[0].engine.traffic) if document.rows else ""
    facts = document.model, f"scenario {document.scenario}", mix, machine, format_time(document.started_utc)
    warnings = make_notes(list_load_warnings(document), "list")
    return [
        Section(title=" · ".join(filter(None, facts)), parts=tuple(make_notes(lines))),
        *([Section(title="Charts", name="pictures", parts=tuple(pictures))] if pictures else []),
        *_list_rows(document),
        *([Section(title="Warnings", name="warnings", parts=tuple(warnings))] if warnings else []),
    ]


def _format_highest(document: LoadDocument) -> Iterator[str]:
    """Format p99 of each configuration at its highest rate."""
    for row in document.rows:
        points = [point for point in document.points if point.row == row.id and _take_rate(point)]
        if not points:
            continue
        highest = max(points, key=lambda point: _take_rate(point) or 0.0)
        p99 = _show_figure(highest, "p99_ms")
        if " " not in p99:  # else it has a unit of its own
            p99 += " ms"
        yield f"{format_row(row)}: p99 {p99} at {format_digits(_take_rate(highest))} requests a second"


def _format_seconds(document: LoadDocument) -> Iterator[str]:
    """Format the time that the search for a capacity took of its budget, and that of the preparation."""
    settings = document.settings
    if settings and settings.find_capacity and document.preparation_s is not None:
        spent_s = sum(point.seconds for point in (*document.pilots, *document.points))
        before = f"loading the model and building engines took {document.preparation_s:.1f} s before that"
        yield f"The search took {spent_s:.1f} of {settings.time_budget_s:g} s, engine starts included; {before}."


def _format_stages(document: LoadDocument) -> Iterator[str]:
    """Format the bottleneck of each configuration, at the highest rate that its limit allows, and what to change."""
    for row in document.rows:
        highest = row.capacity.passes_qps if row.capacity else None
        rates = [(_take_rate(p) or 0.0, p) for p in document.points if p.row == row.id and p.stages]
        rates = [(rate, p) for rate, p in rates if highest is None or rate <= highest]
        if rates:
            rate, point = max(rates, key=itemgetter(0))
            name = find_busiest(point) or ""
            others = ", ".join(f"{part} {share:.0%}" for part, share in point.stages.items() if part != name)
            share = point.stages[name]
            servers = {"generator": 1, "feeders": point.feeders}.get(name, len(row.devices) or 1)
            each = choose_unit([ms := 1e3 * share * servers / (point.achieved_per_s or rate or float("inf"))])
            cost = f"{format_digits(ms * UNITS_PER_MS[each], '-')} {each} a request"
            verb = "are" if name == "feeders" else "is"
            busy = f"{name} {verb} the bottleneck, busy {share:.0%} of the time, {cost} ({others}). {CHANGES[name]}."
            if name == "compute" and (point.batch or row.max_batch) < LIMITING_SHARE * row.max_batch:
                fill = f"in batches of {format_digits(point.batch, '-')} on average, at most {row.max_batch}"
                busy = f"{name} is busy {share:.0%} of the time ({others}), {fill}: more requests fill them."
            if share < LIMITING_SHARE:
                busy = f"no bottleneck: no part is busy for half of the time ({name} {share:.0%}, {others})."
            yield f"{format_row(row)}: at {format_digits(rate, '-')} requests a second {busy}"


# A part that is at work for less than half of the time is not what a service waits for.
LIMITING_SHARE = 0.5
# What carries more where a part limits. Batcher and host are the server's own Python: between batches, and in a copy of
# each request to where the GPU takes it from, with the launch of its batch.
CHANGES = {
    "generator": "Leave it a core of its own: fewer --threads, or fewer --streams",
    "feeders": "Fewer bytes need less of them: --input-dtype uint8, a smaller --input-size; or leave them more cores",
    "batcher": "Fewer and larger batches need less of it: raise --max-batch, or --max-wait-ms",
    "host": "Fewer bytes and launches need less of it: --input-dtype uint8, a larger --max-batch, a second GPU",
    "copy in": "Fewer bytes need less of it: --input-dtype uint8, a smaller --input-size",
    "compute": "Try a larger --max-batch, a lower --precision, another engine or device, or `tune --goal capacity`",
    "copy out": "Let the model return less, for example its best classes alone",
}


def _list_rows(document: LoadDocument) -> Iterator[Section]:
    """A table of the points of each configuration, or why there are none or no more."""
    for row in document.rows:
        points = [point for point in document.points if point.row == row.id]
        reason = f"{'Ended early' if points else 'Not measured'}: {row.reason}"
        notes = make_notes([reason]) if row.reason else []
        tables = [make_table(COLUMNS, points, file=row.id)] if points else []
        shapes = [(point, shape) for point in points for shape in point.by_shape]
        tables += [make_table(SHAPE_COLUMNS, shapes, file=f"{row.id}-shapes", title="By shape")] if shapes else []
        yield Section(title=format_row(row), name=slug(row.id), parts=(*notes, *tables))


def _take_rate(point: LoadPoint) -> float | None:
    return point.qps if point.qps is not None else point.achieved_per_s


def format_capacity(capacity: Capacity) -> str:
    limit = f"p{capacity.percentile:g} of at most {capacity.limit_ms:g} ms"
    why = {"settled": "", "budget": " (the search was ended before the ends met)", "nothing passes": ""}[capacity.ended]
    if capacity.suspect:
        why += "; probes that it rests on were disturbed: see the warnings"
    if capacity.passes_qps is None:
        lowest = (
            f"; it fails at {format_digits(capacity.fails_qps, '-')} requests a second" if capacity.fails_qps else ""
        )
        return f"no rate that was tried meets {limit}{lowest}{why}."
    fails = (
        f"fails at {format_digits(capacity.fails_qps, '-')}" if capacity.fails_qps else "no rate that was tried fails"
    )
    votes = [probe.passed for probe in capacity.probes if probe.qps == capacity.passes_qps]
    often = "" if all(votes) else f" (in {sum(votes)} of {len(votes)} probes)"
    return f"passes at {format_digits(capacity.passes_qps, '-')} requests a second{often}, {fails}: {limit}{why}."


def format_verdicts(document: LoadDocument) -> Iterator[str]:
    names = {row.id: format_row(row) for row in document.rows}
    for verdict in document.verdicts:
        ratio = verdict.ratio
        between = f" ({ratio.low:.3f} to {ratio.high:.3f})" if ratio and ratio.low and ratio.high else ""
        times = f": {ratio.value:.3f} times its capacity{between}" if ratio else ""
        more = f". {verdict.trials_needed} rounds would show it" if verdict.trials_needed else ""
        why = f". {'; '.join(verdict.reasons)}" if verdict.reasons else ""
        verdict_text = format_verdict(verdict.verdict)
        yield f"{names[verdict.candidate]} against {names[verdict.base]}: {verdict_text}{times}{why}{more}."


def list_load_warnings(document: LoadDocument) -> Iterator[str | tuple[str, str]]:
    """(who has it, the sentence) of every warning; those that differ in their numbers alone are one."""
    every = {row.id: (format_row(row), "") for row in document.rows}
    noted = [(point.row, point.warnings) for point in document.points]
    for having, text, _ in gather_notes(noted):
        points = sum(row in having for row, _ in noted)
        few = f"{len(having)} of {points} points" if len(having) < points else ""
        yield ", ".join(filter(None, (name_having(having, every), few))), text
    yield from (text for _, text, _ in gather_notes([("", document.warnings)]))


Named: TypeAlias = Sequence[tuple[str, LoadPoint]]  # with the name of its configuration
# Quantity of a line -> its dashes; queue and service are means.
KINDS = {"p99": [1, 0], "p50": [6, 3], "queue": [1, 3], "service": [2, 6]}


def draw_load(document: LoadDocument) -> list[Chart]:
    """Every picture for which there are points; none without the scenario `server`."""
    names = {row.id: format_row(row) for row in document.rows}
    points = [(names[point.row], point) for point in document.points if point.qps is not None and point.completed]
    if not points:
        return []
    pictures = (
        (
            "latency",
            "Latency over the rate",
            draw_latency,
            340,
            "p50, p99 and the means of queue and service over requests a second, with limit and capacities",
        ),
        (
            "throughput",
            "Throughput over latency",
            draw_throughput,
            320,
            "completed requests a second over p99, with the Pareto front",
        ),
        (
            "utilisation",
            "Utilisation over the rate",
            draw_utilisation,
            260,
            "fraction of the time in which streams were busy, over requests a second",
        ),
    )
    alt = import_altair()
    # One colour a configuration, the same in every picture.
    scale = alt.Scale(domain=list(names.values()), range=[PALETTE[i % len(PALETTE)] for i in range(len(names))])
    charts = []
    for name, title, draw, height, shows in pictures:
        chart, subtitle = draw(document, points, alt.Color("row:N", scale=scale, title=None))
        chart = chart.configure_legend(labelColor=GREY, orient="bottom", columns=2, labelLimit=330)
        spec = finish(chart, f"{document.model}: {title[0].lower()}{title[1:]}", subtitle, height)
        charts.append(Chart(name=f"load_{name}", title=title, description=shows, spec=spec))
    return charts


def draw_latency(document: LoadDocument, points: Named, colour: Any) -> tuple[Any, str]:
    """Latency over the rate, all configurations in one picture; bands from the rate that passes to that which fails."""
    alt = import_altair()
    x = alt.X("qps:Q", title="requests a second", scale=alt.Scale(zero=False))
    y = alt.Y("median(ms):Q", title="ms, log axis", scale=alt.Scale(type="log"))
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())), title=None)
    base = chart_rows(list(list_latencies(points))).encode(x=x, color=colour)
    layers = [base.mark_line(point=True).encode(y=y, strokeDash=dash)]
    bands = [
        {"from": row.capacity.passes_qps, "to": row.capacity.fails_qps, "row": format_row(row)}
        for row in document.rows
        if row.capacity and row.capacity.passes_qps and row.capacity.fails_qps
    ]
    if bands:
        layers.append(chart_rows(bands).mark_rect(opacity=0.25).encode(x="from:Q", x2="to:Q", color=colour))
    subtitle = "queue and service are means"
    if document.limit_ms is not None:
        limit = chart_rows([{"ms": document.limit_ms}])
        layers.append(limit.mark_rule(color=ORANGE, strokeDash=[4, 4]).encode(y="ms:Q"))
        subtitle += f"; dashed: the limit of {document.limit_ms:g} ms on p{document.percentile:g}; bands: capacities"
    return alt.layer(*layers), subtitle


def list_latencies(points: Named) -> Iterator[Point]:
    """List a record for each line and point; a mean of zero has no position on a log axis."""
    for name, point in points:
        values = {"p99": point.p99_ms, "p50": point.p50_ms, "queue": point.queue_ms, "service": point.service_ms}
        for kind, value in values.items():
            if value:
                yield {"row": name, "kind": kind, "qps": point.qps, "ms": value}


def draw_throughput(document: LoadDocument, points: Named, colour: Any) -> tuple[Any, str]:
    """Draw completed requests a second over p99, and the Pareto line over all configurations."""
    alt = import_altair()
    shown = [
        {"row": name, "p99": p.p99_ms, "rate": p.achieved_per_s, "validity": p.validity}
        for name, p in points
        if p.p99_ms and p.achieved_per_s
    ]
    x = alt.X("p99:Q", title="p99 (ms), log axis", scale=alt.Scale(type="log"))
    y = alt.Y("rate:Q", title="completed requests a second", scale=alt.Scale(zero=False))
    dots = chart_rows(shown).mark_point(filled=True, size=45).encode(x=x, y=y, color=colour)
    line = chart_rows(find_front(shown, itemgetter("p99", "rate"))).mark_line(
        color=GREY, strokeDash=[4, 3], interpolate="step-after"
    )
    return alt.layer(line.encode(x=x, y=y), dots), "dashed: the highest rate of any configuration within that p99"


def draw_utilisation(document: LoadDocument, points: Named, colour: Any) -> tuple[Any, str]:
    """Draw how busy the streams were; crosses mark points that Little's law or the generator makes suspect."""
    alt = import_altair()
    shown = [
        {"row": name, "qps": p.qps, "busy": p.utilisation, "validity": p.validity}
        for name, p in points
        if p.utilisation is not None
    ]
    x = alt.X("qps:Q", title="requests a second", scale=alt.Scale(zero=False))
    axis, scale = alt.Axis(format="%"), alt.Scale(domainMin=0)
    y = alt.Y("busy:Q", title="fraction of the time busy", axis=axis, scale=scale)
    base = chart_rows(shown).encode(x=x, y=y, color=colour)
    dots = base.transform_filter("datum.validity == 'valid'").mark_point(filled=True, size=45)
    crosses = base.transform_filter("datum.validity != 'valid'").mark_point(shape="cross", size=60)
    subtitle = "crosses: suspect, because the queue was not steady (Little's law) or the generator late"
    return alt.layer(dots, crosses), subtitle
