"""Boxes: read from every layout that is known, matched, and mAP against pycocotools used by hand."""

import contextlib
import io
import sys

import numpy as np
import pytest

from enginebench.core.errors import FeedError, MissingDependency
from enginebench.core.records import Precision
from enginebench.stats.drift import default_limits, find_exceeded, measure_drift
from enginebench.stats.metrics.boxes import NOTHING, Boxes, match_boxes, measure_overlaps, prepare_map, read_boxes
from enginebench.stats.metrics.metric import Targets

CORNERS = np.array([[10.0, 10, 30, 50], [12, 11, 31, 52], [100, 100, 140, 120]])
SCORES = np.array([0.9, 0.8, 0.6])
CLASSES = np.array([1, 1, 0])


def to_centres(boxes: np.ndarray) -> np.ndarray:
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], axis=1)


def list_first(found: Boxes) -> list[tuple[list[float], float, int]]:
    n = int((found.labels[0] != NOTHING).sum())
    rows = zip(found.boxes[0, :n], found.scores[0, :n], found.labels[0, :n], strict=True)
    return [(b.round(3).tolist(), round(float(s), 3), int(c)) for b, s, c in rows]


def spread(width: int, *, objectness: bool) -> np.ndarray:
    """A row of YOLO for each box: centre, size, (object,) scores; and boxes that nobody sees."""
    scores = np.zeros((len(CORNERS), 3))
    scores[np.arange(3), CLASSES] = SCORES
    parts = [to_centres(CORNERS), *([np.ones((3, 1))] if objectness else []), scores]
    return np.concatenate([np.concatenate(parts, axis=1), np.zeros((width, 7 + objectness))])


KEPT = [([10.0, 10.0, 30.0, 50.0], 0.9, 1), ([100.0, 100.0, 140.0, 120.0], 0.6, 0)]
ALL = [KEPT[0], ([12.0, 11.0, 31.0, 52.0], 0.8, 1), KEPT[1]]


def test_layouts_of_detectors():
    yolov8 = spread(40, objectness=False).T[None]
    yolov5 = spread(40, objectness=True)[None]
    assert list_first(read_boxes({"output0": yolov8})) == KEPT
    assert list_first(read_boxes({"output0": yolov5})) == KEPT
    alone = np.concatenate([to_centres(CORNERS) / 200, SCORES[:, None]], axis=1)
    found = list_first(read_boxes({"output0": np.repeat(alone, 20, axis=0)[None]}))  # within 0 to 1, as scores are
    assert [(score, label) for _, score, label in found] == [(0.9, 0), (0.6, 0)]
    ended = np.concatenate([CORNERS, SCORES[:, None], CLASSES[:, None]], axis=1)[None]
    assert list_first(read_boxes({"output0": ended})) == ALL
    named = {"boxes": CORNERS, "labels": CLASSES, "scores": SCORES}
    assert list_first(read_boxes({f"outputs.0.{name}": array for name, array in named.items()})) == ALL
    assert list_first(read_boxes(named)) == ALL == list_first(read_boxes(read_boxes(named).as_outputs()))
    logits = np.full((1, 3, 2), -9.0)
    logits[0, np.arange(3), CLASSES] = np.log(SCORES / (1 - SCORES))
    queries = read_boxes({"labels": logits, "dets": to_centres(CORNERS)[None]})
    assert list_first(queries) == ALL


def test_overlaps_by_hand():
    found = measure_overlaps(np.array([[0.0, 0, 2, 2]]), np.array([[1.0, 1, 3, 3], [0, 0, 2, 2], [5, 5, 6, 6]]))
    assert found.tolist() == [[pytest.approx(1 / 7), 1.0, 0.0]]
    flat = np.array([[1.0, 1, 1, 4], [1, 1, 1, 5]])
    assert measure_overlaps(flat, flat).tolist() == [[1, 0], [0, 1]]


def make_boxes(*rows: tuple[list[float], float, int]) -> Boxes:
    boxes, scores, labels = zip(*rows, strict=True)
    return read_boxes({"boxes": np.array(boxes, float), "scores": np.array(scores), "labels": np.array(labels)})


CENTRES = ([70.0, 80, 8, 6], 0.9, 1), ([80.0, 80, 8, 6], 0.8, 1), ([30.0, 20, 5, 9], 0.7, 2)


def test_boxes_of_centre_and_size_are_matched_as_such():
    """As corners they have no area; and two beside each other are no partners, however alike their numbers are."""
    found = match_boxes(make_boxes(*CENTRES), make_boxes(*CENTRES))
    assert (found.shared, found.decided) == (3, 3)
    near = match_boxes(make_boxes(*CENTRES), make_boxes(*((list(np.add(b, 0.01)), s, c) for b, s, c in CENTRES)))
    assert (near.shared, near.decided) == (3, 3)
    apart = match_boxes(make_boxes(CENTRES[0]), make_boxes(CENTRES[1]))
    assert (apart.shared, apart.decided) == (0, 2)


def make_scene(seed: int, images: int = 30):
    """Right boxes, and found ones: some moved, some of another class, some missing, some made up."""
    rng = np.random.default_rng(seed)
    wanted, rows = [], []
    for _ in range(images):
        n = int(rng.integers(1, 6))
        low = rng.uniform(0, 80, (n, 2))
        boxes, labels = np.concatenate([low, low + rng.uniform(8, 20, (n, 2))], axis=1), rng.integers(0, 3, n)
        wanted.append({"boxes": boxes.tolist(), "labels": labels.tolist()})
        moved = boxes + rng.normal(0, 1.0, boxes.shape)
        found = np.where(rng.random(n) < 0.1, (labels + 1) % 3, labels)
        ended = np.zeros((8, 6))
        ended[:n] = np.concatenate([moved, rng.uniform(0.3, 1, (n, 1)), found[:, None]], axis=1)
        ended[n] = [*rng.uniform(0, 40, 2), *rng.uniform(50, 90, 2), rng.uniform(0, 0.5), rng.integers(0, 3)]
        rows.append(ended)
    return np.stack(rows), wanted


def ask_coco(outputs: np.ndarray, wanted, places) -> float:
    """pycocotools with nothing of ours: each drawn image is an image of its own."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    right, found = [], []
    for image, place in enumerate(places):
        for (x, y, u, v), label in zip(wanted[place]["boxes"], wanted[place]["labels"], strict=True):
            box = {"bbox": [x, y, u - x, v - y], "area": (u - x) * (v - y)}
            right.append({"id": len(right) + 1, "image_id": image, "category_id": label, "iscrowd": 0, **box})
        for x, y, u, v, score, label in outputs[place]:
            if score != 0 or x or y or u or v:  # nothing but zeros fills up
                row = [x, y, u - x, v - y]
                found.append({"image_id": image, "category_id": int(label), "score": float(score), "bbox": row})
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        classes = sorted({a["category_id"] for a in (*right, *found)})
        images, categories = [{"id": i} for i in range(len(places))], [{"id": c} for c in classes]
        coco.dataset = {"images": images, "categories": categories, "annotations": right}
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return float(evaluation.stats[0])


def test_map_is_that_of_pycocotools_also_of_a_draw():
    pytest.importorskip("pycocotools")
    outputs, wanted = make_scene(0)
    ask = prepare_map({"out": outputs}, Targets(values=wanted))
    everything = np.arange(len(wanted))
    assert 0.2 < ask(everything) < 0.9
    assert ask(everything) == pytest.approx(ask_coco(outputs, wanted, everything), abs=1e-6)
    drawn = np.random.default_rng(1).integers(0, len(wanted), len(wanted))
    assert ask(drawn) == pytest.approx(ask_coco(outputs, wanted, drawn), abs=1e-6)
    assert ask(drawn) != pytest.approx(ask(everything), abs=1e-3)


def test_boxes_with_a_score_of_zero_count_in_map_as_in_pycocotools():
    """Right boxes with a score of 0 are found, if last of all; without them half of the recall is gone."""
    pytest.importorskip("pycocotools")
    outputs, wanted = make_scene(3)
    places = np.arange(len(wanted))
    rounded = outputs.copy()
    rounded[..., 4] = np.floor(outputs[..., 4] * 1.5) / 1.5  # to 0 or two thirds
    named = {"boxes": rounded[..., :4], "scores": rounded[..., 4], "labels": rounded[..., 5].astype(np.int64)}
    for found in ({"out": rounded}, named, read_boxes(named).as_outputs()):
        ask = prepare_map(found, Targets(values=wanted))
        assert ask(places) == pytest.approx(ask_coco(rounded, wanted, places), abs=1e-6)
    dropped = rounded * (rounded[..., 4:5] > 0)
    assert ask(places) > prepare_map({"out": dropped}, Targets(values=wanted))(places) + 0.1


def test_without_pycocotools_the_command_that_adds_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    outputs, wanted = make_scene(0, images=2)
    with pytest.raises(MissingDependency, match=r'pip install "enginebench\[metrics\]"'):
        prepare_map({"out": outputs}, Targets(values=wanted))


@pytest.mark.parametrize(
    ("values", "said"),
    [([[1, 2]], "expected for each sample"), ([{"boxes": [[1, 2, 3, 4]]}], "labels"), ([], "targets of 0 samples")],
)
def test_targets_of_another_form_are_explained(values, said):
    outputs, _ = make_scene(0, images=1)
    with pytest.raises(FeedError, match=said):
        prepare_map({"out": outputs}, Targets(values=values))


def test_one_class_of_yolo_is_not_read_as_corners_score_and_class():
    """[boxes, 6] of centre, size, object and score: a last column that holds no class ids tells."""
    table = np.concatenate([to_centres(CORNERS), np.ones((3, 1)), SCORES[:, None]], axis=1)
    one = np.concatenate([table, np.zeros((30, 6))])[None]
    assert list_first(read_boxes({"output": one})) == [(b, s, 0) for b, s, _ in KEPT]


def test_rows_of_six_whose_corners_are_no_corners_are_refused():
    centres = np.concatenate([to_centres(CORNERS * 4), SCORES[:, None], CLASSES[:, None]], axis=1)
    with pytest.raises(FeedError, match="sizes above 0"):
        read_boxes({"dets": centres[None]})


@pytest.mark.parametrize(("boxes", "logits"), [("pred_boxes", "logits"), ("b", "a")])
def test_detr_of_four_logits_is_recognized_by_names_and_values(boxes, logits):
    values = np.full((1, 3, 4), -9.0)
    values[0, np.arange(3), CLASSES] = np.log(SCORES / (1 - SCORES))
    outputs = {logits: values, boxes: to_centres(CORNERS)[None]}
    assert list_first(read_boxes(outputs)) == ALL
    with pytest.raises(FeedError, match="are both four numbers: name the boxes' output with 'box' in it"):
        read_boxes({"a": np.abs(values), "b": outputs[boxes]})


def test_map_of_boxes_that_end_before_they_begin_is_refused():
    outputs = {"boxes": to_centres(CORNERS * 4), "scores": SCORES, "labels": CLASSES}
    with pytest.raises(FeedError, match="most boxes end before they begin"):
        prepare_map(outputs, Targets(values=[{"boxes": CORNERS.tolist(), "labels": CLASSES.tolist()}]))


def make_detections(faint_label: int = 2, noise: float = 0.0, faint_scale: float = 1.0):
    """One box that is shown and 15 faint ones, apart from each other, in each of two samples."""
    rng, rows = np.random.default_rng(3), []
    for i in range(16):
        score = 0.9 if i == 0 else 0.2 - i / 100
        rows.append([20 * i, 5, 20 * i + 10, 15, score * (faint_scale if i else 1), faint_label if i else 1])
    table = np.stack([rows, rows]).astype(np.float32)
    table[..., :5] *= 1 + noise * rng.standard_normal(table[..., :5].shape)
    return {"o": table}


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_boxes_too_faint_to_be_shown_count_where_most_of_them_are_lost(precision: Precision) -> None:
    limits = default_limits(precision)
    lost = measure_drift(make_detections(), make_detections(faint_label=3), limits, task="detection")
    assert not lost.passed and lost.outputs[0].agreement == 1 and lost.outputs[0].agreement_faint == 0
    assert "0.0% of the decisions of boxes with scores of 0.05 to 0.25" in " ".join(find_exceeded(lost))
    rounding = {"fp32": 1e-7, "fp16": 1e-3, "int8": 5e-3}[precision]
    noisy = measure_drift(make_detections(), make_detections(noise=rounding), limits, task="detection")
    assert noisy.passed and noisy.outputs[0].agreement_faint > 0.9


def test_values_of_faint_boxes_count_in_fp32_alone() -> None:
    """Scores that are lower by a tenth are no rounding of FP32; in INT8 they may be."""
    sides = make_detections(), make_detections(faint_scale=0.9)
    passed = [measure_drift(*sides, default_limits(p), task="detection").passed for p in ("fp32", "int8")]
    assert passed == [False, True]
