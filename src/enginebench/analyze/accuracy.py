"""Correct answers on labelled data, with intervals, and the paired difference to a reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import FeedError
from enginebench.core.records import Accuracy, Estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Array

    Hits = NDArray[np.bool_]

LEVEL = 0.95


def measure_accuracy(logits: Array, labels: Array, reference_logits: Array | None = None) -> Accuracy:
    """Top-1 and top-5 accuracy, and how much of top-1 was gained or lost against a reference on the same samples.

    An answer that holds a value which is not finite is wrong. Of equal logits the first counts as the larger, as argmax
    has it. Top-5 is left out where there are no more than five classes.

    Args:
        logits: [n, classes], any float dtype.
        labels: [n], integers 0 to classes - 1.
        reference_logits: [n, classes], of the same samples in the same order.

    Returns:
        `delta` is this top-1 less the reference's, as a share: -0.01 is one point lost.

    Raises:
        FeedError: the shapes do not fit, there are no samples, or a label is no class; says what was found.
    """
    _check(logits, labels, reference_logits)
    ranks = rank_labels(logits, labels)
    n, classes = logits.shape
    top1 = ranks < 1
    top5 = estimate_share(int((ranks < 5).sum()), n) if classes > 5 else None
    result = Accuracy(n=n, top1=estimate_share(int(top1.sum()), n), top5=top5)
    if reference_logits is None:
        return result
    before = rank_labels(reference_logits, labels) < 1
    gained, lost = int((top1 & ~before).sum()), int((~top1 & before).sum())
    return Accuracy(
        n=n,
        top1=result.top1,
        top5=top5,
        delta=estimate_paired_difference(gained, lost, n),
        mcnemar_p=compute_mcnemar_p(gained, lost),
    )


def _check(logits: Array, labels: Array, reference: Array | None) -> None:
    if logits.ndim != 2 or 0 in logits.shape:
        raise FeedError(f"logits of shape {logits.shape}; expected [samples, classes], at least one of each")
    n, classes = logits.shape
    if labels.shape != (n,) or labels.dtype.kind not in "iu":
        raise FeedError(f"labels are {labels.dtype} of shape {labels.shape}; expected integers of shape ({n},)")
    if labels.min() < 0 or labels.max() >= classes:
        raise FeedError(f"labels from {labels.min()} to {labels.max()}; expected 0 to {classes - 1}")
    if reference is not None and reference.shape != logits.shape:
        raise FeedError(f"reference logits of shape {reference.shape}; expected {logits.shape}, of the same samples")


def rank_labels(logits: Array, labels: Array) -> NDArray[np.int64]:
    """Place of the right class among all, 0 for the largest logit, int64 [n]; past the last one in an answer with NaN.

    Args:
        logits: [n, classes].
        labels: [n].
    """
    values = logits.astype(np.float64)
    own = values[np.arange(len(labels)), labels][:, None]
    earlier = np.arange(values.shape[1])[None, :] < labels.astype(np.int64)[:, None]
    larger = (values > own) | ((values == own) & earlier)
    ranks: NDArray[np.int64] = larger.sum(axis=1, dtype=np.int64)
    ranks[~np.isfinite(values).all(axis=1)] = values.shape[1]
    return ranks


def estimate_share(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """A share of n with Wilson's interval: it stays inside 0 and 1, and is right near both ends.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
        American Statistical Association 22 (1927).
    """
    z = _quantile_of_normal(level)
    share = hits / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return Estimate(
        value=share,
        # At the ends the bound is the share itself; rounding would put it beside.
        low=0.0 if hits == 0 else max(0.0, centre - half),
        high=1.0 if hits == n else min(1.0, centre + half),
        level=level,
        n=n,
        method="Wilson score interval",
    )


def estimate_paired_difference(gained: int, lost: int, n: int, level: float = LEVEL) -> Estimate:
    """(gained - lost) / n with its interval, for two answers to each of n samples.

    Half a sample is added to each of the four cells of the table, two samples in all, before the normal interval is
    taken: without it the interval is too narrow, and empty where no answer changed.

    Args:
        gained: samples that only the candidate has right.
        lost: samples that only the reference has right.
        n: all samples.

    Source: A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics
        in Medicine 24 (2005).
    """
    z = _quantile_of_normal(level)
    b, c, total = gained + 0.5, lost + 0.5, n + 2
    centre = (b - c) / total
    half = z * math.sqrt((b + c) - (b - c) ** 2 / total) / total
    return Estimate(
        value=(gained - lost) / n,
        low=max(-1.0, centre - half),
        high=min(1.0, centre + half),
        level=level,
        n=n,
        method="paired difference, Agresti-Min adjusted Wald interval",
    )


def compute_mcnemar_p(gained: int, lost: int) -> float:
    """McNemar's exact two-sided p: how likely changes so one-sided are, if gains and losses are equally likely.

    Only samples whose answer changed between right and wrong count; 1 if there are none.

    Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
        Psychometrika 12 (1947); exact by the binomial distribution with one half.
    """
    # scipy is slow to import, and most verbs need none of it.
    from scipy.special import bdtr

    changed = gained + lost
    return 1.0 if changed == 0 else min(1.0, 2 * float(bdtr(min(gained, lost), changed, 0.5)))


def _quantile_of_normal(level: float) -> float:
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))
