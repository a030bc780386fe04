"""Sections as a terminal shows them, at any width."""

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace
from rich import box
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from enginebench.core.text import clean_lines, clean_text
from enginebench.report.table import Column, Notes, Section, Table

# Columns of a bar: at least, beside columns that need not be shown, and at most.
_BAR = (4, 6, 24)
# A column of words is not made narrower: a name would no longer be read as one.
_LEAST = 12
# Nor is the first one, unless it is longer than this.
_NAME = 20
_WIDTH = 100


def print_sections(sections: Sequence[Section], console: Console) -> None:
    console.print(_Stripped(draw_sections(sections)), crop=False)


class _Stripped:
    """A console without the spaces that fill the lines of columns and paragraphs."""

    def __init__(self, drawn: RenderableType) -> None:
        self._drawn = drawn

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for line in Segment.split_lines(console.render(self._drawn, options)):
            while line and not line[-1].text.rstrip():
                line.pop()
            yield from (*line[:-1], *(last._replace(text=last.text.rstrip()) for last in line[-1:]), Segment.line())


def draw_sections(sections: Sequence[Section]) -> RenderableType:
    """Draw titles and the parts below them; pictures are left to pages."""
    drawn: list[RenderableType] = []
    for section in sections:
        parts: list[RenderableType] = []
        for part in section.parts:
            if isinstance(part, Table) and part.columns and not part.brief:
                parts.append(_Fitted(part))
            elif isinstance(part, Notes):
                parts.append(_draw_notes(part))
        if section.parts and not parts:
            continue
        drawn += [Text("")] if drawn else []
        drawn += [_Whole(clean_text(section.title), "bold")] if section.title else []
        for i, shown in enumerate(parts):
            drawn += [Text("")] if i or section.title else []
            drawn.append(shown if isinstance(shown, Text) else Padding(shown, (0, 0, 0, 2), expand=False))
    return Group(*drawn)


class _Whole(NamedTuple):
    """A text whose lines never separate a number from its unit."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = re.sub(r"(?<=\d) (?=[a-zA-Z])", "\N{NO-BREAK SPACE}", self.text)
        lines = textwrap.wrap(whole, options.max_width, break_on_hyphens=False)
        yield Text("\n".join(lines).replace("\N{NO-BREAK SPACE}", " "), style=self.style)


def format_text(sections: Sequence[Section]) -> str:
    """Return the output of the command line, without colours, for a `repr`."""
    # Whatever the surroundings ask for: a notebook's kernel sets FORCE_COLOR.
    console = Console(
        file=io.StringIO(), width=_WIDTH, highlight=False, color_system=None, force_terminal=False, force_jupyter=False
    )
    with console.capture() as capture:
        print_sections(sections, console)
    return capture.get().strip("\n")


def _draw_notes(notes: Notes) -> RenderableType:
    """Draw labels in a column of their own, with hanging indents."""
    if notes.kind == "command":  # never broken: it is to be pasted
        wide = max(cell_len(label) for label, _ in notes.lines)
        lines = [f"  {label:<{wide}}  {text}" for label, text in notes.lines]
        return Text("\n".join(map(clean_text, lines)), no_wrap=True, overflow="ignore")
    if notes.kind == "text":
        return Group(*(Text(clean_text(text)) for _, text in notes.lines))
    grid = RichTable.grid(padding=(0, 2 if notes.kind != "list" else 1), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    if notes.kind == "list":
        for label, text in notes.lines:
            grid.add_row("-", Text.assemble((clean_text(f"{label}: " if label else ""), "bold"), clean_text(text)))
        return grid
    last = ""
    for label, text in notes.lines:
        style = "bold" if notes.kind == "head" and label != last else ""
        grid.add_row(Text("" if label == last else clean_text(label), style=style), _Whole(clean_text(text), style))
        last = label
    return grid


class _Fitted:
    """A table fitted to the width: with bars, else without; then words fold; then columns are dropped."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The columns that there is room for, then a line about the others."""
        room = options.max_width
        cells = {id(column): _list_cells(column, self.table.rows) for column in self.table.columns}
        widths = {name: max(map(cell_len, "\n".join(texts).split("\n"))) for name, texts in cells.items()}
        least = {id(c): min(widths[id(c)], _LEAST) if _folds(c) else widths[id(c)] for c in self.table.columns}
        first = id(self.table.columns[0])
        least[first] = min(widths[first], _NAME)
        shown = self._choose(widths, room)
        dropped: list[Column] = []
        while (spare := max(shown, key=lambda c: c.spare)).spare and sum(least[id(c)] + 1 for c in shown) > room + 1:
            shown.remove(spare)
            dropped.append(spare)
        if sum(least[id(c)] + 1 for c in shown) > room + 1:
            least[first] = min(widths[first], _LEAST)
        widths = {id(column): widths[id(column)] for column in shown}
        gap = 2 if sum(widths.values()) + 2 * (len(shown) - 1) <= room else 1
        while sum(widths.values()) + gap * (len(shown) - 1) > room:
            widest = max(shown, key=lambda c: (widths[id(c)] > least[id(c)], widths[id(c)]))
            if widths[id(widest)] <= least[id(widest)]:
                break
            widths[id(widest)] -= 1
        left = room - sum(widths.values()) - gap * len(shown)
        yield self._draw(shown, cells, widths, gap, 0 if options.ascii_only or left < _BAR[0] else min(left, _BAR[2]))
        rest = [column for column in self.table.columns if column in dropped]
        if rest and self.table.wide and any(column.wide for column in rest):
            yield Text("")
            yield _Fitted(
                replace(self.table, columns=(*(c for c in self.table.columns if not c.spare and _folds(c)), *rest))
            )
        elif rest:
            yield Text(
                f"not shown in {console.width} columns: {', '.join(column.title for column in rest)}", style="dim"
            )

    def _choose(self, widths: dict[int, int], room: int) -> list[Column]:
        """Choose all columns, or the usual ones and as many others as there is room for, the most important first."""
        usual = [column for column in self.table.columns if self.table.wide or not column.wide]
        used = sum(widths[id(column)] + 2 for column in usual)
        if any(column.bar for column in usual):
            used += _BAR[1] + 2
        for column in sorted(self.table.columns, key=lambda c: c.spare):
            if column not in usual and used + widths[id(column)] + 2 <= room:
                usual.append(column)
                used += widths[id(column)] + 2
        return [column for column in self.table.columns if column in usual]

    def _draw(
        self, shown: list[Column], cells: dict[int, list[str]], widths: dict[int, int], gap: int, bar: int
    ) -> RichTable:
        table = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
        drawn: list[list[RenderableType]] = []
        for column in shown:
            width = widths[id(column)]
            # Rich would cut the spaces behind a figure off before it moves it to the right.
            fit = _fold if _folds(column) else lambda text, width: " " * (width - cell_len(text)) + text
            title, *texts = (Text(fit(text, width)) for text in cells[id(column)])
            table.add_column(title, width=width, overflow="fold")
            drawn.append([*texts])
            if column.bar and bar:
                values = [column.value(row) if column.value else None for row in self.table.rows]
                table.add_column("", width=bar)
                drawn.append([*_draw_bars([v if isinstance(v, int | float) else 0.0 for v in values], bar)])
        for line in zip(*drawn, strict=True):
            table.add_row(*line)
        return table


def _draw_bars(values: Sequence[float], width: int) -> Iterator[RenderableType]:
    longest = max((v for v in values if math.isfinite(v)), default=0.0)
    return (Bar(longest or 1.0, 0, value, width=width) for value in values)


def _folds(column: Column) -> bool:
    return column.align == "left"


def _list_cells(column: Column, rows: Sequence[Any]) -> list[str]:
    """The title, then the text of each row; figures with their decimal points under each other."""
    texts = [clean_lines(column.text(row)) for row in rows]
    if column.align == "decimal":  # from the point on, or behind the last digit
        ends = [len(re.sub(r"^\D*\d*", "", text)) for text in texts]
        texts = [text + " " * (max(ends) - end) if text else text for text, end in zip(texts, ends, strict=True)]
    return [clean_lines(column.title), *texts]


def _fold(text: str, width: int) -> str:
    """`text` in lines of that width, broken before an option or a space, or after a comma; else where it must be."""
    if cell_len(text) <= width:
        return text
    lines = [""]
    for piece in re.split(r"(?<=[ ,])|(?=[:@]\S)", text):
        if lines[-1] and cell_len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)
