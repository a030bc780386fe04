"""Choose the slices of an output that are compared separately: those whose scales differ so much that one hides the
other."""

from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from enginebench.stats.metrics.boxes import LEAST_SCORE, find_box_axis
from enginebench.stats.metrics.metric import Floats

# Values that a slice must have for its figures to mean something.
LEAST_VALUES = 64
# From a slice to the next smaller one, or from a sample to the median: beyond it is another order of size.
JUMP = 10.0
# The least of several steps that count together: channels of features have all scales, one close to the next.
STEP = 3.0
# A slice that is this small beside the whole output is rounding of FP32.
ROUNDING = 2.0**-23
# Of its variance in the reference; below it a slice is as good as constant.
LOST_VARIANCE = 0.01


class Split(Struct, frozen=True, kw_only=True, eq=False):
    """The slices along an axis; of `order`: those that vary, from the largest on."""

    axis: int
    scale: Floats  # root mean squares
    scores: NDArray[np.bool_]  # values between 0 and 1, which share a unit: a class that is rare has small ones
    order: NDArray[np.int64]
    lost: int  # vary in the reference, and hardly in the candidate
    boxes: bool  # its first four are coordinates, and the rest is not

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Order splits: by boxes, then by the largest scale over the smallest where that matters, then by lost
        slices."""
        spread = float(self.scale[self.order[0]] / self.scale[self.order[-1]]) if len(self.order) else 0.0
        return self.boxes, spread if spread > JUMP else 0.0, self.lost

    @property
    def groups(self) -> list[NDArray[np.int64]]:
        """Group slices of similar scale: cut at a jump, or at each of the smaller steps that add up to two jumps."""
        scale, scores = self.scale[self.order], self.scores[self.order]
        steps = np.where(scores[:-1] & scores[1:], 1.0, scale[:-1] / scale[1:])
        cuts = np.flatnonzero(steps > JUMP) + 1
        for first, end in pairwise((0, *cuts, len(scale))):
            if first < end and scale[first] > JUMP**2 * scale[end - 1]:
                cuts = np.union1d(cuts, first + 1 + np.flatnonzero(steps[first : end - 1] > STEP))
        groups = np.split(self.order, cuts)
        if self.boxes:
            groups = [part for group in groups for part in (group[group < 4], group[group >= 4])]
        return [np.sort(group) for group in groups if len(group)]


def are_scores(low: Any, high: Any) -> Any:
    """Whether values in this range are between 0 and 1, but for the rounding of FP32."""
    return (low >= -ROUNDING * high) & (high <= 1 + ROUNDING)


def split_slices(ref: Floats, cand: Floats) -> Split | None:
    """Choose the axis of finite outputs [samples, ...] whose slices differ most in scale; None: none has enough
    values."""
    axes = [a for a in range(1, ref.ndim) if ref.shape[a] > 1 and ref.size // ref.shape[a] >= LEAST_VALUES]
    box_axis = find_box_axis(ref)
    splits = [_split_axis(axis, ref, cand, boxes=axis == box_axis) for axis in axes]
    return max(splits, key=lambda split: split.rank, default=None)


def _split_axis(axis: int, ref: Floats, cand: Floats, *, boxes: bool) -> Split:
    rest = tuple(a for a in range(ref.ndim) if a != axis)
    low, high = ref.min(axis=rest), ref.max(axis=rest)
    size = np.maximum(np.abs(low), np.abs(high))
    whole = float(size.max()) or 1.0
    before, after = ((side / whole).var(axis=rest) for side in (ref, cand))
    scale = np.sqrt(before + (ref.mean(axis=rest) / whole) ** 2)
    varies = (high - low > ROUNDING * size) & (scale > ROUNDING * np.sqrt(np.mean(scale**2)))
    scores = are_scores(low, high)
    lost = varies & (~scores | (high >= LEAST_SCORE)) & (after < LOST_VARIANCE * before)
    order = np.argsort(-scale, kind="stable")
    order = order[varies[order]]
    return Split(axis=axis, scale=scale, scores=scores, order=order, lost=int(lost.sum()), boxes=boxes)
