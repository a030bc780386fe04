"""The picture of a latency budget: its terms stacked, and the speed-up against the rate of the link."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from enginebench.core.errors import UsageError
from enginebench.core.store import write_atomic
from enginebench.report.charts import import_altair, read_rows

WIDTH = 560
TERM_TITLES = {
    "pre": "preprocess",
    "copy_in": "copy in",
    "compute": "compute",
    "copy_back": "copy back",
    "post": "postprocess",
}
# Okabe and Ito's colours, told apart by readers with any colour vision. Source: "Color Universal Design", 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
FORMATS = (".html", ".svg", ".png", ".json")


def save_budget_chart(
    path: Path,
    terms_ms: Mapping[str, float],
    curve: Sequence[tuple[float, float]],
    link_bytes_per_s: float | None = None,
    break_even_bytes_per_s: float | None = None,
) -> None:
    """Writes the picture; the end of `path` says in which format.

    Args:
        path: ends in .html, .svg, .png or .json (the Vega-Lite specification).
        curve: (payload bytes per second, speed-up); empty where there is no link or no baseline.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"picture {path}: expected a name that ends in {', '.join(FORMATS)}")
    alt = import_altair()
    names = [TERM_TITLES.get(name, name) for name in terms_ms]
    rows = [
        {"term": name, "ms": time, "order": i}
        for i, (name, time) in enumerate(zip(names, terms_ms.values(), strict=True))
    ]
    encoded = {
        "x": alt.X("ms:Q", stack="zero", title="milliseconds"),
        "color": alt.Color("term:N", sort=names, scale=alt.Scale(domain=names, range=list(COLOURS)), title=None),
        "order": alt.Order("order:Q"),
        "tooltip": ["term:N", alt.Tooltip("ms:Q", format=".4g")],
    }
    bar = read_rows(rows).mark_bar().encode(**encoded)
    chart = bar.properties(title="One call, term by term", width=WIDTH, height=48)
    if curve:
        marks = {"this link": link_bytes_per_s, "break-even": break_even_bytes_per_s}
        known = {label: rate for label, rate in marks.items() if rate is not None}
        chart = alt.vconcat(chart, _draw_curve(alt, curve, known))
    write_atomic(path, render_chart(chart, path.suffix.lower()))


def _draw_curve(alt: Any, curve: Sequence[tuple[float, float]], marks: Mapping[str, float]) -> Any:
    x = alt.X("rate:Q", scale=alt.Scale(type="log"), title="payload bytes per second")
    y = alt.Y("speedup:Q", scale=alt.Scale(type="log"), title="speed-up over the baseline")
    tooltip = [alt.Tooltip("rate:Q", format=".3s"), alt.Tooltip("speedup:Q", format=".3g")]
    line = read_rows([{"rate": rate, "speedup": speedup} for rate, speedup in curve]).mark_line(color=COLOURS[0])
    layers = [line.encode(x=x, y=y, tooltip=tooltip)]
    layers.append(read_rows([{"one": 1}]).mark_rule(strokeDash=[4, 4]).encode(y="one:Q"))
    for i, (label, rate) in enumerate(marks.items()):
        mark = read_rows([{"rate": rate, "label": label}]).encode(x="rate:Q")
        layers.append(mark.mark_rule(color=COLOURS[i + 1]))
        layers.append(mark.mark_text(align="left", dx=4, dy=14 * i).encode(y=alt.value(8), text="label:N"))
    return alt.layer(*layers).properties(title="Speed-up against the rate of the link", width=WIDTH, height=240)


def render_chart(chart: Any, suffix: str) -> bytes:
    """The chart as the bytes of a file with this ending."""
    if suffix == ".json":
        return str(chart.to_json(indent=2)).encode()
    if suffix == ".html":
        return str(chart.to_html(inline=True)).encode()
    import vl_convert

    if suffix == ".svg":
        return str(vl_convert.vegalite_to_svg(chart.to_json())).encode()
    return bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2))
