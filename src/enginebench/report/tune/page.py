"""The page of a search: the answer, the final, who was dropped when and why, and what is worth having at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from enginebench.report.charts import Spec
from enginebench.report.html import Html, element
from enginebench.report.page_frame import assemble_page, format_chart, wrap_table
from enginebench.report.tune.document import Candidate, Dropped, TuneDocument
from enginebench.report.tune.frontier import DESCRIPTION, NAME, TITLE
from enginebench.report.tune.terminal import describe_round, list_cells, list_warnings, state_answer

FOOTER = (
    "In each round every candidate that is left runs in one fresh process. Whoever is dropped is, at 95 %, not faster "
    "than the leader by more than the margin. The final is measured anew, since whoever wins a race has had luck, too."
)


def format_tune_page(document: TuneDocument, picture: Spec | None = None, bundle: str | None = None) -> str:
    """The whole page.

    Args:
        document: of the search.
        picture: of its frontier, if it can be drawn.
        bundle: JavaScript that defines `vegaEmbed`, for the picture.
    """
    title = f"{document.model} tuned for {document.goal}"
    parts = (
        element("header", element("p", "EngineBench", class_="brand"), element("h1", title)),
        element(
            "main",
            _make_section("Answer", *(element("p", line) for line in state_answer(document))),
            _format_final(document),
            _format_warnings(document),
            _format_dropped(document),
            _format_candidates(document),
            _format_frontier(document, picture),
        ),
    )
    return assemble_page(title, parts, specs={NAME: picture} if picture else {}, bundle=bundle, footer=FOOTER)


def _make_section(title: str, *parts: Html) -> Html:
    return element("section", element("h2", title), *parts)


def _make_table(heads: Sequence[str], lines: Iterable[Sequence[str]], file: str) -> Html:
    """A table, the first column text, and as a file of this name to be saved."""
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    body = [element("tr", *(element("td", cell) for cell in line)) for line in lines]
    return wrap_table(element("table", element("thead", head), element("tbody", *body), data_file=file), file)


def _format_final(document: TuneDocument) -> Html | None:
    if not document.final:
        return None
    heads = ("setting", "role", document.unit, "challenger against it")
    return _make_section("Final", _make_table(heads, (list_cells(document, row) for row in document.final), "final"))


def _format_warnings(document: TuneDocument) -> Html | None:
    warnings = [*list_warnings(document)]
    return _make_section("Warnings", *(element("p", line) for line in warnings)) if warnings else None


def _format_dropped(document: TuneDocument) -> Html | None:
    if not document.dropped:
        return None
    heads = ("setting", "generation", "when", "why", "leader then")
    return _make_section("Dropped", _make_table(heads, map(_list_dropped, document.dropped), "dropped"))


def _list_dropped(dropped: Dropped) -> tuple[str, ...]:
    return (
        dropped.candidate,
        str(dropped.generation),
        describe_round(dropped.round),
        dropped.reason,
        dropped.leader or "-",
    )


def _format_candidates(document: TuneDocument) -> Html:
    heads = ("setting", "speed over the leader's", "measurements", document.quality_of, "")
    lines = (_list_candidate(candidate) for candidate in document.candidates)
    return _make_section("All settings", _make_table(heads, lines, "candidates"))


def _list_candidate(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.candidate,
        "-" if candidate.speed is None else f"{candidate.speed:.3f}x",
        str(candidate.processes),
        "-" if candidate.quality is None else f"{candidate.quality:.4f}",
        ", ".join(filter(None, ["default" * candidate.default, candidate.validity.removeprefix("valid")])),
    )


def _format_frontier(document: TuneDocument, picture: Spec | None) -> Html | None:
    if len(document.frontier) < 2:
        return None
    heads = ("setting", "speed over the leader's", document.quality_of)
    lines = ((p.candidate, f"{p.speed:.3f}x", f"{p.quality:.4f}") for p in document.frontier)
    text = "No other setting is both faster and as good; speeds are those of the race."
    chart = [format_chart(NAME, TITLE, DESCRIPTION, picture, heading=False)] if picture else []
    return _make_section(TITLE, element("p", text), *chart, _make_table(heads, lines, "frontier"))
