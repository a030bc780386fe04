"""Intervals, quantiles and the distributions behind them."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.stats.intervals import (
    NORMAL,
    estimate_geometric,
    measure_difference,
    measure_spread,
    quantile_of_t,
    take_logs,
)
from enginebench.stats.quantiles import convert_percent, find_rank, median, nearest_rank

A = [0.1, 0.3, 0.2, 0.6, 0.25, 0.35]


B = [0.0, 0.4, 0.1, 0.2]


def test_intervals_agree_with_scipy() -> None:
    expected = stats.ttest_1samp(A, 0).confidence_interval(0.95)
    assert measure_spread(A).interval(0.95) == pytest.approx((expected.low, expected.high))
    test = stats.ttest_ind(A, B, equal_var=False)
    spread, expected = measure_difference(measure_spread(A), measure_spread(B)), test.confidence_interval(0.9)
    assert spread.freedom == pytest.approx(test.df)
    assert spread.interval(0.9) == pytest.approx((expected.low, expected.high))
    assert measure_difference(measure_spread([1.0, 1.0]), measure_spread([2.0, 2.0])).interval(0.95) == (-1.0, -1.0)


def test_one_value_has_no_interval() -> None:
    assert measure_spread([1.0]).interval(0.95) is None
    assert measure_difference(measure_spread([1.0]), measure_spread([1.0, 2.0])).interval(0.95) is None
    estimate = estimate_geometric(measure_spread([math.log(3)]), 0.95, 1.0, "m")
    assert estimate.value == pytest.approx(3)
    assert (estimate.low, estimate.high, estimate.supported) == (None, None, False)
    assert "single process" in estimate.method


def test_no_values_and_no_time_are_errors() -> None:
    with pytest.raises(MeasurementError, match="no trials"):
        measure_spread([])
    with pytest.raises(MeasurementError, match="0 ns in 1 of 2 processes"):
        take_logs([0.0, 5.0], "the median latency")
    with pytest.raises(MeasurementError, match="nan"):
        take_logs([float(np.nan)], "the median latency")


numbers = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


@given(numbers)
def test_median_agrees_with_the_standard_library(values: list[int]) -> None:
    assert median(values) == statistics.median(values)


@pytest.mark.parametrize(
    ("n", "q", "rank"),
    [(100, 0.07, 7), (100, 0.99, 99), (101, 0.99, 100), (1, 0.5, 1), (2, 0.5, 1), (3, 0.5, 2), (1000, 0.999, 999)],
)
def test_rank_by_hand(n: int, q: float, rank: int) -> None:
    assert find_rank(n, q) == rank


@given(numbers, st.floats(0.001, 1.0))
def test_nearest_rank_is_the_smallest_value_that_covers_q(values: list[int], q: float) -> None:
    values.sort()
    found = nearest_rank(values, q)
    assert sum(v <= found for v in values) >= q * len(values) - 1e-9
    below = [v for v in values if v < found]
    assert len(below) < q * len(values)


def test_refuses_what_has_no_answer() -> None:
    with pytest.raises(MeasurementError, match="no samples"):
        median([])
    with pytest.raises(MeasurementError, match="p99"):
        nearest_rank([], 0.99)
    with pytest.raises(UsageError, match="120"):
        nearest_rank([1], 1.2)
    with pytest.raises(UsageError, match="0"):
        nearest_rank([1], 0)


def test_percent_becomes_the_nearest_share() -> None:
    assert 99.9 / 100 != 0.999
    assert [convert_percent(p) for p in (50, 90.0, 99.9, 99.99)] == [0.5, 0.9, 0.999, 0.9999]


def test_quantiles_of_t() -> None:
    """One degree of freedom has a closed form; an infinite number is the normal distribution."""
    assert quantile_of_t(0.5, 3) == pytest.approx(0, abs=1e-12)  # SciPy 1.15 gives 7e-17
    assert quantile_of_t(0.025, 4.7) == pytest.approx(-quantile_of_t(0.975, 4.7))
    assert quantile_of_t(0.975, float("inf")) == NORMAL.inv_cdf(0.975)
    assert quantile_of_t(0.975, 1) == pytest.approx(np.tan(np.pi * 0.475), rel=1e-10)  # SciPy 1.15 is 2e-11 off
    assert quantile_of_t(0.975, 1e9) == pytest.approx(NORMAL.inv_cdf(0.975), rel=1e-6)
