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


def test_entropy_cuts_a_lonely_outlier():
    values = np.append(np.random.default_rng(0).standard_normal(100_000), 40.0)
    threshold = choose_by_entropy(count(values, 40.0), 40.0)
    assert 2.5 < threshold < 8


def test_entropy_keeps_a_uniform_distribution_whole():
    values = np.random.default_rng(0).uniform(-1, 1, 200_000)
    assert choose_by_entropy(count(values, 1.0), 1.0) > 0.99


def test_entropy_never_clips_more_than_one_value_in_a_thousand():
    # All values far from zero: clipping them to one would be a perfect match of shapes.
    values = np.random.default_rng(0).normal(10, 0.1, 50_000)
    limit = float(values.max())
    threshold = choose_by_entropy(count(values, limit), limit)
    assert (values > threshold + limit / BINS_PER_SIDE).mean() <= MOST_CLIPPED


def test_entropy_keeps_the_levels_of_discrete_inputs():
    values = np.random.default_rng(0).integers(0, 17, 50_000) / 16
    assert choose_by_entropy(count(values, 1.0), 1.0) == pytest.approx(1.0)


def test_entropy_ignores_the_zeros_of_a_relu():
    values = np.random.default_rng(0).standard_normal(100_000).clip(0)
    with_zeros = choose_by_entropy(count(values, 5.0), 5.0)
    assert with_zeros > 2.5


def test_entropy_of_few_values_is_the_limit_or_below():
    assert 0 < choose_by_entropy(count([0.5, 2.0], 2.0), 2.0) <= 2.0


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
