"""Render a machine's peaks as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from enginebench.report.numbers import FIVE_DIGITS, format_significant, format_time
from enginebench.report.table import Section, list_texts, make_notes, make_table

if TYPE_CHECKING:
    from enginebench.core.peaks import Peak, Peaks, Unit
    from enginebench.report.charts import Point, Spec

NAMES = {
    "gemm": "matrix product",
    "conv": "convolution",
    "l1": "level 1 cache",
    "l2": "level 2 cache",
    "l3": "level 3 cache",
    "l4": "level 4 cache",
    "memory": "memory",
    "kernel": "empty kernel",
    "graph": "empty graph",
    "call": "empty call",
}
# A figure of five digits is shown in a unit a thousand times as large.
_LARGER: dict[Unit, str] = {"GMAC/s": "TMAC/s", "GB/s": "TB/s", "us": "ms"}


def list_peaks(document: Peaks) -> list[Section]:
    """List every peak with the range of its trials, and what could not be measured."""
    lines = []
    for one in document.peaks:
        name = "empty kernel, waited for" if one.kind == "call" and one.device != "cpu" else NAMES[one.kind]
        threads = one.device if one.threads is None else str(one.threads)
        large = max(one.value, one.high) >= FIVE_DIGITS
        unit, per_unit = (_LARGER[one.unit], 1000) if large else (one.unit, 1)
        value, low, high = (format_significant(figure / per_unit) for figure in (one.value, one.low, one.high))
        between = f"{low} to {high}" if one.n > 1 else "one"
        lines.append((name, one.precision or "-", threads, value, between, unit))
    gpus = ", ".join(gpu.name for gpu in document.machine.gpus)
    machine = document.machine.cpu_model + (f", {gpus}" if gpus else "")
    count = f"{document.processes} fresh processes" if document.processes > 1 else "one process"
    foot = f"The best that was observed, {count} each. One multiply-accumulate (MAC) is two operations."
    columns = list_texts(["peak", "precision", "threads"], ["best", "trials", "unit"])
    title = " · ".join(filter(None, (machine, format_time(document.measured_utc))))
    return [Section(title=title, parts=(make_table(columns, lines), *make_notes([foot, *document.notes])))]


def draw_peaks(document: Peaks) -> Spec:
    """Draw the roofline: the highest rate of work by its multiply-accumulates per byte of memory.

    One line for each precision; for a CPU, with the most threads. The slope is memory's bandwidth, the flat part the
    better one of products and convolutions.
    """
    from enginebench.report.charts import COLOURS, chart_rows, finish, import_altair

    alt = import_altair()
    points = [
        point for device in list_measured_devices(document.peaks) for point in draw_roofline(document.peaks, device)
    ]
    x = alt.X("macs:Q", title="multiply-accumulates for each byte of memory", scale=alt.Scale(type="log"))
    y = alt.Y("rate:Q", title="GMAC/s", scale=alt.Scale(type="log"))
    names = list(dict.fromkeys(str(point["precision"]) for point in points))
    colours = alt.Scale(domain=names, range=[COLOURS.get(name, COLOURS["other"]) for name in names])
    colour = alt.Color("precision:N", scale=colours, title="precision", sort=None)
    dash = alt.StrokeDash("device:N", title="device", sort=None)
    lines = chart_rows(points).mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash)
    ends = [point for point in points if point["end"]]
    text = chart_rows(ends).mark_text(align="right", dy=-7).encode(x=x, y=y, text="label:N", color=colour)
    subtitle = "best observed; the slope is the bandwidth of memory, the flat part the rate of products or convolutions"
    return finish(alt.layer(lines, text), f"Roofline of {document.machine.cpu_model}", subtitle, height=320)


def list_measured_devices(peaks: Sequence[Peak]) -> list[tuple[str, int | None]]:
    """Return (device, threads) of each device; of a CPU, the highest number of threads."""
    most: dict[str, int | None] = {}
    for peak in peaks:
        before = most.get(peak.device)
        most[peak.device] = None if peak.threads is None else max(peak.threads, before or 0)
    return list(most.items())


def draw_roofline(peaks: Sequence[Peak], device: tuple[str, int | None]) -> list[Point]:
    """Return the two ends and the corner of each precision's line on a device."""
    own = [peak for peak in peaks if (peak.device, peak.threads) == device]
    memory = next((peak.value for peak in own if peak.kind == "memory"), None)
    rates: dict[str, float] = {}
    for peak in own:
        if peak.kind in ("gemm", "conv") and peak.precision:
            rates[peak.precision] = max(peak.value, rates.get(peak.precision, 0.0))
    if not memory or not rates:
        return []
    name = device[0] if device[1] is None else f"{device[0]}, {device[1]} threads"
    corners = {precision: rate / memory for precision, rate in rates.items()}
    first, last = min(corners.values()) / 10, max(corners.values()) * 10
    points: list[Point] = []
    for precision, rate in rates.items():
        labels = {"device": name, "precision": precision, "label": f"{precision} {format_significant(rate)}"}
        for at in (first, corners[precision], last):
            points.append({**labels, "macs": at, "rate": min(rate, at * memory), "end": at == last})
    return points
