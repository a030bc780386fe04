"""From a histogram of a tensor to the range worth keeping: by entropy, or by percentile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = NDArray[np.int64]

# Bins on each side of zero, and steps of a signed 8-bit number on one side.
# Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017, session S7310: 2048 bins, 128 levels.
BINS_PER_SIDE = 2048
LEVELS = 128
# The lowest of the percentiles compared in H. Wu et al., arXiv:2004.09602, is 99.9.
MOST_CLIPPED = 0.001


def choose_by_entropy(counts: Counts, limit: float) -> float:
    """The threshold T at which cutting to [-T, T] and rounding to 8 bits keeps most of the distribution.

    Numbers of bins from 128 up are tried; the one of least Kullback-Leibler divergence between the clipped distribution
    and its rounded form wins. The divergence compares shapes, and calls it perfect to clip everything to one value
    (logits, or inputs of few levels); so that only thresholds are tried that clip at most one value in a thousand.

    Args:
        counts: int64 [2 * BINS_PER_SIDE], equal bins over [-limit, limit].
        limit: largest magnitude seen.

    Returns:
        The threshold, in the tensor's unit; `limit` where cutting gains nothing.

    Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017, session S7310.
    """
    magnitudes = fold_signs(counts)
    beyond = magnitudes.sum() - np.cumsum(magnitudes)
    first = int(np.argmax(beyond <= MOST_CLIPPED * magnitudes.sum())) + 1
    # The first bin holds the exact zeros of every ReLU. Zero is represented without error at any scale, so that they
    # say nothing about the scale, and would drown everything else.
    magnitudes[0] = magnitudes[1]
    sizes = range(max(first, LEVELS), len(magnitudes) + 1)
    divergences = [_measure_divergence(magnitudes, size) for size in sizes]
    best = int(np.argmin(divergences))
    if not np.isfinite(divergences[best]):
        return limit
    return sizes[best] * limit / len(magnitudes)


def fold_signs(counts: Counts) -> Counts:
    """Counts of magnitudes, smallest first, from counts over both signs."""
    half = len(counts) // 2
    return counts[half:] + counts[:half][::-1]


def _measure_divergence(magnitudes: Counts, size: int) -> float:
    """KL(P || Q) in nats: P the first `size` bins with all beyond added to the last, Q the same bins in 128 levels.

    Infinite where Q holds nothing in a bin that P fills.
    """
    kept = magnitudes[:size]
    clipped = kept.astype(np.float64)
    clipped[-1] += magnitudes[size:].sum()
    starts = (np.arange(LEVELS) * size) // LEVELS
    filled = kept > 0
    mass = np.add.reduceat(kept, starts).astype(np.float64)
    share = mass / np.maximum(np.add.reduceat(filled.astype(np.int64), starts), 1)
    rounded = np.repeat(share, np.diff(np.append(starts, size))) * filled
    used = clipped > 0
    if clipped.sum() == 0 or (rounded[used] == 0).any():
        return float("inf")
    p, q = clipped[used] / clipped.sum(), rounded[used] / rounded.sum()
    return float(np.sum(p * np.log(p / q)))


def choose_by_percentile(counts: Counts, limit: float, percentile: float) -> tuple[float, float]:
    """The range (low, high) that holds `percentile` per cent of all values; as much is cut off on either side.

    Args:
        counts: int64 [bins], equal bins over [-limit, limit].
        limit: largest magnitude seen.
        percentile: above 50, up to 100.
    """
    total = int(counts.sum())
    # A float of a share such as 99.99 / 100 is not exact; the slack keeps 100 % of n values from becoming n - 1.
    spare = int((1 - percentile / 100) / 2 * total + 1e-9)
    cumulative = np.cumsum(counts)
    first = int(np.searchsorted(cumulative, spare, side="right"))
    last = int(np.searchsorted(cumulative, total - spare, side="left"))
    width = 2 * limit / len(counts)
    return first * width - limit, (last + 1) * width - limit
