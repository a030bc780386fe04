"""Shares, their intervals, and paired differences, against published numbers and by simulation."""

import numpy as np
import pytest

from enginebench.stats.metrics.scores import compute_mcnemar_p, estimate_paired_difference, estimate_share


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
