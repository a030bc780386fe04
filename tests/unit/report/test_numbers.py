"""Figures as people read them: no time has five digits before the point, whatever stands beside it."""

import math
import re

import pytest
from msgspec.structs import replace

from enginebench.core.store import read_record
from enginebench.report.numbers import (
    choose_unit,
    format_alone,
    format_before_after,
    format_in_unit,
    format_ms,
    format_rate,
)
from enginebench.report.stages import list_stages
from enginebench.report.table import Column, make_table
from enginebench.stats.stages import StagesDocument
from reports import draw
from snapshots import ROOT


@pytest.mark.parametrize(
    ("times_ms", "unit"),
    [
        ([0.5, 2.0], "us"),
        ([0.78, 78.8], "ms"),  # 78808 us
        ([3.0, 50.0], "ms"),
        ([3.0, 12_000.0], "ms"),  # 0.003 s would be left of the first: the second has its own unit
        ([300.0, 12_000.0], "s"),
        ([1104.967], "ms"),
        ([0.0], "ms"),
        ([], "ms"),
    ],
)
def test_the_unit_suits_the_smallest_and_the_largest(times_ms: list[float], unit: str) -> None:
    assert choose_unit(times_ms) == unit


def test_a_figure_of_five_digits_has_a_unit_of_its_own() -> None:
    assert format_in_unit(78_808.0, "us") == "78.8 ms"
    assert format_in_unit(9_999.0, "us") == "9999" and format_in_unit(9_999.6, "us") == "10.0 ms"
    assert format_in_unit(None, "us") == ""


def test_a_table_is_in_the_unit_of_its_first_times() -> None:
    columns = [
        Column(name, lambda row: "{}", lambda row, name=name: row[name], is_time=True) for name in ("p50", "p99")
    ]
    rows = [{"p50": 0.002, "p99": 15.0}, {"p50": 0.009, "p99": 0.018}]
    table = make_table(columns, rows)
    cells = [[column.text(row) for column in table.columns] for row in rows]
    assert [column.title for column in table.columns] == ["p50 us", "p99 us"]
    assert cells == [["2.00", "15.0 ms"], ["9.00", "18.0"]]
    assert not re.search(r"\d{5}", str(cells))


def test_a_change_and_a_rate_are_read_at_a_glance() -> None:
    assert format_before_after(6550.0, 6600.0) == "6550 -> 6600 ms"
    assert format_before_after(65_500.0, 66_000.0) == "65.5 -> 66.0 s"
    assert format_before_after(None, 0.5) == "- -> 500 us"
    assert [format_alone(ms) for ms in (0.0101, 2.31, 12_345.0)] == ["10.1 us", "2.31 ms", "12.3 s"]
    assert [format_rate(rate) for rate in (3.14159, 421.4, 68_163.2)] == ["3.14", "421", "68.2k"]
    rates = (9999.4, 9999.6, 9.9e6, 214_952e3, 3_600_879e3, math.nan)
    assert [format_rate(rate) for rate in rates] == ["9999", "10.0k", "9900k", "215M", "3601M", "nan"]
    assert [format_ms(time) for time in (0.0, 2.31, 9999.0, 12_345.0)] == ["0 ms", "2.31 ms", "9999 ms", "12.3 s"]


def test_stages_from_large_files_on_a_slow_machine_have_no_figure_of_five_digits() -> None:
    """And a rate below one image a second is not called 0."""
    known = read_record(ROOT / "results" / "h200" / "stages-resnet50-b32-pytorch-fp32.json", StagesDocument)
    stages = tuple(replace(stage, p50_ms=1e4 * stage.p50_ms, p99_ms=1e5 * stage.p99_ms) for stage in known.stages)
    slow = replace(
        known,
        stages=stages,
        total_p50_ms=123_456.0,
        total_p99_ms=234_567.0,
        serial_per_s=0.259,
        overlapped_per_s=0.31,
        image_bytes={"min": 8_100_000, "max": 45_300_000},
        bounds_per_s={"decode_and_preprocess": 12_345.6, "engine": 0.32},
    )
    text = draw(list_stages(slow, known), 100)
    assert not re.search(r"\d{5}", text)
    for part in ("p50 123 s, p99 235 s", "0.259 images per second", "8.10 to 45.3 MB", "12.3k a second"):
        assert part in " ".join(text.split())
