"""The page of a load: pictures, every point, capacities and verdicts, and what is doubtful."""

from __future__ import annotations

from collections.abc import Sequence

from enginebench.report.html import Html, element
from enginebench.report.load.charts import Picture
from enginebench.report.load.document import LoadDocument, LoadRow, describe_row
from enginebench.report.load.terminal import (
    COLUMNS,
    describe_capacity,
    describe_doubts,
    describe_reason,
    describe_verdicts,
    list_cells,
)
from enginebench.report.page_frame import assemble_page, format_chart, wrap_table

FOOTER = (
    "Latency runs from the moment at which a request was due. Percentiles: nearest rank over all requests. "
    "queue and serve: means."
)


def format_load_page(document: LoadDocument, pictures: Sequence[Picture], bundle: str | None) -> str:
    """The whole page.

    Args:
        document: what was measured.
        pictures: of it.
        bundle: JavaScript that defines `vegaEmbed`.
    """
    title = f"{document.model} under load"
    answers = [*(describe_capacity(row.capacity) for row in document.rows if row.capacity)]
    parts = (
        element("header", element("p", "EngineBench", class_="brand"), element("h1", title)),
        element(
            "main",
            _list_sentences("Answer", [*answers, *describe_verdicts(document)]),
            *(format_chart(p.name, p.title, p.description, p.spec) for p in pictures),
            *(_format_row(document, row) for row in document.rows),
            _list_sentences("Doubts", list(describe_doubts(document))),
        ),
    )
    return assemble_page(title, parts, specs={p.name: p.spec for p in pictures}, bundle=bundle, footer=FOOTER)


def _format_row(document: LoadDocument, row: LoadRow) -> Html:
    """One configuration: its points, and why there are none or no more."""
    name = describe_row(row)
    points = [point for point in document.points if point.row == row.id]
    reason = None
    if row.reason is not None:
        told = describe_reason(row.reason, measured=bool(points))
        reason = element("p", told[0].upper() + told[1:])
    if not points:
        return element("section", element("h2", name), reason)
    heads = [element("th", text, scope="col", class_="number") for text in COLUMNS]
    lines = [element("tr", *(element("td", cell, class_="number") for cell in list_cells(point))) for point in points]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), data_file=row.id)
    return element("section", element("h2", name), reason, wrap_table(table, f"Points of {name}"))


def _list_sentences(title: str, sentences: Sequence[str]) -> Html | None:
    if not sentences:
        return None
    items = [element("li", text) for text in sentences]
    return element("section", element("h2", title), element("ul", *items))
