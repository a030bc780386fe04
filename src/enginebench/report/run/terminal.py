"""The closing table of a run, for a terminal of 80 columns."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import get_args

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from enginebench.analyze.diff import DiffDocument
from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.names import format_precision
from enginebench.core.records import Status
from enginebench.core.text import clean_lines, clean_text
from enginebench.report.narrow import Fitted
from enginebench.report.numbers import (
    UNITS_PER_MS,
    TimeUnit,
    choose_unit,
    format_interval,
    format_range,
    format_significant,
    format_small,
)
from enginebench.report.run.answers import Notes, collect_notes, explain_diff_row, list_remarks, tell_gate
from enginebench.report.run.batches import describe_limit, list_batches
from enginebench.report.run.builds import state_builds
from enginebench.report.run.cells import (
    MISSING,
    break_lines,
    describe_setting,
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

# Of an engine's name in one line; at 80 columns more would fold the cell where it falls.
_LETTERS = 24


def print_run(
    document: RunDocument, console: Console, *, head: bool = True, folder: Path | None = None, warnings: bool = False
) -> None:
    """Prints the head of a run, its tables, and how many warnings there are."""
    ascii_only = console.options.ascii_only
    console.print(render_run(document, ascii_only=ascii_only, head=head, folder=folder, warnings=warnings))


def render_run(
    document: RunDocument,
    *,
    ascii_only: bool = False,
    head: bool = True,
    folder: Path | None = None,
    warnings: bool = True,
) -> RenderableType:
    """The head, one table for each batch, scope and setting, then the notes.

    Args:
        document: of the run.
        ascii_only: for terminals that have no "±".
        head: whether FASTEST, OUTPUTS and TRUST stand above, and the rows fastest first.
        folder: of the run, for the command that prints its warnings.
        warnings: print them all; else they are counted.
    """
    ordered = sort_rows(document.rows) if head else document.rows
    notes = collect_notes(ordered)
    numbered = list(zip(ordered, notes.numbers, strict=True))
    parts: list[RenderableType] = [_render_head(document), Text("")] if head else []
    for title, members in groupby(numbered, key=lambda pair: describe_setting(pair[0])):
        rows, numbers = zip(*members, strict=True)
        parts += [
            Text(clean_text(f"{document.model}, {name_table(title, rows)}"), style="bold"),
            _fit_table(_build_table(rows, numbers, "+-" if ascii_only else "±")),
        ]
    parts += [*_render_legend(document.rows), *_render_notes(notes, folder, warnings), Text("")]
    limit = document.spec.get("p99_limit_ms")
    parts += [Text(clean_text(sentence)) for sentence in describe_limit(list_batches(document.rows, limit), limit)]
    parts += [Text(clean_text(sentence)) for sentence in state_builds(document.rows)]
    parts += [Text(clean_text(sentence)) for sentence in list_remarks(document)]
    return Group(*parts)


def _fit_table(table: Table) -> Fitted:
    """The table, which gives up all between p50 and the notes but one figure after another; the speed-up last."""
    places = {str(column.header): place for place, column in enumerate(table.columns)}
    first = [places[name] for name in ("of\nlimit", "images\n/s", "max\ndiff") if name in places]
    last = places["speed-up"]
    others = range(places["notes"] - 1, places["speed-up"] - 3, -1)  # the capacity, a score of accuracy, p99
    return Fitted(table, [*first, *(place for place in others if place not in (*first, last)), last])


def _build_table(rows: Sequence[Row], numbers: Sequence[Sequence[int]], plus_minus: str) -> Table:
    unit = choose_unit(row.p50_ms.value for row in rows if row.p50_ms)
    metric = find_metric(rows)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("engine", overflow="fold")
    table.add_column("prec.", overflow="fold", min_width=5)
    headings = [
        f"p50 {unit}",
        f"p99 {unit}",
        "images\n/s",
        "speed-up",
        "max\ndiff",
        *([name_metric(metric)] if metric else []),
    ]
    capacity = name_capacity(rows)
    headings += [capacity.replace(", ", "\n")] if capacity else []
    headings += ["of\nlimit"] if has_limits(rows) else []
    for heading in headings:
        table.add_column(Text(clean_lines(heading)), justify="right", no_wrap=True)
    table.add_column("notes", overflow="fold", min_width=5)
    for row, marks in zip(rows, numbers, strict=True):
        cells = [*_format_cells(row, unit, plus_minus), *([format_score(row, metric, 1, MISSING)] if metric else [])]
        cells += [format_capacity(row).replace(" to ", "\nto ")] if capacity else []
        cells += [format_limit(row).replace(" ", "\n")] if has_limits(rows) else []
        texts = [_stack(row.engine, ":,"), _stack(format_precision(row.precision, row.recipe, row.mix), "@ ")]
        texts += [Text(clean_text(cell)) for cell in (*cells, ",".join(map(str, marks)))]
        if doubt := name_doubt(row):
            texts[2].append(f"\n{doubt}", style="bold")  # at the figure, and a line lower: the table stays narrow
        table.add_row(*texts, style="" if row.status == "ok" else "dim")
    return table


def _stack(text: str, breaks: str) -> Text:
    """`text` with a new line before every character of `breaks`, so that a long name takes height, not width."""
    pieces = "".join(f"\n{c}" if c in breaks else c for c in clean_text(text)).split("\n")
    return Text("\n".join(line for piece in pieces for line in break_lines(piece, _LETTERS)))


def _format_cells(row: Row, unit: TimeUnit, plus_minus: str) -> Iterator[str]:
    factor = UNITS_PER_MS[unit]
    yield format_interval(row.p50_ms, factor, plus_minus, digits=4) if row.p50_ms else row.status
    yield format_p99(row, factor)
    yield format_significant(row.throughput_per_s) if row.throughput_per_s else MISSING
    yield format_speedup(row, plus_minus)
    yield MISSING if row.max_abs_diff is None else format_small(row.max_abs_diff)


def _render_legend(rows: Sequence[Row]) -> Iterator[Text]:
    if any(row.p99_ms and not row.p99_ms.supported for row in rows):
        yield Text("? too few samples for this percentile", style="dim")


def _render_head(document: RunDocument) -> Table:
    """FASTEST, OUTPUTS and TRUST with hanging indents."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in format_head(document):
        for i, text in enumerate(line.lines):
            table.add_row(
                Text("" if i else line.label, style="bold"), Text(clean_text(text), style="" if i else "bold")
            )
    return table


def _render_notes(notes: Notes, folder: Path | None, warnings: bool) -> Iterator[RenderableType]:
    """The notes with hanging indents: those of all rows first. Warnings are counted where they are not asked for."""
    table = Table.grid(padding=(0, 1), pad_edge=False)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    statuses = tuple(f"{status}: " for status in get_args(Status))
    named = [*(("all:", note) for note in notes.common), *((str(i + 1), n) for i, n in enumerate(notes.numbered))]
    shown = [(name, note) for name, note in named if warnings or note.startswith(statuses)]
    for name, note in shown:
        table.add_row(name, Text(clean_text(note)))
    if table.row_count:
        yield table
    if len(shown) < len(named):
        command = ["enginebench", "report", str(folder) if folder else "DIR", "--warnings"]
        yield Text(f"Warnings ({len(named) - len(shown)})  {shlex.join(command)}")


def print_diff(document: DiffDocument, console: Console, *, gate: bool = False) -> None:
    """Prints the comparison of two runs, the verdict last; of the gate it speaks where there is one."""
    console.print(render_diff(document, gate=gate))


def render_diff(document: DiffDocument, *, gate: bool = False) -> RenderableType:
    """Every row with its verdict, ratio, interval and reasons; then the verdict over all of them."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    table.add_column("row", overflow="fold", max_width=30)
    table.add_column("verdict", no_wrap=True)
    table.add_column("base / candidate", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for row in document.rows:
        ratio = format_range(row.ratio, "x") if row.ratio else MISSING
        cells = (row.id, row.verdict.replace("_", " "), ratio, explain_diff_row(row))
        table.add_row(*(Text(clean_text(cell)) for cell in cells))
    verdict = f"{document.verdict.replace('_', ' ')} (margin {document.margin:.1%}{tell_gate(document, gate)})"
    changes = [Text(clean_text(sentence)) for sentence in state_changes(document)]
    return Group(Fitted(table, [2]), Text(""), *changes, *([Text("")] if changes else []), Text(verdict, style="bold"))
