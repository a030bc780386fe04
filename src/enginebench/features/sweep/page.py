"""The pages of a sweep: one matrix of all that was measured, and one page for each model on each kind of machine.

The matrix has a line for each model, machine and engine, with the fastest of its rows; the others are on the group's
page. Lines are data, of which the script makes those that a filter leaves: a hundred thousand rows open at once.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from enginebench.core.caveats import format_caveat
from enginebench.core.names import slug
from enginebench.core.text import clean_text, count_of
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow
from enginebench.features.sweep.sections import COLUMNS, group_cells, list_rest, rank_cell, state_answer
from enginebench.report.numbers import format_range, format_significant
from enginebench.report.page import format_page
from enginebench.report.scores import describe_score
from enginebench.report.table import Column, Section, Table, make_notes, make_table
from enginebench.stats.metrics.tasks import name_metric

# The folder of the groups' pages, beside the matrix.
PAGES = "sweep-pages"
SCRIPT = Path(__file__).with_name("sweep.js")
KEYS = {"model": "model", "machine": "machine_kind", "engine": "engine", "precision": "precision"}
_P50 = [column.title for column in COLUMNS].index("p50 ms")
_ABOUT = (
    "A line is the fastest valid configuration of an engine whose outputs are the same. Speed-ups are against the "
    "baseline on the same machine; between machines there is no verdict."
)


def format_sweep_page(document: SweepDocument) -> str:
    """The matrix as one HTML file; its links lead into the folder `PAGES` beside it."""
    groups = group_cells(document, "model", "machine_kind", "engine")
    best = [min(cells, key=rank_cell) for cells in groups.values()]
    links = [
        f"{PAGES}/{name_page(one.model, one.machine_kind)}" + (f"#{one.row.id}" if one.row else "") for one in best
    ]
    counts = {id(one): len(cells) for one, cells in zip(best, groups.values(), strict=True)}
    number = Column("rows", lambda cell: str(counts[id(cell)]), lambda cell: counts[id(cell)], align="right")
    head = Section(title=state_answer(document), parts=tuple(make_notes([_ABOUT])))
    return _assemble("Sweep", head, [*COLUMNS, number], best, links, list_rest(document))


def list_group_pages(document: SweepDocument) -> Iterable[tuple[str, str]]:
    """(file name, HTML) of each model on each kind of machine."""
    for (model, kind), cells in group_cells(document, "model", "machine_kind").items():
        title = f"{model} on {kind}"
        details = {cell.row.id: _describe_details(cell, cell.row) for cell in cells if cell.row is not None}
        links = [f"#{cell.row.id}" if cell.row else "" for cell in cells]
        place = [Section(name="row", parts=())]
        page = _assemble(title, Section(title=title, parts=()), COLUMNS, cells, links, place, "../report.html", details)
        yield name_page(model, kind), page


def name_page(model: str, kind: str) -> str:
    """The file of a group's page."""
    return f"{slug(f'{model}-{kind}')}.html"


def _assemble(
    title: str,
    head: Section,
    columns: Sequence[Column],
    cells: Sequence[SweepCell],
    links: Sequence[str],
    rest: Sequence[Section],
    up: str = "",
    details: dict[str, Any] | None = None,
) -> str:
    table = make_table(columns, cells)
    lines = [_describe_line(table.columns, cell, link) for cell, link in zip(cells, links, strict=True)]
    numbers = [place for place, column in enumerate(table.columns) if column.align != "left"]
    empty = Table(columns=table.columns, rows=(), file="matrix")
    matrix = Section(title=count_of(len(cells), "lines"), name="matrix", parts=(empty,))
    data = {"lines": lines, "numbers": numbers, "keys": [*KEYS], "details": details or {}}
    return format_page(title, [head, matrix, *rest], data=data, script=SCRIPT.read_text(encoding="utf-8"), up=up)


def _describe_line(columns: Sequence[Column], cell: SweepCell, link: str) -> dict[str, Any]:
    """What a line of a table shows: [text, what it is sorted by, link] of each column."""
    shown: list[list[Any]] = []
    for column in columns:
        text = clean_text(column.text(cell))
        shown.append([text, column.value(cell) if column.value else text])
    if link:
        shown[_P50].append(link)
    return {"cells": shown, "keys": {key: getattr(cell, name) for key, name in KEYS.items()}}


def _describe_details(cell: SweepCell, row: SweepRow) -> dict[str, Any]:
    facts = [
        ("engine", f"{cell.engine} {row.engine_version or ''}"),
        ("precision", cell.precision),
        ("batch, scope", f"{cell.batch}, {cell.scope}"),
        ("device, threads", f"{row.device}, {row.threads}"),
        ("status", row.status + (f": {row.reason}" if row.reason else "")),
        ("times", row.validity),
        ("p50", format_range(row.p50_ms, " ms") if row.p50_ms else ""),
        ("p99", format_range(row.p99_ms, " ms") if row.p99_ms else ""),
        ("samples", f"{row.n} in {count_of(row.processes, 'trials')}"),
        ("throughput", f"{format_significant(row.throughput_per_s)} inferences/s" if row.throughput_per_s else ""),
        ("speed-up", f"{format_range(row.speedup, 'x')} {row.verdict or ''}" if row.speedup else ""),
        ("outputs", {True: "same", False: "changed", None: ""}[row.outputs_agree]),
        *((name_metric(score.metric), describe_score(score)) for score in row.scores),
        ("reference kernel", f"{format_significant(row.reference_ms)} ms" if row.reference_ms else ""),
        ("environment", row.environment),
        ("samples in", row.result),
    ]
    return {
        "title": clean_text(f"{cell.engine} {cell.precision} batch {cell.batch} {cell.scope}"),
        "facts": [(name, clean_text(value)) for name, value in facts if value],
        "warnings": [clean_text(format_caveat(caveat)) for caveat in row.caveats],
    }
