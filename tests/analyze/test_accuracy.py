"""Accuracy: shares, their intervals, and paired differences, against published numbers and by simulation."""

import numpy as np
import pytest

from enginebench.analyze.accuracy import (
    compute_mcnemar_p,
    estimate_paired_difference,
    estimate_share,
    measure_accuracy,
    rank_labels,
)
from enginebench.core.errors import FeedError


def test_counts_top1_and_top5():
    logits = np.array([[9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4], [9, 8, 7, 6, 5, 4]], np.float32)
    found = measure_accuracy(logits, np.array([0, 4, 5]))
    assert found.n == 3
    assert found.top1.value == pytest.approx(1 / 3)
    assert found.top5 is not None and found.top5.value == pytest.approx(2 / 3)
    assert found.delta is None and found.mcnemar_p is None


def test_five_classes_have_no_top5():
    assert measure_accuracy(np.eye(5), np.arange(5)).top5 is None


def test_equal_logits_are_ranked_as_argmax_does_it():
    assert rank_labels(np.zeros((3, 4)), np.array([0, 1, 3])).tolist() == [0, 1, 3]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_not_finite_is_wrong(value):
    logits = np.array([[5.0, 1.0, 1.0], [5.0, 1.0, value]])
    assert measure_accuracy(logits, np.array([0, 0])).top1.value == 0.5


def test_wilson_matches_a_published_interval():
    # R. G. Newcombe, Statistics in Medicine 17 (1998), p. 857: 81 of 263, and 15 of 148.
    for hits, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)):
        found = estimate_share(hits, n)
        assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_wilson_at_the_ends_holds_the_share():
    assert estimate_share(0, 20).low == 0 and estimate_share(20, 20).high == 1
    assert 0 < estimate_share(0, 20).high < 0.2


def test_mcnemar_is_the_exact_binomial():
    assert compute_mcnemar_p(0, 0) == 1
    assert compute_mcnemar_p(5, 5) == 1
    assert compute_mcnemar_p(0, 6) == pytest.approx(2 / 2**6)
    assert compute_mcnemar_p(6, 0) == compute_mcnemar_p(0, 6)
    assert compute_mcnemar_p(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)


def test_difference_is_paired_and_signed():
    labels = np.zeros(4, np.int64)
    right, wrong = [1.0, 0.0], [0.0, 1.0]
    found = measure_accuracy(np.array([right, right, wrong, wrong]), labels, np.array([right, right, right, right]))
    assert found.delta is not None and found.delta.value == -0.5
    assert found.delta.low is not None and found.delta.low < -0.5 < found.delta.high
    assert found.mcnemar_p == pytest.approx(0.5)


def test_no_change_still_has_a_width():
    found = estimate_paired_difference(0, 0, 450)
    assert found.value == 0 and found.low == -found.high and 0 < found.high < 0.01


def test_paired_interval_covers_what_it_says():
    rng = np.random.default_rng(0)
    chances, n, rounds = (0.03, 0.05, 0.92), 300, 2000
    covered = 0
    for gained, lost, _ in rng.multinomial(n, chances, rounds):
        found = estimate_paired_difference(int(gained), int(lost), n)
        covered += found.low <= -0.02 <= found.high
    assert 0.94 <= covered / rounds <= 0.975


@pytest.mark.parametrize(
    ("logits", "labels", "reference", "said"),
    [
        (np.zeros(3), np.zeros(3, int), None, "expected \\[samples, classes\\]"),
        (np.zeros((0, 3)), np.zeros(0, int), None, "at least one"),
        (np.zeros((2, 3)), np.zeros(3, int), None, "shape \\(2,\\)"),
        (np.zeros((2, 3)), np.zeros(2), None, "integers"),
        (np.zeros((2, 3)), np.array([0, 3]), None, "0 to 2"),
        (np.zeros((2, 3)), np.array([-1, 2]), None, "from -1"),
        (np.zeros((2, 3)), np.array([0, 2]), np.zeros((3, 3)), "reference logits"),
    ],
)
def test_refuses_what_does_not_fit(logits, labels, reference, said):
    with pytest.raises(FeedError, match=said):
        measure_accuracy(logits, labels, reference)
