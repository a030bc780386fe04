"""Scores: intervals against scipy's bootstrap, by simulation, and two sides that differ on purpose."""

import math

import numpy as np
import pytest
from scipy import stats

from enginebench.core.errors import UsageError
from enginebench.core.records import Estimate, Score
from enginebench.stats.metrics.labels import MIOU
from enginebench.stats.metrics.metric import Facts, Metric, Targets, average
from enginebench.stats.metrics.scores import (
    RESAMPLES,
    find_drop,
    loses_too_much,
    measure_loss,
    score_counts,
    score_whole,
)

MAE = Metric(name="mae", higher_is_better=False, share=False)


def make_score(value: float, *, higher: bool = True, share: bool = True, n: int = 100) -> Score:
    estimate = Estimate(value=value, low=None, high=None, level=0.95, n=n, method="given")
    return Score(metric="m", value=estimate, higher_is_better=higher, share=share)


def test_the_interval_of_a_mean_is_scipys():
    values = np.random.default_rng(3).exponential(size=120)
    found = score_counts(MAE, average(values)).value
    scipys = stats.bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(1))
    low, high = scipys.confidence_interval
    assert found.value == pytest.approx(values.mean()) and found.n == 120
    assert (found.low, found.high) == (pytest.approx(low, abs=0.02), pytest.approx(high, abs=0.02))
    assert found.method == f"BCa bootstrap over samples, {RESAMPLES} draws"


def test_the_interval_of_errors_over_lengths_is_scipys():
    rng = np.random.default_rng(4)
    lengths = rng.integers(5, 40, 80)
    counts = np.stack([rng.binomial(lengths, 0.1), lengths], axis=1).astype(float)
    found = score_counts(Metric(name="cer", higher_is_better=False), counts).value
    scipys = stats.bootstrap(
        (counts[:, 0], counts[:, 1]),
        lambda e, n, axis: e.sum(axis=axis) / n.sum(axis=axis),
        paired=True, n_resamples=9999, method="BCa", rng=np.random.default_rng(1),
    )  # fmt: skip
    low, high = scipys.confidence_interval
    assert found.value == counts[:, 0].sum() / lengths.sum()
    assert (found.low, found.high) == (pytest.approx(low, abs=0.003), pytest.approx(high, abs=0.003))


def test_the_interval_covers_what_it_says():
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(200):
        found = score_counts(MAE, average(rng.exponential(size=60))).value
        covered += found.low <= 1.0 <= found.high
    assert 0.9 <= covered / 200 <= 0.985


def test_answers_that_are_all_alike_have_no_interval():
    found = score_counts(MAE, average(np.full(50, 0.25)), average(np.full(50, 0.25)))
    assert (found.value.value, found.value.low, found.value.high, found.value.supported) == (0.25, None, None, False)
    assert found.delta.value == 0 and found.delta.low is None
    assert score_counts(MAE, average([2.0])).value.low is None


def test_the_same_counts_give_the_same_interval():
    counts = average(np.random.default_rng(7).exponential(size=30))
    assert score_counts(MAE, counts) == score_counts(MAE, counts)


def test_a_table_of_classes_is_drawn_by_sample():
    rng = np.random.default_rng(8)
    right = rng.integers(0, 3, (40, 6, 6))
    noisy = np.where(rng.random(right.shape) < 0.1, 0, right)
    metric = MIOU
    good, bad = (metric.count({"map": side}, Targets(values=right)) for side in (right, noisy))
    found = score_counts(metric, bad, good)
    assert found.value.low < found.value.value < found.value.high < 1
    assert found.delta.value == pytest.approx(found.value.value - 1) and found.delta.high < 0


def test_nothing_counted_is_no_score():
    with pytest.raises(UsageError, match="--metric mae is nan over these samples"):
        score_counts(MAE, np.zeros((5, 2)))


def test_a_metric_of_all_samples_is_asked_for_each_draw():
    values, before = (np.random.default_rng(i).normal(i, 1, 80) for i in (1, 2))
    found = score_whole(
        Facts(name="median"), lambda p: float(np.median(values[p])), 80, lambda p: float(np.median(before[p]))
    )
    assert found.value.value == np.median(values) and found.value.low < found.value.value < found.value.high
    assert found.delta.value == pytest.approx(np.median(values) - np.median(before)) and found.delta.high < 0
    scipys = stats.bootstrap((values,), np.median, method="percentile", rng=np.random.default_rng(1))
    assert found.value.low == pytest.approx(scipys.confidence_interval.low, abs=0.1)


def test_draws_without_a_value_leave_the_interval_out_where_there_are_many():
    def ask(places):
        if len(set(places.tolist())) == 40:
            return 1.0
        raise ValueError("a class is missing")

    found = score_whole(Facts(name="auc"), ask, 40)
    assert (found.value.value, found.value.low, found.value.supported) == (1.0, None, False)
    with pytest.raises(UsageError, match="nan"):
        score_whole(Facts(name="auc"), lambda _: math.nan, 40)


@pytest.mark.parametrize(
    ("base", "cand", "given", "lost"),
    [
        (make_score(0.98), make_score(0.97), None, False),
        (make_score(0.98), make_score(0.9699), None, True),
        (make_score(0.98), make_score(0.96), 0.02, False),
        (make_score(0.1, higher=False), make_score(0.1101, higher=False), None, True),
        (make_score(0.1, higher=False), make_score(0.05, higher=False), None, False),
        (make_score(200.0, higher=False, share=False), make_score(201.9, higher=False, share=False), None, False),
        (make_score(200.0, higher=False, share=False), make_score(202.1, higher=False, share=False), None, True),
        (make_score(-5.0, share=False), make_score(-5.06, share=False), None, True),
        (make_score(200.0, share=False), make_score(190.0, share=False), 15.0, False),
    ],
)
def test_what_may_be_lost(base, cand, given, lost):
    assert loses_too_much(base, cand, given) is lost
    assert (measure_loss(base, cand) > 0) is (
        base != cand and base.higher_is_better == (cand.value.value < base.value.value)
    )
    assert find_drop(base, given) > 0
