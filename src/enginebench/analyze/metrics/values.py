"""Metrics of numbers: how far answers lie from the right ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from enginebench.analyze.metrics.labels import read_arrays
from enginebench.analyze.metrics.metric import Outputs, Targets, average
from enginebench.core.errors import FeedError

if TYPE_CHECKING:
    from enginebench.analyze.metrics.metric import Floats


def _read_pairs(outputs: Outputs, targets: Targets) -> tuple[Floats, Floats]:
    """Answers and right answers as [samples, values].

    Raises:
        FeedError: they have different numbers of values.
    """
    answers, right = read_arrays(outputs, targets)
    if answers.size != right.size:
        told = (list(targets.tell_shape(part)) for part in (answers, right))
        raise FeedError("outputs have shape {}, targets {}; expected the same".format(*told))
    n = len(answers)
    return answers.reshape(n, -1).astype(np.float64), right.reshape(n, -1).astype(np.float64)


def count_absolute(outputs: Outputs, targets: Targets) -> Floats:
    """The mean absolute difference of each sample."""
    answers, right = _read_pairs(outputs, targets)
    return average(np.abs(answers - right).mean(axis=1))


def count_cosine(outputs: Outputs, targets: Targets) -> Floats:
    """The cosine of each answer to the right one; 0 where one of them is nothing but zeros."""
    answers, right = _read_pairs(outputs, targets)
    sizes = np.linalg.norm(answers, axis=1) * np.linalg.norm(right, axis=1)
    products = np.einsum("ij,ij->i", answers, right)
    return average(np.divide(products, sizes, out=np.zeros_like(sizes), where=sizes > 0))
