"""Outputs of detectors: boxes read from the usual layouts, matched between two sides, and their mAP.

A box is x1, y1, x2, y2, in the unit of the model's own output. All samples have the same number of entries: the best
`MOST` boxes, filled up with label -1.
"""

import contextlib
import io
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from enginebench.core.errors import FeedError, importing
from enginebench.core.protocols import Array
from enginebench.stats.metrics.metric import Floats, Outputs, Picks, ScorePicks, Targets

# As COCO counts. Source: pycocotools/cocoeval.py, Params.setDetParams: maxDets.
MOST = 100
# Boxes below it are never looked at, and of two of one class that overlap more the better stays. Source: the defaults
# of `yolo val` (conf 0.001, iou 0.7), ultralytics 8.
LEAST_SCORE = 0.001
OVERLAP = 0.7
# Boxes that a user sees: the default of `yolo predict`. A partner overlaps by half, as in AP50.
SHOWN_SCORE = 0.25
PARTNER = 0.5
# Fainter ones, down to what torchvision's detectors give out by default (box_score_thresh): they count in mAP.
FAINT_SCORE = 0.05
# The least score of a partner, as a part of these: from 0.251 to 0.249 a detection has not changed, to 0.1 it has.
PARTNER_SHARE = 0.8
NOTHING = -1
# How far a score may lie outside of 0 to 1, and in what share of them: short formats round.
SCORE_SLACK = 0.01
# What torchvision's detectors call it.
NAMED = ("boxes", "scores", "labels")
Columns: TypeAlias = Literal["ended", "scores", "objects"]


class Boxes(Struct, frozen=True, kw_only=True, eq=False):
    """Detections: boxes [samples, boxes, 4], the rest [samples, boxes]; a label of -1 fills up."""

    boxes: Floats
    scores: Floats
    labels: NDArray[np.int64]
    indices: NDArray[np.int64]  # where each stood among those of its sample that were read

    def as_outputs(self) -> dict[str, Array]:
        return {"boxes": self.boxes.astype(np.float32), "scores": self.scores.astype(np.float32), "labels": self.labels}


def find_named(outputs: Outputs) -> tuple[str, ...]:
    """Return the outputs with the names of torchvision's detectors, also as `outputs.0.boxes`; () if there are none."""
    prefixes = [name.removesuffix(NAMED[0]) for name in outputs if name.rpartition(".")[2] == NAMED[0]]
    names = tuple(prefixes[0] + name for name in NAMED) if len(prefixes) == 1 else ()
    return names if set(names) <= set(outputs) else ()


class Layout(Struct, frozen=True, kw_only=True):
    """The arrangement of boxes, scores and classes in a detector's outputs."""

    kind: Literal["named", "ended", "scores", "objects", "queries"]
    outputs: tuple[str, ...] = ()  # boxes, scores and, where named, labels
    logits: bool = False  # scores of queries are read through a sigmoid


def read_boxes(outputs: Outputs, layout: Layout | None = None) -> Boxes:
    """Read the detections of each sample, by a layout; None: the one that `find_layout` recognizes."""
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    layout = layout or find_layout(arrays)
    if layout.kind == "named":
        boxes, scores, labels = (
            arrays[n] if arrays[layout.outputs[0]].ndim > 2 else arrays[n][None] for n in layout.outputs
        )
        named = zip(boxes.astype(np.float64), scores.astype(np.float64), labels.astype(np.int64), strict=True)
        return _stack([(b, np.where(c == NOTHING, -np.inf, s), c) for b, s, c in named])
    if layout.kind == "queries":
        boxes, scores = (arrays[name].astype(np.float64) for name in layout.outputs)
        scores = 1 / (1 + np.exp(-scores)) if layout.logits else scores
        return _stack([(b, s.max(axis=1), s.argmax(axis=1)) for b, s in zip(_from_centres(boxes), scores, strict=True)])
    rows = [_take_columns(layout.kind, row) for row in next(iter(arrays.values())).astype(np.float64)]
    if layout.kind == "ended":
        return _stack([(boxes, scores[:, 0], scores[:, 1].astype(np.int64)) for boxes, scores in rows])
    return _stack([_suppress(_from_centres(b), s.max(axis=1), s.argmax(axis=1)) for b, s in rows])


def find_layout(outputs: Outputs) -> Layout:
    """Recognize the layout of a detector's outputs, by names and shapes, unless the values contradict it.

    Known are: `boxes`, `scores`, `labels`, also of one sample without a first axis (torchvision); one output [samples,
    boxes, 6] of x1, y1, x2, y2, score, class; [samples, 4 + classes, boxes] or [samples, boxes, 5 + classes] of centre,
    size and scores (YOLO), or [samples, boxes, 5] of a single one; boxes of centre and size [samples, boxes, 4] beside
    scores [samples, boxes, classes] (DETR with a sigmoid).
    """
    if find_named(outputs):
        return Layout(kind="named", outputs=find_named(outputs))
    arrays = {name: np.asarray(array) for name, array in outputs.items()}
    shapes, why = [array.shape for array in arrays.values()], "no layout of boxes that is known"
    if len(shapes) == 1 and len(shapes[0]) == 3:
        if (kind := _find_columns(next(iter(arrays.values())))) is not None:
            return Layout(kind=kind)
        why = "no boxes with scores of 0 to 1 and sizes above 0 (keypoints, angles, values before the last layer?)"
    if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) == 3 and shapes[0][:2] == shapes[1][:2]:
        able = [name for name, array in arrays.items() if array.shape[2] == 4]
        named = [name for name in able if "box" in name.lower()]
        able = named if len(named) == 1 else [n for n in able if len(able) < 2 or arrays[n].min(initial=0) >= 0]
        if len(able) == 1:
            (scores,) = (name for name in arrays if name != able[0])
            return Layout(kind="queries", outputs=(able[0], scores), logits=not _hold_scores(arrays[scores]))
        why = "both four numbers: name the boxes' output with 'box' in it" if able else why
    listed = ", ".join(f"{name}{list(array.shape)}" for name, array in arrays.items())
    raise FeedError(f"outputs {listed} are {why}; a --metric of your own gets them as they are, without --task")


def _find_columns(array: Any) -> Columns | None:
    """Recognize the layout of one output by its shape, else by its values; None if the values fit no layout.

    The layout with boxes last (YOLOv8 and later) has no score of its own for "an object".
    """
    kinds: list[Columns] = ["scores", "objects"] if array.shape[1] < array.shape[2] else ["objects", "scores"]
    with np.errstate(invalid="ignore"):  # non-finite values are ignored
        if array.shape[2] == 6 and not (array[..., 5] % 1 > 0).any():  # class ids, and no score of a single class
            kinds = ["ended", "scores"]
        for kind in kinds:
            boxes, scores = _take_columns(kind, array)
            sizes = boxes[..., 2:] - boxes[..., :2] if kind == "ended" else boxes[..., 2:]
            sound = 2 * int((sizes < 0).any(axis=-1).sum()) <= boxes[..., 0].size and scores.shape[-1]
            if sound and _hold_scores(scores[..., :1] if kind == "ended" else scores):
                return kind
    return None


def _hold_scores(values: Any) -> bool:
    """Whether values are within 0 to 1, but for the rounding of short formats in a few."""
    return bool(((values < -SCORE_SLACK) | (values > 1 + SCORE_SLACK)).sum() <= SCORE_SLACK * values.size)


def find_box_axis(array: Any) -> int | None:
    """Return the axis whose first four slices are coordinates, where an output looks like a detector's; else None.

    Coordinates are beyond 1 and far larger than the scores beside them; or class ids stand beside them; or each of the
    four is mostly far above most scores, and a row does not sum to 1 as the probabilities of classes do.
    """
    if array.ndim != 3 or array.dtype.kind != "f" or not array.size or (kind := _find_columns(array)) is None:
        return None
    boxes, scores = _take_columns(kind, array)
    scores = scores[..., :1] if kind == "ended" else scores
    size, score = float(np.abs(boxes).max()), float(np.abs(scores).max())
    axis = 1 if kind == "scores" else 2
    if not score or size > max(1 + SCORE_SLACK, 10 * score):
        return axis if score else None
    near = np.abs(array.sum(axis=axis) - 1) <= SCORE_SLACK
    rare = 10 * max(np.median(scores), LEAST_SCORE) < np.median(boxes, axis=(0, 1)).min() and not near.all()
    return axis if kind == "ended" or rare else None


def _take_columns(kind: Columns, array: Any) -> tuple[Floats, Floats]:
    """Return (four numbers of each box, its scores)."""
    table = np.moveaxis(array, -2, -1) if kind == "scores" else array
    objects = kind == "objects" and table.shape[-1] > 5  # five: a box and its only score
    return table[..., :4], table[..., 5:] * table[..., 4:5] if objects else table[..., 4:]


def _from_centres(boxes: Floats) -> Floats:
    half: Floats = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def _suppress(boxes: Floats, scores: Floats, labels: NDArray[np.int64]) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Remove boxes that overlap with a better one of their class."""
    order = np.argsort(-scores, kind="stable")
    order = order[scores[order] >= LEAST_SCORE]
    kept: list[int] = []
    while len(order) and len(kept) < MOST:
        best, order = order[0], order[1:]
        kept.append(int(best))
        twice = (labels[order] == labels[best]) & (measure_overlaps(boxes[best][None], boxes[order])[0] > OVERLAP)
        order = order[~twice]
    return boxes[kept], scores[kept], labels[kept]


def _stack(rows: list[tuple[Floats, Floats, NDArray[np.int64]]]) -> Boxes:
    """Keep the best boxes of every sample, the same number of each; zeros fill up."""
    boxes, scores = np.zeros((len(rows), MOST, 4)), np.zeros((len(rows), MOST))
    labels, indices = np.full((len(rows), MOST), NOTHING, np.int64), np.zeros((len(rows), MOST), np.int64)
    for i, (b, s, c) in enumerate(rows):
        kept = np.flatnonzero((s > -np.inf) & (c != NOTHING) & ((s != 0) | b.any(axis=1)))
        best = kept[np.argsort(-s[kept], kind="stable")[:MOST]]
        n = len(best)
        boxes[i, :n], scores[i, :n], labels[i, :n], indices[i, :n] = b[best], s[best], c[best], best
    return Boxes(boxes=boxes, scores=scores, labels=labels, indices=indices)


def measure_overlaps(first: Floats, second: Floats) -> Floats:
    """Return intersection over union of every box with every other, [first, second]; 1 for equal boxes without an
    area."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.clip(high - low, 0, None).prod(axis=2)
    sizes = [np.clip(b[:, 2:] - b[:, :2], 0, None).prod(axis=1) for b in (first, second)]
    union = sizes[0][:, None] + sizes[1][None] - common
    equal = (first[:, None] == second[None]).all(axis=2).astype(np.float64)
    shares: Floats = np.divide(common, union, out=equal, where=union > 0)
    return shares


def take_corners(sides: Sequence[Boxes]) -> list[Floats]:
    """Return the boxes of both sides as corners, the lower one first, whatever their four numbers are.

    No model has its corners mostly the wrong way round: such boxes are read as centre and size.
    """
    every = np.concatenate([side.boxes[side.labels != NOTHING] for side in sides])
    turned = (every[:, 2:] < every[:, :2]).any(axis=1)
    if 2 * int(turned.sum()) > len(every) and (every[:, 2:] >= 0).all():
        return [_from_centres(side.boxes) for side in sides]
    ends = [(side.boxes[..., :2], side.boxes[..., 2:]) for side in sides]
    return [np.concatenate([np.minimum(a, b), np.maximum(a, b)], axis=-1) for a, b in ends]


class Matches(Struct, frozen=True, kw_only=True):
    """The matches between the shown boxes of two sides; `decided`: partners count once, as do boxes of one side only.

    `pairs` [partners, 3]: sample, entry of the reference's `Boxes`, entry of the candidate's.
    """

    decided: int
    shared: int
    pairs: NDArray[np.int64]


def match_boxes(reference: Boxes, candidate: Boxes, *, faint: bool = False) -> Matches:
    """Match the boxes that a user sees: of one class, and overlapping by half; the best scores choose first.

    A box counts as shown from a score of 0.25 on; a partner may have a slightly lower one (`PARTNER_SHARE`).

    Args:
        faint: match those with a score of 0.05 to 0.25 instead; a partner may have a higher score.
    """
    own, other = take_corners((reference, candidate))
    overlaps = map(measure_overlaps, own, other)
    between = (FAINT_SCORE, SHOWN_SCORE) if faint else (SHOWN_SCORE, np.inf)
    matches = [_match_sample(reference, candidate, each, i, between) for i, each in enumerate(overlaps)]
    pairs = [(i, *pair) for i, (_, sample) in enumerate(matches) for pair in sample]
    together = np.array(pairs, np.int64).reshape(-1, 3)
    return Matches(decided=sum(decided for decided, _ in matches), shared=len(pairs), pairs=together)


def _match_sample(
    reference: Boxes, candidate: Boxes, overlaps: Floats, i: int, between: tuple[float, float]
) -> tuple[int, list[tuple[int, int]]]:
    """Return (number of boxes of either side with a score in this range, partners counted once; both entries of every
    pair)."""
    least, most = between
    alike = reference.labels[i][:, None] == candidate.labels[i][None]
    filled = [side.labels[i] != NOTHING for side in (reference, candidate)]
    sure = [side.scores[i] >= PARTNER_SHARE * least for side in (reference, candidate)]
    free = alike & (overlaps >= PARTNER) & (filled[1] & sure[1])[None] & sure[0][:, None]
    scores = reference.scores[i], candidate.scores[i]
    shown = [(least <= s) & (s < most) & seen for s, seen in zip(scores, filled, strict=True)]
    pairs: list[tuple[int, int]] = []
    alone = 0
    for index in range(len(free)):
        partner = int(np.where(free[index], overlaps[index], -1).argmax())
        if not free[index, partner]:
            alone += int(shown[0][index])
            continue
        free[:, partner] = False
        if shown[0][index] or shown[1][partner]:
            pairs.append((index, partner))
        shown[1][partner] = False
    alone += int(shown[1].sum())
    return len(pairs) + alone, pairs


def prepare_map(outputs: Outputs, targets: Targets) -> ScorePicks:
    """Prepare mean average precision over the thresholds 0.50 to 0.95 and the classes, as COCO defines it."""
    detections = read_boxes(outputs)
    turned = (detections.boxes[..., 2:] < detections.boxes[..., :2]).any(axis=-1)
    if 2 * int(turned.sum()) > int((detections.labels != NOTHING).sum()):
        raise FeedError("most boxes end before they begin (x2 < x1 or y2 < y1); mAP takes corners: x1, y1, x2, y2")
    values = targets.values
    if isinstance(values, dict) and {"boxes", "labels"} <= set(values):
        values = [{"boxes": b, "labels": c} for b, c in zip(values["boxes"], values["labels"], strict=True)]
    if len(values) != (n := len(detections.labels)):
        raise FeedError(f"targets of {len(values)} samples, outputs for {n}; expected as many")
    try:
        rows = [(np.asarray(v["boxes"], np.float64).reshape(-1, 4), np.asarray(v["labels"], int)) for v in values]
    except (TypeError, ValueError, LookupError) as error:
        raise FeedError(
            f"targets of a detector: {error}; expected for each sample "
            '{"boxes": [[x1, y1, x2, y2], ...], "labels": [0, ...]}'
        ) from error
    wanted = [(boxes[labels != NOTHING], [int(c) for c in labels if c != NOTHING]) for boxes, labels in rows]
    evaluation = _evaluate(detections, wanted)
    return lambda picks: _accumulate(evaluation, picks)


def _evaluate(detections: Boxes, wanted: list[tuple[Floats, list[int]]]) -> Any:
    """Run pycocotools' evaluation of every image and class."""
    with importing("pycocotools, which computes mAP,", 'pip install "enginebench[metrics]"'):
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    right = [
        _describe_box(i, box, label) | {"iscrowd": 0, "id": 0}
        for i, (boxes, labels) in enumerate(wanted)
        for box, label in zip(boxes, labels, strict=True)
    ]
    detected = [
        _describe_box(i, detections.boxes[i, j], int(detections.labels[i, j]))
        | {"score": float(detections.scores[i, j])}
        for i, j in np.argwhere(detections.labels != NOTHING).tolist()
    ]
    images = [{"id": i} for i in range(len(wanted))]
    classes = [{"id": c} for c in sorted({a["category_id"] for a in (*right, *detected)})]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress on standard output
        sides = []
        for annotations in (right, detected):
            side = COCO()
            numbered = [a | {"id": k + 1} for k, a in enumerate(annotations)]
            side.dataset = {"images": images, "categories": classes, "annotations": numbered}
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, iouType="bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.params.maxDets = [MOST]
        evaluation.evaluate()
    return evaluation


def _describe_box(image: int, box: Floats, label: int) -> dict[str, Any]:
    x, y, width, height = float(box[0]), float(box[1]), float(box[2] - box[0]), float(box[3] - box[1])
    return {"image_id": image, "category_id": label, "bbox": [x, y, width, height], "area": width * height}


def _accumulate(evaluation: Any, picks: Picks) -> float:
    """Return pycocotools' mean average precision over some of the images, which may repeat; NaN if no class occurs."""
    import copy

    drawn = copy.copy(evaluation)
    drawn.params = copy.copy(evaluation.params)
    images = len(evaluation.params.imgIds)
    rows = [evaluation.evalImgs[k * images : (k + 1) * images] for k in range(len(evaluation.params.catIds))]
    drawn.evalImgs = [row[index] for row in rows for index in picks.tolist()]
    drawn.params.imgIds = list(range(len(picks)))
    drawn._paramsEval = drawn.params
    with contextlib.redirect_stdout(io.StringIO()):
        drawn.accumulate()
    precision = drawn.eval["precision"]
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else float("nan")
