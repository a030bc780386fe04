"""A run, or a comparison of two, as GitHub-flavoured markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from enginebench.analyze.diff import DiffDocument
from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.names import format_precision
from enginebench.core.records import Machine
from enginebench.core.text import clean_text, count_of
from enginebench.report.numbers import (
    UNITS_PER_MS,
    TimeUnit,
    choose_unit,
    format_interval,
    format_range,
    format_significant,
    format_small,
)
from enginebench.report.run.answers import collect_notes, explain_diff_row, list_remarks, tell_gate
from enginebench.report.run.batches import HEADINGS, describe_limit, list_batches, list_cells
from enginebench.report.run.builds import HEADINGS as BUILD_HEADINGS
from enginebench.report.run.builds import list_builds, state_builds
from enginebench.report.run.cells import (
    describe_setting,
    format_build,
    format_capacity,
    format_limit,
    format_p99,
    format_speedup,
    has_limits,
    name_capacity,
    name_doubt,
    name_table,
)
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import Row, RunDocument, sort_rows
from enginebench.report.run.upgrade import state_changes
from enginebench.report.scores import find_metric, format_score

# Everything that markdown or HTML could take for more than text.
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~&$]|(?<!\w)@|^[-+#=](?=\s|$)")
# Entities, not backslashes: table cells are split before backslashes in code are read.
_ENTITIES = {"|": "&#124;", "<": "&lt;", ">": "&gt;", "&": "&amp;", "`": "&#96;", "@": "&#64;", "$": "&#36;"}


def escape(text: str) -> str:
    """`text` as markdown that shows exactly it: no markup, no HTML, no table cell that ends early, on one line."""
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), clean_text(text))


def format_markdown(document: RunDocument, pictures: Sequence[str] = ()) -> str:
    """The page of a run: the answer, a table for each batch and setting, notes, pictures, machine.

    Args:
        document: of the run.
        pictures: names of files that lie beside the page.
    """
    lines = [f"# {escape(document.model)}", "", *format_answer(document), ""]
    lines += format_tables(document)
    lines += [
        "",
        *_explain(),
        "",
        *(f"![{name.removesuffix('.png').replace('_', ' ')}]({name})\n" for name in pictures),
    ]
    lines += _format_machine(document.machine)
    return "\n".join(lines).rstrip("\n") + "\n"


def format_answer(document: RunDocument) -> list[str]:
    """FASTEST, OUTPUTS and TRUST as a list, and what else the rows show."""
    lines = []
    for line in format_head(document):
        first, *others = map(escape, line.lines)
        lines += [f"- **{line.label}** {first}", *(f"  <br>{text}" for text in others)]
    remarks = list_remarks(document)
    return [*lines, *(["", *map(escape, remarks)] if remarks else [])]


def format_tables(document: RunDocument, level: int = 2) -> list[str]:
    """The lines of a table for each batch and setting, under headings of that level, and of the notes on their rows."""
    lines = []
    ordered = sort_rows(document.rows)
    notes = collect_notes(ordered)
    numbered = zip(ordered, notes.numbers, strict=True)
    for title, members in groupby(numbered, key=lambda pair: describe_setting(pair[0])):
        rows, numbers = zip(*members, strict=True)
        title = name_table(title, rows)
        lines += [f"{'#' * level} {escape(title[:1].upper() + title[1:])}", "", *_format_table(rows, numbers), ""]
    lines += format_batches(document, level) + format_builds(document, level)
    lines += [f"- all rows: {escape(note)}" for note in notes.common]
    # Not a numbered list: markdown would count by itself.
    return lines + [f"- note {i}: {escape(note)}" for i, note in enumerate(notes.numbered, start=1)]


def format_batches(document: RunDocument, level: int) -> list[str]:
    """The lines of latency against throughput, under a heading of that level; none if no engine ran several batches."""
    limit = document.spec.get("p99_limit_ms")
    series = list_batches(document.rows, limit)
    if not series:
        return []
    lines = [_join_cells(HEADINGS), _join_cells(["---"] * 2 + ["---:"] * (len(HEADINGS) - 2))]
    lines += [_join_cells([_stack_engine(engine), *map(escape, cells)]) for engine, *cells in list_cells(series)]
    sentences = [f"- {escape(sentence)}" for sentence in describe_limit(series, limit)]
    heading = f"{'#' * level} Batches: latency against throughput"
    return [heading, "", *lines, "", *sentences, *([""] if sentences else [])]


def format_builds(document: RunDocument, level: int) -> list[str]:
    """The lines of what several builds of an engine show, under a heading of that level; none without such builds."""
    cells = list_builds(document.rows)
    if not cells:
        return []
    lines = [_join_cells(BUILD_HEADINGS), _join_cells(["---"] * 2 + ["---:"] * (len(BUILD_HEADINGS) - 2))]
    lines += [_join_cells([_stack_engine(engine), *map(escape, others)]) for engine, *others in cells]
    sentences = [f"- {escape(sentence)}" for sentence in state_builds(document.rows)]
    return [f"{'#' * level} Builds", "", *lines, "", *sentences, ""]


def _explain() -> list[str]:
    return [
        "p50: geometric mean of the process medians; ±: half of the 95 % interval over processes. p99: nearest rank of "
        "all samples; `?` where they are too few. Speed-up: ratio of medians of neighbouring repetitions. ◆: no other "
        "row is both faster and better in its outputs. Of limit: the least time that this machine's best rates allow, "
        "over the median, and what sets it."
    ]


def _format_table(rows: Sequence[Row], numbers: Sequence[Sequence[int]]) -> list[str]:
    unit = choose_unit(row.p50_ms.value for row in rows if row.p50_ms)
    metric = find_metric(rows)
    headings = ["engine", "precision", f"p50 ({unit})", f"p99 ({unit})", "images/s", "speed-up", "max diff"]
    capacity = name_capacity(rows)
    headings += [*([name_metric(metric)] if metric else []), *([capacity] if capacity else [])]
    limited = has_limits(rows)
    headings += ["of limit"] if limited else []
    headings += ["build (s)", "size (MB)", "notes"]
    lines = [_join_cells([*map(escape, headings)]), _join_cells(["---"] * 2 + ["---:"] * (len(headings) - 3) + ["---"])]
    return lines + [
        _join_cells(
            [_stack_engine(row.engine), *map(escape, _format_row(row, marks, unit, metric, bool(capacity), limited))]
        )
        for row, marks in zip(rows, numbers, strict=True)
    ]


def _stack_engine(engine: str) -> str:
    """The engine's name, and its options on a line beneath it, where a table may break between two of them."""
    name, _, options = engine.partition(":")
    return "<br>".join([escape(name), *([escape(", ".join(options.split(",")))] if options else [])])


def _format_row(
    row: Row, marks: Sequence[int], unit: TimeUnit, metric: str | None, loaded: bool, limited: bool
) -> list[str]:
    factor = UNITS_PER_MS[unit]
    return [
        format_precision(row.precision, row.recipe, row.mix) + (" ◆" if row.pareto else ""),
        _format_p50(row, factor),
        format_p99(row, factor, missing=""),
        format_significant(row.throughput_per_s) if row.throughput_per_s else "",
        format_speedup(row, "±", missing=""),
        "" if row.max_abs_diff is None else format_small(row.max_abs_diff),
        *([format_score(row, metric)] if metric else []),
        *([format_capacity(row, missing="")] if loaded else []),
        *([format_limit(row, missing="")] if limited else []),
        format_build(row),
        "" if row.size_bytes is None else format_significant(row.size_bytes / 1e6),
        ", ".join(map(str, marks)),
    ]


def _format_p50(row: Row, factor: float) -> str:
    p50 = format_interval(row.p50_ms, factor, digits=4) if row.p50_ms else row.status
    return f"{p50} ({doubt})" if (doubt := name_doubt(row)) else p50


def _join_cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format_machine(machine: Machine | None) -> list[str]:
    if machine is None:
        return []
    gpus = [f"{gpu.name} (driver {gpu.driver})" for gpu in machine.gpus]
    facts = {
        "CPU": f"{machine.cpu_model}, {count_of(machine.cores_physical, 'cores')}, {len(machine.cpus_allowed)} usable",
        "flags": ", ".join(machine.cpu_flags),
        "GPU": ", ".join(gpus),
        "system": f"{machine.os}, {machine.arch}" + (f", {machine.virtual}" if machine.virtual else ""),
        "governor": machine.governor or "",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items())),
    }
    return ["## Machine", "", *(f"- {name}: {escape(text)}" for name, text in facts.items() if text)]


def format_diff_markdown(document: DiffDocument, *, gate: bool = False) -> str:
    """A comparison of two runs as a page: the verdict, then every row with its ratio, interval and reasons.

    Args:
        document: what was compared.
        gate: whether there is a gate, so that the page says how it ended.
    """
    lines = [
        f"**{document.verdict.replace('_', ' ')}** (margin {document.margin:.1%}{tell_gate(document, gate)})",
        "",
        _join_cells(["row", "verdict", "ratio (base / candidate)", "why"]),
        _join_cells(["---", "---", "---:", "---"]),
    ]
    for row in document.rows:
        ratio = format_range(row.ratio, "x") if row.ratio else ""
        cells = (row.id, row.verdict.replace("_", " "), ratio, explain_diff_row(row))
        lines.append(_join_cells([escape(cell) for cell in cells]))
    changes = state_changes(document)
    lines += ["", *(f"- {escape(sentence)}" for sentence in changes)] if changes else []
    return "\n".join(lines) + "\n"
