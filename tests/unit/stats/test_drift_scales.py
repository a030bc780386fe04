"""Agreement where one output holds quantities of different scales, and where one sample is louder than all others."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebench.core.records import Drift, OutputDrift
from enginebench.stats.drift import (
    default_limits,
    doubt_samples,
    find_exceeded,
    keeps_limits,
    limits_between,
    measure_drift,
)

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
    assert any(f"out: snr of {place}, is 0.7" in sentence for sentence in find_exceeded(drift))
    assert "unread_boxes" in [c.code for c in doubt_samples(drift)]


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
    assert [c.code for c in doubt_samples(drift)] == ["lost_variance", "unread_boxes"]


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
    (doubt,) = doubt_samples(drift)
    assert doubt.code == "lost_variance" and "output out: 2 of 16 slices of axis 1 hardly vary" in doubt.message
    assert not doubt_samples(compare(reference, add_noise(reference, 20))[0])


@settings(deadline=None, max_examples=60)
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
    scales = 10.0 ** np.array(exponents)
    reference, candidate = (
        np.moveaxis(np.stack([c * s for c, s in zip(side, scales, strict=True)], axis=1), 1, axis)
        for side in (channels, noise)
    )
    drift, _ = compare(reference, candidate, precision)
    alike = [i for i, e in enumerate(exponents) if e == exponents[noisy % len(exponents)]]
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
    assert any("out: snr of 98% of the samples is" in sentence for sentence in find_exceeded(drift))


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
        assert not strict.passed and "snr of 100% of the samples is 7" in find_exceeded(strict)[0]


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
