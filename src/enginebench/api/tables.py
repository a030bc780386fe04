"""A run as text of a fixed width, and as a DataFrame."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType

from enginebench.core.errors import MissingDependency
from enginebench.report.run.columns import list_columns
from enginebench.report.run.rows import RunDocument

if TYPE_CHECKING:
    import pandas

WIDTH = 100


def draw_text(table: RenderableType) -> str:
    """What the command line prints, without colours, for a `repr`."""
    # Whatever the surroundings ask for: a notebook's kernel sets FORCE_COLOR.
    console = Console(
        file=io.StringIO(), width=WIDTH, highlight=False, color_system=None, force_terminal=False, force_jupyter=False
    )
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def make_frame(document: RunDocument) -> pandas.DataFrame:
    """The columns of `table.csv`, the rows' ids as the index.

    Raises:
        MissingDependency: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingDependency("pandas, which to_pandas() needs,", "pip install pandas") from error
    columns = {name: [take(row) for row in document.rows] for name, take in list_columns().items()}
    return pandas.DataFrame(columns).set_index("id")
