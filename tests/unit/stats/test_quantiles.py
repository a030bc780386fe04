"""Median and nearest rank: hand-computed cases, and properties over many."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.stats.quantiles import convert_percent, find_rank, median, nearest_rank

numbers = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


@pytest.mark.parametrize(("values", "expected"), [([3], 3), ([4, 1], 2.5), ([9, 1, 5], 5), ([1, 2, 3, 10], 2.5)])
def test_median_by_hand(values: list[float], expected: float) -> None:
    assert median(values) == expected


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


@given(numbers, st.sampled_from([0.1, 0.25, 0.5, 0.9, 0.95, 0.99]))
def test_nearest_rank_agrees_with_numpy(values: list[int], q: float) -> None:
    values.sort()
    # numpy works in binary: where q n is a whole number but for its last bit, the two may part.
    if math.isclose(q * len(values), round(q * len(values)), abs_tol=1e-9):
        return
    assert nearest_rank(values, q) == np.quantile(values, q, method="inverted_cdf")


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
