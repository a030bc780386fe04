"""The pages of a sweep: one matrix of all that was measured, and one page for each model on each kind of machine.

The matrix has a line for each model, machine and engine, with the fastest of its rows; the others are on the group's
page. Lines are data, of which the script makes those that a filter leaves: a hundred thousand rows open at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.caveats import format_caveat
from enginebench.core.names import slug
from enginebench.core.records import Estimate
from enginebench.core.text import clean_text, count_of
from enginebench.report.html import Html, element, embed_json
from enginebench.report.numbers import format_interval, format_range, format_significant
from enginebench.report.page_frame import assemble_page, wrap_table
from enginebench.report.scores import describe_score, format_figure
from enginebench.report.sweep.document import Environment, SweepCell, SweepDocument, SweepRow
from enginebench.report.sweep.terminal import count_reasons, describe_tuned, show_speedup

# The folder of the groups' pages, beside the matrix.
PAGES = "sweep-pages"
FILTERS = {"model": "Model", "machine": "Machine", "engine": "Engine", "precision": "Precision"}
HEADINGS = ("model", "machine", "engine", "precision", "batch", "p50 ms", "p99 ms", "speed-up", "accuracy")
MORE = ("capacity 1/s", "cost per million", "energy mJ", "rows")
NUMBERS = tuple(range(4, len(HEADINGS) + len(MORE)))

Line = dict[str, Any]


def format_sweep_page(document: SweepDocument) -> str:
    """The matrix as one HTML file; its links lead into the folder `PAGES` beside it."""
    lines = [_describe_best(cells) for cells in _collect(document.cells).values()]
    machines = _format_machines(document.machines, document.currency)
    kinds = len({cell.machine_kind for cell in document.cells})
    parts = [
        element("p", "EngineBench sweep", class_="brand"),
        element(
            "h1", f"{count_of(len(document.cells), 'rows')} on {kinds} {'kind' if kinds == 1 else 'kinds'} of machine"
        ),
        element(
            "p",
            "A line is the fastest row of an engine that is valid and whose answers agree. Speed-ups are against the "
            "baseline on the same machine; between machines there is no verdict.",
            class_="facts",
        ),
        _format_filters(lines),
        _format_matrix((*HEADINGS, *MORE)),
        element("h2", "Machines"),
        machines,
        *_format_tuned(document),
        *_format_interference(document),
        *_format_failed(document),
        embed_json("sweep", {"lines": lines, "numbers": NUMBERS}),
    ]
    return _assemble("Sweep", parts)


def list_group_pages(document: SweepDocument) -> Iterable[tuple[str, str]]:
    """(file name, HTML) of each model on each kind of machine."""
    groups: dict[tuple[str, str], list[SweepCell]] = {}
    for cell in document.cells:
        groups.setdefault((cell.model, cell.machine_kind), []).append(cell)
    shell = _make_shell()
    for (model, kind), cells in groups.items():
        title = clean_text(f"{model} on {kind}")
        data = embed_json("sweep", _describe_group(cells))
        yield name_page(model, kind), shell.replace("@TITLE@", element("i", title)[3:-4]).replace("@DATA@", data)


def name_page(model: str, kind: str) -> str:
    """The file of a group's page."""
    return f"{slug(f'{model}-{kind}')}.html"


def _make_shell() -> str:
    """A group's page with places for its title and its data: alike in all of them, and made once."""
    parts = [
        element("p", element("a", "The whole sweep", href="../report.html"), class_="brand"),
        element("h1", "@TITLE@"),
        element("section", id="row"),
        element("h2", "All rows"),
        _format_filters([]),
        _format_matrix(HEADINGS + MORE[:-1]),
        Html("@DATA@"),
    ]
    return _assemble("@TITLE@", parts)


def _assemble(title: str, parts: Sequence[str]) -> str:
    return assemble_page(title, parts, specs={}, bundle=None, script="sweep.js")


def _describe_group(cells: Sequence[SweepCell]) -> dict[str, Any]:
    lines = [_describe_line(cell, f"#{cell.row.id}" if cell.row else "")[0] for cell in cells]
    details = {cell.row.id: _describe_details(cell, cell.row) for cell in cells if cell.row is not None}
    return {"lines": lines, "numbers": NUMBERS, "details": details}


def _collect(cells: Iterable[SweepCell]) -> dict[tuple[str, str, str], list[SweepCell]]:
    found: dict[tuple[str, str, str], list[SweepCell]] = {}
    for cell in cells:
        found.setdefault((cell.model, cell.machine_kind, cell.engine), []).append(cell)
    return found


def _describe_best(cells: Sequence[SweepCell]) -> Line:
    best = min(cells, key=rank_cell)
    line, row = _describe_line(best, "")
    link = f"{PAGES}/{name_page(best.model, best.machine_kind)}" + (f"#{row.id}" if row else "")
    line["cells"][5][2:] = [link]
    line["cells"].append([str(len(cells)), len(cells)])
    return line


def rank_cell(cell: SweepCell) -> tuple[bool, bool, bool, float]:
    """What the fastest cell that can be relied on has least of: no figure, other answers, doubt, time per inference."""
    row = cell.row
    if row is None or row.status != "ok" or row.p50_ms is None:
        return True, True, True, 0.0
    return False, row.outputs_agree is False, row.validity != "valid", row.p50_ms.value / cell.batch


def _describe_line(cell: SweepCell, link: str) -> tuple[Line, SweepRow | None]:
    """What a line of a table shows: [text, what it is sorted by, link] of each column."""
    row = cell.row
    names = [cell.model, cell.machine_kind, cell.engine, cell.precision]
    cells: list[list[Any]] = [[clean_text(name), name] for name in names]
    cells.append([str(cell.batch), cell.batch])
    if row is None or row.status != "ok":
        cells += [[row.status if row else "not measured", None], *[["", None] for _ in range(7)]]
    else:
        cells += [[text, value] for text, value in _list_figures(row)]
    if link:
        cells[5][2:] = [link]
    keys = {"model": cell.model, "machine": cell.machine_kind, "engine": cell.engine, "precision": cell.precision}
    state = "failed" if row is None or row.status != "ok" else row.validity
    return {"cells": cells, "keys": keys, "state": "" if state == "valid" else state}, row


def _list_figures(row: SweepRow) -> list[tuple[str, float | None]]:
    """(text, number) of p50, p99, speed-up, accuracy, capacity, cost, energy."""
    score = row.scores[0] if row.scores else None
    capacity = row.capacity.passes_qps if row.capacity else None
    return [
        _show(row.p50_ms),  # the line says itself if it is doubtful
        _show(row.p99_ms),
        (show_speedup(row), row.speedup.value if row.speedup else None),
        (
            format_figure(score.value.value, score) if score else _tell_answers(row),
            score.value.value if score else None,
        ),
        (format_significant(capacity) if capacity else "", capacity),
        (format_significant(row.cost_per_million) if row.cost_per_million is not None else "", row.cost_per_million),
        (format_significant(row.energy_mj) if row.energy_mj is not None else "", row.energy_mj),
    ]


def _show(estimate: Estimate | None) -> tuple[str, float | None]:
    return (format_interval(estimate), estimate.value) if estimate else ("", None)


def _tell_answers(row: SweepRow) -> str:
    return {True: "answers agree", False: "answers differ", None: ""}[row.outputs_agree]


def _describe_details(cell: SweepCell, row: SweepRow) -> dict[str, Any]:
    facts = [
        ("engine", f"{cell.engine} {row.engine_version or ''}"),
        ("precision", cell.precision),
        ("batch, scope", f"{cell.batch}, {cell.scope}"),
        ("device, threads", f"{row.device}, {row.threads}"),
        ("status", row.status + (f": {row.reason}" if row.reason else "")),
        ("validity", row.validity),
        ("p50", format_range(row.p50_ms, " ms") if row.p50_ms else ""),
        ("p99", format_range(row.p99_ms, " ms") if row.p99_ms else ""),
        ("samples", f"{row.n} in {count_of(row.processes, 'processes')}"),
        ("throughput", f"{format_significant(row.throughput_per_s)} inferences/s" if row.throughput_per_s else ""),
        ("speed-up", f"{format_range(row.speedup, 'x')} {row.verdict or ''}" if row.speedup else ""),
        ("answers", _tell_answers(row)),
        *((name_metric(score.metric), describe_score(score)) for score in row.scores),
        ("reference kernel", f"{format_significant(row.reference_ms)} ms" if row.reference_ms else ""),
        ("environment", row.environment),
        ("samples in", row.result),
    ]
    return {
        "title": clean_text(f"{cell.engine} {cell.precision} batch {cell.batch} {cell.scope}"),
        "facts": [(name, clean_text(value)) for name, value in facts if value],
        "doubts": [clean_text(format_caveat(caveat)) for caveat in row.caveats],
    }


def _format_filters(lines: Sequence[Line]) -> Html:
    """A choice for each name of a cell, and words to look for."""
    selects = []
    for key, title in FILTERS.items():
        values = sorted({line["keys"][key] for line in lines})
        if len(values) > 1:
            options = [element("option", "all", value=""), *(element("option", v, value=v) for v in values)]
            selects.append(element("label", f"{title} ", element("select", *options, name=key)))
    words = element("label", "Words ", element("input", type="search", name="words"))
    count = element("p", "", id="count", role="status")
    return element("form", *selects, words, count, id="filters", class_="filters")


def _format_matrix(headings: Sequence[str]) -> Html:
    head = element("tr", *(element("th", element("button", name, type="button"), scope="col") for name in headings))
    table = element("table", element("thead", head), element("tbody"), id="matrix")
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label="Rows")


def _format_machines(machines: Sequence[Environment], currency: str) -> Html:
    hour = f"an hour{f', {currency}' if currency else ''}"
    headings = ("machine", "environment", "device", "rows", "reference kernel ms", hour, "versions")
    rows = [
        (
            machine.machine_kind,
            machine.id,
            ", ".join(machine.gpus) or machine.cpu_model,
            str(machine.rows),
            format_significant(machine.reference_ms) if machine.reference_ms else "",
            format_significant(machine.price_per_hour) if machine.price_per_hour is not None else "",
            ", ".join(f"{name} {version}" for name, version in machine.versions.items()),
        )
        for machine in machines
    ]
    return _format_table(headings, rows, "Machines")


def _format_table(headings: Sequence[str], rows: Iterable[Sequence[str]], label: str) -> Html:
    head = element("tr", *(element("th", name, scope="col") for name in headings))
    body = [element("tr", *(element("td", text) for text in row)) for row in rows]
    return wrap_table(element("table", element("thead", head), element("tbody", *body)), label)


def _format_interference(document: SweepDocument) -> list[Html]:
    if not document.interference:
        return []
    rows = [
        (found.model, found.machine_kind, format_range(found.ratio, "x") if found.ratio else "", found.verdict)
        for found in document.interference
    ]
    note = "The first row of each group in company over the same row alone: above 1, company slows it."
    return [
        element("h2", "Company"),
        element("p", note, class_="facts"),
        _format_table(("model", "machine", "time in company over time alone", "verdict"), rows, "Company"),
    ]


def _format_tuned(document: SweepDocument) -> list[Html]:
    """What the searches over settings came to; the page of each lies in the store."""
    if not document.tuned:
        return []
    items = [
        element("li", describe_tuned(tuned), *([f"; see {tuned.page}"] if tuned.page else []))
        for tuned in document.tuned
    ]
    return [element("h2", "Tuned"), element("ul", *items, class_="notes")]


def _format_failed(document: SweepDocument) -> list[Html]:
    """Reasons with the number of cells that have them, the most frequent first."""
    reasons = count_reasons(document)
    if not reasons and not document.unread:
        return []
    ranked = sorted(reasons.items(), key=lambda pair: -pair[1])
    items = [element("li", f"{count}: {reason}") for reason, count in ranked[:50]]
    items += [element("li", f"not read: {text}") for text in document.unread[:50]]
    return [element("h2", "Without figures"), element("ul", *items, class_="notes")]
