"""A run as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebench.core.errors import MissingDependency
from enginebench.report.run.columns import list_fields
from enginebench.report.run.rows import RunDocument

if TYPE_CHECKING:
    import pandas


def make_frame(document: RunDocument) -> pandas.DataFrame:
    """The columns of `table.csv`, the rows' ids as the index.

    Raises:
        MissingDependency: pandas is not installed.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingDependency("pandas, which to_pandas() needs,", "pip install pandas") from error
    takes = {column.title: column.value or column.text for column in list_fields()}
    columns = {name: [take(row) for row in document.rows] for name, take in takes.items()}
    return pandas.DataFrame(columns).set_index("id")
