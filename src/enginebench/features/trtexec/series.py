"""The chart of a run of trtexec as it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from enginebench.report.charts import BLUE, Row, Spec, finish, import_altair, read_rows

if TYPE_CHECKING:
    from enginebench.report.charts import Floats

# Of one or two pixels on WIDTH.
_BUCKETS = 340


def draw_series(values_ms: Floats, title: str, what: str = "latency", seconds: Floats | None = None) -> Spec:
    """The run as it went: median, fastest and slowest of neighbouring queries.

    Args:
        values_ms: times in the order of the run, at least one of them finite, ms.
        seconds: when each query began, s; by default they are numbered.
    """
    alt = import_altair()
    buckets, each = gather_neighbours(values_ms, seconds)
    place = "query" if seconds is None else "seconds since the first query"
    x = alt.X("at:Q", title=place, scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=10))
    base = read_rows(buckets).encode(x=x)
    y = {"title": f"{what} (ms)", "scale": alt.Scale(zero=False)}
    if each == 1:
        line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(size=12)).encode(y=alt.Y("median:Q", **y))
        return finish(line, title, f"{len(values_ms):,} queries", height=240)
    band = base.mark_area(color=BLUE, opacity=0.25).encode(y=alt.Y("min:Q", **y), y2=alt.Y2("max:Q"))
    line = base.mark_line(color=BLUE, strokeWidth=1.2).encode(y=alt.Y("median:Q"))
    subtitle = f"{len(values_ms):,} queries; line: median, band: fastest to slowest of {each:,} neighbouring queries"
    return finish(alt.layer(band, line), title, subtitle, height=240)


def gather_neighbours(values_ms: Floats, seconds: Floats | None) -> tuple[list[Row], int]:
    """(fastest, median and slowest of each bucket of neighbours, how many queries the largest bucket has)."""
    places = np.arange(len(values_ms), dtype=np.float64) if seconds is None else seconds
    parts = np.array_split(np.arange(len(values_ms)), min(_BUCKETS, len(values_ms)))
    buckets = []
    for part in parts:
        values = values_ms[part][np.isfinite(values_ms[part])]
        if len(values):
            row = {"median": float(np.median(values)), "min": float(values.min()), "max": float(values.max())}
            buckets.append({"at": float(places[part[0]]), **row})
    return buckets, len(parts[0])
