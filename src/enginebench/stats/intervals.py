"""Student-t intervals over processes: the unit that repeats is the process, never the sample inside it.

A percentile bootstrap over five processes covers about 84 % where it says 95; an order-statistic interval over
correlated samples covers far less. The t interval over the logs of the process medians covers what it says.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

from msgspec import Struct

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Estimate

NORMAL = NormalDist()  # the standard one


@lru_cache(maxsize=4096)
def quantile_of_t(p: float, freedom: float) -> float:
    """The p-quantile of Student's t distribution with at least 1 degree of freedom, not always whole, or infinite."""
    from scipy.special import stdtrit  # a quarter of a second, which a verb without an interval does not pay

    return NORMAL.inv_cdf(p) if math.isinf(freedom) else float(stdtrit(freedom, p))


class Spread(Struct, frozen=True, kw_only=True):
    """Mean of n values, the standard error of that mean, and its degrees of freedom; no error from one value."""

    mean: float
    error: float | None
    freedom: float
    n: int

    def interval(self, level: float) -> tuple[float, float] | None:
        """The two-sided Student-t interval of the mean, or None from one value."""
        if self.error is None:
            return None
        half = quantile_of_t((1 + level) / 2, self.freedom) * self.error
        return self.mean - half, self.mean + half


def measure_spread(values: Sequence[float]) -> Spread:
    """Mean and standard error of independent values (n - 1 in the variance)."""
    n = len(values)
    if n == 0:
        raise MeasurementError("no trials to take a mean of; at least one is needed")
    mean = math.fsum(values) / n
    if n == 1:
        return Spread(mean=mean, error=None, freedom=0, n=1)
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    return Spread(mean=mean, error=math.sqrt(variance / n), freedom=n - 1, n=n)


def measure_difference(base: Sequence[float], cand: Sequence[float]) -> Spread:
    """Mean of `base` less mean of `cand`, for values that have no partners; their variances may differ.

    Source: B. L. Welch, "The generalization of Student's problem when several different population variances are
        involved", Biometrika 34 (1947); degrees of freedom after Satterthwaite (1946).
    """
    a, b = measure_spread(base), measure_spread(cand)
    mean, n = a.mean - b.mean, min(a.n, b.n)
    if a.error is None or b.error is None:
        return Spread(mean=mean, error=None, freedom=0, n=n)
    variance = a.error**2 + b.error**2
    if variance == 0:
        return Spread(mean=mean, error=0.0, freedom=a.freedom + b.freedom, n=n)
    freedom = variance**2 / (a.error**4 / a.freedom + b.error**4 / b.freedom)
    return Spread(mean=mean, error=math.sqrt(variance), freedom=freedom, n=n)


def join_builds(values: Sequence[float], builds: Sequence[int | None]) -> list[float]:
    """What repeats: the mean of each build's values; of an engine that was built once, every process for itself."""
    groups: dict[object, list[float]] = {}
    for place, (value, build) in enumerate(zip(values, builds, strict=True)):
        groups.setdefault((place,) if build is None else build, []).append(value)
    return [math.fsum(group) / len(group) for group in groups.values()]


def take_logs(values: Sequence[float], what: str) -> list[float]:
    """Natural logarithms of times."""
    bad = [v for v in values if not (v > 0 and math.isfinite(v))]
    if bad:
        raise MeasurementError(
            f"{what} is {bad[0]:g} ns in {len(bad)} of {len(values)} processes; expected a time above zero. "
            "The clock is too coarse for this model or the stored samples are damaged"
        )
    return [math.log(v) for v in values]


def estimate_geometric(spread: Spread, level: float, unit: float, method: str) -> Estimate:
    """exp of a spread of logs, times `unit`: a ratio or a time, with the interval that the logs give."""
    return estimate_spread(spread, level, method, lambda log: math.exp(log) * unit)


def estimate_spread(
    spread: Spread, level: float, method: str, convert: Callable[[float], float] = lambda value: value
) -> Estimate:
    """A mean with its interval, each end converted."""
    bounds = spread.interval(level)
    return Estimate(
        value=convert(spread.mean),
        low=convert(bounds[0]) if bounds else None,
        high=convert(bounds[1]) if bounds else None,
        level=level,
        n=spread.n,
        method=method if bounds else f"{method}; a single process has no interval",
        supported=bounds is not None,
    )
