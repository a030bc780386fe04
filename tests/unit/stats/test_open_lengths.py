"""Answers of open length against each other."""

import numpy as np

from enginebench.stats.alike import fill_lengths
from enginebench.stats.drift import default_limits, measure_drift

BOXES = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)  # two samples, three boxes


def test_a_missing_box_is_a_difference_of_that_box() -> None:
    reference, candidate = fill_lengths({"boxes": BOXES}, {"boxes": BOXES[:, :2]}, {"boxes"})
    drift = measure_drift(reference, candidate, default_limits("fp32"))
    assert not drift.passed and drift.outputs[0].max_abs_diff == 24
    same, again = fill_lengths({"boxes": BOXES}, {"boxes": BOXES}, {"boxes"})
    assert measure_drift(same, again, default_limits("fp32")).passed


def test_what_does_not_fit_at_all_stays_as_it_is() -> None:
    odd = np.ones((5, 4), np.float32)
    reference, candidate = fill_lengths({"boxes": BOXES, "x": odd}, {"boxes": odd, "y": odd}, {"boxes", "x", "y"})
    assert (reference["boxes"].shape, candidate["boxes"].shape) == ((2, 3, 4), (5, 4))
    assert reference["x"] is odd and candidate["y"] is odd
