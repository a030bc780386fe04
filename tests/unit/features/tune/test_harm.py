"""Noise of answers, against figures worked out by hand."""

import math

import numpy as np
import pytest

from enginebench.core.errors import MeasurementError
from enginebench.features.tune.sensitivity import WORST, measure_harm

RNG = np.random.default_rng(0)


def test_noise_is_the_power_of_the_difference_over_that_about_the_mean():
    reference = {"y": np.array([[1.0, 5.0], [3.0, 5.0]])}  # about its mean: 1 + 1
    answers = {"y": np.array([[1.0, 5.5], [3.0, 5.0]])}
    assert measure_harm(reference, answers) == pytest.approx(0.25 / 2)


def test_a_constant_reference_tells_nothing():
    with pytest.raises(MeasurementError, match="do not depend on the inputs"):
        measure_harm({"y": np.ones((4, 3))}, {"y": np.zeros((4, 3))})


def test_answers_that_are_not_finite_are_the_worst():
    reference = {"y": RNG.standard_normal((4, 3))}
    broken = {"y": np.full((4, 3), np.nan)}
    assert measure_harm(reference, broken) == WORST and math.isfinite(WORST)
