"""A report takes as many steps for each row, however many rows there are: counted as calls, not as time."""

import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.report.csv_table import format_csv
from enginebench.report.run.columns import list_fields
from enginebench.runs.folder import RunRecord, read_results
from enginebench.runs.reporting import describe_stored
from reports import show, write_markdown
from samples import make_drift, make_result
from stored_run import write_run


def make_rows(count: int) -> list[Result]:
    """Rows of one setting: every other one in a shorter precision, each with outputs that were compared."""
    rows = []
    for i in range(count):
        precision = "int8" if i % 2 else "fp32"
        row = make_result("ort", precision, 10.0 + i / 100, drift=make_drift(1e-3), accuracy=0.9, processes=2)
        engine = replace(row.engine, options={"x": str(i // 2)})
        rows.append(replace(row, id=f"{row.id}-{i}", engine=engine))
    return rows


def count_calls(work: Callable[[], object]) -> int:
    count = 0

    def listen(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(listen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def count_steps(record: RunRecord, results: list[Result]) -> list[int]:
    record = replace(record, rows=tuple(row.id for row in results))
    document = describe_stored(record, results)
    return [
        count_calls(lambda: describe_stored(record, results)),
        count_calls(lambda: show(document, 100)),
        count_calls(lambda: write_markdown(document)),
        count_calls(lambda: format_csv(list_fields(), document.rows)),
    ]


def test_twice_as_many_rows_take_twice_as_many_steps(tmp_path: Path) -> None:
    record, results = read_results(write_run(tmp_path / "r", make_rows(160)))
    count_steps(record, results[:4])  # what is made once is not counted
    few, many = count_steps(record, results[:80]), count_steps(record, results)
    assert [round(b / a, 1) <= 2.1 for a, b in zip(few, many, strict=True)] == [True] * 4, (few, many)
