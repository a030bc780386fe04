"""The charts of a run as Vega-Lite specifications, for PNG files and for the page, made from stored results.

Every chart hides the configurations whose labels are in its parameter `hidden`: the page's filter sets it.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from enginebench.core.records import Result
from enginebench.report.charts import COLOURS, GREY, WIDTH, Point, Spec, alt, draw_layers, finish, style_chart
from enginebench.report.run.columns import SPEED_UP
from enginebench.report.run.life import PHASES, follow_lives, list_starts
from enginebench.report.run.rows import RunDocument, name_items
from enginebench.report.run.series import (
    bin_rows,
    follow_batches,
    follow_rows,
    label_rows,
    list_file_stages,
    list_proofs,
    list_speedups,
    list_stage_medians,
    place_quality,
    trace_rows,
)
from enginebench.report.table import Chart
from enginebench.stats.stages import StagesDocument

_TOP_LAYERS = 30
_PANEL = 44
# A bar and the space around it.
_BAR = 24
# The height of a picture of points.
_SCATTER = 300
# Of the tail axis, which is even in the logarithm of how rare slower calls are.
_PERCENTILES = {0: "min", round(math.log10(2), 4): "p50", 1: "p90", 2: "p99", 3: "p99.9"}
_SHOWN = "indexof(hidden, datum.row) < 0"
# Picture -> the part of a page in which it stands, its title, what it shows.
_PICTURES = {
    "speedup": ("speedup", "Speed-up", ""),
    "pareto": ("quality", "", ""),
    "throughput": (
        "batches",
        "Latency against throughput",
        "Lines of p50 latency over throughput, one for each engine, a point for each batch.",
    ),
    "latency_hist": (
        "distributions",
        "Histograms",
        "Histograms of latencies, one per configuration, on a shared logarithmic axis; trial medians marked.",
    ),
    "percentiles": (
        "distributions",
        "Percentiles",
        "Latency of each configuration from its fastest call over p50, p90 and p99 to p99.9.",
    ),
    "latency_over_time": (
        "drift",
        "Latency over time",
        "Latency relative to its median over all trials, one panel per configuration: drift, throttling.",
    ),
    "break_even": (
        "life",
        "Break-even",
        "The time of a new process over its number of calls, a line for each configuration: the lowest one leads.",
    ),
    "starts": ("life", "Start", "Stacked bars of the start of a process: import, load, first run."),
    "stages": ("stages", "Stages", "Stacked bars of the time of each stage, a bar for each configuration."),
    "precision": ("proof", "Precision by time", "Stacked bars: fraction of time in each precision, by configuration."),
}


class _Drawn(Struct):
    """The points for charts of samples, collected so that no samples are kept."""

    histogram: tuple[list[Point], list[Point]]
    percentiles: tuple[list[Point], list[Point]]
    drift: list[Point] = []
    referenced: bool = False
    stages: list[Point] = []

    def add(self, result: Result, labels: Mapping[str, str]) -> None:
        for kept, series in zip(self.histogram, bin_rows([result], labels), strict=True):
            kept += series
        for kept, series in zip(self.percentiles, follow_rows([result], labels), strict=True):
            kept += series
        points, referenced = trace_rows([result], labels)
        self.drift += points
        self.referenced |= referenced
        self.stages += list_stage_medians([result], labels)


def draw_run(
    document: RunDocument,
    results: Sequence[Result],
    stages: Sequence[StagesDocument] = (),
    read: Callable[[Result], Result] = lambda result: result,
) -> list[Chart]:
    """Draw every chart for which there is data, in the order of the page.

    Args:
        read: returns the configuration with its samples; those of one configuration at a time are held.
    """
    labels = label_rows(document)
    labelled = [result for result in results if result.id in labels]
    points = _Drawn(histogram=([], []), percentiles=([], []))
    for result in labelled:
        points.add(read(result), labels)
    drawn: list[tuple[Callable[..., Chart], tuple[Any, ...]]] = [
        (_draw_speedups, (list_speedups(document, labels),)),
        (_draw_batches, (follow_batches(document, labels), name_items(document.rows))),
        (draw_histogram, points.histogram),
        (draw_percentiles, points.percentiles),
        (_draw_drift, (points.drift, points.referenced)),
        (_draw_quality, (*place_quality(document, labels), name_items(document.rows))),
        (_draw_lives, (follow_lives(document, labels),)),
        (_draw_starts, (list_starts(document, labels),)),
        (_draw_stages, ([*points.stages, *list_file_stages(stages)],)),
    ]
    charts = []
    for draw, arguments in drawn:
        least = 2 if draw in (_draw_speedups, _draw_quality) else 1  # these two compare configurations
        if len(arguments[0]) >= least:
            charts.append(draw(*arguments))
    charts += _draw_layers(labelled, labels, document.fastest.id if document.fastest else "")
    if proofs := list_proofs(document, labels):
        charts.append(_draw_proofs(proofs))
    return charts


def _make(name: str, spec: Spec, *, title: str = "", description: str = "", **datasets: list[Point]) -> Chart:
    """Make the chart with its parameter; data is added last, since altair would check each number."""
    section, usual, shows = _PICTURES[name]
    spec = spec | {"datasets": datasets, "params": [*spec.get("params", []), {"name": "hidden", "value": []}]}
    return Chart(name=name, section=section, title=title or usual, description=description or shows, spec=spec)


def _draw_speedups(points: list[Point]) -> Chart:
    y = alt.Y("row:N", sort=None, title=None, axis=_label_bars(domain=False))
    x = alt.X("speedup:Q", title="times as fast as the baseline, log axis", scale=alt.Scale(type="log", padding=30))
    base = _read("speedups").encode(y=y, color=_colour_precisions(points))
    tooltip = _tips(row="row", verdict="verdict", speedup=SPEED_UP, low="95% from", high="to")
    rules = base.mark_rule(strokeWidth=4).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"))
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(x=x, tooltip=tooltip)
    texts = base.mark_text(dy=-11).encode(x=x, text=alt.Text("text:N"), color=alt.value(GREY))
    one = alt.Chart(alt.Data(values=[{"one": 1}])).mark_rule(strokeDash=[4, 3], color=GREY).encode(x=alt.X("one:Q"))
    subtitle = "ratio of medians of paired trials; lines are 95% intervals; dashed: the baseline"
    spec = finish(alt.layer(one, rules, dots, texts), "Speed-up", subtitle, height=_fit_rows(points, least=3))
    best = max(points, key=lambda p: p["speedup"])
    description = f"Speed-up of {len(points)} configurations; the highest is {best['row']}, {best['text']}."
    return _make("speedup", spec, description=description, speedups=points)


def _draw_batches(points: list[Point], items: str) -> Chart:
    tooltip = _tips(engine="engine", batch="batch", per_s=f"{items}/s", p50_ms="p50 (ms)", p99_ms="p99 (ms)")
    base = _read("batches").encode(
        x=alt.X("per_s:Q", title=f"{items} per second", scale=alt.Scale(type="log")),
        y=alt.Y("p50_ms:Q", title="p50 latency (ms)", scale=alt.Scale(type="log")),
        color=_colour_rows("engine"),
    )
    line = base.mark_line().encode(detail=alt.Detail("engine:N"), order=alt.Order("batch:Q"))
    dots = base.mark_point(filled=True, size=60, opacity=1).encode(tooltip=tooltip)
    texts = base.mark_text(dy=-10, fontSize=10).encode(text=alt.Text("text:N"))
    spec = finish(alt.layer(line, dots, texts), "Latency against throughput", "numbers are batch sizes", height=300)
    return _make("throughput", spec, batches=points)


def draw_histogram(bars: list[Point], medians: list[Point]) -> Chart:
    """Draw the distribution of times, a panel for each configuration; the median of each trial is marked."""
    scale = alt.Scale(type="log", nice=False)
    x = alt.X("from:Q", title="latency (ms), log axis", scale=scale, axis=alt.Axis(tickCount=8, format="~g"))
    bar = (
        alt.Chart()
        .mark_rect(color=COLOURS["fp32"])
        .encode(
            x=x,
            x2=alt.X2("to:Q"),
            y=alt.Y("calls:Q", title=None, axis=None, scale=alt.Scale(zero=True)),
            y2=alt.datum(0),
            tooltip=_tips(**{"row": "row", "from": "from (ms)", "to": "to (ms)", "calls": "calls"}),
        )
    )
    height = _find_panel(medians)
    # The height of a tick is half of the panel: bars stay visible behind it.
    tick = alt.Chart().mark_tick(color=COLOURS["int8"], thickness=1.5, height=height // 2)
    tick = tick.encode(
        x=alt.X("ms:Q", scale=scale),
        y=alt.value(height - height // 4),
        tooltip=_tips(row="row", trial="trial", ms="median (ms)"),
    )
    # Layers of different data can be in panels only as one table: the rows of both, distinguished by their fields.
    layers = alt.layer(bar.transform_filter("isValid(datum.calls)"), tick.transform_filter("isValid(datum.trial)"))
    spec = _draw_panels(
        layers,
        "samples",
        medians,
        "Latency distributions",
        f"all calls up to p99.9; orange: the median of each trial{_format_thinned(medians)}",
        same_height=False,
    )
    return _make("latency_hist", spec, samples=[*bars, *medians])


def draw_percentiles(curves: list[Point], thin: list[Point]) -> Chart:
    """Draw time by percentile, the tail stretched: each tick to the right of the median is a tenfold rarer call."""
    axis = alt.Axis(values=[*_PERCENTILES], labelExpr=f"({json.dumps(_PERCENTILES)})[datum.value]")
    x = alt.X("rarity:Q", title="percentile", axis=axis)
    y = alt.Y("ms:Q", title="latency (ms), log axis", scale=alt.Scale(type="log", nice=False, padding=8))
    lines = _read("curves").encode(x=x, y=y, color=_colour_rows("row"))
    each = _read("thin").encode(x=x, y=y, color=_colour_rows("row"))
    each = each.mark_line(strokeWidth=0.7, opacity=0.35, interpolate="step-before").encode(
        detail=[alt.Detail("row:N"), alt.Detail("line:N")]
    )
    tooltip = [
        alt.Tooltip("row:N"),
        alt.Tooltip("share:N", title="calls no slower"),
        alt.Tooltip("ms:Q", title="ms", format=".5~g"),
    ]
    thick = lines.mark_line(strokeWidth=2.2, interpolate="step-before")
    hover = lines.transform_calculate(share="format(100 - 100 / pow(10, datum.rarity), '.4~g') + ' %'")
    hover = hover.mark_point(opacity=0, size=60).encode(tooltip=tooltip)
    each_one = f"; thin: each trial{_format_thinned(thin)}" if thin else ""
    subtitle = f"thick: all calls, nearest rank{each_one}"
    spec = finish(alt.layer(each, thick, hover), "Percentiles up to p99.9", subtitle, height=360)
    return _make("percentiles", spec, curves=curves, thin=thin)


def _find_panel(points: Sequence[Point]) -> int:
    """Return the height of each panel: a single one has the room of many."""
    return _PANEL if len({point["row"] for point in points}) > 1 else 5 * _PANEL


def _format_thinned(points: list[Point]) -> str:
    lines = len({(p["row"], p.get("line", p.get("trial"))) for p in points})
    rows = len({p["row"] for p in points})
    return f" (the first {lines // rows} of each configuration)" if rows and lines // rows >= 20 else ""


def _draw_drift(points: list[Point], referenced: bool) -> Chart:
    x = alt.X("at:Q", title="trial (fresh process)", scale=alt.Scale(nice=False), axis=alt.Axis(tickMinStep=1))
    y = alt.Y("relative:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(format=".0%", tickCount=3))
    tooltip = _tips(row="row", what="of", relative="relative to the median", ms="ms", marks="seen")
    base = alt.Chart().encode(x=x, y=y)
    line = base.transform_filter("datum.what == 'latency'").mark_line(color=COLOURS["fp32"], strokeWidth=1.2)
    reference = base.transform_filter("datum.what != 'latency'").mark_line(
        color=GREY, strokeDash=[3, 2], point=alt.OverlayMarkDef(size=14, color=GREY)
    )
    marked = base.transform_filter("isValid(datum.marks)").mark_point(
        color=COLOURS["int8"], filled=True, size=34, opacity=1
    )
    hover = base.mark_point(opacity=0, size=40).encode(tooltip=tooltip)
    layers = alt.layer(line.encode(detail=alt.Detail("line:N")), reference.encode(tooltip=tooltip), marked, hover)
    also = "; grey: the fixed reference kernel, which shows the machine alone" if referenced else ""
    subtitle = f"medians of neighbouring calls over the overall median; orange: disturbed blocks{also}"
    spec = _draw_panels(layers, "series", points, "Latency over time", subtitle, same_height=True)
    return _make("latency_over_time", spec, series=points)


def _draw_quality(points: list[Point], quality: str, items: str) -> Chart:
    x = alt.X(
        "per_s:Q", title=f"{items} per second at p50, log axis", scale=alt.Scale(type="log", padding=30, nice=False)
    )
    # Room around a share of 100 % reaches beyond it, where no share lies.
    percent = alt.Axis(format=".2%", labelExpr="datum.value > 1 ? '' : datum.label")
    percent = percent if quality.startswith("top-1") else alt.Axis(format=".6~g")
    y = alt.Y("quality:Q", title=quality, scale=alt.Scale(zero=False, padding=12), axis=percent)
    base = _read("points").encode(x=x, y=y)
    tooltip = _tips(row="row", per_s=f"{items}/s", quality=quality, low="95% from", high="to", precision="precision")
    front = base.transform_filter("datum.pareto").mark_line(color=GREY, strokeDash=[5, 3])
    front = front.encode(detail=alt.Detail("front:N"), order=alt.Order("per_s:Q"))
    rules = (
        base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    )
    dots = base.mark_point(filled=True, size=90, opacity=1).encode(
        color=_colour_precisions(points),
        shape=alt.Shape("pareto:N", legend=None, scale=alt.Scale(domain=[True, False], range=["diamond", "circle"])),
        tooltip=tooltip,
    )
    # Only those that a reader would take: the others show their names to a pointer.
    names = base.transform_filter("datum.pareto").mark_text(dy=-10, baseline="bottom", color=GREY, fontSize=10)
    names = names.encode(text=alt.Text("row:N"))
    fronts = Counter(p["front"] for p in points if p["pareto"])
    where = "on the dashed line" if any(count > 1 for count in fronts.values()) else "with a diamond"
    subtitle = f"no other configuration is both faster and better than those {where}"
    if not fronts:
        subtitle = "none is on the front: it takes valid, measured times and finite outputs"
    spec = finish(alt.layer(front, rules, dots, names), f"Speed against {quality}", subtitle, _SCATTER)
    best = [p["row"] for p in points if p["pareto"]]
    description = f"A point for each configuration. On the Pareto front: {', '.join(best) or 'none'}."
    return _make("pareto", spec, title=f"Speed against {quality}", description=description, points=points)


def _draw_stages(points: list[Point]) -> Chart:
    stages = [p["stage"] for p in sorted(points, key=lambda p: p["order"])]
    colour = alt.Color("stage:N", title=None, sort=list(dict.fromkeys(stages)), legend=alt.Legend(orient="top"))
    x = alt.X("ms:Q", title="p50 of each stage (ms)")
    tooltip = _tips(row="row", stage="stage", ms="p50 (ms)", share="share")
    encoded = {"x": x, "color": colour.scale(range=PALETTE), "order": alt.Order("order:Q"), "tooltip": tooltip}
    spec = _draw_bars("stages", points, "Stages", "where the time goes, without overlap", **encoded)
    return _make("stages", spec, stages=points)


def _draw_lives(points: list[Point]) -> Chart:
    x = alt.X("calls:Q", title="calls of one process", scale=alt.Scale(type="log"))
    y = alt.Y("seconds:Q", title="import to last output (s)", scale=alt.Scale(type="log"))
    lines = (
        _read("lives").mark_line().encode(x=x, y=y, color=_colour_rows("row"), tooltip=_tips(row="row", what="time"))
    )
    spec = finish(lines, "Break-even", "the lowest line takes the least time", height=_SCATTER)
    return _make("break_even", spec, lives=points)


def _draw_starts(points: list[Point]) -> Chart:
    order = alt.Order("order:Q")
    colour = alt.Color("stage:N", title=None, sort=list(PHASES), legend=alt.Legend(orient="top"))
    encoded = {
        "x": alt.X("s:Q", title="median of each phase (s)"),
        "color": colour.scale(range=PALETTE),
        "order": order,
        "tooltip": _tips(row="row", stage="phase", s="time (s)"),
    }
    spec = _draw_bars("starts", points, "Start", "of a new process, files in the page cache", **encoded)
    return _make("starts", spec, starts=points)


def _draw_bars(data: str, points: Sequence[Point], title: str, subtitle: str, **encoded: Any) -> Spec:
    """Draw stacked bars, one for each configuration."""
    y = alt.Y("row:N", sort=None, title=None, axis=_label_bars())
    bars = _read(data).mark_bar(size=_BAR - 4).encode(y=y, **encoded)
    return finish(bars, title, subtitle, height=_fit_rows(points))


def _draw_layers(results: Sequence[Result], labels: dict[str, str], fastest: str) -> list[Chart]:
    """Draw the slowest layers of each profiled configuration; those of the fastest are also a picture file."""
    profiled = [result for result in results if result.layers]
    chosen = next((result.id for result in profiled if result.id == fastest), profiled[0].id if profiled else "")
    return [
        Chart(
            name="per_layer_time" if result.id == chosen else f"per_layer_time_{number}",
            section="layers",
            title=f"Layers of {labels[result.id]}",
            description=f"Bars of the {min(_TOP_LAYERS, len(result.layers))} slowest of {len(result.layers)} layers.",
            spec=draw_layers(result.layers, f"Layers of {labels[result.id]}", _TOP_LAYERS),
            row=labels[result.id],
            picture=result.id == chosen,
        )
        for number, result in enumerate(profiled, start=1)
    ]


def _draw_proofs(points: list[Point]) -> Chart:
    x = alt.X(
        "share:Q", title="fraction of time", axis=alt.Axis(format=".0%"), stack="zero", scale=alt.Scale(nice=False)
    )
    tooltip = _tips(row="row", requested="requested", precision="ran in", share="fraction of time")
    encoded = {"x": x, "color": _colour_precisions(points), "tooltip": tooltip}
    spec = _draw_bars("proofs", points, "Precision verification", "from the runtimes' own records", **encoded)
    return _make("precision", spec, proofs=points)


# Okabe-Ito without black, then Tableau colours that differ from them.
# Source: M. Okabe, K. Ito, "Color Universal Design"; Tableau 10.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
PALETTE += ["#9c755f", "#7f3c8d", "#4e8a00", "#b0264b", "#5f6b7a", "#a58d00"]


def _fit_rows(points: Sequence[Point], least: int = 1) -> int:
    return _BAR * max(len({point["row"] for point in points}), least)


def _label_bars(**more: bool) -> Any:
    return alt.Axis(labelLimit=330, ticks=False, grid=False, **more)


def _colour_rows(field: str) -> Any:
    stroke = {"symbolType": "stroke", "symbolOpacity": 1, "symbolStrokeWidth": 3}
    legend = alt.Legend(orient="bottom", columns=3, labelLimit=300, title=None, **stroke)
    return alt.Color(f"{field}:N", sort=None, scale=alt.Scale(range=PALETTE), legend=legend)


def _colour_precisions(points: Sequence[Point]) -> Any:
    precisions = {point["precision"] for point in points}
    named = [name for name in COLOURS if name in precisions]
    others = sorted(precisions - set(named))
    scale = alt.Scale(domain=[*named, *others], range=[COLOURS[n] for n in named] + [COLOURS["other"]] * len(others))
    return alt.Color("precision:N", scale=scale, title=None, legend=alt.Legend(orient="top"))


def _tips(**titles: str) -> list[Any]:
    """List the fields of a tooltip, in this order."""
    plain = {"row", "verdict", "what", "marks", "stage", "precision", "requested", "engine", "trial", "batch", "calls"}
    return [
        alt.Tooltip(f"{field}:N", title=title)
        if field in plain
        else alt.Tooltip(f"{field}:Q", title=title, format=".1%" if field == "share" else ".5~g")
        for field, title in titles.items()
    ]


def _read(name: str) -> Any:
    return alt.Chart(alt.NamedData(name=name)).transform_filter(_SHOWN)


def _draw_panels(
    layers: Any, data: str, points: Sequence[Point], title: str, subtitle: str, *, same_height: bool
) -> Spec:
    """Draw layers in a panel for each configuration, one below the other, with its label above it."""
    rows = list(dict.fromkeys(point["row"] for point in points))
    header = alt.Header(labelOrient="top", labelAnchor="start", labelPadding=2, title=None, labelLimit=WIDTH)
    faceted = (
        layers.properties(width=WIDTH, height=_find_panel(points), data=alt.NamedData(name=data))
        .facet(row=alt.Row("row:N", sort=rows, header=header), spacing=6)
        .transform_filter(_SHOWN)
        # Rows differ in their number of calls; what is compared across panels is the place on the shared x axis.
        .resolve_scale(y="shared" if same_height else "independent")
    )
    return style_chart(faceted, title, subtitle)
