"""The normal distribution and Student's t, written out: importing scipy takes longer than all numbers of a report."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

_NORMAL = NormalDist()
# Far above what is needed: the continued fraction takes up to 60 steps, Newton's method up to 60 for p = 1 - 1e-16.
_MOST_STEPS = 1000
_SMALLEST = 1e-300
# Newton's steps shrink as squares: after one of this share of the value, what is left is rounding.
_LAST_STEP = 1e-9
# Degrees of freedom from which the logarithm of the beta function has a series: else digits cancel.
_MANY = 60


def share_of_normal(x: float) -> float:
    """The share of a standard normal distribution below `x`."""
    return math.erfc(-x / math.sqrt(2)) / 2


def quantile_of_normal(p: float) -> float:
    """The p-quantile of a standard normal distribution, for p between 0 and 1, without both."""
    return _NORMAL.inv_cdf(p)


@lru_cache(maxsize=4096)
def quantile_of_t(p: float, freedom: float) -> float:
    """The p-quantile of Student's t distribution with `freedom` degrees of freedom, at least one.

    Newton's method, from the normal quantile on: above the middle the tail is convex, so that it never steps too far.

    Args:
        p: from 0 to 1, without both.
        freedom: need not be whole.
    """
    if p < 0.5:
        return -quantile_of_t(1 - p, freedom)
    if p == 0.5:
        return 0.0
    if math.isinf(freedom):
        return quantile_of_normal(p)
    scale = math.exp(-_log_beta_half(freedom / 2)) / math.sqrt(freedom)
    t = quantile_of_normal(p)
    for _ in range(_MOST_STEPS):
        density = scale * math.exp(-(freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (_tail_of_t(t, freedom) - (1 - p)) / density
        t += step
        if abs(step) <= _LAST_STEP * t:
            break
    return t


def _tail_of_t(t: float, freedom: float) -> float:
    """The share of Student's t above `t`, which is at least 0.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1 and 26.5.2.
    """
    beyond = freedom / (freedom + t * t)
    if beyond < (freedom + 2) / (freedom + 5):
        return _incomplete_beta(freedom / 2, 0.5, beyond, _log_beta_half(freedom / 2)) / 2
    return 0.5 - _incomplete_beta(0.5, freedom / 2, t * t / (freedom + t * t), _log_beta_half(freedom / 2)) / 2


def _incomplete_beta(a: float, b: float, x: float, log_beta: float) -> float:
    """The regularized incomplete beta function for x below (a + 1) / (a + b + 2), by its continued fraction.

    Source: Abramowitz and Stegun, 26.5.8; W. J. Lentz, "Generating Bessel functions in Mie scattering calculations
        using continued fractions", Applied Optics 15 (1976), changed by I. J. Thompson and A. R. Barnett (1986).
    """
    if x == 0:
        return 0.0
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    upper, lower = 1.0, 1 / _keep_from_zero(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _MOST_STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _keep_from_zero(1 + term * lower)
            upper = _keep_from_zero(1 + term / upper)
            value *= upper * lower
        if abs(upper * lower - 1) < 4e-16:
            break
    return front * value


def _keep_from_zero(x: float) -> float:
    return x if abs(x) > _SMALLEST else _SMALLEST


def _log_beta_half(a: float) -> float:
    """The logarithm of the beta function of `a` and one half."""
    if a < _MANY / 2:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    # Abramowitz and Stegun, 6.1.47, as a logarithm.
    ratio = math.log(a) / 2 - 1 / (8 * a) + 1 / (192 * a**3) - 1 / (640 * a**5) + 17 / (14336 * a**7)
    return math.log(math.pi) / 2 - ratio
