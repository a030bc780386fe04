"""What drift means where answers are decisions: labels, boxes, sequences."""

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import OutputDrift
from enginebench.stats.alike import keep_comparisons
from enginebench.stats.diff import judge_answers
from enginebench.stats.drift import (
    default_limits,
    find_exceeded,
    limits_between,
    limits_undecided,
    measure_drift,
    measure_samples,
)
from samples import make_result, make_scene, reorder

INT8 = default_limits("int8")


def measure(reference, candidate, precision="int8", task=None) -> tuple[OutputDrift, bool]:
    names = reference if isinstance(reference, dict) else {"out": reference}
    others = candidate if isinstance(candidate, dict) else {"out": candidate}
    drift = measure_drift(names, others, limits_between("fp32", precision, task), task=task)
    return drift.outputs[0], drift.passed


def test_class_ids_are_names_not_magnitudes():
    """Class 1 taken for class 2, one sample in forty: as magnitudes that is nothing beside ids near a thousand."""
    reference = np.arange(960, 1000)
    candidate = reference.copy()
    candidate[3] += 1
    found, passed = measure(reference, candidate, "fp32")
    assert (found.decisions, found.decided, found.agreement) == ("labels", 40, 39 / 40)
    assert (found.snr_db, found.centred_cosine_mean, found.max_abs_diff) == (None, None, None)
    assert not passed and measure(reference, reference, "fp32")[1]
    far = reference.copy()
    far[3] = 0  # a name is no further away for being a smaller number
    assert measure(reference, far, "fp32")[0].agreement == found.agreement


def test_pixels_and_measured_counts_stay_magnitudes():
    picture = np.random.default_rng(0).integers(0, 255, (4, 8, 8)).astype(np.uint8)
    found, passed = measure(picture, np.clip(picture, 1, 254), "int8")
    assert found.decisions is None and found.snr_db is not None and passed
    counts = np.arange(100, 140)
    assert measure(counts, counts + 1, "int8", task="regression")[0].decisions is None
    assert measure(picture, picture, "int8", task="segmentation")[0].decisions == "labels"


def test_a_truth_value_is_a_label():
    flags = np.array([True, False, True, True])
    assert measure(flags, ~flags)[0].agreement == 0


def test_maps_are_compared_pixel_by_pixel():
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((2, 5, 16, 16)).astype(np.float32)
    close = scores + rng.normal(0, 0.01, scores.shape).astype(np.float32)
    found, passed = measure(scores, close, task="segmentation")
    assert found.decisions == "labels" and found.decided == 512 and found.agreement > 0.95 and passed
    assert found.agreement == (scores.argmax(1) == close.argmax(1)).mean()
    assert not measure(scores, rng.permuted(scores, axis=1), task="segmentation")[1]


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
    plain, passed = measure(scores, other)
    assert plain.centred_cosine_mean > 0.98 and passed
    found, passed = measure(scores, other, task="text")
    assert (found.decisions, found.decided, found.flips) == ("sequences", 40, 10)
    assert found.agreement == 0.75 and not passed
    assert measure(*write_lines(changed=2), task="asr")[1]


def test_boxes_are_matched_before_they_are_compared():
    rng = np.random.default_rng(3)
    low = rng.uniform(0, 80, (3, 6, 2))
    boxes = np.concatenate([low, low + 15], axis=2)
    scores, labels = rng.uniform(0.5, 1, (3, 6)), rng.integers(0, 4, (3, 6))
    reference = {"boxes": boxes, "scores": scores, "labels": labels}
    order = rng.permutation(6)
    shuffled = {name: array[:, order] for name, array in reference.items()}
    found, passed = measure(reference, shuffled)
    assert (found.name, found.decisions, found.agreement, passed) == ("boxes", "boxes", 1.0, True)
    assert found.max_abs_diff == 0 and found.decided == 18
    moved = shuffled | {"boxes": shuffled["boxes"] + 30}
    found, passed = measure(reference, moved, task="detection")
    assert found.agreement == 0 and found.decided == 36 and not passed
    nonsense = shuffled | {"scores": np.full_like(shuffled["scores"], np.nan)}
    assert not measure(reference, nonsense)[1]


def test_masks_are_compared_between_partners():
    """A box that only the reference shows takes its mask with it; that box is the difference."""
    reference = make_scene(1)
    fewer = {name: array.copy() for name, array in reference.items()}
    fewer["scores"][0, 2], fewer["masks"][0, 2] = 0, 99
    boxes, masks, _ = measure_drift(reference, fewer, {}).outputs
    assert (boxes.agreement, masks.max_abs_diff) == (5 / 6, 0)
    assert measure_drift(reference, fewer, {"agreement": 0.8, "max_abs": 0}).passed
    alone = measure_drift(reference, fewer, {"max_abs": 0})
    assert not alone.passed
    assert find_exceeded(alone) == (
        "boxes: 5 of 6 boxes have a partner; the others are not computed over samples, give a limit of agreement",
    )
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
    limits, undecided = limits_between("fp32", "fp32", task), limits_undecided("fp32", "fp32", task)
    one, other = make_scene(), make_scene(seed=8)
    one["scores"], other["scores"] = one["scores"] / 5, other["scores"] / 5
    ask = {"task": task, "undecided": undecided}
    same = measure_drift(one, one, limits, **ask)
    assert same.passed and [o.name for o in same.outputs] == list(one) and same.outputs[0].decisions is None
    assert judge_answers(make_result(), make_result("ort", drift=replace(same, reference="pytorch-fp32-b1")))[0]
    drift = measure_drift(one, other, limits, **ask)
    assert not drift.passed and any("boxes: snr is" in text for text in find_exceeded(drift))
    rows = [np.concatenate([s["boxes"], s["scores"][..., None], s["labels"][..., None]], axis=2) for s in (one, other)]
    drift = measure_drift({"out": rows[0]}, {"out": rows[1]}, limits, **ask)
    assert not drift.passed and measure_drift({"out": rows[0]}, {"out": rows[0]}, limits, **ask).passed


def test_two_axes_of_a_regression_are_no_classes():
    rng = np.random.default_rng(4)
    found, _ = measure(rng.standard_normal((8, 3)), rng.standard_normal((8, 3)), task="regression")
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
    assert keep_comparisons([base, cand])[1].drift is not None
    assert judge_answers(base, cand)[0] is agrees


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_row_whose_reference_raced_and_is_not_in_the_final_was_compared(elsewhere):
    drift = measure_drift({"out": np.arange(40.0)}, {"out": np.arange(40.0)}, INT8, reference_id="pytorch-fp32-b1-race")
    (kept,) = keep_comparisons([make_result("ort", "int8", drift=replace(drift, elsewhere=elsewhere))])
    assert (kept.drift is not None) is elsewhere


def test_boxes_of_each_sample_are_matched():
    """The same boxes in another order are no difference in the file of samples either; one that is gone is."""
    scene = make_scene()
    rows = measure_samples(scene, reorder(scene), "detection")
    assert [(row.index, row.output) for row in rows] == [
        (i, name) for i in range(3) for name in ("boxes", "masks", "depth")
    ]
    assert all(row.max_abs_diff == 0 for row in rows)
    assert [row.agreement for row in rows if row.output == "boxes"] == [1.0, 1.0, 1.0]
    fewer = {name: array.copy() for name, array in reorder(scene).items()}
    fewer["scores"][1, 0] = 0.01
    assert [row.agreement for row in measure_samples(scene, fewer) if row.output == "boxes"] == [1.0, 5 / 6, 1.0]
    empty = {name: array.copy() for name, array in scene.items()}
    empty["scores"][2] = 0.01  # nothing is shown there, on either side
    rows = [row for row in measure_samples(empty, empty, "detection") if row.index == 2]
    assert [(row.output, row.agreement, row.max_abs_diff) for row in rows] == [("boxes", None, None)]
    one = {name: array[0] for name, array in scene.items()}
    assert [row.output for row in measure_samples(one, one)] == ["boxes", "masks", "depth"]


@pytest.mark.parametrize(("score", "agreement"), [(0.9, 1), (0.24, 1), (0.19, 0), (0.01, 0)])
def test_a_box_whose_score_fell_out_of_sight_has_no_partner(score, agreement):
    """Limits of detection are on agreement alone: a network whose scores all fell would pass by its boxes."""
    scene = make_scene() | {"scores": np.full((3, 6), 0.9)}
    fallen = reorder(scene | {"scores": np.full((3, 6), score)})
    for sides in ((scene, fallen), (fallen, scene)):
        drift = measure_drift(*sides, limits_between("fp32", "fp32", "detection"), task="detection")
        assert (drift.outputs[0].agreement, drift.passed) == (agreement, bool(agreement))
