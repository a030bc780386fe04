"""Charts as Vega-Lite specifications: one function a picture, with its data inside, for PNG and for HTML pages.

Data is thinned before it goes into a specification: a million queries become a few hundred marks. A channel is an
object of altair's, `alt.X("ms:Q")`, never a text: for a text altair hashes all of its schema.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from enginebench.core.errors import ArtifactError, BackendUnavailable, explaining, importing
from enginebench.core.precisions import REORDER
from enginebench.core.records import LayerTime
from enginebench.core.store import find_cache, write_atomic
from enginebench.core.text import clean_text, clean_texts, count_of
from enginebench.report.layer_names import fold_names
from enginebench.report.numbers import format_significant
from enginebench.stats.profile import sort_layers, sum_layers_ns

Spec = dict[str, Any]
Point = dict[str, Any]

INSTALL = 'pip install "enginebench[report]"'
WIDTH = 680
# Pixels: the mean width of a letter beside a mark.
LETTER = 5.6

# Okabe-Ito colours, which colour-blind readers can distinguish. Source: M. Okabe, K. Ito, "Color Universal Design".
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b7280"
COLOURS = {
    "fp32": "#0072B2",
    "tf32": "#56B4E9",
    "fp16": "#009E73",
    "bf16": "#E69F00",
    "int8": "#D55E00",
    "fp8": "#CC79A7",
    "int4": "#F0E442",
    "other": "#6b7280",
    "overhead": "#b8bdc6",
}
# Of every chart, beside the missing frame; in the form of Vega-Lite's `config`.
LOOK = {
    "font": "Inter, Helvetica, Arial, sans-serif",
    "title": {"fontSize": 15, "subtitleColor": GREY, "subtitleFontSize": 12},
    "axis": {"grid": True, "gridColor": "#e5e7eb", "labelFontSize": 11, "titleFontSize": 12, "titleColor": GREY},
}
_LABEL_LETTERS = 46
_CURE = "Raise the limits of this shell (ulimit -n 1024), or write no pictures (--format html,md,csv)"
# The longest that the bar of all other layers is drawn, in lengths of the slowest layer's.
_REST_LIMIT = 1.1


def import_altair() -> Any:
    with importing("altair, which draws charts,", INSTALL, ImportError):
        import altair
    return altair


class _Lazy:
    """The same, imported when something of it is asked for first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_altair(), name)


alt: Any = _Lazy()


def render_png(spec: Spec, scale: float = 2.0) -> bytes:
    with importing("vl-convert, which renders charts,", INSTALL, ImportError):
        import vl_convert

    # A ValueError is of its converter, which also needs threads and files; below the reason stands its JavaScript.
    def describe(error: ValueError) -> str:
        return " ".join(str(error).splitlines()[:2])

    with explaining(BackendUnavailable, "a picture cannot be drawn", ValueError, describe=describe, cure=_CURE):
        png: bytes = vl_convert.vegalite_to_png(spec, scale=scale)
    return png


def draw_layers(layers: Sequence[LayerTime], title: str, topk: int = 30) -> Spec:
    """Draw the `topk` slowest layers with their fraction of time, and the sum of the others; coloured by precision."""
    bars = list_bars(layers, topk)
    # Ranks are labelled with names, so that equal names keep bars of their own.
    names = f"{json.dumps([bar['name'] for bar in bars], ensure_ascii=True)}[datum.value]"
    axis = alt.Axis(labelExpr=names, labelLimit=330, ticks=False, domain=False, grid=False)
    # Where names leave little room for bars, the title begins under the names.
    ticks = alt.Axis(tickCount=8, labelOverlap=True, titleAnchor="end")
    letters = max((len(bar["label"]) for bar in bars), default=0)
    room = leave_room(max((bar["shown"] for bar in bars), default=0.0), letters)
    x = alt.X("shown:Q", title="ms in one iteration, with the profiler on", axis=ticks, scale=room)
    base = chart_rows([]).encode(y=alt.Y("rank:O", title=None, axis=axis), x=x)
    # With the default verbosity of a build no precision is known: one colour, no legend.
    bar = base.mark_bar(color=BLUE)
    if any(bar["kind"] != "other" for bar in bars):
        present = [kind for kind in COLOURS if any(bar["kind"] == kind for bar in bars)]
        scale = alt.Scale(domain=present, range=[COLOURS[kind] for kind in present])
        legend = alt.Legend(orient="top")
        bar = base.mark_bar().encode(color=alt.Color("kind:N", scale=scale, title=None, legend=legend))
    text = base.mark_text(align="left", dx=4, color=GREY).encode(text=alt.Text("label:N"))
    subtitle = f"{count_of(len(layers), 'layers')}, {format_significant(sum_layers_ns(layers) / 1e6, 4)} ms"
    spec = finish(alt.layer(bar, text), title, subtitle, height=18 * max(len(bars), 4))
    return spec | {"data": {"values": bars}}  # put in last: altair would copy and check each number


def leave_room(longest: float, letters: int) -> Any:
    """The scale of bars that leaves room for the text behind the longest, whatever the width of the picture."""
    room = round(LETTER * letters) + 16
    if not 0 < longest < math.inf:
        return alt.Scale()
    end = alt.expr(f"{longest!r} * width / max(width - {room}, {room})")
    return alt.Scale(domainMin=0, domainMax=end, nice=False)


def list_bars(layers: Sequence[LayerTime], topk: int) -> list[Point]:
    """A row for each of the slowest layers, and one for all others."""
    ordered, total_ns = sort_layers(layers), sum_layers_ns(layers)
    names = fold_names([layer.name for layer in ordered[:topk]])
    kinds = {precision: precision for precision in COLOURS} | {REORDER: "overhead"}
    rows = [
        (shorten_name(name), layer.mean_ns, kinds.get(layer.precision or "", "other"))
        for layer, name in zip(ordered, names, strict=False)
    ]
    if rest := ordered[topk:]:
        rows.append((f"({len(rest)} more layers)", sum_layers_ns(rest), "other"))
    # The sum of many small layers would dwarf the layers that the picture is about.
    limit_ns = _REST_LIMIT * max((time_ns for _, time_ns, _ in rows[:topk]), default=0.0)
    bars = []
    for rank, (name, time_ns, kind) in enumerate(rows):
        share = f"{time_ns / total_ns:.1%}" if total_ns else ""
        cut = rank >= topk and time_ns > limit_ns
        label = f"{share}, bar cut off" if cut else share
        times = {"ms": time_ns / 1e6, "shown": (limit_ns if cut else time_ns) / 1e6}
        bars.append({"rank": rank, "name": name, **times, "kind": kind, "label": label})
    return bars


def chart_rows(rows: list[Point]) -> Any:
    """Make a chart over rows that are part of the specification."""
    return alt.Chart(alt.Data(values=rows))


def shorten_name(name: str, letters: int = _LABEL_LETTERS) -> str:
    """Shorten a name to fit beside a bar, by leaving out its middle."""
    name = clean_text(name)
    if len(name) <= letters:
        return name
    head = (letters - 1) // 2
    return f"{name[:head]}…{name[-(letters - 1 - head) :]}"


def finish(chart: Any, title: str, subtitle: str, height: int) -> Spec:
    """Return the specification of a chart with title, size and the look that all charts share."""
    return style_chart(chart.properties(width=WIDTH, height=height), title, subtitle)


def style_chart(chart: Any, title: str, subtitle: str) -> Spec:
    """Return the specification of a chart, also of one in panels, with title and the look that all charts share."""
    # Tests hold every kind of chart against the schema; here that would cost more than drawing. What all charts share
    # is put in last: each step of altair's copies all that was there before.
    spec: Spec = chart.to_dict(validate=False)
    config = spec.get("config", {})
    heading = {"text": title, "subtitle": subtitle, "anchor": "start", "offset": 10}
    # Whatever names came from: a control character in a specification ends the process that renders it.
    cleaned: Spec = clean_texts(spec | {"title": heading})
    return cleaned | {
        "padding": 12,
        "background": "white",
        "config": config | LOOK | {"view": config.get("view", {}) | {"stroke": None}},
    }


# What the page calls; the rest of the bundle stays out of the global scope.
_SNIPPET = "window.vegaEmbed = vegaEmbed;"
# Its last line in the cache: a file that was cut has none.
_END = "\n// end of the chart bundle\n"


def load_vega() -> str:
    """Load Vega, Vega-Lite and Vega-Embed as JavaScript that defines `vegaEmbed`."""
    with importing("vl-convert, which holds the charts' JavaScript,", INSTALL, ImportError):
        import vl_convert
    path = bundle_path(find_cache())
    with suppress(OSError, UnicodeDecodeError):
        if (stored := path.read_text(encoding="utf-8")).endswith(_END):
            return stored  # a file that another program cut or emptied is made again
    bundle: str = vl_convert.javascript_bundle(snippet=_SNIPPET) + _END
    with suppress(ArtifactError):
        write_atomic(path, bundle.encode())
    return bundle


def bundle_path(cache: Path) -> Path:
    return cache / f"vega-{version('vl-convert-python')}.js"
