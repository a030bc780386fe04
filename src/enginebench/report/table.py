"""The parts of every report: sections of tables, notes and charts, which four renderers draw."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from enginebench.report.numbers import UNITS_PER_MS, TimeUnit, choose_unit, format_in_unit

Value = str | int | float | bool | None
# Low end, value and high end of a ratio; the ends are None where there is no interval.
Span = tuple[float | None, float, float | None]


class Column(Struct, frozen=True):
    """A column of a table, declared once for all renderers; what it shows is a function of a row."""

    title: str
    text: Callable[[Any], str]  # what a person reads
    value: Callable[[Any], Value] | None = None  # by which it is sorted, and that a file has; None: the text
    when: Callable[[Sequence[Any]], bool] = bool  # whether rows have anything to show there
    align: Literal["left", "right", "decimal"] = "left"
    wide: bool = False  # a terminal shows it where there is room, or where it is asked for
    spare: int = 0  # a narrow terminal does without the highest first; 0 is never given up
    hint: str = ""  # the meaning, where the title is too short for it
    bar: bool = False  # a bar as long as the value of its row, for times that are compared
    span: Callable[[Any], Span | None] | None = None  # a ratio with its interval, drawn on a logarithmic axis
    link: Callable[[Any], str] | None = None  # where a page's cell leads: an address of the writer's
    # A time in ms, of which `text` has {} in place of the figure: `make_table` writes those of a table in one unit.
    is_time: bool = False


class Table(Struct, frozen=True, kw_only=True):
    """Rows below the columns that have something to show for them."""

    columns: tuple[Column, ...]
    rows: tuple[Any, ...]
    wide: bool = True  # whether a terminal shows all columns; else those that need room only where there is some
    title: str = ""
    file: str = "table"  # its name when it is saved from a page
    # Of a row, by which a page filters and hides it; `label` is what its charts call it.
    keys: Callable[[Any], Mapping[str, str]] | None = None
    brief: bool = False  # a picture of ratios at the head of a page, which other renderers leave out


class Notes(Struct, frozen=True, kw_only=True):
    """Labelled lines. A repeated label is written once.

    `head` is the conclusion, `list` are points with their labels in front, `facts` names with values, `command` lines
    to paste into a shell, `text` paragraphs.
    """

    lines: tuple[tuple[str, str], ...]
    kind: Literal["head", "list", "facts", "command", "text"] = "text"


class Chart(Struct, frozen=True, kw_only=True):
    """One picture. `name` is its file without ending."""

    name: str
    title: str
    description: str  # what it shows, for those who cannot see it
    spec: dict[str, Any]
    section: str = ""  # the part of a page in which it stands
    row: str = ""  # label of the one row that it is about
    picture: bool = True  # whether it is worth a file beside the page


class Section(Struct, frozen=True, kw_only=True):
    """Parts below a heading; without a title it belongs to what stands before it."""

    parts: tuple[Table | Notes | Chart, ...]
    title: str = ""
    name: str = ""  # where links lead


def make_table(columns: Sequence[Column], rows: Sequence[Any], **more: Any) -> Table:
    """The table of these rows, with the columns that have anything to show for them, in the unit of the first times."""
    shown = [column for column in columns if column.when(rows)]
    first = next((column.value for column in shown if column.is_time and column.value), None)
    times = [first(row) for row in rows] if first else []
    unit = choose_unit(time for time in times if isinstance(time, float))
    return Table(columns=tuple(_in_unit(one, unit) if one.is_time else one for one in shown), rows=tuple(rows), **more)


def _in_unit(column: Column, unit: TimeUnit) -> Column:
    def value(row: Any) -> float | None:
        ms = column.value(row) if column.value else None
        return ms * UNITS_PER_MS[unit] if isinstance(ms, float) else None

    def text(row: Any) -> str:
        return column.text(row).format(format_in_unit(value(row), unit))

    return replace(column, title=f"{column.title} {unit}", text=text, value=value, is_time=False)


def list_texts(left: Sequence[str], right: Sequence[str] = (), spare: Sequence[str] = ()) -> tuple[Column, ...]:
    """Columns of rows that are tuples of texts: words on the left, figures on the right.

    `spare`: titles of what a narrow terminal does without, the first of them first.
    """
    columns = [
        Column(title, itemgetter(index), align="left" if index < len(left) else "right", when=lambda _: True)
        for index, title in enumerate((*left, *right))
    ]
    order = {title: len(spare) - index for index, title in enumerate(spare)}
    return tuple(replace(column, spare=order.get(column.title, 0)) for column in columns)


def make_notes(texts: Iterable[str | tuple[str, str]], kind: Literal["list", "text"] = "text") -> list[Notes]:
    """The sentences, some with labels, as one part; none where there are none."""
    lines = tuple(("", text) if isinstance(text, str) else text for text in texts)
    return [Notes(lines=lines, kind=kind)] if lines else []
