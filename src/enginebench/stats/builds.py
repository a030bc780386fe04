"""An engine built several times from scratch: how far the builds differ, and what choosing the best of them gains.

The design is nested: builds of one engine, and trials of each build. The builder times kernels and keeps those that
were fastest at that moment, so each build is a new draw: the build is the unit of a statement about the engine.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from enginebench.core.records import Estimate, Result, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.intervals import quantile_of_t, take_logs
from enginebench.stats.quantiles import median

LEVEL = 0.95


class BestBuild(Struct, frozen=True, kw_only=True):
    """The cost and the gain of building K times and keeping the best build.

    `gain` is a fraction of the time of a typical build, 0.02 for 2 %, as estimated from trials that did not take part
    in the choice.
    """

    gain: Estimate
    cost_s: float | None  # of the builds beyond the first; None: a build's time is not known
    pays_after: float | None  # runs of the engine that save as much time as the builds cost; None: they never do


class BuildEffect(Struct, frozen=True, kw_only=True):
    """The difference between the builds of one engine. Deviations are of the logs of medians: 0.01 is 1 %."""

    builds: int
    processes: int  # of all builds together
    distinct: int | None  # different builds by their hash; None: the engine leaves nothing to hash
    between: Estimate | None  # deviation from build to build; None: fewer than two builds have two processes
    within: float | None  # deviation from process to process of one build
    shown: bool  # the interval of `between` lies above 0
    max_abs_diff: float | None  # between the outputs of any build and those of the first
    medians_ms: tuple[float, ...]  # of each build, in the order of their making
    best: BestBuild | None


def describe_builds(result: Result) -> BuildEffect | None:
    """Compare the builds of a configuration; None for one that was built once."""
    if len(result.builds) < 2:
        return None
    groups: defaultdict[int, list[float]] = defaultdict(list)
    for m in sorted(result.measurements, key=lambda m: m.trial):
        if m.latency_ns and m.build is not None:
            groups[m.build].append(median(m.latency_ns))
    logs = [take_logs(groups[build], "the median latency") for build in sorted(groups)]  # of each build's processes
    hashes = [build.fingerprint for build in result.builds]
    between, within = estimate_between(logs)
    return BuildEffect(
        builds=len(result.builds),
        processes=sum(map(len, logs)),
        distinct=len(set(hashes)) if None not in hashes else None,
        between=between,
        within=within,
        shown=between is not None and (between.low or 0.0) > 0,
        max_abs_diff=max((b.max_abs_diff for b in result.builds if b.max_abs_diff is not None), default=None),
        medians_ms=tuple(math.exp(fmean(group)) / 1e6 for group in logs),
        best=find_best_build(logs, [build.build_s for build in result.builds]),
    )


def list_build_warnings(effect: BuildEffect | None) -> tuple[ResultWarning, ...]:
    """Warn that one build represents the engine, where its builds were shown to differ."""
    if effect is None or not effect.shown or effect.between is None or effect.within is None:
        return ()
    figures = {"between": effect.between.value, "low": effect.between.low or 0.0, "high": effect.between.high or 0.0}
    return (make_warning("builds_differ", builds=effect.builds, within=effect.within, **figures),)


def estimate_between(groups: Sequence[Sequence[float]]) -> tuple[Estimate | None, float | None]:
    """Estimate (deviation between groups with its interval, deviation within one), by one-way random-effects ANOVA.

    For groups of different sizes the plain means are used, with the harmonic mean of the sizes. The interval follows
    from F = mean square between / within: its lower end is 0 where F does not show an effect.

    Source: estimates, S. R. Searle, G. Casella, C. E. McCulloch, "Variance Components" (1992), section 3.6; interval,
        J. S. Williams, "A confidence interval for variance components", Biometrika 49 (1962); sizes that differ,
        J. D. Thomas, R. A. Hultquist, "Interval estimation for the unbalanced case of the one-way random effects
        model", Ann. Statist. 6 (1978).
    """
    k, spare = len(groups), sum(len(group) - 1 for group in groups)
    if k < 2 or spare < 1 or not all(groups):
        return None, None
    from scipy.special import chdtri, fdtri

    means = [fmean(group) for group in groups]
    size = k / math.fsum(1 / len(group) for group in groups)
    squares = math.fsum((x - mean) ** 2 for group, mean in zip(groups, means, strict=True) for x in group)
    within, between = squares / spare, size * math.fsum((m - fmean(means)) ** 2 for m in means) / (k - 1)
    ends = []
    for p in ((1 + LEVEL) / 2, (1 - LEVEL) / 2):
        quantile_f, quantile_chi2 = float(fdtri(k - 1, spare, p)), float(chdtri(k - 1, 1 - p))
        ends.append(max(0.0, (k - 1) * (between - quantile_f * within) / (size * quantile_chi2)))
    estimate = Estimate(
        value=math.sqrt(max(0.0, between - within) / size),
        low=math.sqrt(ends[0]),
        high=math.sqrt(ends[1]),
        level=LEVEL,
        n=k,
        method=f"one-way random-effects ANOVA over {k} builds, {k + spare} processes; interval after Williams",
    )
    return estimate, math.sqrt(within)


def find_best_build(groups: Sequence[Sequence[float]], build_s: Sequence[float | None]) -> BestBuild | None:
    """Estimate the gain of the best build over a typical one, from trials that did not take part in the choice.

    Each half of a build's trials chooses once, and the other half estimates: a build that was merely lucky when it was
    chosen gains nothing. None where a build has a single trial.
    """
    k = len(groups)
    if k < 2 or min(map(len, groups), default=0) < 2:
        return None
    halves = [[list(group[start::2]) for group in groups] for start in (0, 1)]
    gains = []
    for choosing, estimating in (halves, halves[::-1]):
        chosen = min(range(k), key=lambda i: fmean(choosing[i]))
        estimates = [fmean(group) for group in estimating]
        gains.append(fmean(estimates) - estimates[chosen])  # the log of a typical build's time over the chosen one's
    gain = fmean(gains)
    spare = sum(len(group) - 1 for group in groups)
    within = math.fsum((x - fmean(group)) ** 2 for group in groups for x in group) / spare
    # The variance of one build's mean less the mean of all, in one half. Both ways are no better than one: where the
    # builds are alike, the halves agree on the best by chance alone, and then both show the same chance.
    error = math.sqrt(fmean([within / min(map(len, half)) for half in halves]) * (k - 1) / k)
    reach = quantile_of_t((1 + LEVEL) / 2, spare) * error
    saved_s = -math.expm1(-gain) * math.exp(fmean([fmean(group) for group in groups])) / 1e9
    build_times_s = [seconds for seconds in build_s if seconds is not None]
    cost = math.fsum(build_times_s) * (k - 1) / k if len(build_times_s) == k else None
    return BestBuild(
        gain=Estimate(
            value=-math.expm1(-gain),
            low=-math.expm1(-(gain - reach)),
            high=-math.expm1(-(gain + reach)),
            level=LEVEL,
            n=k,
            method="chosen by one half of the processes, estimated by the other, both ways; Student t within builds",
        ),
        cost_s=cost,
        pays_after=math.ceil(cost / saved_s) if cost is not None and saved_s > 0 else None,
    )
