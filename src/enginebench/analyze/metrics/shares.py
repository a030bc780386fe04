"""Shares of right answers with their intervals, and the paired difference of two shares."""

from __future__ import annotations

import math

from enginebench.analyze.distributions import quantile_of_normal
from enginebench.core.records import Estimate

LEVEL = 0.95


def estimate_share(hits: int, n: int, level: float = LEVEL) -> Estimate:
    """A share of n with Wilson's interval: it stays inside 0 and 1, and is right near both ends.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
        American Statistical Association 22 (1927).
    """
    z = quantile_of_normal((1 + level) / 2)
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
    z = quantile_of_normal((1 + level) / 2)
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
    changed = gained + lost
    if changed == 0:
        return 1.0
    # scipy is slow to import, and where no answer changed none of it is needed.
    from scipy.special import bdtr

    return min(1.0, 2 * float(bdtr(min(gained, lost), changed, 0.5)))
