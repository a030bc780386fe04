"""The score of a configuration: a metric of its outputs with an interval, and the paired difference to a reference.

The unit that repeats is the sample. If every sample is right or wrong, the intervals are Wilson's and Agresti and
Min's, which hold near 0 and 1 as well; else they come from drawing samples with replacement. Both sides of a difference
use the same draws.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.limits import MAX_METRIC_DROP
from enginebench.core.records import Estimate, Score
from enginebench.stats.intervals import NORMAL
from enginebench.stats.metrics.metric import Facts, Finish, Floats, Metric, Picks, ScorePicks, divide, widen_counts

LEVEL = 0.95
Z = NORMAL.inv_cdf((1 + LEVEL) / 2)


def estimate_share(hits: int, n: int) -> Estimate:
    """Estimate a fraction of n with Wilson's interval: it stays inside 0 and 1, and is right near both ends.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
        American Statistical Association 22 (1927).
    """
    share, z = hits / n, Z
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the bound is the share itself; rounding would put it beside.
    bounds = 0.0 if hits == 0 else max(0.0, centre - half), 1.0 if hits == n else min(1.0, centre + half)
    return _describe(share, bounds, n, "Wilson score interval")


def estimate_paired_difference(gained: int, lost: int, n: int) -> Estimate:
    """Estimate (gained - lost) / n with its interval, for two outputs for each of n samples, one of them right.

    Half a sample is added to each of the four cells of the table, two samples in all, before the normal interval is
    taken: without it the interval is too narrow, and empty where no sample changed.

    Source: A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions", Statistics
        in Medicine 24 (2005).
    """
    b, c, total = gained + 0.5, lost + 0.5, n + 2
    centre = (b - c) / total
    half = Z * math.sqrt((b + c) - (b - c) ** 2 / total) / total
    bounds, method = (max(-1.0, centre - half), min(1.0, centre + half)), "Agresti-Min adjusted Wald interval"
    return _describe((gained - lost) / n, bounds, n, f"paired difference, {method}")


def compute_mcnemar_p(gained: int, lost: int) -> float:
    """Compute McNemar's exact two-sided p: the chance of changes so one-sided if gains and losses are equally likely.

    Only samples that changed between right and wrong count; 1 if there are none.

    Source: Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
        Psychometrika 12 (1947); exact by the binomial distribution with one half.
    """
    changed = gained + lost
    if changed == 0:
        return 1.0
    # scipy is slow to import, and not needed where no sample changed.
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(gained, lost), changed, 0.5)))


# 50 of them lie outside of a 95% interval at each end; its bounds repeat to about a tenth of its width.
RESAMPLES = 2000
# Of a metric that looks at all samples together, each of which may cost as much as the metric itself.
WHOLE_RESAMPLES = 200
# Draws for which such a metric has no value (a class may be missing from a draw): beyond this share, no interval.
LOST_DRAWS = 0.05
# A drop of exactly the limit is allowed, whatever the last bit of two shares says.
_LAST_BIT = 1e-9


def find_value(scores: Sequence[Score], metric: str) -> Estimate | None:
    score = find_score(scores, metric)
    return score.value if score else None


class Scored(Protocol):
    """A result, or a row of any table."""

    @property
    def scores(self) -> Sequence[Score]: ...


def find_metric(rows: Iterable[Scored]) -> str | None:
    """Return the metric that decides about configurations: the first one of the first that has any."""
    return next((row.scores[0].metric for row in rows if row.scores), None)


def find_score(scores: Sequence[Score], metric: str | None = None) -> Score | None:
    """Return the score by a metric, or the one that decides; None if there is none."""
    return next((score for score in scores if metric is None or score.metric == metric), None)


def find_drop(base: Score, max_drop: float | None = None) -> float:
    """Return the drop of a metric that is allowed: `max_drop`, else a point of a fraction, a hundredth of others."""
    if max_drop is not None:
        return max_drop
    return MAX_METRIC_DROP if base.share else MAX_METRIC_DROP * abs(base.value.value)


def measure_loss(base: Score, cand: Score) -> float:
    """Return the loss of `cand` against `base`; negative if it is better."""
    change = cand.value.value - base.value.value
    return -change if base.higher_is_better else change


def loses_too_much(base: Score, cand: Score, max_drop: float | None = None) -> bool:
    """Whether a score is worse than the base by more than is allowed."""
    return measure_loss(base, cand) > find_drop(base, max_drop) + _LAST_BIT * max(1.0, abs(base.value.value))


def score_counts(metric: Metric, counts: Floats, reference: Floats | None = None) -> Score:
    """Score counts [samples, columns]; those of the reference are of the same samples in the same order."""
    if metric.finish is divide and _are_hits(counts) and (reference is None or _are_hits(reference)):
        hits, n = counts[:, 0], len(counts)
        score = describe_score(metric.facts, estimate_share(int(hits.sum()), n))
        if reference is None:
            return score
        gained, lost = (int(((hits == own) & (reference[:, 0] == 1 - own)).sum()) for own in (1, 0))
        delta = estimate_paired_difference(gained, lost, n)
        return replace(score, delta=delta, mcnemar_p=compute_mcnemar_p(gained, lost))
    value = _estimate_sum(lambda sums: metric.finish(sums[..., 0, :]), counts[:, None, :], metric.name)
    score = describe_score(metric.facts, value)
    if reference is None:
        return score
    both = np.stack(widen_counts(counts, reference), axis=1)
    delta = _estimate_sum(lambda s: metric.finish(s[..., 0, :]) - metric.finish(s[..., 1, :]), both, metric.name)
    return replace(score, delta=delta)


def _are_hits(counts: Floats) -> bool:
    """Whether each sample counts once, as right or wrong."""
    return bool((counts[:, 1] == 1).all() and np.isin(counts[:, 0], (0.0, 1.0)).all())


def describe_score(facts: Facts, value: Estimate) -> Score:
    return Score(metric=facts.name, value=value, higher_is_better=facts.higher_is_better, share=facts.share)


def _estimate_sum(finish: Finish, counts: Floats, name: str) -> Estimate:
    """Estimate a figure of counts [samples, sides, columns], with its interval over draws of samples.

    Source: B. Efron, "Better bootstrap confidence intervals", Journal of the American Statistical Association 82
        (1987): bias-corrected and accelerated. scipy has it, but leaves out each sample by copying all others, which
        for 50,000 samples takes 2.5 billion additions; of sums it is one subtraction.
    """
    n, total = len(counts), counts.sum(axis=0)
    value = float(finish(total))
    check_figure(name, value)
    rng, flat = np.random.default_rng(0), counts.reshape(n, -1)
    sums = [np.bincount(rng.integers(n, size=n), minlength=n) @ flat for _ in range(RESAMPLES)]
    drawn = finish(np.stack(sums).reshape(RESAMPLES, *counts.shape[1:]))
    left_out = finish(total - counts)
    bounds = _bound(value, drawn[np.isfinite(drawn)], left_out[np.isfinite(left_out)], n)
    return _describe(value, bounds, n, f"BCa bootstrap over samples, {RESAMPLES} draws")


def check_figure(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise UsageError(f"--metric {name} is {value} over these samples; expected a finite number")


def _bound(value: float, drawn: Floats, left_out: Floats, n: int) -> tuple[float, float] | None:
    """Return the bounds of a figure; None where the draws do not differ, so that they show nothing."""
    if n < 2 or len(drawn) < (1 - LOST_DRAWS) * RESAMPLES or np.ptp(drawn) == 0:
        return None
    below = ((drawn < value).mean() + (drawn <= value).mean()) / 2
    bias = NORMAL.inv_cdf(float(np.clip(below, 0.5 / len(drawn), 1 - 0.5 / len(drawn))))
    pull = left_out.mean() - left_out
    spread = (pull**2).sum()
    acceleration = (pull**3).sum() / (6 * spread**1.5) if spread > 0 else 0.0
    ends = [bias + NORMAL.inv_cdf(p) for p in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
    low, high = np.quantile(drawn, [NORMAL.cdf(bias + end / (1 - acceleration * end)) for end in ends])
    return float(low), float(high)


def _describe(value: float, bounds: tuple[float, float] | None, n: int, method: str) -> Estimate:
    low, high = bounds or (None, None)
    return Estimate(value=value, low=low, high=high, level=LEVEL, n=n, method=method, supported=bounds is not None)


def score_whole(facts: Facts, score_picks: ScorePicks, n: int, reference: ScorePicks | None = None) -> Score:
    """Score by a metric that evaluates all samples together: once for all of them, then for each draw."""
    everything = np.arange(n)
    value = score_picks(everything)
    check_figure(facts.name, value)
    before = reference(everything) if reference is not None else None
    rng = np.random.default_rng(0)
    draws = [rng.integers(n, size=n) for _ in range(WHOLE_RESAMPLES)]
    own = [_try(score_picks, picks) for picks in draws]
    method = f"percentile bootstrap over samples, {WHOLE_RESAMPLES} draws"
    score = describe_score(facts, _describe(value, _cut(own), n, method))
    if reference is None or before is None:
        return score
    others = [_try(reference, picks) for picks in draws]
    pairs = zip(own, others, strict=True)
    changes = [None if mine is None or other is None else mine - other for mine, other in pairs]
    return replace(score, delta=_describe(value - before, _cut(changes), n, method))


def _try(score_picks: ScorePicks, picks: Picks) -> float | None:
    """Return the figure of one draw; None where it lacks what the metric needs, for example a class."""
    try:
        figure = score_picks(picks)
    except Exception:  # user code: anything can come out of it
        return None
    return figure if math.isfinite(figure) else None


def _cut(figures: Sequence[float | None]) -> tuple[float, float] | None:
    """Return the bounds of the middle part of the draws; None where too many are lost, or all are alike."""
    drawn = np.array([figure for figure in figures if figure is not None])
    if len(drawn) < (1 - LOST_DRAWS) * WHOLE_RESAMPLES or np.ptp(drawn) == 0:
        return None
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
