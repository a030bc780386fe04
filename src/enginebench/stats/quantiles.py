"""Median and percentiles of raw samples: one definition each, used everywhere, with intervals for high percentiles.

Neighbouring samples are alike (caches, clocks, other programs on the machine), so the interval of a percentile counts
independent samples by blocks that are long compared with the time over which samples stay alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.protocols import Array
from enginebench.core.records import Estimate
from enginebench.stats.intervals import quantile_of_t

Floats = NDArray[np.float64]


def median(values: Sequence[float] | Array) -> float:
    """Return the middle value; the mean of the two middle ones if their number is even. Keeps the unit of `values`."""
    if len(values) == 1:
        return float(values[0])
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise MeasurementError("no samples to take a median of; at least one is needed")
    # Like `np.median`, without 5 us on the way: a report takes a hundred medians of each configuration.
    low, high = (array.size - 1) // 2, array.size // 2
    ordered = np.partition(array, (low, high, array.size - 1), axis=None)
    if np.isnan(ordered[-1]):  # it sorts behind all numbers
        return math.nan
    return float(ordered[low] if low == high else (ordered[low] + ordered[high]) / 2)


def nearest_rank(sorted_values: Sequence[float] | Array, q: float) -> float:
    """Return the smallest value that at least the fraction `q` of the values does not exceed. Keeps their unit.

    The rank is ceil(q n), computed exactly from the decimal digits of `q`: in binary floating point 0.07 x 100 is a
    little more than 7, and its ceiling would be 8.

    Source: R. Hyndman, Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50 (1996),
        definition 1; ISO 3534-1 calls it the nearest rank.
    """
    return float(sorted_values[find_rank(len(sorted_values), q) - 1])


def find_rank(n: int, q: float) -> int:
    """Return the nearest rank ceil(q n), from 1 to n; raises as `nearest_rank`."""
    if not 0 < q <= 1:
        raise UsageError(f"percentile {100 * q:g} cannot be taken; it must be above 0 and at most 100")
    if n < 1:
        raise MeasurementError(f"no samples to take p{100 * q:g} of; at least one is needed")
    return math.ceil(Fraction(repr(float(q))) * n)


def convert_percent(percent: float) -> float:
    """Return the fraction of a percentile: 99.9 -> 0.999, the nearest number to it, which 99.9 / 100 is not."""
    return float(Fraction(repr(float(percent))) / 100)


# Blocks this many autocorrelation times long are as good as independent: the correlation that is cut at their
# ends is then about a tenth of what they hold.
BLOCK_TIMES = 10
# Below ten blocks the variance between them is known to a third of it at best, so no interval is given.
MIN_BLOCKS = 10
# More blocks than this change no digit that is printed; longer ones are always allowed.
MAX_BLOCKS = 500
# Sokal's window: sum the correlations up to five autocorrelation times; later ones are noise.
SOKAL_WINDOW = 5.0


def min_samples(q: float) -> int:
    """Return the least n at which the largest of n independent samples bounds the q-quantile from above, 97.5 % sure.

    p95: 72, p99: 368, p99.9: 3688. With fewer, no distribution-free two-sided 95% interval exists: the chance that all
    n samples are below the quantile is q^n, which must not exceed 0.025.

    Source: H. A. David, H. N. Nagaraja, "Order Statistics", 3rd ed. (2003), section 7.1.
    """
    return math.ceil(math.log(0.025) / math.log(q))


def autocorrelation_time(series: Sequence[Floats]) -> float:
    """Return the number of neighbouring samples that carry the information of one: 1 if they are independent.

    1 + 2 sum of rho(t), summed up to the first lag that is at least five times the sum so far. The logs are centred on
    the mean over all processes: if processes differ among themselves, that shows as correlation that lasts as long as a
    process, and blocks grow to whole processes. That is intended. `series`: an array of times for each process.

    Source: N. Madras, A. D. Sokal, "The pivot algorithm", J. Stat. Phys. 50 (1988), appendix C; A. D. Sokal, "Monte
        Carlo Methods in Statistical Mechanics" (1997), section 3.
    """
    logs = [np.log(np.maximum(s, np.finfo(np.float64).tiny)) for s in series if len(s)]
    if not logs:
        raise MeasurementError("no samples to take an autocorrelation of; at least one is needed")
    mean = float(np.mean(np.concatenate(logs)))
    rho = _correlations([log - mean for log in logs])
    if rho is None:
        return 1.0
    times = 1 + 2 * np.cumsum(rho[1:])
    settled = np.flatnonzero(np.arange(1, len(rho)) >= SOKAL_WINDOW * times)
    return float(min(max(times[settled[0]], 1.0), len(rho)) if settled.size else len(rho))


def _correlations(centred: list[Floats]) -> Floats | None:
    """Return rho at every lag of the longest process, over all processes together; None for samples that are all
    equal."""
    from scipy.fft import next_fast_len  # not paid for by a verb without an interval

    lags = max(map(len, centred))
    # Each process is padded, so that its end does not meet its beginning; the sum of spectra is transformed back once.
    length = next_fast_len(2 * lags, real=True)
    power, pairs = np.zeros(length // 2 + 1), np.zeros(lags)
    for part in centred:
        spectrum = np.fft.rfft(part, length)
        power += spectrum.real**2 + spectrum.imag**2
        pairs[: len(part)] += len(part) - np.arange(len(part))
    covariance = np.fft.irfft(power, length)[:lags] / pairs
    # Equal times give 1e-32 here, not 0: a relative spread of 1e-12 is far below one nanosecond in a second.
    if lags < 2 or covariance[0] < 1e-24:
        return None
    rho: Floats = covariance / covariance[0]
    return rho


def size_blocks(counts: Sequence[int], length: int) -> list[int]:
    """Return the sizes of blocks of at least `length` neighbouring samples, in order.

    None crosses a process, and a short process is one block. Those of a process differ by one sample at most.

    Args:
        counts: samples of each process.
    """
    sizes: list[int] = []
    for count in counts:
        blocks = max(1, count // length)
        size, longer = divmod(count, blocks)
        sizes += [size + 1] * longer + [size] * (blocks - longer) if count else []
    return sizes


def estimate_tails(
    series: Sequence[Floats], shares: Sequence[float], *, level: float = 0.95, time: float | None = None
) -> list[Estimate]:
    """Estimate pooled quantiles by nearest rank, with intervals between order statistics. Keeps the unit of `series`.

    `supported` is False where there are fewer than `min_samples(q)` samples or too few blocks for an interval.

    Args:
        series: one array of samples a process.
        shares: 0.99 for p99; several cost one sorting of the samples.
        time: autocorrelation time in samples, where the caller has it already.
    """
    ordered = np.concatenate(list(series)) if len(series) else np.empty(0)  # as they were measured
    pooled = np.sort(ordered)
    n = len(pooled)
    values = [nearest_rank(pooled, q) for q in shares]
    time = autocorrelation_time(series) if time is None else time
    length = max(math.ceil(BLOCK_TIMES * time), math.ceil(n / MAX_BLOCKS))
    blocks = size_blocks([len(samples) for samples in series], length)
    method = f"nearest rank of {n} pooled samples"
    if len(blocks) < MIN_BLOCKS:
        method += f"; {len(blocks)} blocks of 10 autocorrelation times are too few for an interval"
        none = Estimate(value=0.0, low=None, high=None, level=level, n=n, method=method, supported=False)
        return [replace(none, value=value) for value in values]
    method += f"; exact binomial over {len(blocks)} blocks of about {n // len(blocks)} samples"
    estimates = []
    for q, value in zip(shares, values, strict=True):
        first, last = bound_rank(n, q, count_effective(ordered, blocks, value, level), level)
        enough = n >= min_samples(q)
        estimates.append(
            Estimate(
                value=value,
                low=float(pooled[first - 1]),
                high=float(pooled[last - 1]),
                level=level,
                n=n,
                method=method if enough else f"{method}; p{100 * q:g} needs {min_samples(q)} samples",
                supported=enough,
            )
        )
    return estimates


def count_effective(samples: Floats, lengths: Sequence[int], value: float, level: float) -> float:
    """Return the number of independent samples that would estimate the fraction of times up to `value` as well as these
    do.

    The variance of that fraction between blocks, over what it would be of independent samples; never more than there
    are samples. Few blocks estimate a variance badly: the square of Student's t over the normal's allows for it.

    Args:
        samples: in the order in which they were measured.
        lengths: of the blocks into which they are cut, at least two.

    Source: E. L. Korn, B. I. Graubard, "Confidence intervals for proportions with small expected number of positive
        counts estimated from survey data", Survey Methodology 24 (1998).
    """
    sizes, n, count = np.asarray(lengths), len(samples), len(lengths)
    within = np.add.reduceat(samples <= value, np.cumsum(sizes) - sizes, dtype=np.int64)
    fraction = within.sum() / n
    between = float(np.sum((within - fraction * sizes) ** 2)) * count / (count - 1)
    independent = n * fraction * (1 - fraction)
    design = max(1.0, between / independent) if independent > 0 else 1.0  # equal times do not show it
    p = (1 + level) / 2
    return n / (design * (quantile_of_t(p, count - 1) / quantile_of_t(p, math.inf)) ** 2)


def bound_rank(n: int, q: float, effective: float, level: float) -> tuple[int, int]:
    """Return the ranks, from 1 to n, that enclose the q-quantile, by the exact binomial of `effective` samples.

    Source: C. J. Clopper, E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
        binomial", Biometrika 26 (1934); R. S. Woodruff, "Confidence intervals for medians and other position
        measures", J. Am. Stat. Assoc. 47 (1952), for quantiles of samples in groups.
    """
    from scipy.special import betaincinv  # a quarter of a second, which a verb without an interval does not pay

    tail, successes = (1 - level) / 2, q * effective
    failures = max(effective - successes, np.finfo(np.float64).tiny)  # of the maximum there are none
    low, high = betaincinv(successes, failures + 1, tail), betaincinv(successes + 1, failures, 1 - tail)
    return max(1, math.ceil(low * n)), min(n, max(1, math.ceil(high * n)))
