"""Outputs on inputs that reach further: what is called changed, and what a right engine may do there."""

import numpy as np

from enginebench.core.records import Drift, Precision
from enginebench.stats.alike import is_gross
from enginebench.stats.drift import find_exceeded, limits_between, measure_drift
from enginebench.stats.further import add_further, list_refusal_warnings, measure_further

FP32: tuple[Precision, Precision] = ("fp32", "fp32")
RNG = np.random.default_rng(0)
OUTPUT = RNG.standard_normal((6, 10)).astype(np.float32)


def compare(candidate: np.ndarray, reference: np.ndarray = OUTPUT, inputs: str = "large", **others: object) -> Drift:
    nudged = {"nudged": {"y": others.pop("nudged")}} if "nudged" in others else {}
    pair = others.pop("pair", FP32)
    (found,) = measure_further({inputs: {"y": reference}, **nudged}, {inputs: {"y": candidate}}, pair, **others)  # type: ignore[arg-type]
    return found


def test_what_differs_on_one_set_alone_is_changed_and_says_on_which() -> None:
    wrong = OUTPUT.copy()
    wrong[1] *= 1.5
    usual = measure_drift({"y": OUTPUT}, {"y": OUTPUT}, limits_between(*FP32))
    drift = add_further(usual, (compare(wrong),))
    assert usual.passed and not drift.passed
    assert find_exceeded(drift)[0].startswith("on large, negative and zero inputs: y: error is ")
    assert add_further(usual, (compare(OUTPUT),)).passed
    assert is_gross(add_further(usual, (compare(-OUTPUT),)), ["fp32"]) and not is_gross(usual, ["fp32"])


def test_infinities_of_the_reference_prove_nothing() -> None:
    overflown, finite = OUTPUT.copy(), OUTPUT.copy()
    overflown[2, 3], overflown[4] = np.inf, np.nan
    assert compare(overflown, overflown).passed
    assert compare(finite, overflown).passed
    assert not compare(overflown, finite).passed, "the reference is finite there"


def test_entries_that_rounding_moves_are_left_out() -> None:
    moved, nudged = OUTPUT.copy(), OUTPUT.copy()
    moved[3] = -moved[3]
    nudged[3] += 0.01
    assert not compare(moved, nudged=OUTPUT.copy()).passed
    assert (found := compare(moved, nudged=nudged)).passed and found.n == 5


def test_short_formats_are_not_held_to_large_values_nor_to_one_near_tie_of_few() -> None:
    sides = {"large": {"y": OUTPUT}}, {"large": {"y": -OUTPUT}}
    assert measure_further(*sides, ("fp32", "fp16")) == ()
    labels, flipped = np.arange(6), np.arange(6)
    flipped[0] = 9
    assert compare(flipped, labels, "masks", pair=("fp32", "int8")).passed
    assert not compare(flipped, labels, "masks").passed
    assert not compare(flipped + 1, labels, "masks", pair=("fp32", "int8")).passed


def test_limits_of_the_user_hold_but_for_absolute_ones() -> None:
    near = OUTPUT * np.float32(1.01)
    assert not compare(near).passed
    assert compare(near, limits={"snr": 30.0, "max_abs": 0.0}).passed


def test_a_candidate_that_alone_refuses_inputs_has_a_warning() -> None:
    assert list_refusal_warnings({"masks": "index 499"}, {"masks": "index 499", "nudged": "no"}, "ort@a") == ()
    (warning,) = list_refusal_warnings({}, {"large": "too large"}, "ort@a")
    assert warning.code == "outputs_not_compared" and "ort@a refuses large, negative and zero inputs" in warning.message
