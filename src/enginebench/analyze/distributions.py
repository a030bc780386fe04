"""The normal distribution from the standard library, Student's t from scipy, which is imported when it is asked."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()


def share_of_normal(x: float) -> float:
    """The share of a standard normal distribution below `x`."""
    return math.erfc(-x / math.sqrt(2)) / 2


def quantile_of_normal(p: float) -> float:
    """The p-quantile of a standard normal distribution, for p between 0 and 1, without both."""
    return _NORMAL.inv_cdf(p)


@lru_cache(maxsize=4096)
def quantile_of_t(p: float, freedom: float) -> float:
    """The p-quantile of Student's t distribution with `freedom` degrees of freedom, which need not be whole.

    Args:
        p: from 0 to 1, without both.
        freedom: at least 1, or infinite.
    """
    from scipy.special import stdtrit  # a quarter of a second, which a verb without an interval does not pay

    return quantile_of_normal(p) if math.isinf(freedom) else float(stdtrit(freedom, p))
