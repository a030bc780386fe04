"""A run as a piece of HTML for a notebook: the answer, the table with its doubts, the notes. It loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.names import format_precision
from enginebench.report.html import Html, element, join
from enginebench.report.numbers import (
    UNITS_PER_MS,
    TimeUnit,
    choose_unit,
    format_interval,
    format_significant,
    format_small,
)
from enginebench.report.run.answers import collect_notes
from enginebench.report.run.cells import describe_setting, format_p99, format_speedup, name_doubt, name_table
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import Row, RunDocument, sort_rows
from enginebench.report.scores import find_metric, format_score

# Within the cells themselves: a notebook's own style sheet lies over whatever a <style> element would say.
LEFT, RIGHT = "text-align:left;padding:2px 8px", "text-align:right;padding:2px 8px"


def format_fragment(document: RunDocument, *, closing: Sequence[str] | None = None) -> str:
    """The run as HTML in which no text of a file or a model is markup.

    Args:
        document: of the run.
        closing: the sentences above the table, where they are not the head of the run.
    """
    ordered = sort_rows(document.rows) if closing is None else document.rows
    notes = collect_notes(ordered)
    numbered = list(zip(ordered, notes.numbers, strict=True))
    parts: list[Html] = [element("p", element("b", sentence)) for sentence in closing or ()]
    for line in format_head(document) if closing is None else ():
        parts += [element("div", element("b", line.label), " ", join(*_break(line.lines)))]
    for title, members in groupby(numbered, key=lambda pair: describe_setting(pair[0])):
        rows, marks = zip(*members, strict=True)
        parts += [element("div", f"{document.model}, {name_table(title, rows)}"), _format_table(rows, marks)]
    if any(row.p99_ms and not row.p99_ms.supported for row in document.rows):
        parts.append(element("div", element("small", "? too few samples for this percentile")))
    parts += [element("div", element("small", f"all rows: {note}")) for note in notes.common]
    parts += [element("div", element("small", f"{i}: {note}")) for i, note in enumerate(notes.numbered, start=1)]
    return element("div", *parts)


def _break(lines: Sequence[str]) -> list[str]:
    return [piece for i, line in enumerate(lines) for piece in ([element("br"), line] if i else [line])]


def _format_table(rows: Sequence[Row], marks: Sequence[Sequence[int]]) -> Html:
    unit = choose_unit(row.p50_ms.value for row in rows if row.p50_ms)
    metric = find_metric(rows)
    headings = ["engine", "precision", f"p50 {unit}", f"p99 {unit}", "images/s", "speed-up", "max diff"]
    headings += [*([name_metric(metric)] if metric else []), "notes"]
    head = element("tr", *(element("th", text, style=_align(i)) for i, text in enumerate(headings)))
    lines = [_format_row(row, numbers, unit, metric) for row, numbers in zip(rows, marks, strict=True)]
    return element("table", element("thead", head), element("tbody", *lines))


def _format_row(row: Row, marks: Sequence[int], unit: TimeUnit, metric: str | None) -> Html:
    factor = UNITS_PER_MS[unit]
    doubt = name_doubt(row)
    median = format_interval(row.p50_ms, factor, "±", digits=4) if row.p50_ms else row.status
    cells = [
        row.engine,
        format_precision(row.precision, row.recipe, row.mix),
        join(median, *([element("br"), element("b", doubt)] if doubt else [])),
        format_p99(row, factor, missing=""),
        format_significant(row.throughput_per_s) if row.throughput_per_s else "",
        format_speedup(row, "±", missing=""),
        "" if row.max_abs_diff is None else format_small(row.max_abs_diff),
        *([format_score(row, metric)] if metric else []),
        ", ".join(map(str, marks)),
    ]
    return element("tr", *(element("td", cell, style=_align(i)) for i, cell in enumerate(cells)))


def _align(column: int) -> str:
    return LEFT if column < 2 else RIGHT
