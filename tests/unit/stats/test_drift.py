"""Drift against figures by hand, and everything that must never pass."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.records import Drift, OutputDrift, Precision
from enginebench.stats.drift import LIMITS, SNR_CEILING_DB, default_limits, doubt_samples, find_exceeded, measure_drift

REF = np.array([[1.0, 2.0, 2.0, 0.0, -1.0, 0.5], [0.0, 3.0, 4.0, 1.0, 2.0, -2.0]], dtype=np.float32)


def measure(ref: np.ndarray, cand: np.ndarray, **limits: float) -> tuple[Drift, OutputDrift]:
    drift = measure_drift({"y": ref}, {"y": cand}, limits)
    return drift, drift.outputs[0]


def test_differences_by_hand() -> None:
    cand = REF.copy()
    cand[0, 1] += 1.0  # 2 -> 3
    cand[1, 2] -= 2.0  # 4 -> 2
    drift, out = measure(REF, cand)
    assert (drift.n, out.name, out.nonfinite) == (2, "y", 0)
    assert out.mean_abs_diff == pytest.approx(3 / 12)
    assert out.max_abs_diff == 2.0
    assert out.mean_rel_diff == pytest.approx((1 / 2 + 2 / 4) / 10)  # ten elements of the reference are not zero
    assert out.snr_db == pytest.approx(10 * np.log10((10.25 + 34) / 5))


def test_cosines_by_hand() -> None:
    ref = np.array([[3.0, 4.0], [1.0, 0.0]])
    _, out = measure(ref, np.array([[4.0, 3.0], [2.0, 0.0]]))
    assert out.cosine_mean == pytest.approx((24 / 25 + 1) / 2)
    assert out.cosine_min == pytest.approx(24 / 25)
    # Centre of the reference: (2, 2). (1, 2).(2, 1) and (-1, -2).(0, -2).
    assert out.centred_cosine_mean == pytest.approx((4 / 5 + 4 / (np.sqrt(5) * 2)) / 2)


def test_agreement_by_hand() -> None:
    cand = REF.copy()
    cand[0] = [1, 1, 3, 0, 0, 0]  # best class 1 -> 2, and 1 is still among the first five
    cand[1] = [9, 8, 0, 7, 6, 5]  # best class 2 -> last
    _, out = measure(REF, cand)
    assert (out.top1_agreement, out.top5_agreement) == (0.0, 0.5)
    assert measure(REF, REF)[1].top1_agreement == 1.0


def test_agreement_is_for_classes_only() -> None:
    images = np.ones((2, 3, 4, 4))
    _, out = measure(images, images)
    assert (out.top1_agreement, out.top5_agreement) == (None, None)
    _, few = measure(REF[:, :5], REF[:, :5])
    assert (few.top1_agreement, few.top5_agreement) == (1.0, None)


def test_equal_outputs_have_the_highest_snr_that_json_can_hold() -> None:
    drift, out = measure(REF, REF, snr=200, cosine=1 - 1e-12)
    assert (out.snr_db, out.max_abs_diff, drift.passed) == (SNR_CEILING_DB, 0.0, True)


def test_zeros_are_alike_and_unlike_anything_else() -> None:
    zeros = np.zeros((2, 3))
    assert measure(zeros, zeros)[1].cosine_mean == 1.0
    _, out = measure(zeros, np.ones((2, 3)))
    assert (out.cosine_mean, out.snr_db, out.mean_rel_diff) == (0.0, None, None)


@pytest.mark.parametrize("size", [1e-200, 1e-310, 1e200])
def test_the_size_of_the_answers_says_nothing(size: float) -> None:
    """Squares of such numbers are 0 or infinite; two networks differ as they do at a size of one."""
    rng = np.random.default_rng(0)
    one, other = rng.standard_normal((2, 16, 8))
    _, found = measure(one, other)
    drift, scaled = measure(one * size, other * size, **default_limits("fp32"))
    assert not drift.passed and measure(one * size, one * size, **default_limits("fp32"))[0].passed
    # Of numbers near 1e-310 some 13 digits are left.
    for name in ("snr_db", "cosine_mean", "cosine_min", "centred_cosine_mean"):
        assert getattr(scaled, name) == pytest.approx(getattr(found, name), rel=1e-9)
    assert (scaled.flips, scaled.near_ties) == (found.flips, found.near_ties)
    nothing, out = measure(np.zeros((2, 8)), np.full((2, 8), size), **default_limits("fp32"))
    assert (nothing.passed, out.cosine_mean) == (False, 0.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("both", [True, False])
def test_anything_non_finite_never_passes(bad: float, both: bool) -> None:
    ref, cand = REF.copy(), REF.copy()
    cand[0, 0] = bad
    if both:
        ref[0, 0] = bad
    drift, out = measure(ref, cand)
    assert (drift.passed, out.nonfinite) == (False, 2 if both else 1)
    # The rest is still measured.
    assert out.max_abs_diff == 0.0 and out.cosine_mean == pytest.approx(1.0)


def test_nothing_finite_measures_nothing() -> None:
    drift, out = measure(REF, np.full_like(REF, np.nan))
    assert not drift.passed
    assert (out.max_abs_diff, out.cosine_mean, out.snr_db, out.top1_agreement) == (None, None, None, None)
    assert out.nonfinite == REF.size


def test_limit_on_what_an_output_has_not_is_not_applied() -> None:
    image = np.ones((2, 3, 4))
    assert measure(image, image, top1=1.0)[0].passed


@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("scale", [-1.0, 0.4, 2.0])
@pytest.mark.parametrize("n", [1, 32])
def test_a_wrong_scale_keeps_no_limits(precision: Precision, scale: float, n: int) -> None:
    reference = np.random.default_rng(0).standard_normal((n, 10)).astype(np.float32)
    drift = measure_drift({"y": reference}, {"y": scale * reference}, default_limits(precision))
    assert not drift.passed


def test_unknown_limit_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'topp'.*known: cosine"):
        measure(REF, REF, topp=1)


def test_unlike_outputs_are_refused_with_every_difference() -> None:
    with pytest.raises(FeedError) as caught:
        measure_drift({"a": REF, "b": REF, "c": REF}, {"b": REF[:1], "c": REF.astype(np.float64), "d": REF}, {})
    for part in ("'a' is missing from the candidate", "'d' is missing", "[2, 6] against [1, 6]", "float32 against"):
        assert part in str(caught.value)


def test_no_outputs_and_no_samples_do_not_pass() -> None:
    assert not measure_drift({}, {}, {}).passed
    assert not measure(REF[:0], REF[:0])[0].passed


def test_integers_and_half_precision_are_measured_in_double() -> None:
    assert measure(np.array([[0, 255]], np.uint8), np.array([[1, 254]], np.uint8))[1].max_abs_diff == 1.0
    big = np.full((1, 2), 60000, np.float16)
    assert measure(big, -big)[1].max_abs_diff == 120000  # beyond the largest half-precision number


def test_every_precision_has_limits_of_known_names() -> None:
    for precision in get_args(Precision):
        assert set(default_limits(precision)) <= set(LIMITS)
        assert default_limits(precision)


@pytest.mark.parametrize(("bits", "precision"), [(24, "fp32"), (11, "fp16"), (11, "tf32"), (8, "bf16")])
def test_rounding_to_a_precision_keeps_its_limits(bits: int, precision: Precision) -> None:
    ref = np.random.default_rng(0).normal(size=(32, 100))
    mantissa, exponent = np.frexp(ref)
    rounded = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)
    assert measure(ref, rounded, **default_limits(precision))[0].passed
    assert not measure(ref, -ref, **default_limits(precision))[0].passed


floats = hnp.arrays(np.float32, (3, 7), elements=st.floats(-1e6, 1e6, width=32))


@given(floats, floats)
@settings(max_examples=60)
def test_bounds_hold(ref: np.ndarray, cand: np.ndarray) -> None:
    _, out = measure(ref, cand)
    assert out.mean_abs_diff is not None and out.max_abs_diff is not None
    assert 0 <= out.mean_abs_diff <= out.max_abs_diff * (1 + 1e-12)
    assert out.cosine_min is not None and out.cosine_mean is not None
    assert -1 <= out.cosine_min <= out.cosine_mean + 1e-12 <= 1 + 2e-12


def test_an_answer_of_one_value_is_more_than_its_sign() -> None:
    ref = np.array([[1.0], [2.0], [3.0], [-4.0]])
    (out,) = measure_drift({"y": ref}, {"y": np.sign(ref - ref.mean()) * [[1.0], [9.0], [1.0], [1.0]]}, {}).outputs
    assert out.centred_cosine_mean is not None and out.centred_cosine_mean < 0.9


def test_answers_that_do_not_depend_on_the_input_are_held_to_the_plain_cosine() -> None:
    ref = np.tile([0.3, -1.7, 2.1], (5, 1))
    near = measure_drift({"y": ref}, {"y": ref + 1e-3}, default_limits("int8"))
    assert (near.passed, near.outputs[0].centred_cosine_mean) == (True, None)
    assert measure_drift({"y": ref}, {"y": ref + 1e-9}, default_limits("fp32")).passed
    far = measure_drift({"y": ref}, {"y": -ref}, default_limits("int8"))
    assert not far.passed and "y: cosine is -1; the limit is 0.9" in find_exceeded(far)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_one_sample_is_not_waved_through(precision: Precision) -> None:
    one = {"y": np.array([[1.0, 2.0, 3.0]])}
    assert measure_drift(one, one, default_limits(precision)).passed
    assert not measure_drift(one, {"y": np.array([[3.0, -2.0, 1.0]])}, default_limits(precision)).passed
    nothing = measure_drift({"y": np.zeros((1, 3))}, one, default_limits(precision))
    assert not nothing.passed and find_exceeded(nothing)


def test_outputs_without_values_do_not_agree() -> None:
    empty = {"y": np.zeros((4, 0))}
    drift = measure_drift(empty, empty, default_limits("fp32"))
    assert not drift.passed and drift.outputs[0].cosine_mean is None
    assert find_exceeded(drift) == ("the outputs hold no values, so that nothing was compared",)


def test_answers_that_hardly_differ_show_little() -> None:
    """Zeros agree with zeros, whatever was computed before a head of zeros."""
    zeros = {"y": np.zeros((8, 5), np.float32)}
    drift = measure_drift(zeros, zeros, default_limits("int8"))
    assert drift.passed and [c.code for c in doubt_samples(drift)] == ["constant_answers"]
    ones = {"y": np.ones((8, 5), np.float32)}
    assert [c.code for c in doubt_samples(measure_drift(ones, ones, default_limits("fp32")))] == ["constant_answers"]
    varied = {"z": np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)}
    assert not doubt_samples(measure_drift(varied, varied, default_limits("fp32")))
    both = measure_drift(zeros | varied, zeros | varied, default_limits("fp32"))
    assert not doubt_samples(both)  # one that differs is enough
    labels = {"label": np.zeros(8, np.int64)}
    assert not doubt_samples(measure_drift(labels, labels, default_limits("fp32")))  # names may well be the same
    one = {"y": np.zeros((1, 5), np.float32)}
    assert not doubt_samples(measure_drift(one, one, default_limits("fp32")))
