"""What the cells of each column say of a configuration; the titles in their order are in snapshots.txt."""

from msgspec.structs import replace

from enginebench.core.records import Capacity, Result
from enginebench.core.warnings import make_warning
from enginebench.report.run.columns import SPEED_UP, list_columns, list_fields, mark_ties
from enginebench.report.run.rows import Row, RowComparison, RowCosts, RowLimit, RowTimes, describe_run
from samples import make_drift, make_implausible, make_machine, make_result


def make_rows(*results: Result) -> tuple[Row, ...]:
    return describe_run(model="m", machine=make_machine(), spec={}, results=results).rows


def read_cells(row: Row) -> dict[str, str]:
    """Title -> the cell of one configuration, of the columns that a table of it has."""
    columns = [column for column in list_columns([row]) if column.when is None or column.when([row])]
    return {column.title: column.text(row) for column in columns}


PYTORCH = make_result("pytorch", median_ms=10, accuracy=0.99, seed=1)
OTHER = make_result("openvino", median_ms=7, seed=3)
ORT = make_result("ort", median_ms=5, accuracy=0.98, drift=make_drift(1e-6), seed=2)


def test_the_baseline_is_1x_and_another_has_the_interval_of_its_ratio() -> None:
    baseline, other = make_rows(PYTORCH, ORT)
    assert (read_cells(baseline)[SPEED_UP], read_cells(baseline)["outputs"]) == ("1x", "ref.")
    assert read_cells(other)[SPEED_UP] == "1.99 - 2.04x"
    assert (read_cells(other)["outputs"], read_cells(other)["top-1"]) == ("same", "98.0%")
    assert read_cells(replace(other, speedup=None))[SPEED_UP] == ""
    assert read_cells(replace(other, outputs="within_limits"))["outputs"] == "within"


def test_a_time_of_disturbed_trials_is_marked_and_so_is_a_percentile_of_too_few_samples() -> None:
    (row,) = make_rows(make_implausible(PYTORCH))
    assert read_cells(row)["p50"].startswith("~")
    assert read_cells(row)["times"] == "implausible"
    (few,) = make_rows(make_result(processes=1))
    assert read_cells(few)["p99"] == "{}?"


def test_the_precision_is_the_one_that_ran() -> None:
    (row,) = make_rows(PYTORCH)
    assert (
        read_cells(replace(row, precision="int8", recipe="cpu", requested_precision="int8"))["precision"] == "int8 cpu"
    )
    assert read_cells(replace(row, precision="fp32", requested_precision="int8"))["precision"] == "fp32 (not int8)"
    warning = make_warning("low_effective_precision", record="int8 71%", asked="int8")
    part = replace(row, precision="int8", requested_precision="int8", effective_precision={"int8": 0.71, "fp32": 0.29})
    assert read_cells(replace(part, warnings=(warning,)))["precision"] == "int8 71%"
    assert read_cells(part)["ran in"] == "int8 71%, fp32 29%"


def test_costs_are_in_the_unit_of_their_title() -> None:
    (row,) = make_rows(PYTORCH)
    costs = RowCosts(size_bytes=45_000_000, peak_memory_bytes=612_000_000, memory_bytes={"load": 7_000_000})
    cells = read_cells(replace(row, costs=costs))
    assert [float(cells[title]) for title in ("size MB", "memory MB", "load MB")] == [45, 612, 7]


def test_an_engine_has_its_state_beside_it() -> None:
    (row,) = make_rows(PYTORCH)
    assert read_cells(replace(row, status="partial", modelled=True))["engine"] == "pytorch (partial) (modelled)"
    assert read_cells(replace(row, id="pytorch-fp32-against"))["engine"] == "pytorch (against)"


def test_sizes_are_scaled_to_their_units_and_a_build_beside_others_is_a_bound() -> None:
    (row,) = make_rows(PYTORCH)
    costs = RowCosts(size_bytes=46_800_000, peak_memory_bytes=2_000_000_000, build_s=1.5)
    cells = read_cells(replace(row, costs=costs, times=RowTimes(start_s=0.25)))
    assert (cells["size MB"], cells["memory MB"], cells["start s"], cells["build s"]) == (
        "46.8",
        "2000",
        "0.250",
        "1.5",
    )
    assert read_cells(replace(row, costs=RowCosts(build_s=1.5, built_beside=2)))["build s"] == "≤ 1.5"
    assert read_cells(replace(row, limit=RowLimit(of_limit=0.42, bound_by="compute")))["of peak"] == "42% compute"


def test_neighbours_without_a_difference_have_the_same_letter() -> None:
    a, b, c = (replace(row, id=name) for row, name in zip(make_rows(PYTORCH, ORT, OTHER), "abc", strict=True))
    rows = [
        replace(a, comparison=RowComparison(verdict_to_next="equivalent")),
        replace(b, comparison=RowComparison(verdict_to_next="faster")),
        replace(c, comparison=RowComparison(verdict_to_next=None)),
    ]
    assert mark_ties(rows) == {"a": "a", "b": "a"}


def test_a_capacity_is_the_range_between_what_holds_and_what_does_not() -> None:
    (row,) = make_rows(PYTORCH)
    capacity = Capacity(percentile=99, limit_ms=20, passes_qps=7030, fails_qps=7210, suspect=False)
    title = "req/s, p99 <= 20 ms"
    assert read_cells(replace(row, capacity=capacity))[title] == "7030 - 7210"
    assert read_cells(replace(row, capacity=replace(capacity, passes_qps=None)))[title] == "below 7210"


def test_programs_read_the_names_of_json() -> None:
    """The names of the fields in JSON stay when those of the code change."""
    titles = [column.title for column in list_fields()]
    assert titles[:3] == ["id", "engine", "precision"]
    assert {"p50_ms", "p50_ms_low", "p50_ms_high", "speedup", "caveats", "repetitions_needed", "p99_supported"} <= set(
        titles
    )
    assert not {"warnings", "trials_needed"} & set(titles)
