"""Count outputs against labels: right classes, F1, and the overlap of maps of classes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import FeedError
from enginebench.core.protocols import Array
from enginebench.stats.metrics.metric import Count, Floats, Metric, Outputs, Targets, average

Labels = NDArray[np.int64]

# A score of one class alone counts as that class from here on.
YES = 0.5
# Pixels that nobody labelled. Source: the Pascal VOC and Cityscapes conventions.
UNLABELLED = 255
# Counts are kept of each sample and class: an id beyond is a value that is no class.
MOST_CLASSES = 65_536


def take_output(outputs: Outputs, targets: Targets) -> tuple[Any, Any]:
    """Return (output, targets): the output that the targets name, else the first."""
    if isinstance(targets.values, dict):
        for name, wanted in targets.values.items():
            if name in outputs:
                return outputs[name], wanted
        names = f"targets are {', '.join(targets.values)}, outputs {', '.join(outputs)}"
        raise FeedError(f"{names}; expected targets named as an output, or one array")
    return next(iter(outputs.values())), targets.values


def read_arrays(outputs: Outputs, targets: Targets) -> tuple[Any, Any]:
    """Return one output and its targets as arrays with the same number of samples."""
    output, wanted = take_output(outputs, targets)
    try:
        array, right = np.asarray(output), np.asarray(wanted)
    except ValueError as error:
        raise FeedError(f"the shapes differ from sample to sample ({error}); this metric needs one shape") from error
    if array.dtype.kind not in "biuf" or right.dtype.kind not in "biuf":
        raise FeedError(f"outputs are {array.dtype}, targets {right.dtype}; this metric needs numbers")
    if array.ndim == 0 or right.ndim == 0 or len(array) != len(right):
        raise FeedError(f"outputs have shape {array.shape}, targets {right.shape}; expected as many samples")
    return array, right


def rank_labels(logits: Array, labels: Array) -> NDArray[np.int64]:
    """Return the rank of the right class, 0 for the largest logit, int64 [n]; beyond the last for an output with NaN.

    Of equal logits [n, classes] the first counts as the larger, as argmax has it.
    """
    values = logits.astype(np.float64)
    own = values[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(values.shape[1])[None, :] < labels.astype(np.int64)[:, None]
    larger = (values > own) | ((values == own) & earlier)
    ranks: NDArray[np.int64] = larger.sum(axis=1, dtype=np.int64)
    ranks[~np.isfinite(values).all(axis=1)] = values.shape[1]
    return ranks


def count_top(k: int) -> Count:
    """Count samples whose right class is among the best k; an output with a non-finite value is wrong."""

    def count(outputs: Outputs, targets: Targets) -> Floats | None:
        output, wanted = take_output(outputs, targets)
        if are_words(output) and are_words(wanted):
            return average(np.reshape(output, -1) == np.reshape(wanted, -1)) if k == 1 else None
        scores, labels = read_arrays(outputs, targets)
        labels = squeeze_labels(labels, 1)
        if scores.dtype.kind in "biu" and scores.size == len(labels):  # the graph has named the class itself
            return average(scores.reshape(-1) == labels) if k == 1 else None
        logits = scores.reshape(len(scores), -1) if scores.size == scores.shape[0] * scores.shape[-1] else scores
        if logits.ndim != 2 or 0 in logits.shape:
            shape = targets.find_shape(logits)
            raise FeedError(f"outputs of shape {shape}; expected [samples, classes], at least one of each")
        n, classes = logits.shape
        if labels.shape != (n,):
            shape = targets.find_shape(labels)
            raise FeedError(f"labels of shape {shape}; expected {shape[:1]}, one for each sample")
        if labels.min() < 0 or labels.max() >= classes:
            raise FeedError(f"labels from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}")
        return average(rank_labels(logits, labels) < k) if classes > k else None

    return count


def are_words(values: Any) -> bool:
    """Whether outputs or targets are text."""
    return len(values) > 0 and isinstance(np.ravel(values[0])[0] if np.size(values[0]) else None, str)


def squeeze_labels(labels: Any, ndim: int) -> Any:
    """Remove axes of length 1 from labels, behind the first `ndim`."""
    while labels.ndim > ndim and labels.shape[-1] == 1:
        labels = labels[..., 0]
    if labels.dtype.kind == "f" and (labels == np.floor(labels)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "biu":
        raise FeedError(f"targets are {labels.dtype}; expected whole numbers, one for each class")
    return labels


def read_labels(scores: Any, right: Any, targets: Targets, axes: tuple[int, ...] = (-1, 1)) -> Labels:
    """Return an output as class ids in the shape of the targets.

    Whole numbers are class ids already, whatever their type. Scores with one axis more are classes along that axis, the
    last or the second; scores of the same shape are one class, present from 0.5 on. A non-finite score is -1, no class.
    Classes may be along one of `axes`; of two that fit the first is taken.
    """
    shape = right.shape
    while scores.ndim > len(shape) and scores.shape[-1] == 1:
        scores = scores[..., 0]
    if scores.shape == shape:
        if scores.dtype.kind in "biu":
            return np.asarray(scores, np.int64)
        values = np.where(finite := np.isfinite(scores), scores, 0)
        if (values % 1 > 0).any():
            if values.min() < 0 or values.max() > 1:
                raise FeedError(
                    f"outputs are {values.min():.4g} to {values.max():.4g} with one value for each target; expected "
                    "class ids, or scores of 0 to 1 (add the sigmoid to the graph, or give a --metric of your own)"
                )
            values = values >= YES
        return np.where(finite, values, -1).astype(np.int64)
    for axis in axes:
        if scores.ndim == len(shape) + 1 and np.delete(scores.shape, axis).tolist() == list(shape):
            return np.where(np.isfinite(scores).all(axis=axis), scores.argmax(axis=axis), -1)
    shapes = f"outputs have shape {list(targets.find_shape(scores))}, targets {list(targets.find_shape(right))}"
    raise FeedError(f"{shapes}; expected the same shape, or one axis more for the classes")


def _count_f1(outputs: Outputs, targets: Targets) -> Floats:
    scores, right = read_arrays(outputs, targets)
    right = squeeze_labels(right, 1)
    return _count_confusions(scores, right, read_labels(scores, right, targets), right >= 0)


def _count_miou(outputs: Outputs, targets: Targets) -> Floats:
    scores, right = read_arrays(outputs, targets)
    if right.ndim == 4 and right.shape[1] == 1:
        right = right[:, 0]
    right = squeeze_labels(right, 3)
    labels = read_labels(scores, right, targets, (1, -1))
    return _count_confusions(scores, right, labels, (right >= 0) & (right != UNLABELLED))


def _count_confusions(scores: Any, right: Labels, labels: Labels, counted: NDArray[np.bool_]) -> Floats:
    """Count, for each sample and class, (predicted and right, predicted, right): [samples, classes * 3].

    Ids below 0 match nothing. There are as many classes as the output has scores, and more if an id is larger: a class
    that is predicted and never right counts as well.
    """
    classes = scores.size // max(1, right.size) if scores.ndim > right.ndim else 0
    n, largest = len(right), max(int(ids[counted].max(initial=0)) for ids in (labels, right))
    if largest >= MOST_CLASSES:
        raise FeedError(f"outputs or targets name class {largest}; expected class ids below {MOST_CLASSES}")
    classes = max(2, classes, largest + 1)
    rows = np.broadcast_to(np.arange(n).reshape(-1, *[1] * (right.ndim - 1)), right.shape)
    table = np.zeros((n, classes, 3))
    chosen_ids = ((counted & (labels == right), right), (counted & (labels >= 0), labels), (counted, right))
    for column, (chosen, ids) in enumerate(chosen_ids):
        np.add.at(table[..., column], (rows[chosen], ids[chosen].astype(np.int64)), 1)
    return table.reshape(n, -1)


def _finish_f1(sums: Floats) -> Floats:
    table = sums.reshape(*sums.shape[:-1], -1, 3)
    both = table[..., 1] + table[..., 2]
    with np.errstate(invalid="ignore", divide="ignore"):
        scores = 2 * table[..., 0] / both
    # Nothing to find and nothing found is no mistake.
    return np.where(both[..., 1] > 0, scores[..., 1], 1.0) if table.shape[-2] == 2 else _mean_defined(scores)


def _finish_iou(sums: Floats) -> Floats:
    table = sums.reshape(*sums.shape[:-1], -1, 3)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = table[..., 0] / (table[..., 1] + table[..., 2] - table[..., 0])
    return _mean_defined(shares)


# F1: of class 1 where there are two, else the mean over the classes that occur.
F1 = Metric(name="f1", count=_count_f1, finish=_finish_f1)
# Mean over the classes that occur of intersection over union, pixels of all samples together.
MIOU = Metric(name="miou", count=_count_miou, finish=_finish_iou)


def _mean_defined(values: Floats) -> Floats:
    """Return the mean over the last axis of what is not NaN; NaN where nothing is defined."""
    defined = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = np.where(defined, values, 0.0).sum(axis=-1) / defined.sum(axis=-1)
    return mean
