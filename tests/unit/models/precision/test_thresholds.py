"""Thresholds from histograms."""

import numpy as np
import pytest

from enginebench.models.precision.calibrate import (
    BINS_PER_SIDE,
    MOST_CLIPPED,
    choose_by_entropy,
    choose_by_percentile,
    fold_signs,
)


def count(values, limit):
    return np.histogram(values, bins=2 * BINS_PER_SIDE, range=(-limit, limit))[0].astype(np.int64)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "limit", "low", "high"),
    [
        pytest.param(np.append(RNG.standard_normal(100_000), 40.0), 40.0, 2.5, 8, id="cuts a lonely outlier"),
        pytest.param(RNG.uniform(-1, 1, 200_000), 1.0, 0.99, 1.0, id="keeps a uniform distribution whole"),
        pytest.param(RNG.integers(0, 17, 50_000) / 16, 1.0, 0.999, 1.001, id="keeps the levels of discrete inputs"),
        pytest.param(RNG.standard_normal(100_000).clip(0), 5.0, 2.5, 5.0, id="ignores the zeros of a ReLU"),
        pytest.param([0.5, 2.0], 2.0, 0, 2.0, id="of few values is the limit or below"),
    ],
)
def test_entropy(values, limit, low, high):
    assert low < choose_by_entropy(count(values, limit), limit) <= high


def test_entropy_never_clips_more_than_one_value_in_a_thousand():
    # All values far from zero: clipping them to one would be a perfect match of shapes.
    values = np.random.default_rng(0).normal(10, 0.1, 50_000)
    limit = float(values.max())
    threshold = choose_by_entropy(count(values, limit), limit)
    assert (values > threshold + limit / BINS_PER_SIDE).mean() <= MOST_CLIPPED


def test_fold_adds_both_signs():
    assert fold_signs(np.array([1, 2, 3, 4])).tolist() == [3 + 2, 4 + 1]


@pytest.mark.parametrize("percentile", [99.0, 99.9, 90.0])
def test_percentile_keeps_that_share(percentile):
    values = np.random.default_rng(0).standard_normal(200_000)
    limit = float(np.abs(values).max())
    low, high = choose_by_percentile(count(values, limit), limit, percentile)
    tail = (100 - percentile) / 200
    bin_width = limit / BINS_PER_SIDE
    assert low == pytest.approx(np.quantile(values, tail), abs=2 * bin_width)
    assert high == pytest.approx(np.quantile(values, 1 - tail), abs=2 * bin_width)


def test_the_whole_percentile_keeps_everything():
    low, high = choose_by_percentile(count([-1.0, 0.5, 2.0], 2.0), 2.0, 100)
    assert low <= -1.0 and high == pytest.approx(2.0)


def test_a_percentile_is_one_sided_where_the_values_are():
    values = np.random.default_rng(0).exponential(1, 100_000)
    limit = float(values.max())
    low, high = choose_by_percentile(count(values, limit), limit, 99)
    assert abs(low) <= 2 * limit / BINS_PER_SIDE + np.quantile(values, 0.005) and 4 < high < 7
