"""Compare two configurations: whether that is possible, by how much the medians differ, and what that shows.

A configuration has fewer trials where more would change nothing: there are looks after 6, 8 and 10 trials, with the
error of all three kept at 5 %. It ends at a look when none of its comparisons in its setting can change. The interval
that is printed then is that of the look, wider than Student's t for as many trials: it covers the true ratio wherever a
configuration ended.

Sources: K. K. G. Lan, D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983); of the
    intervals C. Jennison, B. W. Turnbull, "Interim analyses: the repeated confidence interval approach", J. Roy. Stat.
    Soc. B 51 (1989).
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.limits import LEVELS, MARGIN, MOST
from enginebench.core.preprocess import is_known
from enginebench.core.records import Estimate, Machine, Measurement, RatioValidity, Result, Verdict
from enginebench.core.shapes import concrete_shape, format_whole_traffic
from enginebench.stats.intervals import (
    Spread,
    estimate_geometric,
    is_correlated,
    join_builds,
    measure_difference,
    measure_series,
    measure_spread,
    quantile_of_t,
    take_logs,
)
from enginebench.stats.quantiles import median

# Below six trials the t interval is so wide (2.8 standard errors at five) and the normality of the logs so little
# tested that no verdict is given.
MIN_TRIALS = 6
# The usual power of a planned trial: four of five repeats of it would show the difference.
# Source: J. Cohen, "Statistical Power Analysis for the Behavioral Sciences", 2nd ed. (1988), section 2.4.
POWER = 0.8
# The level of a row whose number of trials was fixed beforehand.
FIXED = 0.95
# Trials to come are expected to move the mean no further than this quantile of what they may.
EXPECTED = 0.95
# A row ends before the last look only if its verdict holds for an interval so many times as wide, where its trials
# resemble the ones before more than half of all independent series do: six trials cannot say that they do not. Found
# with `benchmarks/verdicts.py`, as NOTICED in `intervals.py`.
EARLY_CHANCE = 0.5
EARLY_WIDTH = 2.0
# Nobody repeats a row more often than this; a difference that needs more lies on the margin.
MAX_TRIALS = 1000

Times = Callable[[Measurement], list[int] | None]
Unit = Literal["process", "build"]
NOUNS: dict[Unit, str] = {"process": "trials", "build": "builds"}
SIDES = ("base", "candidate")


class Comparison(Struct, frozen=True, kw_only=True):
    """Verdict and ratio of two configurations. `ratio` = base median over candidate median: above 1, the candidate is
    faster."""

    verdict: Verdict
    ratio: Estimate | None
    ratio_validity: RatioValidity | None = None  # `not_given`: `ratio` is None for that; None: it was not assessed
    ratio_reason: str = ""  # why it is not `good`
    clear: bool = False  # the candidate is the faster one, also where its ratio is of low validity or not given
    reasons: tuple[str, ...] = ()
    # For `not_shown`: as many units would show it, four times of five.
    trials_needed: int | None = field(default=None, name="repetitions_needed")
    unit: Unit = "process"  # what was repeated: of an engine that was built several times, the build
    margin: float = MARGIN
    autocorrelation: float | None = None  # of what was compared, from one trial to the next, as estimated
    clock: str = "host"  # whose times were compared: "host", "device", "tool", "modelled"
    outputs_agree: bool | None = None  # of the two sides, within the limits; None: they were not compared
    failures: tuple[str, ...] = ()  # why the pair fails a gate; empty: it passes


def compare(
    base: Sequence[Measurement],
    cand: Sequence[Measurement],
    *,
    margin: float = MARGIN,
    level: float = 0.95,
    trials: int | None = None,
) -> Comparison:
    """Compare two interleaved configurations by their neighbouring trials.

    d_i = ln(median_base,i / median_cand,i) over trials that both have; ratio = exp(mean d) with Student's t interval at
    k - 1 degrees of freedom, wider where neighbouring d_i resemble each other. A trial that one side lacks is left out,
    with a reason. If a side was built several times, the build is the unit: the d_i of one build are one value, their
    mean.

    Args:
        margin: relative difference that matters, 0.02 for 2 %.
        level: of the two-sided interval; equivalence uses 1 - 2 (1 - level), which is two one-sided tests.
        trials: that count on both sides, where one of them ended earlier; None: all.

    Source: D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
        J. Pharmacokin. Biopharm. 15 (1987).
    """
    clock, times, why_not = choose_clock(base, cand)
    if times is None:
        return refuse(why_not, margin=margin, clock=clock)
    spread, pairs, reasons = spread_pairs(base, cand, times, trials)
    if spread is None:
        return refuse(*reasons, "no trial was measured on both sides", margin=margin, clock=clock)
    unit = find_unit(base, cand)
    of_builds = f"{spread.n} builds of " if unit == "build" else ""
    method = f"{of_builds}{pairs} neighbouring trials, Student t over ln(base / candidate)"
    return conclude(spread, method, margin, level, clock, reasons, unit)


def refuse(*reasons: str, margin: float, clock: str = "host") -> Comparison:
    """Make the comparison of two configurations that are not comparable, with the reasons."""
    return Comparison(verdict="not_comparable", ratio=None, reasons=reasons, margin=margin, clock=clock)


def spread_pairs(
    base: Sequence[Measurement], cand: Sequence[Measurement], times: Times, trials: int | None = None
) -> tuple[Spread | None, int, list[str]]:
    """Return (the mean log ratio of the first `trials` neighbouring trials or None without any, their number, notes on
    trials that were left out)."""
    sides = [[m for m in side if trials is None or m.trial < trials] for side in (base, cand)]
    left, right = (_by_trial(side, times) for side in sides)
    common, alone = sorted(left.keys() & right.keys()), len(left.keys() ^ right.keys())
    reasons = [f"{alone} trials were measured on one side only and left out"] if alone else []
    if not common:
        return None, 0, reasons
    logs = [
        take_logs([side[key][0] for key in common], f"the median of the {name}")
        for side, name in zip((left, right), SIDES, strict=True)
    ]
    builds = [right[key][1] if left[key][1] is None else left[key][1] for key in common]
    measure = measure_by_unit(find_unit(base, cand))
    return measure(join_builds([b - c for b, c in zip(*logs, strict=True)], builds)), len(common), reasons


def measure_by_unit(unit: Unit) -> Callable[[Sequence[float]], Spread]:
    """Return how values of this unit are averaged: those of builds are means over a whole run, and have no order."""
    return measure_spread if unit == "build" else measure_series


def find_unit(*sides: Sequence[Measurement]) -> Unit:
    """Return the unit that a comparison repeats: the build, where a side was built several times, else the process."""
    return "build" if any(m.build is not None for side in sides for m in side) else "process"


def compare_apart(
    base: Sequence[Measurement], cand: Sequence[Measurement], *, margin: float = MARGIN, level: float = 0.95
) -> Comparison:
    """Compare two configurations that were measured at different times: without pairs of trials, by Welch's interval.

    The caller first checks with `comparable` that the machine was the same.
    """
    clock, times, why_not = choose_clock(base, cand)
    if times is None:
        return refuse(why_not, margin=margin, clock=clock)
    kept = [[m for m in side if times(m)] for side in (base, cand)]
    medians = [[median(times(m) or []) for m in side] for side in kept]
    if not all(medians):
        return refuse("one side has no samples", margin=margin, clock=clock)
    logs = [
        join_builds(take_logs(values, f"the median of the {name}"), [m.build for m in side])
        for values, name, side in zip(medians, SIDES, kept, strict=True)
    ]
    unit = find_unit(base, cand)
    spread = measure_difference(*map(measure_by_unit(unit), logs))
    noun = "builds or processes" if unit == "build" else "processes"
    method = f"{len(logs[0])} and {len(logs[1])} {noun}, Welch t over the logs of their medians"
    return conclude(spread, method, margin, level, clock, [], unit)


def choose_clock(base: Sequence[Measurement], cand: Sequence[Measurement]) -> tuple[str, Times | None, str]:
    """Return (clock, the times to compare, "") or (clock, None, why both sides share none).

    Host is compared with host. If one side was timed on the device, device times of both sides are compared; a modelled
    time only with modelled ones.
    """
    clocks = {m.clock for m in (*base, *cand)}
    if clocks == {"host"} or clocks == {"modelled"}:
        return clocks.pop(), lambda m: m.latency_ns, ""
    if not clocks:
        return "host", None, "nothing was measured on either side"
    if "modelled" in clocks:
        return "modelled", None, "one side is modelled, the other was measured; a model is not a measurement"
    if all(_device_times(m) for m in (*base, *cand)):
        return "device", _device_times, ""
    if clocks == {"tool"}:
        return "tool", lambda m: m.latency_ns, ""
    missing = "the base" if not all(_device_times(m) for m in base) else "the candidate"
    seen = " and ".join(sorted(clocks))
    return "device", None, f"clocks differ ({seen}) and {missing} has no device times to compare instead"


def _device_times(measurement: Measurement) -> list[int] | None:
    if measurement.device_ns:
        return measurement.device_ns
    return measurement.latency_ns if measurement.clock == "device" else None


def _by_trial(
    measurements: Sequence[Measurement], times: Times
) -> dict[tuple[int, int, str], tuple[float, int | None]]:
    """Return (trial, count of it so far, machine) -> (median in ns, build); the count separates processes of one
    number.

    Two machines are never compared: where a sweep lost one during a round, that round has no pair.
    """
    seen: defaultdict[int, int] = defaultdict(int)
    medians: dict[tuple[int, int, str], tuple[float, int | None]] = {}
    for measurement in measurements:
        if values := times(measurement):
            key = measurement.trial, seen[measurement.trial], measurement.machine
            medians[key] = median(values), measurement.build
            seen[measurement.trial] += 1
    return medians


def conclude(
    spread: Spread, method: str, margin: float, level: float, clock: str, reasons: Sequence[str], unit: Unit = "process"
) -> Comparison:
    """Return the verdict on a mean log ratio, with the number of trials that would show one where it does not."""
    verdict, why = decide_verdict(spread, margin, level, unit)
    needed = count_needed(spread, margin, level) if verdict == "not_shown" else None
    if verdict == "not_shown" and needed is None:
        why += f"; the difference lies so close to it that {MAX_TRIALS} {NOUNS[unit]} would not show a verdict"
    return Comparison(
        verdict=verdict,
        ratio=estimate_geometric(spread, level, 1.0, method),
        reasons=(*reasons, *([why] if why else [])),
        trials_needed=needed,
        unit=unit,
        margin=margin,
        autocorrelation=spread.correlation,
        clock=clock,
    )


def decide_verdict(spread: Spread, margin: float, level: float = 0.95, unit: Unit = "process") -> tuple[Verdict, str]:
    """Return (verdict, why it is `not_shown` or "") for a mean log ratio.

    With m = ln(1 + margin): `faster` when the interval is above m, `slower` when below -m, `equivalent` when the
    interval of the two one-sided tests is inside +-m, else `not_shown`. A verdict must also hold for an interval that
    is wider by the `caution` of the spread.
    """
    if spread.n < MIN_TRIALS or spread.error is None:
        return "not_shown", f"{spread.n} of the {MIN_TRIALS} {NOUNS[unit]} that a verdict needs"
    verdict = _place_interval(spread, margin, level)
    if verdict == "not_shown":
        return verdict, f"the interval reaches across the margin of {margin:.1%}"
    if _place_interval(spread.careful, margin, level) == "not_shown":
        return "not_shown", (
            f"neighbouring {NOUNS[unit]} may resemble each other (autocorrelation {spread.correlation:.2f}): an "
            f"interval that allows for it, {spread.caution:.1f} times as wide, reaches across the margin of "
            f"{margin:.1%}"
        )
    return verdict, ""


def _place_interval(spread: Spread, margin: float, level: float) -> Verdict:
    """Return the verdict by the position of the interval of a mean log ratio to the margin."""
    wide, narrow = spread.interval(level), spread.interval(2 * level - 1)
    m = math.log1p(margin)
    if wide is None or narrow is None:
        return "not_shown"
    if wide[0] > m:
        return "faster"
    if wide[1] < -m:
        return "slower"
    return "equivalent" if -m < narrow[0] and narrow[1] < m else "not_shown"


def count_needed(spread: Spread, margin: float, level: float = 0.95) -> int | None:
    """Return the number of trials that would show a verdict with a chance of 80 %, if mean and spread stay as they are.

    None where more than 1,000 would be needed: the difference is about as large as the margin. Where the spread is
    unknown (one process), the six that any verdict needs.
    """
    if spread.error is None:
        return MIN_TRIALS
    m = math.log1p(margin)
    beyond = abs(spread.mean) > m
    gap, p = abs(abs(spread.mean) - m), (1 + level) / 2 if beyond else level
    deviation = spread.error * spread.caution * math.sqrt(spread.n)

    def shows(k: int) -> bool:
        return (quantile_of_t(p, k - 1) + quantile_of_t(POWER, k - 1)) * deviation / math.sqrt(k) < gap

    # Each further trial narrows the interval, so the first k that fits is found by halving.
    needed = bisect_left(range(MAX_TRIALS + 1), True, MIN_TRIALS, key=shows)
    return needed if needed <= MAX_TRIALS else None


def comparable(base: Result, cand: Result, margin: float = MARGIN, *, neighbours: bool = False) -> list[str]:
    """List the reasons why two configurations must not be compared; empty if they may.

    Args:
        margin: largest relative difference of the reference kernel between runs made at different times.
        neighbours: the configurations were measured interleaved in one run, so that the reference kernel need not show
            that the machine was the same.
    """
    before, after = _list_settings(base), _list_settings(cand)
    reasons = _list_differences(before, after, [name for name in before if "" not in (before[name], after[name])])
    _, times, why_not = choose_clock(base.measurements, cand.measurements)
    if times is None:
        reasons.append(why_not)
    if base.machine and cand.machine:
        before, after = _list_hardware(base.machine), _list_hardware(cand.machine)
        # Of neighbours what no machine changes while it runs: another one's row may have been put into their folder.
        reasons += _list_differences(before, after, ("arch", "cpu model", "cores physical") if neighbours else before)
    if not neighbours and (moved := _compare_references(base, cand, margin)):
        reasons.append(moved)
    return reasons


def _list_differences(base: Mapping[str, object], cand: Mapping[str, object], names: Iterable[str]) -> list[str]:
    return [f"{name}: {base[name]} against {cand[name]}" for name in names if base[name] != cand[name]]


def _list_settings(result: Result) -> dict[str, object]:
    """Setting -> its value; "" where that was not recorded."""
    engine, measure = result.engine, result.measure
    return {
        "batch": engine.batch,
        "traffic": format_whole_traffic(engine.traffic) or "one shape",
        "scope": measure.scope,
        "cache": measure.cache,
        "threads": engine.threads,
        "device": engine.device,
        "input shapes": _shapes(result),
        "preprocess hash": find_preprocess(result),
    }


def _shapes(result: Result) -> str:
    """Return the input shapes of what the engine loaded, with the batch filled in; "" where they were not recorded.

    Images in bytes are distinguished from those in floats, which are prepared otherwise and four times as long.
    """
    inputs = result.artifacts[-1].inputs if result.artifacts else ()
    shapes = []
    for spec in inputs:
        shape = "x".join(map(str, concrete_shape(spec, result.engine.batch))) or "scalar"
        shapes.append(f"{shape} in bytes" if spec.dtype == "uint8" else shape)
    return ", ".join(shapes)


def find_preprocess(result: Result) -> str:
    """Return the hash of the last artifact that has one; "" if unknown, as for a graph whose ranges the user
    brought."""
    hashes = [str(a.preprocess_sha256) for a in result.artifacts if is_known(a.preprocess_sha256)]
    return hashes[-1] if hashes else ""


def _list_hardware(machine: Machine) -> dict[str, object]:
    names = ("arch", "cpu_model", "cores_physical", "cpu_quota_cores", "governor", "jetson")
    return {name.replace("_", " "): getattr(machine, name) for name in names} | {
        "CPUs allowed": len(machine.cpus_allowed),
        "GPUs": [gpu.name for gpu in machine.gpus],
        "GPU power limits": [gpu.power_limit_w for gpu in machine.gpus],
    }


def _compare_references(base: Result, cand: Result, margin: float) -> str:
    """Return why the reference kernel forbids a comparison, or ""."""
    medians = [[median(m.reference_ns) for m in r.measurements if m.reference_ns] for r in (base, cand)]
    if not all(medians):
        return (
            "made at different times without the reference kernel on both sides; measure them together with "
            "`bench --against`"
        )
    logs = [measure_spread(take_logs(side, "the reference kernel")).mean for side in medians]
    moved = logs[1] - logs[0]
    if abs(moved) <= math.log1p(margin):
        return ""
    sides = ([m.started_utc for m in row.measurements if m.started_utc] for row in (base, cand))
    first, second = sorted((min(times), max(times)) if times else ("", "") for times in sides)
    cure = "measure both together with `bench --against`"
    if first[1] and second[0] < first[1]:  # one began before the other had ended
        cure = "both were measured interleaved; measure again on a quiet machine"
    return (
        f"the machine changed: its reference kernel took {math.exp(moved):.3f} times as long for the candidate; {cure}"
    )


def find_level(*rows: Result) -> float:
    """Return the level of the interval of a comparison: that of the first look at which one of the configurations
    ended."""
    least = min((row.look for row in rows if row.look is not None), default=None)
    if least is None:
        return FIXED
    return next((level for trials, level in LEVELS.items() if least <= trials), LEVELS[MOST])


def list_open(rows: Sequence[Result], trials: int, margin: float, pairs: Collection[frozenset[str]]) -> set[str]:
    """Return the ids of configurations of one setting for which a comparison may change after so many trials.

    Only comparisons of these `pairs` count: no output shows which of two others is faster. A configuration that ended
    before is left out: what its comparisons showed stays.
    """
    brief = [  # the first trials of each, as their medians alone
        replace(row, measurements=tuple(reduce_to_median(m) for m in row.measurements if m.trial < trials))
        for row in rows
        if row.look is None or row.look >= trials
    ]
    open_ids: set[str] = set()
    for base, cand in combinations([row for row in brief if len(row.measurements) == trials], 2):
        _, times, _ = choose_clock(base.measurements, cand.measurements)
        compared_times = times if {base.id, cand.id} in pairs else None
        spread = spread_pairs(base.measurements, cand.measurements, compared_times)[0] if compared_times else None
        if spread is not None and can_change(spread, trials, margin):
            open_ids |= {base.id, cand.id}
    return open_ids


def can_change(spread: Spread, trials: int, margin: float) -> bool:
    """Whether more trials are likely to change the verdict on a mean log ratio.

    They are not where trials that are independent, as far as so few can show, give a verdict. Nor where none will come:
    if the values scatter as before, the interval will still reach across the margin however the mean moves until the
    last look.
    """
    if trials >= MOST or spread.error is None:
        return False
    sure = spread
    if is_correlated(spread.correlation, spread.n, EARLY_CHANCE):
        sure = replace(spread, caution=EARLY_WIDTH)
    if decide_verdict(sure, margin, LEVELS[trials])[0] != "not_shown":
        return False
    deviation, m, level = spread.error * math.sqrt(spread.n), math.log1p(margin), LEVELS[MOST]
    moved = quantile_of_t(EXPECTED, spread.n - 1) * deviation * math.sqrt(1 / spread.n - 1 / MOST)
    wide, narrow = (quantile_of_t(p, MOST - 1) * deviation / math.sqrt(MOST) for p in ((1 + level) / 2, level))
    mean = abs(spread.mean)
    return mean + moved - wide > m or max(0.0, mean - moved) + narrow < m


def reduce_to_median(measurement: Measurement) -> Measurement:
    """Return the measurement with one sample, its median: all that comparisons use."""
    kept = {name: getattr(measurement, name) for name in ("latency_ns", "device_ns")}
    return replace(measurement, **{name: [median(values)] if values else values for name, values in kept.items()})
