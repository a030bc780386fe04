"""Numbers as printed: digits, units, intervals that never claim more than was found."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.core.records import Estimate
from enginebench.core.text import clean_text
from enginebench.report.numbers import choose_unit, format_interval, format_range, format_significant, format_small


def make(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, level=0.95, n=10, method="")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33.456, "33.5"),
        (3.0949, "3.09"),
        (121.4, "121"),
        (4821.7, "4822"),
        (0.01234, "0.0123"),
        (99.96, "100"),
        (0.0, "0"),
        (9.996, "10.0"),
        (1e-7, "1.00e-07"),
        (123456.7, "123457"),
        (float("inf"), "inf"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert format_significant(value) == text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (make(33.52, 33.15, 33.9), "33.5 ±0.4"),
        (make(2.02, 1.99, 2.05), "2.02 ±0.03"),
        (make(12.76, 12.66, 12.87), "12.8 ±0.2"),
        (make(30.0, 20.0, 52.0), "20..52"),
        (make(7.0), "7.00"),
        (make(1.0, 1.0, 1.0), "1.00"),
        (make(1234.5, 1230.0, 1240.0), "1234 ±6"),
    ],
)
def test_interval(estimate: Estimate, text: str) -> None:
    assert format_interval(estimate) == text


@given(st.floats(0.01, 1e5), st.floats(1e-5, 0.2))
def test_printed_interval_is_never_narrower_than_found(value: float, share: float) -> None:
    half = value * share
    text = format_interval(make(value, value - half, value + half))
    printed = float(re.split("±", text)[1])
    assert printed >= half * (1 - 1e-6)


def test_units_factors_and_signs() -> None:
    assert format_interval(make(0.0291, 0.0289, 0.0293), 1000, "+-") == "29.1 +-0.2"
    assert format_interval(make(2.02, 1.99, 2.05), unit="x") == "2.02x ±0.03"
    assert format_range(make(2.02, 1.95, 2.1), "x") == "2.02x (1.95 to 2.10)"
    assert format_range(make(2.02), "x") == "2.02x"
    assert [format_small(v) for v in (0.0, 1.8e-6, 0.12)] == ["0", "2e-06", "1e-01"]


@pytest.mark.parametrize(("times", "unit"), [([0.03, 5], "us"), ([1.5, 900], "ms"), ([12_000], "s"), ([], "ms")])
def test_unit_of_a_column(times: list[float], unit: str) -> None:
    assert choose_unit(times) == unit


def test_clean_text_keeps_letters_of_every_language() -> None:
    assert clean_text("Modell-Größe 模型\x1b[31m\x9b\x00\u200b\u2028x") == "Modell-Größe 模型[31m x"
