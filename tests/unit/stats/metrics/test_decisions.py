"""Decisions that are wrong together are no near ties."""

import numpy as np
import pytest

from enginebench.stats.drift import find_exceeded, limits_between, measure_drift
from enginebench.stats.metrics.decisions import LEAST_DECIDED, find_worst_group

RNG = np.random.default_rng(4)
MAPS = RNG.integers(0, 8, (32, 16, 16))
RARE = np.zeros((32, 64, 64), np.int64)
RARE[:, 4:6, 4:6] = 1
FLAGS = np.zeros((32, 1000), bool)
FLAGS[:, 3] = True


def change(array, where, to):
    changed = array.copy()
    changed[where] = to
    return changed


@pytest.mark.parametrize(
    ("right", "wrong", "where"),
    [
        (MAPS, change(MAPS, np.s_[:, 0, 0], 0), "place 0 of every sample"),
        (RARE, np.zeros_like(RARE), "class 1"),
        (FLAGS, np.zeros_like(FLAGS), "class True"),
        (MAPS, change(MAPS, (MAPS == 3) & (np.arange(16) == 15), 4), "class 3 in slice 15 of axis 2"),
    ],
)
def test_a_class_or_a_place_that_is_lost_is_a_difference(right, wrong, where):
    drift = measure_drift({"y": right}, {"y": wrong}, limits_between("fp32", "fp32"), task="segmentation")
    assert drift.outputs[0].agreement > 0.99
    assert not drift.passed
    assert where in find_exceeded(drift)[0]
    reduced = measure_drift({"y": right}, {"y": wrong}, limits_between("fp32", "int8"), task="segmentation")
    assert reduced.passed


def test_near_ties_anywhere_are_none():
    flips = RNG.random(MAPS.shape) < 0.005
    drift = measure_drift({"y": MAPS}, {"y": np.where(flips, (MAPS + 1) % 8, MAPS)}, limits_between("fp32", "fp32"))
    assert drift.passed
    assert drift.outputs[0].agreement_min > 0.5


def test_few_decisions_and_single_samples_are_no_group():
    """The first token of a text that changes may change all that follow."""
    texts = np.arange(12).repeat(20).reshape(12, 20)
    tokens = texts + 100 * np.arange(20)
    assert find_worst_group(tokens[: LEAST_DECIDED - 1], tokens[: LEAST_DECIDED - 1] + 1) is None
    cut = change(tokens, np.s_[-1, 10:], 0)
    assert find_worst_group(tokens, cut)[0] > 0.5


def test_one_decision_is_read():
    assert find_worst_group(np.array(3), np.array(4)) is None
