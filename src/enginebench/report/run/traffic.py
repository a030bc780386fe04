"""The shapes of a mix of requests: what a call of each takes in each configuration."""

from collections.abc import Sequence

from enginebench.report.numbers import format_digits, format_ratio, format_significant, format_weight
from enginebench.report.run.head import name_configurations
from enginebench.report.run.rows import Row, RunDocument, group_rows
from enginebench.report.table import Column, Notes, Section, Table, make_notes, make_table

NOTE = (
    "Times above are of the mean request: the mean over the shapes, weighted by their fractions of the requests. p99 "
    "is that of requests as they come."
)

PADDING_NOTE = (
    "What padding costs: different shapes after it, of those before; input values of the mean request, and its time, "
    "over those of the same engine without padding. A time of scope compute leaves out padding itself; scope io has it."
)


def list_mix(document: RunDocument) -> list[Section]:
    """List the times of each shape of a mix; nothing where each configuration served one shape."""
    parts = [part for rows in group_rows(document.rows) for part in make_mix(rows, name_configurations(document.rows))]
    return [Section(title="By shape", name="mix", parts=tuple(parts))] if parts else []


def make_mix(rows: Sequence[Row], names: dict[str, str]) -> list[Table | Notes]:
    """Make the table of a mix, a column for each shape with its fraction of the requests, and its note."""
    served = [row for row in rows if row.times.cells and row.p50_ms]
    if not served:
        return []
    cells = served[0].times.cells
    weights = sorted((cell.weight for cell in cells), reverse=True)
    columns = (
        Column("configuration", lambda row: names[row.id]),
        *(
            _make_cell(f"{cell.name} {format_weight(cell.weight)}", i, weights.index(cell.weight))
            for i, cell in enumerate(cells)
        ),
        _make_memory(),
    )
    title = "A call of each shape, with its fraction of the requests"
    return [make_table(columns, served, file="mix", title=title), *make_notes([NOTE]), *_make_padding(served, names)]


def _make_padding(rows: Sequence[Row], names: dict[str, str]) -> list[Table | Notes]:
    """Make the table of what padding costs; nothing where no configuration pads."""
    padding = [row for row in rows if row.times.padded_values is not None]
    if not padding:
        return []
    columns = (
        Column("padded", lambda row: names[row.id]),
        Column("shapes", _count_shapes, align="right"),
        Column("values", lambda row: f"{format_significant(row.times.padded_values)}x", align="right"),
        Column("time", _format_cost, align="right"),
        Column("outputs", lambda row: row.outputs.replace("_", " ")),
        _make_memory(),
    )
    return [make_table(columns, padding, file="padding", title="What padding costs"), *make_notes([PADDING_NOTE])]


def _format_cost(row: Row) -> str:
    ratio = row.comparison.ratio_to_exact
    return "" if ratio is None else format_ratio(ratio)


def _count_shapes(row: Row) -> str:
    cells = row.times.cells
    return f"{len({cell.padded for cell in cells})} of {len(cells)}"


def _make_cell(title: str, index: int, rank: int) -> Column:
    """Make the column of one shape; a narrow terminal shows those of most requests."""
    return Column(
        title,
        lambda row: "{}",
        lambda row: row.times.cells[index].p50_ms.value,
        align="decimal",
        spare=rank,
        is_time=True,
    )


def _make_memory() -> Column:
    return Column(
        "memory MB",
        lambda row: format_digits(row.costs.peak_memory_bytes and row.costs.peak_memory_bytes * 1e-6),
        lambda row: row.costs.peak_memory_bytes and row.costs.peak_memory_bytes * 1e-6,
        align="decimal",
    )
