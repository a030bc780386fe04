"""How far outputs lie apart: figures, limits, slices of a scale, tasks, single samples."""

import math
from typing import get_args

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.records import Drift, OutputDrift, Precision, Task
from enginebench.stats.alike import check_comparisons, fill_lengths
from enginebench.stats.diff import compare_outputs
from enginebench.stats.drift import (
    MAX_SNR_DB,
    Figure,
    default_limits,
    explain_figure,
    find_exceeded,
    keeps_limits,
    limits_between,
    list_sample_warnings,
    measure_drift,
    measure_samples,
)
from samples import make_result, make_scene, reorder

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
    assert (out.snr_db, out.max_abs_diff, drift.passed) == (MAX_SNR_DB, 0.0, True)


def test_zeros_are_alike_and_unlike_anything_else() -> None:
    zeros = np.zeros((2, 3))
    assert measure(zeros, zeros)[1].cosine_mean == 1.0
    _, out = measure(zeros, np.ones((2, 3)))
    assert (out.cosine_mean, out.snr_db, out.mean_rel_diff) == (0.0, None, None)


@pytest.mark.parametrize("size", [1e-200, 1e-310, 1e200])
def test_the_size_of_the_outputs_says_nothing(size: float) -> None:
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
def test_no_number_passes_nor_an_infinity_of_one_side(bad: float, both: bool) -> None:
    ref, cand = REF.copy(), REF.copy()
    cand[0, 0] = bad
    if both:
        ref[0, 0] = bad
    drift, out = measure(ref, cand)
    equal = both and not np.isnan(bad)
    assert (drift.passed, out.nonfinite, out.nonfinite_alike) == (equal, 2 if both else 1, int(both))
    assert out.broken == (0 if equal else out.nonfinite)
    # The rest is still measured.
    assert out.max_abs_diff == 0.0 and out.cosine_mean == pytest.approx(1.0)


def test_masked_logits_are_compared_without_what_is_masked() -> None:
    """A class that is masked by -inf is no difference, is never the best, and adds nothing to the signal."""
    masked, scaled, other = REF.copy(), REF * np.float32(1.2), REF.copy()
    masked[:, 1] = scaled[:, 1] = -np.inf
    other[:, 2] = -np.inf
    assert measure(masked, masked, **default_limits("fp32"))[0].passed
    drift, out = measure(masked, scaled, **default_limits("fp32"))
    assert not drift.passed and not out.broken
    kept = np.delete(masked, 1, axis=1), np.delete(scaled, 1, axis=1)
    assert out.snr_db == pytest.approx(measure(*kept)[1].snr_db)
    assert (out.top1_agreement, out.flips) == (1.0, 0)
    assert not measure(masked, other, **default_limits("fp32"))[0].passed
    assert not measure(np.full_like(REF, -np.inf), np.full_like(REF, -np.inf))[0].passed, "nothing was compared"


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


def test_unknown_limits_and_unlike_outputs_are_refused_with_every_difference() -> None:
    with pytest.raises(UsageError, match=r"'topp'.*known: cosine"):
        measure(REF, REF, topp=1)
    with pytest.raises(FeedError) as caught:
        measure_drift({"a": REF, "b": REF, "c": REF}, {"b": REF[:1], "c": REF.astype(np.float64), "d": REF}, {})
    for part in ("'a' is missing from the candidate", "'d' is missing", "[2, 6] against [1, 6]", "float32 against"):
        assert part in str(caught.value)


def test_integers_and_half_precision_are_measured_in_double() -> None:
    assert measure(np.array([[0, 255]], np.uint8), np.array([[1, 254]], np.uint8))[1].max_abs_diff == 1.0
    big = np.full((1, 2), 60000, np.float16)
    assert measure(big, -big)[1].max_abs_diff == 120000  # beyond the largest half-precision number


@pytest.mark.parametrize(("bits", "precision"), [(24, "fp32"), (11, "fp16"), (11, "tf32"), (8, "bf16")])
def test_rounding_to_a_precision_keeps_its_limits(bits: int, precision: Precision) -> None:
    ref = np.random.default_rng(0).normal(size=(32, 100))
    mantissa, exponent = np.frexp(ref)
    rounded = np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent)
    assert measure(ref, rounded, **default_limits(precision))[0].passed
    assert not measure(ref, -ref, **default_limits(precision))[0].passed


floats = hnp.arrays(np.float32, (3, 7), elements=st.floats(-1e6, 1e6, width=32))


def test_an_answer_of_one_value_is_more_than_its_sign() -> None:
    ref = np.array([[1.0], [2.0], [3.0], [-4.0]])
    (out,) = measure_drift({"y": ref}, {"y": np.sign(ref - ref.mean()) * [[1.0], [9.0], [1.0], [1.0]]}, {}).outputs
    assert out.centred_cosine_mean is not None and out.centred_cosine_mean < 0.9


def test_outputs_that_do_not_depend_on_the_input_are_held_to_the_plain_cosine() -> None:
    ref = np.tile([0.3, -1.7, 2.1], (5, 1))
    near = measure_drift({"y": ref}, {"y": ref + 1e-3}, default_limits("int8"))
    assert (near.passed, near.outputs[0].centred_cosine_mean) == (True, None)
    assert measure_drift({"y": ref}, {"y": ref + 1e-9}, default_limits("fp32")).passed
    far = measure_drift({"y": ref}, {"y": -ref}, default_limits("int8"))
    assert not far.passed and "y: cosine is -1, limit 0.9" in find_exceeded(far)


def test_no_outputs_no_samples_and_no_values_do_not_agree() -> None:
    assert not measure_drift({}, {}, {}).passed
    assert not measure(REF[:0], REF[:0])[0].passed
    empty = {"y": np.zeros((4, 0))}
    drift = measure_drift(empty, empty, default_limits("fp32"))
    assert not drift.passed and drift.outputs[0].cosine_mean is None
    assert find_exceeded(drift) == ("the outputs hold no values, so that nothing was compared",)


def test_outputs_that_hardly_differ_show_little() -> None:
    """Zeros agree with zeros, whatever was computed before a head of zeros."""
    zeros, varied = {"y": np.zeros((8, 5))}, {"z": np.random.default_rng(0).standard_normal((8, 5))}
    for same in (zeros, {"y": np.ones((8, 5))}):
        drift = measure_drift(same, same, default_limits("fp32"))
        assert drift.passed and [c.code for c in list_sample_warnings(drift)] == ["constant_answers"]
    # One output that differs is enough, names may well be the same, and so is a single sample.
    for other in (varied, zeros | varied, {"label": np.zeros(8, np.int64)}, {"y": np.zeros((1, 5))}):
        assert not list_sample_warnings(measure_drift(other, other, default_limits("fp32")))


PRECISIONS = ("fp32", "fp16", "int8")


def compare(reference: np.ndarray, candidate: np.ndarray, precision: str = "int8", **more) -> tuple[Drift, OutputDrift]:
    drift = measure_drift({"out": reference}, {"out": candidate}, default_limits(precision), **more)
    return drift, drift.outputs[0]


def add_noise(array: np.ndarray, snr_db: float, seed: int = 9) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(array.shape)
    return array + noise * np.sqrt((array**2).mean() / (noise**2).mean()) * 10 ** (-snr_db / 20)


def make_yolo(n: int = 8, classes: int = 80, anchors: int = 300, last: bool = True) -> np.ndarray:
    """Centre and size in pixels, then a score for each class: few are high, many classes hardly ever."""
    rng = np.random.default_rng(0)
    centres = rng.uniform(0, 640, (n, 2, anchors))
    sizes = rng.uniform(10, 200, (n, 2, anchors))
    scores = rng.uniform(0, 1, (n, classes, anchors)) ** 12 * np.geomspace(1, 1e-3, classes)[:, None]
    found = np.concatenate([centres, sizes, scores], axis=1)
    return found if last else np.moveaxis(found, 1, 2)


@pytest.mark.parametrize("classes", [1, 2, 80])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("n", [1, 8])
def test_a_detector_that_finds_nothing_does_not_agree(classes: int, last: bool, n: int):
    """Scores of 0.7 dB beside coordinates of 30.5 dB: all together 30.5 dB, since coordinates are in pixels."""
    reference = make_yolo(n, classes, last=True)
    parts = [add_noise(reference[:, :4], 30.5), add_noise(reference[:, 4:], 0.7)]
    candidate = np.concatenate(parts, axis=1)
    if not last:
        reference, candidate = np.moveaxis(reference, 1, 2), np.moveaxis(candidate, 1, 2)
    drift, out = compare(reference, candidate)
    assert out.snr_db > 25 and not drift.passed
    assert out.slices.snr_db == pytest.approx(0.7, abs=0.1)
    assert (out.slices.axis, out.slices.first, out.slices.count) == (1 if last else 2, 4, classes)
    place = f"{classes} of {4 + classes} slices of axis {1 if last else 2}, from 4 on"
    assert any("out: error is " in text and f"{place}, limit" in text for text in find_exceeded(drift))
    assert "unread_boxes" in [c.code for c in list_sample_warnings(drift)]


@pytest.mark.parametrize(("kind", "axis"), [("last", 1), ("first", 2), ("ended", 2)])
@pytest.mark.parametrize("classes", [1, 80])
def test_scores_beside_coordinates_within_0_to_1_are_judged_apart(kind: str, axis: int, classes: int):
    found = make_yolo(8, classes)
    boxes, scores, rest = found[:, :4] / 640, found[:, 4:], found[:, :0]
    if kind == "ended":
        boxes[:, 2:] += boxes[:, :2]
        scores, rest = scores[:, :1], np.random.default_rng(1).integers(0, 80, scores[:, :1].shape)
    for snr, passed in ((0.7, False), (30, True)):
        sides = ([boxes, scores, rest], [add_noise(boxes, 30.5), add_noise(scores, snr), rest])
        drift, out = compare(*(np.moveaxis(np.concatenate(side, axis=1), 1, axis) for side in sides))
        assert (drift.passed, out.slices.axis, out.boxes_like) == (passed, axis, True)
        assert passed or (out.slices.first, out.slices.snr_db) == (4, pytest.approx(0.7, abs=0.1))


def test_what_is_between_0_and_1_need_not_be_boxes():
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((4, 40, 60))
    classes = np.exp(5 * normal)
    few = 1 / (1 + np.exp(4 - normal))
    for array in (classes / classes.sum(axis=1, keepdims=True), few, np.clip(normal / 5, 0, 1), np.full_like(few, 0.5)):
        out = compare(array, add_noise(array, 25))[1]
        assert (out.slices, out.boxes_like) == (None, False)


@pytest.mark.parametrize("step", [4.0, 9.5, 10.0])
def test_small_steps_of_scale_add_up(step: float):
    """From a slice to the next no jump; from the first to the last many orders."""
    scales = step ** -np.arange(8.0)[:, None]
    reference = np.random.default_rng(1).standard_normal((8, 8, 100)) * scales
    candidate = add_noise(reference / scales, 60) * scales
    assert compare(reference, candidate)[0].passed
    candidate[:, 5:] = add_noise(reference[:, 5:], 0)
    assert not compare(reference, candidate)[0].passed
    jump = np.random.default_rng(1).standard_normal((8, 2, 100)) * [[30.0], [1.0]]
    assert not compare(jump, np.stack([jump[:, 0], add_noise(jump[:, 1], 0)], axis=1))[0].passed
    features = np.random.default_rng(2).standard_normal((8, 300, 100)) * np.geomspace(1, 1e-3, 300)[:, None]
    assert compare(features, add_noise(features, 25))[1].slices is None, "all scales, one close to the next"


def test_a_sound_detector_agrees_although_rare_classes_are_lost():
    """Scores share a unit: of 8 bits 1/256 is left, and a class that never reaches it decides nothing."""
    reference = make_yolo()
    candidate = np.concatenate([add_noise(reference[:, :4], 30), np.round(reference[:, 4:] * 256) / 256], axis=1)
    drift, out = compare(reference, candidate)
    assert drift.passed and out.slices.snr_db > 20
    assert [c.code for c in list_sample_warnings(drift)] == ["lost_variance", "unread_boxes"]


def test_scores_that_nobody_looks_at_are_no_difference():
    """A detector on noise: every score is below what is ever looked at."""
    reference = make_yolo()
    reference[:, 4:] *= 1e-4
    candidate = np.concatenate([add_noise(reference[:, :4], 30), np.zeros_like(reference[:, 4:])], axis=1)
    assert compare(reference, candidate)[0].passed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_outputs_of_one_scale_are_judged_as_a_whole(precision: str):
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((4, 8, 10, 10)) * np.geomspace(1, 5, 8)[:, None, None]
    out = compare(reference, add_noise(reference, 70), precision)[1]
    assert out.slices is None
    probabilities = np.exp(9 * rng.standard_normal((4, 30, 8, 8)))  # of classes, which differ by orders
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    assert compare(probabilities, add_noise(probabilities, 70), precision)[1].slices is None


def test_slices_that_are_constant_or_short_are_left_out_and_counted():
    rng = np.random.default_rng(2)
    reference = rng.standard_normal((2, 6, 64)) * np.array([1e3, 1e3, 1, 1, 0, 0])[:, None]
    reference[:, 5] = 7.0
    out = compare(reference, add_noise(reference, 60))[1]
    assert (out.slices.axis, out.slices.of, out.slices.constant) == (1, 6, 2)
    short = reference[:, :, :31]  # 62 values in a slice
    assert compare(short, add_noise(short, 60))[1].slices is None


def test_a_block_of_channels_that_loses_its_variance_is_a_warning():
    rng = np.random.default_rng(3)
    reference = rng.standard_normal((4, 16, 8, 8))
    candidate = reference.copy()
    candidate[:, 4:6] = reference[:, 4:6].mean()
    drift, _ = compare(reference, candidate)
    assert drift.passed
    (warning,) = list_sample_warnings(drift)
    assert warning.code == "lost_variance" and "output out: 2 of 16 slices of axis 1 hardly vary" in warning.message
    assert not list_sample_warnings(compare(reference, add_noise(reference, 20))[0])


@settings(max_examples=60)
@given(
    exponents=st.lists(st.sampled_from([-5, -3, -1, 1]), min_size=2, max_size=6),
    noisy=st.integers(0, 5),
    snr=st.sampled_from([3.0, 9.0, 25.0, 35.0, 55.0, 65.0, 90.0]),
    precision=st.sampled_from(PRECISIONS),
    axis=st.sampled_from([1, 2]),
    seed=st.integers(0, 2**16),
)
def test_scales_do_not_change_the_verdict(exponents, noisy, snr, precision, axis, seed):
    """Pooled and by channel: an output of one scale is judged as a whole, and of several as its worst channel is."""
    rng = np.random.default_rng(seed)
    channels = [rng.standard_normal((4, 100)) for _ in exponents]
    noise = [add_noise(c, snr if i == noisy % len(exponents) else 100, seed) for i, c in enumerate(channels)]
    scales = 10.0 ** np.array(exponents)[:, None]
    reference, candidate = (np.moveaxis(np.stack(side, axis=1) * scales, 1, axis) for side in (channels, noise))
    drift, _ = compare(reference, candidate, precision)
    alike = [i for i, e in enumerate(exponents) if e == exponents[noisy % len(exponents)]]
    # So near to the limit the figure of all samples, and that of the worst of them, can lie on either side of it.
    assume(abs(snr + 10 * np.log10(len(alike)) - drift.limits["snr"]) > 1.5)
    whole = [np.stack([side[i] for i in alike], axis=1) for side in (channels, noise)]
    assert drift.passed == compare(*whole, precision)[0].passed


@pytest.mark.parametrize("shape", [(50, 10), (50, 1), (50, 3, 16, 16)])
@pytest.mark.parametrize("error", [-1.0, 0.25])
def test_one_loud_sample_does_not_hide_all_others(shape, error):
    """An answer that is negated, or of the wrong size, in 49 of 50 samples; the last one is right, and 1e5."""
    rng = np.random.default_rng(4)
    reference = rng.standard_normal(shape)
    reference[7] = 1e5
    candidate = reference * error
    candidate[7] = reference[7]
    for precision in PRECISIONS:
        drift, out = compare(reference, candidate, precision)
        assert out.snr_db > 60 and not drift.passed
    assert any("in the worst 2% of the samples" in sentence for sentence in find_exceeded(drift))


def test_one_wrong_sample_in_fifty_is_within_and_two_are_not():
    rng = np.random.default_rng(5)
    reference = rng.standard_normal((100, 12))
    for wrong, passed in ((2, True), (3, False)):
        candidate = add_noise(reference, 70)
        candidate[:wrong] *= 0.3
        limits = {"snr": 20.0}
        reference[50] = 1e3  # so that the figure of all samples together is kept
        candidate[50] = 1e3
        assert measure_drift({"out": reference}, {"out": candidate}, limits).passed is passed
        assert measure_drift({"out": reference}, {"out": candidate}, limits | {"samples": 0.9}).passed
        strict = measure_drift({"out": reference}, {"out": candidate}, limits | {"samples": 1.0})
        assert not strict.passed and "in the worst sample, limit" in find_exceeded(strict)[0]


def test_quiet_samples_are_held_to_the_usual_size():
    """Near zero everything is a large relative difference: speech scores in silence, a value that changes its sign."""
    rng = np.random.default_rng(6)
    values = rng.standard_normal((64, 1))
    values[:5] *= 1e-6
    assert compare(values, values + 0.01 * rng.standard_normal(values.shape), "fp16")[0].passed
    silence = np.where(rng.random((64, 1)) < 0.2, 0.9, 1e-4)
    assert compare(silence, silence + 0.01, "int8")[0].passed


def test_records_from_before_are_read_and_judged_as_they_were():
    old = dict.fromkeys(OutputDrift.__struct_fields__[:10]) | {"name": "out", "nonfinite": 0, "snr_db": 7.0}
    output = msgspec.convert(old, OutputDrift)
    assert (output.slices, output.snr_most_db) == (None, None)
    assert keeps_limits(output, limits_between("fp32", "int8"))


INT8 = default_limits("int8")


def measure_drift_tasks(reference, candidate, precision="int8", task=None) -> tuple[OutputDrift, bool]:
    names = reference if isinstance(reference, dict) else {"out": reference}
    others = candidate if isinstance(candidate, dict) else {"out": candidate}
    drift = measure_drift(names, others, limits_between("fp32", precision), task=task)
    return drift.outputs[0], drift.passed


def test_class_ids_are_names_not_magnitudes():
    """Class 1 taken for class 2, one sample in forty: as magnitudes that is nothing beside ids near a thousand."""
    reference = np.arange(960, 1000)
    candidate = reference.copy()
    candidate[3] += 1
    found, passed = measure_drift_tasks(reference, candidate, "fp32")
    assert (found.decisions, found.decided, found.agreement) == ("labels", 40, 39 / 40)
    assert (found.snr_db, found.centred_cosine_mean, found.max_abs_diff) == (None, None, None)
    assert not passed and measure_drift_tasks(reference, reference, "fp32")[1]
    far = reference.copy()
    far[3] = 0  # a name is no further away for being a smaller number
    assert measure_drift_tasks(reference, far, "fp32")[0].agreement == found.agreement
    flags = np.array([True, False, True, True])
    assert measure_drift_tasks(flags, ~flags)[0].agreement == 0


def test_pixels_and_measured_counts_stay_magnitudes():
    picture = np.random.default_rng(0).integers(0, 255, (4, 8, 8)).astype(np.uint8)
    found, passed = measure_drift_tasks(picture, np.clip(picture, 1, 254), "int8")
    assert found.decisions is None and found.snr_db is not None and passed
    counts = np.arange(100, 140)
    assert measure_drift_tasks(counts, counts + 1, "int8", task="regression")[0].decisions is None
    assert measure_drift_tasks(picture, picture, "int8", task="segmentation")[0].decisions == "labels"


def test_maps_are_compared_pixel_by_pixel():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((2, 5, 16, 16)).astype(np.float32)
    close = scores + rng.normal(0, 0.01, scores.shape).astype(np.float32)
    found, passed = measure_drift_tasks(scores, close, task="segmentation")
    assert found.decisions == "labels" and found.decided == 512 and found.agreement > 0.95 and passed
    assert found.agreement == (scores.argmax(1) == close.argmax(1)).mean()
    assert not measure_drift_tasks(scores, rng.permuted(scores, axis=1), task="segmentation")[1]


def write_lines(changed: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Scores over time, confident but for one step of each line; in some lines that step flips to another letter."""
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 30, (n, 12))
    scores = 8 * np.eye(30)[tokens] + rng.normal(0, 0.3, (n, 12, 30))
    lines, steps = np.arange(n), rng.integers(0, 12, n)
    best = scores[lines, steps].argmax(axis=1)
    second = (best + 1) % 30
    scores[lines, steps, second] = scores[lines, steps, best] - 0.5
    other = scores + rng.normal(0, 0.05, scores.shape)
    other[lines[:changed], steps[:changed], second[:changed]] += 1.0
    return scores.astype(np.float32), other.astype(np.float32)


def test_a_quarter_of_the_lines_read_otherwise_is_no_agreement():
    """By the cosine alone the two are alike."""
    scores, other = write_lines(changed=10)
    plain, passed = measure_drift_tasks(scores, other)
    assert plain.centred_cosine_mean > 0.98 and passed
    found, passed = measure_drift_tasks(scores, other, task="text")
    assert (found.decisions, found.decided, found.flips) == ("sequences", 40, 10)
    assert found.agreement == 0.75 and not passed
    assert measure_drift_tasks(*write_lines(changed=2), task="asr")[1]


def test_boxes_are_matched_before_they_are_compared():
    rng = np.random.default_rng(3)
    low = rng.uniform(0, 80, (3, 6, 2))
    boxes = np.concatenate([low, low + 15], axis=2)
    scores, labels = rng.uniform(0.5, 1, (3, 6)), rng.integers(0, 4, (3, 6))
    reference = {"boxes": boxes, "scores": scores, "labels": labels}
    order = rng.permutation(6)
    shuffled = {name: array[:, order] for name, array in reference.items()}
    found, passed = measure_drift_tasks(reference, shuffled)
    assert (found.name, found.decisions, found.agreement, passed) == ("boxes", "boxes", 1.0, True)
    assert found.max_abs_diff == 0 and found.decided == 18
    moved = shuffled | {"boxes": shuffled["boxes"] + 30}
    found, passed = measure_drift_tasks(reference, moved, task="detection")
    assert found.agreement == 0 and found.decided == 36 and not passed
    nonsense = shuffled | {"scores": np.full_like(shuffled["scores"], np.nan)}
    assert not measure_drift_tasks(reference, nonsense)[1]


def make_lies() -> dict[str, tuple[Task, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Outputs that decide alike and are not the same: (task, right, wrong)."""
    rng = np.random.default_rng(11)
    low = rng.uniform(50, 250, (16, 20, 2))
    scores, labels = rng.uniform(0.5, 1, (16, 20)), rng.integers(0, 4, (16, 20))
    scene = {
        "boxes": np.concatenate([low, low + rng.uniform(20, 60, low.shape)], 2),
        "scores": scores,
        "labels": labels,
    }
    maps = rng.standard_normal((16, 8, 32, 32))
    maps[:, 3] += 6  # one class wins everywhere, whatever is done to a row
    row = maps.copy()
    row[:, :, -1] *= 0.9
    steps = 8 * np.eye(30)[rng.integers(1, 30, (16, 12))] + rng.normal(0, 0.3, (16, 12, 30))
    last = steps.copy()
    last[:, -1] *= 1.05
    return {
        "boxes shifted by 1": ("detection", scene, scene | {"boxes": scene["boxes"] + 1}),
        "scores 1 % lower": ("detection", scene, scene | {"scores": 0.99 * scores}),
        "a row of a map scaled": ("segmentation", {"out": maps}, {"out": row}),
        "the last step scaled": ("text", {"out": steps}, {"out": last}),
    }


@pytest.mark.parametrize("name", make_lies())
def test_decisions_that_agree_do_not_excuse_values(name: str) -> None:
    task, right, wrong = make_lies()[name]
    drift = measure_drift(right, wrong, limits_between("fp32", "fp32"), task=task)
    assert drift.outputs[0].agreement == 1 and not drift.passed
    rounded = {n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in right.items()}
    exact = {n: a.astype(rounded[n].dtype).astype(a.dtype) for n, a in right.items()}
    assert measure_drift(right, exact, limits_between("fp32", "fp32"), task=task).passed, "rounding of FP32 is no lie"


def scale_slice(array: np.ndarray, place: object, factor: float) -> np.ndarray:
    wrong = array.copy()
    wrong[place] *= factor
    return wrong


SLICES = [
    ((8, 1000), np.s_[:, 700], "slice 700 of axis 1"),  # a class
    ((8, 512, 6, 6), np.s_[:, 3], "slice 3 of axis 1"),  # a channel
    ((2, 4, 300, 8), np.s_[:, :, -1], "slice 299 of axis 2"),  # a row
    ((4, 128, 64), np.s_[:, 77], "slice 77 of axis 1"),  # a token
    ((16, 384), np.s_[:, 5], "slice 5 of axis 1"),  # a dimension of an embedding
]


@pytest.mark.parametrize(
    ("figure", "name", "limit", "short", "detail"),
    [
        (
            Figure("snr of 98% of the samples", 4.8068, "in the worst 2% of the samples"),
            "snr",
            6.0,
            "error is 0.575 of the signal in the worst 2% of the samples, limit 0.501",
            " (SNR 4.81 dB, limit 6)",
        ),
        (Figure("snr", 36.0), "snr", 60.0, "error is 0.0158 of the signal, limit 0.001", " (SNR 36 dB, limit 60)"),
        (Figure("snr", -23.6), "snr", 60.0, "error is 15.1 times the signal, limit 0.001", " (SNR -23.6 dB, limit 60)"),
        (
            Figure("snr", -math.inf),
            "snr",
            60.0,
            "the reference is 0 everywhere, and these outputs are not",
            " (limit of SNR 60 dB)",
        ),
        (
            Figure("centred_cosine", 0.1),
            "centred_cosine",
            0.9,
            "correlation with the reference is 0.1, limit 0.9",
            " (centred cosine)",
        ),
        (
            Figure("agreement", 0.88),
            "agreement",
            0.9,
            "shares 88.0% of the decisions of the reference, limit 90.0%",
            "",
        ),
        (Figure("max_abs", 1.0), "max_abs", 0.5, "max_abs is 1, limit 0.5", ""),
    ],
)
def test_a_limit_is_explained_in_plain_words_with_the_figure_behind(figure, name, limit, short, detail):
    assert explain_figure(figure, name, limit) == (short, detail)


@pytest.mark.parametrize(
    ("value", "name", "limit", "expected"),
    [
        (0.9998, "centred_cosine", 0.9999, "is 0.9998, limit 0.9999"),
        (59.98, "snr", 60, "error is 0.001002 of the signal, limit 0.001 (SNR 59.98 dB, limit 60)"),
        (0.98995, "top1", 0.99, "in 98.995% of the samples, limit 99.0%"),
        (0.5, "top1", 0.99, "in 50.0% of the samples, limit 99.0%"),
    ],
)
def test_a_value_that_breaks_a_limit_never_looks_like_it(value: float, name: str, limit: float, expected: str) -> None:
    assert expected in explain_figure(Figure(name, value), name, limit).full


@pytest.mark.parametrize(
    ("variation", "noise", "expected"),
    [
        (1e-2, 5e-3, "error is 0.005 of the signal, and these inputs change the outputs by about 0.0097 of it"),
        (1e-5, 1e-3, "error is 0.001 of the signal, and these inputs change the outputs by less than 0.0001 of it"),
    ],
)
def test_a_small_error_that_spoils_the_correlation_is_explained_by_outputs_that_hardly_vary(
    variation: float, noise: float, expected: str
) -> None:
    rng = np.random.default_rng(0)
    common = rng.standard_normal(4000)
    ref = common + variation * rng.standard_normal((16, 4000))
    near = ref + noise * rng.standard_normal(ref.shape)
    (sentence,) = find_exceeded(measure_drift({"y": ref}, {"y": near}, default_limits("bf16")))
    assert "(centred cosine); " in sentence and sentence.endswith(expected)


def test_a_large_error_is_not_put_down_to_outputs_that_hardly_vary() -> None:
    rng = np.random.default_rng(0)
    ref, far = rng.standard_normal((2, 16, 400))
    sentences = find_exceeded(measure_drift({"y": ref}, {"y": far}, default_limits("bf16")))
    assert len(sentences) == 2 and not any("these inputs change" in sentence for sentence in sentences)


@pytest.mark.parametrize(("shape", "place", "where"), SLICES)
def test_one_slice_that_is_wrong_does_not_hide_among_many(shape, place, where):
    right = np.random.default_rng(5).standard_normal(shape)
    drift, out = measure(right, scale_slice(right, place, 1.01), **default_limits("fp32"))
    assert out.snr_db > 60 and (out.snr_min_at, drift.passed) == (where, False)
    (sentence,) = [text for text in find_exceeded(drift) if "axis" in text]
    assert sentence.startswith("y: error is 0.0") and where in sentence
    assert "(SNR 4" in sentence and sentence.endswith("limit 55)")
    assert measure(right, scale_slice(right, place, 1.01), **default_limits("tf32"))[0].passed


@pytest.mark.parametrize(("shape", "place", "where"), SLICES)
@pytest.mark.parametrize("loudness", [0.2, 1.0, 5.0])
def test_noise_that_is_everywhere_alike_makes_no_slice_wrong(shape, place, where, loudness):
    """Also where one slice is quieter, or louder, than the others."""
    rng = np.random.default_rng(6)
    right = scale_slice(rng.standard_normal(shape), place, loudness)
    noise = 10 ** (-65 / 20) * rng.standard_normal(shape)
    drift, out = measure(right, right + noise, snr=60, snr_min=55)
    assert drift.passed, find_exceeded(drift)
    assert 55 < out.snr_min_db < 70


def compute_network(dtype: type, n: int, *, scale: np.ndarray) -> np.ndarray:
    """Outputs of a small network in this precision, each dimension times its scale."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, 64)).astype(dtype)
    for _ in range(4):
        x = np.tanh(x @ (rng.normal(size=(64, 64)) / 8).astype(dtype))
    return x[:, : len(scale)] * scale.astype(dtype)


def blur_sample(y: np.ndarray) -> None:
    y[617] *= 1.01


def blur_dimension(y: np.ndarray) -> None:
    y[:, 5] *= 1.003


def blur_quiet_dimension(y: np.ndarray) -> None:
    y[:, 7] *= 1.05  # it has a fiftieth of the usual signal


@pytest.mark.parametrize(
    ("change", "where", "sentence"),
    [
        (blur_sample, "sample 617", "sample 617"),
        (blur_dimension, "slice 5 of axis 1", "slice 5 of axis 1"),
        (blur_quiet_dimension, "slice 7 of axis 1", "1 of 32 slices of axis 1, from 7 on"),
    ],
)
def test_little_that_is_wrong_by_itself_is_seen_beside_what_is_right(change, where, sentence) -> None:
    scale = np.where(np.arange(32) == 7, 0.02, 1.0)
    right, other = (compute_network(dtype, 1000, scale=scale) for dtype in (np.float64, np.float32))
    sound = measure_drift({"y": right}, {"y": other.astype(np.float64)}, default_limits("fp32"))
    assert sound.passed
    assert sound.outputs[0].snr_min_db > 100
    wrong = other.astype(np.float64)
    change(wrong)
    drift = measure_drift({"y": right}, {"y": wrong}, default_limits("fp32"))
    assert (drift.passed, drift.outputs[0].snr_min_at) == (False, where)
    assert sentence in find_exceeded(drift)[0]


def test_an_option_that_allows_a_share_of_wrong_samples_is_not_held_to_each() -> None:
    right = np.random.default_rng(0).normal(size=(1000, 16))
    wrong = right.copy()
    blur_sample(wrong)
    assert measure_drift({"y": right}, {"y": wrong}, default_limits("fp32") | {"samples": 0.9}).passed


def test_boxes_are_held_to_their_sizes_wherever_they_lie():
    """A tenth of a pixel at 1000 pixels is 80 dB of the coordinates, and a hundredth of a box of 10 pixels."""
    scene = make_scene()
    scene["boxes"] = np.concatenate([scene["boxes"][..., :2] + 1000, scene["boxes"][..., :2] + 1010], axis=2)
    for shift, passes in ((0.1, False), (0.005, True)):
        drift = measure_drift(scene, scene | {"boxes": scene["boxes"] + shift}, limits_between("fp32", "fp32"))
        assert drift.outputs[0].snr_db > 75 and drift.passed is passes
        assert drift.outputs[0].snr_min_db == pytest.approx(
            20 * np.log10(10 / np.sqrt(2) / shift * np.sqrt(2)), abs=0.1
        )


@pytest.mark.parametrize(("precision", "passes"), [("fp16", False), ("bf16", True), ("int8", True)])
def test_decisions_of_a_reduced_precision_have_its_numeric_limit_as_their_floor(precision, passes):
    """Scores a twentieth lower decide alike, at 26 dB."""
    scene = make_scene()
    lower = scene | {"scores": 0.95 * scene["scores"]}
    limits = limits_between("fp32", precision)
    assert measure_drift(scene, lower, limits, task="detection").passed is passes
    assert not measure_drift(scene, scene | {"labels": scene["labels"] + 1}, limits, task="detection").passed


def test_all_reduced_precisions_of_a_run_have_the_limits_of_the_coarsest():
    asked = ("fp32", "tf32", "bf16", "int8")
    found = [limits_between("fp32", precision, asked) for precision in ("fp16", "bf16", "int8")]
    assert found == [default_limits("int8")] * 3
    assert [limits_between("fp32", full, asked) for full in ("fp32", "tf32")] == [
        *map(default_limits, ("fp32", "tf32"))
    ]
    assert limits_between("fp32", "fp16", ("fp32", "bf16")) == default_limits("bf16")
    assert limits_between("fp32", "bf16") == default_limits("bf16")


def test_masks_are_compared_between_partners():
    """A box that only the reference shows takes its mask with it; that box is the difference."""
    reference = make_scene(1)
    fewer = {name: array.copy() for name, array in reference.items()}
    fewer["scores"][0, 2], fewer["masks"][0, 2] = 0, 99
    boxes, masks, _ = measure_drift(reference, fewer, {}).outputs
    assert (boxes.agreement, masks.max_abs_diff) == (5 / 6, 0)
    assert measure_drift(reference, fewer, {"agreement": 0.8, "max_abs": 0}).passed
    alone = measure_drift(reference, fewer, {"max_abs": 0})
    others = "the others are not computed over samples, give a limit of agreement"
    assert not alone.passed and find_exceeded(alone) == (f"boxes: 5 of 6 boxes have a partner; {others}",)
    whole = {name: array[0] for name, array in reference.items()}
    assert measure_drift(whole, {n: a[0] for n, a in reorder(reference).items()}, {"max_abs": 0}).passed
    fewer["masks"][0, 2] = np.nan
    assert not measure_drift(reference, fewer, {"agreement": 0.8}).passed


def test_partners_differ_by_their_coordinates_and_by_their_scores():
    reference = make_scene()
    moved = reorder(reference | {"boxes": reference["boxes"] + [2, 0, 2, 0]})
    boxes = measure_drift(reference, moved, {}).outputs[0]
    assert (boxes.agreement, boxes.max_abs_diff, boxes.mean_abs_diff) == (1, pytest.approx(2), pytest.approx(1))
    assert boxes.snr_db == pytest.approx(10 * np.log10((reference["boxes"] ** 2).sum() / (18 * 8)))
    assert not measure_drift(reference, moved, limits_between("fp32", "fp32")).passed
    assert not measure_drift(reference, moved, {"max_abs": 1.0}).passed
    unsure = reorder(reference | {"scores": reference["scores"] * 0.9})
    boxes = measure_drift(reference, unsure, {}).outputs[0]
    assert boxes.snr_db == pytest.approx(20) and boxes.agreement == 1
    assert boxes.max_abs_diff == pytest.approx(reference["scores"].max() / 10)
    assert not measure_drift(reference, unsure, limits_between("fp32", "fp32")).passed


@pytest.mark.parametrize("task", [None, "detection"])
def test_detectors_that_show_nothing_are_compared_by_their_numbers(task):
    """All scores lie below what a user sees, so that no decision can agree."""
    limits = limits_between("fp32", "fp32")
    one, other = make_scene(), make_scene(seed=8)
    one["scores"], other["scores"] = one["scores"] / 5, other["scores"] / 5
    same = measure_drift(one, one, limits, task=task)
    assert same.passed and [o.name for o in same.outputs] == list(one) and same.outputs[0].decisions is None
    assert compare_outputs(make_result(), make_result("ort", drift=replace(same, reference="pytorch-fp32-b1")))[0]
    drift = measure_drift(one, other, limits, task=task)
    assert not drift.passed and any("boxes: error is" in text for text in find_exceeded(drift))
    rows = [np.concatenate([s["boxes"], s["scores"][..., None], s["labels"][..., None]], axis=2) for s in (one, other)]
    drift = measure_drift({"out": rows[0]}, {"out": rows[1]}, limits, task=task)
    assert not drift.passed and measure_drift({"out": rows[0]}, {"out": rows[0]}, limits, task=task).passed


def test_two_axes_of_a_regression_are_no_classes_and_one_class_is_no_choice():
    one = np.ones((3, 1))
    assert measure_drift({"y": one}, {"y": one}, {}).outputs[0].flips is None
    assert measure_samples({"y": one}, {"y": one})[0].top1_agrees is None
    rng = np.random.default_rng(4)
    found, _ = measure_drift_tasks(rng.standard_normal((8, 3)), rng.standard_normal((8, 3)), task="regression")
    assert found.top1_agreement is None and found.flips is None
    assert measure_samples({"out": np.eye(3)}, {"out": np.eye(3)}, "embedding")[0].top1_agrees is None


def test_samples_of_labels_say_which_share_agrees():
    rows = measure_samples({"out": np.array([[1, 2], [3, 4]])}, {"out": np.array([[1, 9], [3, 4]])})
    assert [(r.agreement, r.max_abs_diff, r.snr_db) for r in rows] == [(0.5, None, None), (1.0, None, None)]


@pytest.mark.parametrize(("changed", "agrees"), [(0, True), (40, False)])
def test_rows_of_labels_alone_are_held_against_each_other(changed, agrees):
    """They have no differences of numbers, and are compared all the same."""
    reference = np.arange(40)
    candidate = np.where(np.arange(40) < changed, reference + 1, reference)
    drift = measure_drift({"out": reference}, {"out": candidate}, INT8, reference_id="pytorch-fp32-b1")
    base, cand = make_result(), make_result("ort", "int8", drift=drift)
    assert check_comparisons([base, cand])[1].drift is not None
    assert compare_outputs(base, cand)[0] is agrees


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_configuration_whose_reference_raced_and_is_not_in_the_final_was_compared(elsewhere):
    drift = measure_drift({"out": np.arange(40.0)}, {"out": np.arange(40.0)}, INT8, reference_id="pytorch-fp32-b1-race")
    (kept,) = check_comparisons([make_result("ort", "int8", drift=replace(drift, elsewhere=elsewhere))])
    assert (kept.drift is not None) is elsewhere


def test_boxes_of_each_sample_are_matched():
    """The same boxes in another order are no difference in the file of samples either; one that is gone is."""
    scene = make_scene()
    rows, names = measure_samples(scene, reorder(scene), "detection"), ["boxes", "masks", "depth"]
    assert [(row.index, row.output) for row in rows] == [(i, name) for i in range(3) for name in names]
    assert all(row.max_abs_diff == 0 for row in rows)
    assert [row.agreement for row in rows if row.output == "boxes"] == [1.0, 1.0, 1.0]
    fewer = {name: array.copy() for name, array in reorder(scene).items()}
    fewer["scores"][1, 0] = 0.01
    assert [row.agreement for row in measure_samples(scene, fewer) if row.output == "boxes"] == [1.0, 5 / 6, 1.0]
    empty = {name: array.copy() for name, array in scene.items()}
    empty["scores"][2] = 0.01  # nothing is shown there, on either side
    rows = [row for row in measure_samples(empty, empty, "detection") if row.index == 2]
    assert [(row.output, row.agreement, row.max_abs_diff) for row in rows] == [("boxes", None, None)]
    one = {f"outputs.{name}": array[0] for name, array in scene.items()}
    assert [row.output for row in measure_samples(one, one)] == ["boxes", "outputs.masks", "outputs.depth"]


@pytest.mark.parametrize(("score", "agreement"), [(0.9, 1), (0.24, 1), (0.19, 0), (0.01, 0)])
def test_a_box_whose_score_fell_out_of_sight_has_no_partner(score, agreement):
    """Coordinates are compared between partners alone: a network whose scores all fell would pass by its boxes."""
    scene = make_scene() | {"scores": np.full((3, 6), 0.9)}
    fallen = reorder(scene | {"scores": np.full((3, 6), score)})
    for sides in ((scene, fallen), (fallen, scene)):
        drift = measure_drift(*sides, limits_between("fp32", "fp32"), task="detection")
        assert (drift.outputs[0].agreement, drift.passed) == (agreement, score == 0.9)


DRIFT_SAMPLES_REF = np.array([[10.0, 0.0, 0.0], [5.0, 4.9, 0.0], [0.0, 3.0, 1.0]])


def test_samples_by_hand() -> None:
    cand = DRIFT_SAMPLES_REF.copy()
    cand[0, 1] = 3.0
    cand[1] = [4.9, 5.0, 0.0]
    first, second, third = measure_samples({"y": DRIFT_SAMPLES_REF}, {"y": cand})
    assert (first.index, first.output, first.max_abs_diff, first.mean_abs_diff) == (0, "y", 3.0, 1.0)
    assert first.cosine == pytest.approx(10 / np.sqrt(109))
    assert first.snr_db == pytest.approx(10 * np.log10(100 / 9))
    assert (first.top1_reference, first.top1_candidate, first.top1_agrees) == (0, 0, True)
    assert (second.top1_reference, second.top1_candidate, second.top1_agrees) == (0, 1, False)
    assert second.margin == pytest.approx(0.1)
    assert second.beyond_noise is False
    assert (third.max_abs_diff, third.snr_db, third.margin) == (0.0, MAX_SNR_DB, 2.0)
    assert first.top5_agrees is None, "three classes cannot disagree in five"


def test_flips_of_near_ties_are_distinguished_from_flips_of_sure_outputs() -> None:
    rng = np.random.default_rng(0)
    ref = np.zeros((100, 10))
    ref[:, 0] = 5.0
    ref[:10, 1] = 4.99  # ten near ties
    cand = ref + rng.normal(0, 0.1, ref.shape)
    cand[50] = np.roll(ref[50], 3)  # a sure answer, turned over
    (output,) = measure_drift({"y": ref}, {"y": cand}, {}).outputs
    samples = measure_samples({"y": ref}, {"y": cand})
    assert output.near_ties == 10
    assert output.flips_beyond_noise == 1
    assert output.flips == sum(not s.top1_agrees for s in samples) > 1
    assert [s.index for s in samples if s.beyond_noise and not s.top1_agrees] == [50]


def test_what_moves_all_scores_alike_is_no_noise() -> None:
    (output,) = measure_drift({"y": DRIFT_SAMPLES_REF}, {"y": DRIFT_SAMPLES_REF + 100}, {}).outputs
    assert (output.flips, output.near_ties) == (0, 0)


def test_samples_that_are_not_finite_are_counted_and_judged_by_nothing_else() -> None:
    cand = DRIFT_SAMPLES_REF.copy()
    cand[1, 2] = np.nan
    first, second, _ = measure_samples({"y": DRIFT_SAMPLES_REF}, {"y": cand})
    assert (second.nonfinite, second.cosine, second.centred_cosine, second.top1_agrees) == (1, None, None, None)
    assert second.max_abs_diff == 0.0
    assert first.nonfinite == 0


def test_every_limit_that_was_not_kept_is_a_sentence() -> None:
    cand = DRIFT_SAMPLES_REF + 1
    cand[0, 0] = np.inf
    drift = measure_drift({"y": DRIFT_SAMPLES_REF}, {"y": cand}, {"max_abs": 0.5, "cosine": 0.1, "mean_abs": 2.0})
    assert find_exceeded(drift) == ("y: 1 value is not finite", "y: max_abs is 1, limit 0.5")
    assert find_exceeded(measure_drift({"y": DRIFT_SAMPLES_REF}, {"y": DRIFT_SAMPLES_REF}, {"max_abs": 0.5})) == ()


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


def test_an_entry_of_a_detector_that_is_always_lost_is_a_difference() -> None:
    """Its boxes are a few of many, so that partners alone would not show it; whole sides are, too."""
    right = make_yolo(n=16).astype(np.float32)
    lost, turned = right.copy(), right.copy()
    lost[:, :, -1] = 0
    turned[-1] = np.roll(turned[-1], 1, axis=-1)
    for wrong in (lost, turned):
        for precision, passes in (("fp32", False), ("int8", True)):
            drift = measure_drift({"y": right}, {"y": wrong}, limits_between("fp32", precision), task="detection")
            assert drift.passed is passes
    rounded = (right * (1 + 1e-6 * np.random.default_rng(1).standard_normal(right.shape))).astype(np.float32)
    assert measure_drift({"y": right}, {"y": rounded}, limits_between("fp32", "fp32"), task="detection").passed


def test_imaginary_parts_are_compared() -> None:
    right = np.random.default_rng(2).standard_normal((8, 5, 2)).astype(np.float32).view(np.complex64)[..., 0]
    drift, out = measure(right, right.conj(), snr=60)
    assert not drift.passed and out.snr_db < 10
    assert measure(right, right.copy(), snr=60)[0].passed
