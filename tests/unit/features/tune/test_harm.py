"""Noise and divergence of answers, against figures worked out by hand."""

import math

import numpy as np
import pytest

from enginebench.core.errors import MeasurementError
from enginebench.features.tune.harm import WORST, allow_noise, measure_divergence, measure_harm

RNG = np.random.default_rng(0)


def test_noise_is_the_power_of_the_difference_over_that_about_the_mean():
    reference = {"y": np.array([[1.0, 5.0], [3.0, 5.0]])}  # about its mean: 1 + 1
    answers = {"y": np.array([[1.0, 5.5], [3.0, 5.0]])}
    assert measure_harm(reference, answers).noise == pytest.approx(0.25 / 2)


def test_a_constant_reference_tells_nothing():
    with pytest.raises(MeasurementError, match="do not depend on the inputs"):
        measure_harm({"y": np.ones((4, 3))}, {"y": np.zeros((4, 3))})


def test_answers_that_are_not_finite_are_the_worst():
    reference = {"y": RNG.standard_normal((4, 3))}
    broken = {"y": np.full((4, 3), np.nan)}
    assert measure_harm(reference, broken).noise == WORST and math.isfinite(WORST)


def test_divergence_of_two_coins():
    """KL of (1/2, 1/2) against (3/4, 1/4) is ln 2 - ln(3) / 2, worked out by hand."""
    fair, loaded = np.array([[0.0, 0.0]]), np.array([[math.log(3.0), 0.0]])
    assert measure_divergence(fair, loaded) == pytest.approx(math.log(2) - math.log(3) / 2)
    assert measure_divergence(loaded, fair) != pytest.approx(measure_divergence(fair, loaded), rel=0.01)


def test_divergence_is_half_of_the_difference_weighed_by_the_fisher_information():
    logits = RNG.standard_normal((1, 5))
    difference = 1e-3 * RNG.standard_normal((1, 5))
    p = np.exp(logits[0]) / np.exp(logits[0]).sum()
    fisher = np.diag(p) - np.outer(p, p)
    second_order = difference[0] @ fisher @ difference[0] / 2
    assert measure_divergence(logits, logits + difference) == pytest.approx(second_order, rel=1e-2)
    assert measure_divergence(logits, logits + 3.0) == pytest.approx(0.0, abs=1e-12)


def test_only_scores_of_classes_have_a_divergence():
    images = {"y": RNG.standard_normal((2, 3, 4))}
    scores = {"y": RNG.standard_normal((2, 3))}
    assert measure_harm(images, images).kl_nats is None
    assert measure_harm(scores, scores).kl_nats == pytest.approx(0.0)
    assert measure_harm(scores, scores, logits=False).kl_nats is None


def test_limits_leave_room_for_so_much_noise():
    assert allow_noise({"centred_cosine": 0.95}) == pytest.approx(0.10803, rel=1e-4)
    assert allow_noise({"snr": 20.0, "centred_cosine": 0.5}) == pytest.approx(0.01)
    assert allow_noise({"top1": 0.99}) == math.inf
    noisy = RNG.standard_normal((20000,))
    noise = RNG.standard_normal((20000,)) * math.sqrt(allow_noise({"centred_cosine": 0.9}))
    cosine = noisy @ (noisy + noise) / np.linalg.norm(noisy) / np.linalg.norm(noisy + noise)
    assert cosine == pytest.approx(0.9, abs=0.01)
