"""Charts of a load: latency over the rate, throughput over latency, and how busy the streams were."""

from collections.abc import Iterator, Sequence
from typing import Any

from enginebench.features.load.document import LoadDocument, describe_row
from enginebench.report.charts import GREY, ORANGE, Row, Spec, finish, import_altair, read_rows
from enginebench.report.run.charts import PALETTE
from enginebench.report.table import Chart
from enginebench.stats.queueing import LoadPoint

# What a line stands for, and how it is drawn; queue and service are means.
KINDS = {"p99": [1, 0], "p50": [6, 3], "queue": [1, 3], "service": [2, 6]}


def draw_load(document: LoadDocument) -> list[Chart]:
    """Every picture for which there are points; none without the scenario `server`."""
    points = [point for point in document.points if point.qps is not None and point.completed]
    if not points:
        return []
    pictures = (
        ("latency", "Latency over the rate", draw_latency,
         "p50, p99 and the means of queue and service over requests a second, with limit and capacities"),
        ("throughput", "Throughput over latency", draw_throughput,
         "completed requests a second over p99, with the Pareto front"),
        ("utilisation", "Utilisation over the rate", draw_utilisation,
         "fraction of the time in which streams were at work over requests a second"),
    )  # fmt: skip
    return [
        Chart(name=f"load_{name}", title=title, description=shows, spec=draw(document, points))
        for name, title, draw, shows in pictures
    ]


def draw_latency(document: LoadDocument, points: Sequence[LoadPoint]) -> Spec:
    """Latency over the rate, all configurations in one picture; bands from the rate that passes to that which fails."""
    alt = import_altair()
    x = alt.X("qps:Q", title="requests a second", scale=alt.Scale(zero=False))
    y = alt.Y("median(ms):Q", title="ms, log axis", scale=alt.Scale(type="log"))
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=list(KINDS), range=list(KINDS.values())), title=None)
    base = read_rows(list(list_latencies(document, points))).encode(x=x, color=colour_rows(document))
    layers = [base.mark_line(point=True).encode(y=y, strokeDash=dash)]
    bands = [
        {"from": row.capacity.passes_qps, "to": row.capacity.fails_qps, "row": describe_row(row)}
        for row in document.rows
        if row.capacity and row.capacity.passes_qps and row.capacity.fails_qps
    ]
    if bands:
        layers.append(
            read_rows(bands).mark_rect(opacity=0.25).encode(x="from:Q", x2="to:Q", color=colour_rows(document))
        )
    if document.limit_ms is not None:
        limit = read_rows([{"ms": document.limit_ms}])
        layers.append(limit.mark_rule(color=ORANGE, strokeDash=[4, 4]).encode(y="ms:Q"))
    subtitle = "queue and service are means"
    if document.limit_ms is not None:
        subtitle += f"; dashed: the limit of {document.limit_ms:g} ms on p{document.percentile:g}; bands: capacities"
    return finish(style_legend(alt.layer(*layers)), f"{document.model}: latency over the rate", subtitle, height=340)


def list_latencies(document: LoadDocument, points: Sequence[LoadPoint]) -> Iterator[Row]:
    """A row for each line and point; a mean of zero has no place on a log axis."""
    names = {row.id: describe_row(row) for row in document.rows}
    for point in points:
        values = {"p99": point.p99_ms, "p50": point.p50_ms, "queue": point.queue_ms, "service": point.service_ms}
        for kind, value in values.items():
            if value:
                yield {"row": names[point.row], "kind": kind, "qps": point.qps, "ms": value}


def draw_throughput(document: LoadDocument, points: Sequence[LoadPoint]) -> Spec:
    """Answered requests a second over p99, and the Pareto line over all configurations."""
    alt = import_altair()
    names = {row.id: describe_row(row) for row in document.rows}
    shown = [
        {"row": names[p.row], "p99": p.p99_ms, "rate": p.achieved_per_s, "validity": p.validity}
        for p in points
        if p.p99_ms and p.achieved_per_s
    ]
    x = alt.X("p99:Q", title="p99 (ms), log axis", scale=alt.Scale(type="log"))
    y = alt.Y("rate:Q", title="completed requests a second", scale=alt.Scale(zero=False))
    dots = read_rows(shown).mark_point(filled=True, size=45).encode(x=x, y=y, color=colour_rows(document))
    line = read_rows(find_frontier(shown)).mark_line(color=GREY, strokeDash=[4, 3], interpolate="step-after")
    chart = alt.layer(line.encode(x=x, y=y), dots)
    subtitle = "dashed: the highest rate of any configuration within that p99"
    return finish(style_legend(chart), f"{document.model}: throughput over latency", subtitle, height=320)


def find_frontier(points: Sequence[Row]) -> list[Row]:
    """The points that no other beats in both, by p99."""
    best: list[Row] = []
    for point in sorted(points, key=lambda p: (p["p99"], -p["rate"])):
        if not best or point["rate"] > best[-1]["rate"]:
            best.append(point)
    return best


def draw_utilisation(document: LoadDocument, points: Sequence[LoadPoint]) -> Spec:
    """How busy the streams were; crosses where Little's law or the generator makes a point suspect."""
    alt = import_altair()
    names = {row.id: describe_row(row) for row in document.rows}
    shown = [
        {"row": names[p.row], "qps": p.qps, "busy": p.utilisation, "validity": p.validity}
        for p in points
        if p.utilisation is not None
    ]
    base = read_rows(shown).encode(
        x=alt.X("qps:Q", title="requests a second", scale=alt.Scale(zero=False)),
        y=alt.Y(
            "busy:Q", title="fraction of the time at work", axis=alt.Axis(format="%"), scale=alt.Scale(domainMin=0)
        ),
        color=colour_rows(document),
    )
    dots = base.transform_filter("datum.validity == 'valid'").mark_point(filled=True, size=45)
    crosses = base.transform_filter("datum.validity != 'valid'").mark_point(shape="cross", size=60)
    subtitle = "crosses: suspect, because the queue was not steady (Little's law) or the generator late"
    return finish(
        style_legend(alt.layer(dots, crosses)), f"{document.model}: utilisation over the rate", subtitle, height=260
    )


def colour_rows(document: LoadDocument) -> Any:
    """One colour a configuration, the same in every picture."""
    alt = import_altair()
    names = [describe_row(row) for row in document.rows]
    scale = alt.Scale(domain=names, range=[PALETTE[i % len(PALETTE)] for i in range(len(names))])
    return alt.Color("row:N", scale=scale, title=None)


def style_legend(chart: Any) -> Any:
    """The legend below the picture."""
    return chart.configure_legend(labelColor=GREY, orient="bottom", columns=2, labelLimit=330)
