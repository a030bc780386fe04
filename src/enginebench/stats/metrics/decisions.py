"""Find the decisions that are wrong together: of one class, at one place, or of one class at one place.

Of decisions near a tie a few change, anywhere. A class that is never found, or a pixel that is always wrong, may be as
few, and is no rounding.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from enginebench.core.protocols import Array

# A group of fewer decisions says nothing: of ten that are right with 99 % each, more than half are, but for 2e-8.
LEAST_DECIDED = 10
# Beyond so many groups of an axis they are too small to be looked at.
MOST_GROUPS = 1 << 24


def find_worst_group(reference: Array, candidate: Array) -> tuple[float, str] | None:
    """Return (the least fraction of decisions that a group keeps, the name of the group); None without a large group.

    Args:
        reference, candidate: of shape (samples, ...). A sample is no group: the first token of a text that changes
            may change all that follow.
    """
    same = np.asarray(reference == candidate).reshape(-1)
    if same.all() or reference.ndim == 0:
        return (1.0, "") if same.size >= LEAST_DECIDED else None
    classes, ids = np.unique(reference, return_inverse=True)
    worst: tuple[float, str] | None = None
    for name, keys in _list_groups(reference.shape, ids.reshape(-1), len(classes)):
        counts, kept = np.bincount(keys), np.bincount(keys, weights=same)
        fractions = np.where(counts >= LEAST_DECIDED, kept / np.maximum(counts, 1), np.inf)
        least = int(fractions.argmin())
        if np.isfinite(fractions[least]) and (worst is None or fractions[least] < worst[0]):
            index, label = divmod(least, len(classes))
            worst = float(fractions[least]), name.format(place=index, label=classes[label])
    return worst


def _list_groups(shape: tuple[int, ...], ids: NDArray[np.intp], classes: int) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Yield (a name, the group of each decision: its place times the number of classes, and its class)."""
    yield "class {label}", ids
    axes = [axis for axis in range(1, len(shape)) if shape[axis] > 1]
    for axis in axes:
        if shape[axis] * classes <= MOST_GROUPS:
            index = np.arange(len(ids)) // math.prod(shape[axis + 1 :]) % shape[axis]
            yield f"slice {{place}} of axis {axis}", index * classes
            yield f"class {{label}} in slice {{place}} of axis {axis}", index * classes + ids
    if len(axes) > 1 and (positions := math.prod(shape[1:])) * classes <= MOST_GROUPS:
        yield "place {place} of every sample", np.arange(len(ids)) % positions * classes
