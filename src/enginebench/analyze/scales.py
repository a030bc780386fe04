"""Which slices of an output are judged apart: those whose scales differ so much that one would hide the other.

Coordinates in pixels beside scores below 1; one dimension that is a hundred times as large as all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from enginebench.analyze.metrics.boxes import LEAST_SCORE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Values that a slice must have for its figures to say something.
LEAST_VALUES = 64
# From a slice to the next smaller one, or from a sample to the median: beyond it is another order of size.
JUMP = 10.0
# A slice that is this small beside the whole output is rounding of FP32.
ROUNDING = 2.0**-23
# Of its variance in the reference; below it a slice is constant for all that it says.
LOST_VARIANCE = 0.01
# Values in here share a unit, whatever their size: a class that is rare has small scores.
UNIT = (-1e-6, 1 + 1e-6)


class Group(Struct, frozen=True, kw_only=True, eq=False):
    """Slices of a like scale; `scores`: all of their values are within 0 and 1, beside others that are not."""

    slices: NDArray[np.int64]
    scores: bool


class Split(Struct, frozen=True, kw_only=True, eq=False):
    """An output along the axis whose slices differ most in scale; a single group is judged as a whole."""

    axis: int
    of: int
    constant: int
    lost: int
    groups: tuple[Group, ...]


class _Axis(Struct, frozen=True, kw_only=True, eq=False):
    """The slices along an axis; of `order`: those that vary, from the largest on."""

    axis: int
    scale: Floats  # root mean squares
    scores: NDArray[np.bool_]  # all values are within 0 and 1
    order: NDArray[np.int64]
    lost: int

    @property
    def rank(self) -> tuple[float, int]:
        """The largest scale over the smallest where that matters, then how much is lost."""
        spread = float(self.scale[self.order[0]] / self.scale[self.order[-1]]) if len(self.order) else 0.0
        return spread if spread > JUMP else 0.0, self.lost


def split_slices(ref: Floats, cand: Floats) -> Split | None:
    """The slices of finite answers [samples, ...]; None where no axis has slices of enough values."""
    axes = [a for a in range(1, ref.ndim) if ref.shape[a] > 1 and ref.size // ref.shape[a] >= LEAST_VALUES]
    found = max((_look_along(axis, ref, cand) for axis in axes), key=lambda axis: axis.rank, default=None)
    if found is None:
        return None
    order, scale, scores = found.order, found.scale[found.order], found.scores[found.order]
    steps = (scale[:-1] > JUMP * scale[1:]) & ~(scores[:-1] & scores[1:])
    beside = not scores.all()
    groups = np.split(order, np.flatnonzero(steps) + 1) if len(order) else []
    return Split(
        axis=found.axis,
        of=len(found.scale),
        constant=len(found.scale) - len(order),
        lost=found.lost,
        groups=tuple(Group(slices=np.sort(g), scores=beside and bool(found.scores[g].all())) for g in groups),
    )


def _look_along(axis: int, ref: Floats, cand: Floats) -> _Axis:
    rest = tuple(a for a in range(ref.ndim) if a != axis)
    low, high = ref.min(axis=rest), ref.max(axis=rest)
    size = np.maximum(np.abs(low), np.abs(high))
    whole = float(size.max()) or 1.0
    before, after = ((side / whole).var(axis=rest) for side in (ref, cand))
    scale = np.sqrt(before + (ref.mean(axis=rest) / whole) ** 2)
    varies = (high - low > ROUNDING * size) & (scale > ROUNDING * np.sqrt(np.mean(scale**2)))
    scores = (low >= UNIT[0]) & (high <= UNIT[1])
    seen = varies & ~(scores & (high < LEAST_SCORE))
    order = np.flatnonzero(varies)
    return _Axis(
        axis=axis,
        scale=scale,
        scores=scores,
        order=order[np.argsort(-scale[order], kind="stable")],
        lost=int((seen & (after < LOST_VARIANCE * before)).sum()),
    )


def are_scores(ref: Floats) -> bool:
    """Whether all values are within 0 and 1."""
    return bool(ref.min(initial=0) >= UNIT[0] and ref.max(initial=0) <= UNIT[1])
