"""Scores with their intervals, shares and values."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cosine

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.records import Score
from enginebench.stats.metrics.labels import MIOU
from enginebench.stats.metrics.metric import Facts, Metric, Targets, average
from enginebench.stats.metrics.scores import (
    RESAMPLES,
    compute_mcnemar_p,
    estimate_paired_difference,
    estimate_share,
    find_drop,
    loses_too_much,
    measure_loss,
    score_counts,
    score_whole,
)
from enginebench.stats.metrics.tasks import count_absolute, count_cosine
from samples import make_scores

MAE = Metric(name="mae", higher_is_better=False, share=False)


def make_score(value: float, *, higher: bool = True, share: bool = True, n: int = 100) -> Score:
    return make_scores(value, n, metric="m", higher_is_better=higher, share=share)[0]


def test_the_interval_of_a_mean_is_scipys():
    values = np.random.default_rng(3).exponential(size=120)
    found = score_counts(MAE, average(values)).value
    scipys = stats.bootstrap((values,), np.mean, n_resamples=9999, method="BCa", rng=np.random.default_rng(1))
    assert found.value == pytest.approx(values.mean()) and found.n == 120
    assert (found.low, found.high) == pytest.approx(tuple(scipys.confidence_interval), abs=0.02)
    assert found.method == f"BCa bootstrap over samples, {RESAMPLES} draws"


def test_the_interval_of_errors_over_lengths_is_scipys():
    rng = np.random.default_rng(4)
    lengths = rng.integers(5, 40, 80)
    counts = np.stack([rng.binomial(lengths, 0.1), lengths], axis=1).astype(float)
    found = score_counts(Metric(name="cer", higher_is_better=False), counts).value
    scipys = stats.bootstrap(
        (counts[:, 0], counts[:, 1]),
        lambda e, n, axis: e.sum(axis=axis) / n.sum(axis=axis),
        paired=True,
        n_resamples=9999,
        method="BCa",
        rng=np.random.default_rng(1),
    )
    assert found.value == counts[:, 0].sum() / lengths.sum()
    assert (found.low, found.high) == pytest.approx(tuple(scipys.confidence_interval), abs=0.003)


def test_the_interval_covers_what_it_says():
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(200):
        found = score_counts(MAE, average(rng.exponential(size=60))).value
        covered += found.low <= 1.0 <= found.high
    assert 0.9 <= covered / 200 <= 0.985


def test_outputs_that_are_all_alike_have_no_interval():
    found = score_counts(MAE, average(np.full(50, 0.25)), average(np.full(50, 0.25)))
    assert (found.value.value, found.value.low, found.value.high, found.value.supported) == (0.25, None, None, False)
    assert found.delta.value == 0 and found.delta.low is None
    assert score_counts(MAE, average([2.0])).value.low is None


def test_a_table_of_classes_is_drawn_by_sample():
    rng = np.random.default_rng(8)
    right = rng.integers(0, 3, (40, 6, 6))
    noisy = np.where(rng.random(right.shape) < 0.1, 0, right)
    good, bad = (MIOU.count({"map": side}, Targets(values=right)) for side in (right, noisy))
    found = score_counts(MIOU, bad, good)
    assert found.value.low < found.value.value < found.value.high < 1
    assert found.delta.value == pytest.approx(found.value.value - 1) and found.delta.high < 0


def test_nothing_counted_is_no_score():
    with pytest.raises(UsageError, match="--metric mae is nan over these samples"):
        score_counts(MAE, np.zeros((5, 2)))


def test_a_metric_of_all_samples_is_asked_for_each_draw():
    values, before = (np.random.default_rng(i).normal(i, 1, 80) for i in (1, 2))
    asks = [lambda p, side=side: float(np.median(side[p])) for side in (values, before)]
    found = score_whole(Facts(name="median"), asks[0], 80, asks[1])
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
    worse = base != cand and base.higher_is_better == (cand.value.value < base.value.value)
    assert (measure_loss(base, cand) > 0) is worse
    assert find_drop(base, given) > 0


def test_wilson_matches_a_published_interval():
    # R. G. Newcombe, Statistics in Medicine 17 (1998), p. 857: 81 of 263, and 15 of 148.
    for hits, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = estimate_share(hits, n)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
    # At the ends it holds the share itself.
    assert estimate_share(0, 20).low == 0 and estimate_share(20, 20).high == 1
    assert 0 < estimate_share(0, 20).high < 0.2


def test_mcnemar_is_the_exact_binomial():
    assert compute_mcnemar_p(0, 0) == 1
    assert compute_mcnemar_p(5, 5) == 1
    assert compute_mcnemar_p(0, 6) == pytest.approx(2 / 2**6)
    assert compute_mcnemar_p(6, 0) == compute_mcnemar_p(0, 6)
    assert compute_mcnemar_p(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)


def test_a_paired_interval_covers_what_it_says_and_has_a_width_without_a_change():
    found = estimate_paired_difference(0, 0, 450)
    assert found.value == 0 and found.low == -found.high and 0 < found.high < 0.01
    rng = np.random.default_rng(0)
    chances, n, rounds = (0.03, 0.05, 0.92), 300, 2000
    covered = 0
    for gained, lost, _ in rng.multinomial(n, chances, rounds):
        found = estimate_paired_difference(int(gained), int(lost), n)
        covered += found.low <= -0.02 <= found.high
    assert 0.94 <= covered / rounds <= 0.975


def test_mean_absolute_error_is_that_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.metrics")
    found, right = np.random.default_rng(0).standard_normal((2, 30, 4))
    counts = count_absolute({"out": found}, Targets(values=right))
    assert counts.sum(axis=0)[0] / 30 == pytest.approx(sklearn.mean_absolute_error(right, found))
    alike = count_absolute({"out": np.array([[1.0], [2.0]])}, Targets(values=[1.5, 2.0]))
    assert alike[:, 0].tolist() == [0.5, 0.0], "an axis of one is no other shape"


def test_cosine_is_that_of_scipy():
    found, right = np.random.default_rng(1).standard_normal((2, 5, 8))
    counts = count_cosine({"out": found}, Targets(values=right))
    assert counts[:, 0] == pytest.approx([1 - cosine(a, b) for a, b in zip(found, right, strict=True)])
    assert count_cosine({"out": np.zeros((1, 3))}, Targets(values=np.ones((1, 3))))[0, 0] == 0


def test_shapes_that_differ_are_reported():
    with pytest.raises(FeedError, match=r"outputs have shape \[2, 3\], targets \[2, 4\]"):
        count_absolute({"out": np.zeros((2, 3))}, Targets(values=np.zeros((2, 4))))
    with pytest.raises(FeedError, match="differ from sample to sample"):
        count_absolute({"out": [np.zeros(2), np.zeros(3)]}, Targets(values=np.zeros((2, 2))))
