"""Trends: the p50 of each engine over the time at which it was measured."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from enginebench.core.text import clean_text
from enginebench.report.charts import GREY, Spec, finish, import_altair
from enginebench.report.history.table import HistoryRow, name_series
from enginebench.report.run.charts import PALETTE

Point = dict[str, Any]

# Of one line: more than this lie within a pixel of each other on a picture 680 units wide.
_POINTS = 600
OTHERS = "others"


def collect_trends(rows: Sequence[HistoryRow]) -> dict[str, list[Point]]:
    """Engine -> the points of its picture, the oldest first; rows without a time or a median are left out.

    A picture has as many lines as there are colours; the series with the fewest rows share the last one.
    """
    engines: dict[str, list[HistoryRow]] = {}
    for row in rows:
        if row.p50_ms and row.started_utc:
            engines.setdefault(row.engine, []).append(row)
    return {engine: _collect_points(members) for engine, members in sorted(engines.items())}


def _collect_points(rows: Sequence[HistoryRow]) -> list[Point]:
    counts = Counter(map(name_series, rows))
    kept = {name for name, _ in counts.most_common(len(PALETTE) - 1)}
    series: dict[str, list[HistoryRow]] = {}
    for row in rows:
        name = name_series(row)
        series.setdefault(name if name in kept else OTHERS, []).append(row)
    return [_describe(row, name) for name, members in series.items() for row in _thin(members)]


def _thin(rows: list[HistoryRow]) -> list[HistoryRow]:
    """Evenly chosen rows, the first and the last among them."""
    if len(rows) <= _POINTS:
        return rows
    step = (len(rows) - 1) / (_POINTS - 1)
    return [rows[round(i * step)] for i in range(_POINTS)]


def _describe(row: HistoryRow, series: str) -> Point:
    return {
        "at": row.started_utc,
        "series": series,
        "p50": row.p50_ms,
        "p99": row.p99_ms,
        "validity": row.validity,
        "run": clean_text(row.run),
        "cpu": clean_text(row.cpu_model or ""),
    }


def draw_trend(engine: str, points: Sequence[Point]) -> Spec:
    """The p50 of one engine over time, a line for each model, precision and batch."""
    alt = import_altair()
    legend = alt.Legend(orient="bottom", columns=2, labelLimit=330, title=None)
    base = alt.Chart(alt.NamedData(name="points")).encode(
        x=alt.X("at:T", title="measured (UTC)", scale=alt.Scale(type="utc")),
        y=alt.Y("p50:Q", title="p50 latency (ms), log axis", scale=alt.Scale(type="log", nice=False, padding=10)),
        color=alt.Color("series:N", scale=alt.Scale(range=PALETTE), legend=legend),
    )
    line = base.transform_filter(f"datum.series != '{OTHERS}'").mark_line(strokeWidth=1, opacity=0.6)
    when = alt.Tooltip("at:T", format="%Y-%m-%d %H:%M")
    tooltip = ["series:N", when, "p50:Q", "p99:Q", "validity:N", "run:N", "cpu:N"]
    dots = base.transform_filter("datum.validity == 'valid'").mark_point(filled=True, size=22, opacity=0.9)
    crosses = base.transform_filter("datum.validity != 'valid'").mark_point(shape="cross", size=40, opacity=0.9)
    layers = alt.layer(line, dots.encode(tooltip=tooltip), crosses.encode(tooltip=tooltip))
    subtitle = (
        "crosses: suspect or invalid; machines and settings may differ: `diff` reports which points may be compared"
    )
    spec = finish(layers.configure_legend(labelColor=GREY), f"Trend of {engine}", subtitle, height=320)
    return spec | {"datasets": {"points": list(points)}}
