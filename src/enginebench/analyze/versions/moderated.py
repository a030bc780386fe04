"""Variances that borrow from each other: few values each tell little, together they say how much anything varies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from enginebench.analyze.intervals import Spread

# Variances below this share of the middle one are taken as that: a logarithm of next to nothing outweighs all others.
LEAST = 1e-5
# Newton's steps end when one changes the value by no more than this share.
CLOSE_ENOUGH = 1e-8


def moderate_spreads(spreads: Sequence[Spread]) -> list[Spread]:
    """The same means, each with an error that is drawn towards what all of them have in common.

    A variance of n values has n - 1 degrees of freedom of its own, and as many more as the agreement of all the
    variances gives: where they agree as well as chance has it, all are the same one. Never more than all have together.

    Source: G. K. Smyth, "Linear models and empirical Bayes methods for assessing differential expression in microarray
        experiments", Stat. Appl. Genet. Mol. Biol. 3 (2004), sections 3 and 6.2.
    """
    known = [s for s in spreads if s.error is not None]
    if len(known) < 2:
        return list(spreads)
    variances = [(s.error or 0.0) ** 2 * s.n for s in known]
    if max(variances) == 0:
        return list(spreads)
    prior, prior_freedom = _fit_prior(variances, [s.freedom for s in known])
    most = math.fsum(s.freedom for s in known)
    return [s if s.error is None else _moderate(s, prior, prior_freedom, most) for s in spreads]


def _moderate(spread: Spread, prior: float, prior_freedom: float, most: float) -> Spread:
    own = (spread.error or 0.0) ** 2 * spread.n
    share = 1.0 if math.isinf(prior_freedom) else prior_freedom / (prior_freedom + spread.freedom)
    variance = share * prior + (1 - share) * own
    freedom = min(most, spread.freedom + prior_freedom)
    return Spread(mean=spread.mean, error=math.sqrt(variance / spread.n), freedom=freedom, n=spread.n)


def _fit_prior(variances: Sequence[float], freedoms: Sequence[float]) -> tuple[float, float]:
    """(the variance that all have in common, the degrees of freedom that it is worth)."""
    from scipy.special import digamma, polygamma

    floor = LEAST * (sorted(variances)[len(variances) // 2] or max(variances))
    logs = [
        math.log(max(variance, floor)) - float(digamma(d / 2)) + math.log(d / 2)
        for variance, d in zip(variances, freedoms, strict=True)
    ]
    mean = math.fsum(logs) / len(logs)
    by_chance = math.fsum(float(polygamma(1, d / 2)) for d in freedoms) / len(freedoms)
    beyond = math.fsum((x - mean) ** 2 for x in logs) / (len(logs) - 1) - by_chance
    if beyond <= 0:
        pooled = math.fsum(v * d for v, d in zip(variances, freedoms, strict=True)) / math.fsum(freedoms)
        return pooled, math.inf
    freedom = 2 * _invert_trigamma(beyond)
    return math.exp(mean + float(digamma(freedom / 2)) - math.log(freedom / 2)), freedom


def _invert_trigamma(x: float) -> float:
    """The y with trigamma(y) = x, by Newton's method on 1 / trigamma, which is nearly a straight line.

    Source: G. K. Smyth (2004), appendix.
    """
    from scipy.special import polygamma

    y = 0.5 + 1 / x
    for _ in range(50):
        value = float(polygamma(1, y))
        step = value * (1 - value / x) / float(polygamma(2, y))
        y += step
        if abs(step) <= CLOSE_ENOUGH * y:
            break
    return y
