"""Read a model's outputs as its task requires, and the metrics of each task."""

from collections.abc import Callable
from typing import Any

import numpy as np

from enginebench.core.errors import FeedError
from enginebench.core.records import Task
from enginebench.stats.metrics.boxes import prepare_map, read_boxes
from enginebench.stats.metrics.labels import F1, MIOU, UNLABELLED, YES, count_top, read_arrays
from enginebench.stats.metrics.metric import Floats, Metric, Outputs, Targets, average
from enginebench.stats.metrics.sequences import count_errors, read_sequences


def _read_pairs(outputs: Outputs, targets: Targets) -> tuple[Floats, Floats]:
    """Return outputs and targets as [samples, values]."""
    array, right = read_arrays(outputs, targets)
    if array.size != right.size:
        shapes = (list(targets.find_shape(part)) for part in (array, right))
        raise FeedError("outputs have shape {}, targets {}; expected the same".format(*shapes))
    n = len(array)
    return array.reshape(n, -1).astype(np.float64), right.reshape(n, -1).astype(np.float64)


def count_absolute(outputs: Outputs, targets: Targets) -> Floats:
    values, right = _read_pairs(outputs, targets)
    return average(np.abs(values - right).mean(axis=1))


def count_cosine(outputs: Outputs, targets: Targets) -> Floats:
    """Return the cosine of each output to its target; 0 where one of them is all zeros."""
    values, right = _read_pairs(outputs, targets)
    sizes = np.linalg.norm(values, axis=1) * np.linalg.norm(right, axis=1)
    products = np.einsum("ij,ij->i", values, right)
    return average(np.divide(products, sizes, out=np.zeros_like(sizes), where=sizes > 0))


# Tasks whose outputs are scores over time.
SEQUENTIAL: tuple[Task, ...] = ("text", "asr")

# Name -> the metric for these targets.
BUILTIN: dict[str, Callable[[Targets], Metric]] = {
    "top1": lambda _: Metric(name="top1", count=count_top(1)),
    "top5": lambda _: Metric(name="top5", count=count_top(5)),
    "f1": lambda _: F1,
    "miou": lambda _: MIOU,
    "map": lambda _: Metric(name="map", prepare=prepare_map),
    "wer": lambda _: Metric(name="wer", count=count_errors("words"), higher_is_better=False),
    "cer": lambda _: Metric(name="cer", count=count_errors("characters"), higher_is_better=False),
    "mae": lambda _: Metric(name="mae", count=count_absolute, higher_is_better=False, share=False),
    "cosine": lambda _: Metric(name="cosine", count=count_cosine),
}
# What each metric is called in tables; a user's function is called by its own name.
TITLES = {
    "top1": "top-1",
    "top5": "top-5",
    "f1": "F1",
    "miou": "mIoU",
    "map": "mAP",
    "wer": "WER",
    "cer": "CER",
    "mae": "MAE",
    "cosine": "cosine",
}
TASK_METRICS: dict[Task, tuple[str, ...]] = {
    "classification": ("top1", "top5"),
    "detection": ("map",),
    "segmentation": ("miou",),
    "regression": ("mae",),
    "text": ("cer",),
    "embedding": ("cosine",),
    "asr": ("wer", "cer"),
}


def name_metric(metric: str) -> str:
    return TITLES.get(metric) or metric.rpartition(":")[2]


def read_task_outputs(outputs: Outputs, task: Task | None, targets: Targets) -> Outputs:
    """Return outputs as a user's metric for this task gets them, no larger than necessary.

    Boxes come as `boxes`, `scores`, `labels`; maps of classes as whole numbers; sequences as texts where there is a
    vocabulary, else as lists of tokens.
    """
    if task == "detection":
        return read_boxes(outputs).as_outputs()
    if task == "segmentation":
        return {name: read_map(np.asarray(array)) for name, array in outputs.items()}
    if task in SEQUENTIAL:
        # An output of scores over time is decoded; any other, such as lengths, stays as it is.
        plain = {n: isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.ndim != 3 for n, a in outputs.items()}
        return {n: array if plain[n] else read_sequences(array, targets) for n, array in outputs.items()}
    return outputs


def read_map(array: Any) -> Any:
    """Return the best class of every pixel, for scores [samples, classes, height, width]; anything else unchanged."""
    if array.dtype.kind != "f" or array.ndim != 4:
        return array
    best = array[:, 0] >= YES if array.shape[1] == 1 else array.argmax(axis=1)
    return best.astype(np.uint8 if array.shape[1] < UNLABELLED else np.int32)
