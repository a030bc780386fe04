"""Student and Welch intervals against hand-computed cases and scipy."""

import math

import numpy as np
import pytest
from scipy import stats

from enginebench.core.errors import MeasurementError
from enginebench.stats.intervals import estimate_geometric, measure_difference, measure_spread, take_logs

A = [0.1, 0.3, 0.2, 0.6, 0.25, 0.35]
B = [0.0, 0.4, 0.1, 0.2]


def test_spread_by_hand() -> None:
    spread = measure_spread([1.0, 2.0, 3.0])
    assert (spread.mean, spread.freedom, spread.n) == (2.0, 2, 3)
    assert spread.error == pytest.approx(1 / math.sqrt(3))
    # t(0.975, 2) = 4.30265 from the table.
    assert spread.interval(0.95) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-5)


def test_interval_agrees_with_scipy() -> None:
    expected = stats.ttest_1samp(A, 0).confidence_interval(0.95)
    assert measure_spread(A).interval(0.95) == pytest.approx((expected.low, expected.high))


def test_welch_agrees_with_scipy() -> None:
    test = stats.ttest_ind(A, B, equal_var=False)
    spread, expected = measure_difference(A, B), test.confidence_interval(0.9)
    assert spread.freedom == pytest.approx(test.df)
    assert spread.interval(0.9) == pytest.approx((expected.low, expected.high))


def test_welch_of_equal_values_has_no_width() -> None:
    assert measure_difference([1.0, 1.0], [2.0, 2.0]).interval(0.95) == (-1.0, -1.0)


def test_one_value_has_no_interval() -> None:
    assert measure_spread([1.0]).interval(0.95) is None
    assert measure_difference([1.0], [1.0, 2.0]).interval(0.95) is None
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
