"""Student-t intervals over processes: the unit that repeats is the process, never the sample inside it.

A percentile bootstrap over five processes covers about 84 % in place of 95; an order-statistic interval over
correlated samples covers far less. The t interval over the logs of the process medians covers its level.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Estimate

NORMAL = NormalDist()  # the standard one
# Where values resemble the one before as no more than this fraction of independent series do, a verdict must hold for
# an interval so many times as wide. Found with `benchmarks/verdicts.py`: equal sides that drift by themselves are then
# called different less than half as often, and of ten independent trials 95 % still find a difference of 5 %.
NOTICED = 0.1
NOTICED_WIDTH = 1.5
# Below it a standard error of logs is rounding alone: the values are all equal, and their order means nothing.
ROUNDING = 1e-12


@lru_cache(maxsize=4096)
def quantile_of_t(p: float, freedom: float) -> float:
    """Return the p-quantile of Student's t distribution; degrees of freedom are at least 1, may be fractions or
    infinite."""
    from scipy.special import stdtrit  # a quarter of a second, which a verb without an interval does not pay

    return NORMAL.inv_cdf(p) if math.isinf(freedom) else float(stdtrit(freedom, p))


class Spread(Struct, frozen=True, kw_only=True):
    """Mean of n values, the standard error of that mean, and its degrees of freedom; no error from one value.

    `correlation` is the autocorrelation of each value with the one before, as estimated; None where their order means
    nothing. `caution` is the factor by which an interval must be wider for a verdict.
    """

    mean: float
    error: float | None
    freedom: float
    n: int
    correlation: float | None = None
    caution: float = 1.0

    @property
    def careful(self) -> "Spread":
        """The spread with the error for which a verdict must hold."""
        return self if self.error is None else replace(self, error=self.error * self.caution, caution=1.0)

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


def measure_series(values: Sequence[float]) -> Spread:
    """Return mean and standard error of values in the order of measurement, which may resemble the one before.

    The error is widened by the estimated autocorrelation. So few values estimate it too low, by about (1 + 4 r) / n;
    that is kept, because it shrinks the factor towards none where the values are independent. Verdicts are more
    careful.

    Source: F. H. C. Marriott, J. A. Pope, "Bias in the estimation of autocorrelations", Biometrika 41 (1954).
    """
    spread, n = measure_spread(values), len(values)
    if spread.error is None or spread.error < ROUNDING or n <= 4:
        return spread
    seen = estimate_autocorrelation(values)
    caution = NOTICED_WIDTH if is_correlated(seen, n, NOTICED) else 1.0
    return replace(spread, error=spread.error * widen_error(max(0.0, seen), n), correlation=seen, caution=caution)


def estimate_autocorrelation(values: Sequence[float]) -> float:
    """The correlation of each value with the one before it, -1 to 1; 0 of values that are all equal."""
    mean = math.fsum(values) / len(values)
    around = [value - mean for value in values]
    total = math.fsum(a * a for a in around)
    return math.fsum(a * b for a, b in pairwise(around)) / total if total else 0.0


def widen_error(correlation: float, n: int) -> float:
    """Return the factor by which the standard error of a mean of n values is too small, if each resembles the one
    before.

    For values whose correlation falls as correlation^distance, the variance of the mean is g / n times theirs, with g =
    1 + 2 sum((1 - j / n) correlation^j); and their own, as estimated, is (n - g) / (n - 1) of the true one.

    Args:
        correlation: from 0 to less than 1.

    Source: G. V. Bayley, J. M. Hammersley, "The 'effective' number of independent observations in an autocorrelated
        time series", Suppl. J. Roy. Stat. Soc. 8 (1946).
    """
    g = 1 + 2 * math.fsum((1 - j / n) * correlation**j for j in range(1, n))
    return math.sqrt(g * (n - 1) / (n - g))


def is_correlated(correlation: float | None, n: int, chance: float) -> bool:
    """Whether n independent values show so much autocorrelation, or more, with at most this chance; not if None.

    Source: R. L. Anderson, "Distribution of the serial correlation coefficient", Ann. Math. Stat. 13 (1942).
    """
    if correlation is None or n <= 2:
        return False
    return correlation > (NORMAL.inv_cdf(1 - chance) * math.sqrt(n - 2) - 1) / (n - 1)


def measure_difference(base: Spread, cand: Spread) -> Spread:
    """Mean of `base` less mean of `cand`, for values that have no partners; their variances may differ.

    Source: B. L. Welch, "The generalization of Student's problem when several different population variances are
        involved", Biometrika 34 (1947); degrees of freedom after Satterthwaite (1946).
    """
    mean, n = base.mean - cand.mean, min(base.n, cand.n)
    if base.error is None or cand.error is None:
        return Spread(mean=mean, error=None, freedom=0, n=n)
    error = math.hypot(base.error, cand.error)
    if error == 0:
        return Spread(mean=mean, error=0.0, freedom=base.freedom + cand.freedom, n=n)
    freedom = error**4 / (base.error**4 / base.freedom + cand.error**4 / cand.freedom)
    caution = math.hypot(base.error * base.caution, cand.error * cand.caution) / error
    correlations = [side.correlation for side in (base, cand) if side.correlation is not None]
    correlation = max(correlations, default=None)
    return Spread(mean=mean, error=error, freedom=freedom, n=n, correlation=correlation, caution=caution)


def join_builds(values: Sequence[float], builds: Sequence[int | None]) -> list[float]:
    """Return one value for each build, its mean; for an engine that was built once, the value of every process."""
    groups: dict[object, list[float]] = {}
    for index, (value, build) in enumerate(zip(values, builds, strict=True)):
        groups.setdefault((index,) if build is None else build, []).append(value)
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
    """Return exp of a spread of logs, times `unit`: a ratio or a time, with its interval."""
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
