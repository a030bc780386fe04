"""Tables on a terminal that is too narrow for them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from enginebench.core.text import clean_text

# Of a column that folds: narrower, a name is no longer read as one.
_LEAST = 8


class Fitted:
    """A table that gives up columns where the terminal is too narrow for all, and says below it which.

    Rich takes all of what is missing from the columns that fold, down to nothing: those that name the row.
    """

    def __init__(self, table: Table, give_up: Sequence[int]) -> None:
        """Takes the table that a wide terminal shows.

        Args:
            table: its columns either fold or have `no_wrap`; none has a style of its own.
            give_up: places of the columns that a reader can spare, the least important first.
        """
        self._table, self._give_up = table, give_up

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The columns that there is room for, then a line about the others."""
        kept: list[int] = list(range(len(self._table.columns)))
        given: list[int] = []
        if self._measure(kept, self._table.padding) <= options.max_width:
            yield self._table
            return
        padding = (0, 0, 0, 0) if self._table.box else self._table.padding  # a box has a space between columns anyway
        for place in self._give_up:
            if self._measure(kept, padding) <= options.max_width:
                break
            kept.remove(place)
            given.append(place)
        yield self._choose(kept, padding, folds=self._measure(kept, padding) > options.max_width)
        if not given:
            return
        names = ", ".join(_name(self._table.columns[place]) for place in sorted(given))
        yield Text(f"not shown in {options.max_width} columns: {names}", style="dim")

    def _measure(self, kept: Sequence[int], padding: tuple[int, int, int, int]) -> int:
        columns = [self._table.columns[place] for place in kept]
        gap = padding[1] + padding[3] + (1 if self._table.box else 0)
        return sum(map(_measure_column, columns)) + gap * (len(columns) - 1)

    def _choose(self, kept: Sequence[int], padding: tuple[int, int, int, int], *, folds: bool) -> Table:
        old = self._table
        table = Table(box=old.box, show_edge=old.show_edge, pad_edge=old.pad_edge, padding=padding)
        for column in (columns := [old.columns[place] for place in kept]):
            table.add_column(
                column.header,
                justify=column.justify,
                overflow="fold" if folds else column.overflow,
                no_wrap=column.no_wrap and not folds,
            )
        for row, cells in zip(old.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
            table.add_row(*cells, style=row.style)
        return table


def _measure_column(column: Column) -> int:
    widest = max(max(map(cell_len, str(cell).split("\n"))) for cell in (column.header, *column.cells))
    return widest if column.no_wrap else min(widest, _LEAST)


def _name(column: Column) -> str:
    return clean_text(str(column.header)).replace(" /", "/")
