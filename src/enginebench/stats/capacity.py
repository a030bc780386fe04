"""The search for the highest rate that meets a limit on a percentile: the next rate to try, and the final result."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct, field

from enginebench.core.records import Capacity, Estimate, Probe, RatioValidity, ResultWarning, Validity, Verdict
from enginebench.stats.compare import MIN_TRIALS, count_needed, decide_verdict
from enginebench.stats.intervals import estimate_geometric, measure_series
from enginebench.stats.queueing import Limit
from enginebench.stats.validity import disturbed_alike, grade_ratio

# The search ends when the lowest rate that fails is at most this many times the highest that passes.
RESOLUTION = 1.05
# While only one end is known, the next rate is this many times higher or lower; of a search that begins where another
# ended, less.
STRIDE, SHORT_STRIDE = 1.5, 1.1
# A rate counts as decided after so many probes of one result; the ends of the interval are probed that often.
VOTES = 2
# Capacities are intervals of 5 %, so a verdict on a smaller difference would be one on their edges.
CAPACITY_MARGIN = RESOLUTION - 1
# At this share of the first guess nearly every request finds the engine idle: a limit that does not hold there leaves
# it no use. And a percentile takes as many requests at every rate, so that each lower one would take longer.
LOWEST_SHARE = 0.01


class LoadOutcome(Struct, frozen=True, kw_only=True):
    """The result of a load: requests a second when all arrive at once, or the capacity within a limit."""

    per_s: float | None = None
    capacity: Capacity | None = None
    validity: Validity
    warnings: tuple[ResultWarning, ...] = field(name="caveats")


class CapacitySearch:
    """Bracket the highest rate, then bisect on a log scale; ends that contradict others are probed again.

    Args:
        resolution: fails over passes at which the search ends.
        stride: the first step away from the guess; each further one in the same direction is longer by it.
        votes: probes that the rates at both ends of the bracket need before the search ends.
        lowest_share: fraction of `first_qps` below which no rate is probed.
    """

    def __init__(
        self,
        first_qps: float,
        limit: Limit,
        *,
        resolution: float = RESOLUTION,
        stride: float = STRIDE,
        votes: int = VOTES,
        lowest_share: float = LOWEST_SHARE,
    ) -> None:
        self._first, self._limit, self._resolution = first_qps, limit, resolution
        self._stride, self._wanted, self._lowest = stride, votes, lowest_share * first_qps
        self.probes: list[Probe] = []

    def add(self, qps: float, passed: bool, suspect: bool = False) -> None:
        self.probes.append(Probe(qps=qps, passed=passed, suspect=suspect))

    def next_rate(self) -> float | None:
        """Return the next rate to try; None when the search is settled."""
        passes, fails = self.find_ends()
        if passes is None and fails is None:
            return self._first
        if (uncertain := self._find_uncertain()) is not None:
            return uncertain
        if passes is None:
            assert fails is not None
            lower = max(self._lowest, fails / self._stride ** len(self._rates(False)))
            return None if fails <= self._lowest else lower
        if fails is None:
            return passes * self._stride ** len(self._rates(True))
        if fails / passes > self._resolution:
            return math.sqrt(fails * passes)
        return next((rate for rate in (fails, passes) if self._count(rate) < self._wanted), None)

    def find_ends(self) -> tuple[float | None, float | None]:
        """Return (highest rate that passes below all that fail, lowest rate that fails), each by the majority of its
        probes."""
        fails = min(self._rates(False), default=None)
        return max((rate for rate in self._rates(True) if fails is None or rate < fails), default=None), fails

    def describe(self, ended_early: bool) -> Capacity:
        passes, fails = self.find_ends()
        ended: Literal["settled", "budget", "nothing passes"] = "settled"
        if ended_early:
            ended = "budget"
        elif passes is None:
            ended = "nothing passes"
        return Capacity(
            passes_qps=passes,
            fails_qps=fails,
            limit_ms=self._limit.ms,
            percentile=self._limit.percentile,
            probes=tuple(self.probes),
            suspect=any(probe.suspect for probe in self.probes if probe.qps in (passes, fails)),
            ended=ended,
        )

    def _find_uncertain(self) -> float | None:
        """Return a rate that passed as often as it failed, or one of two that contradict each other, the one with fewer
        probes."""
        for rate in sorted({probe.qps for probe in self.probes}):
            if 2 * sum(votes := self._votes(rate)) == len(votes):
                return rate
        pairs = ((low, high) for low in self._rates(False) for high in self._rates(True) if low < high)
        rarer = (min(pair, key=self._count) for pair in pairs)  # of equals the lower one
        return next((rate for rate in rarer if self._count(rate) <= VOTES), None)

    def _rates(self, passed: bool) -> list[float]:
        """Return the rates at which more than half of the probes passed, or did not."""
        votes = {rate: self._votes(rate) for rate in sorted({probe.qps for probe in self.probes})}
        return [rate for rate, own in votes.items() if (2 * sum(own) > len(own)) is passed]

    def _votes(self, rate: float) -> list[bool]:
        return [probe.passed for probe in self.probes if probe.qps == rate]

    def _count(self, rate: float) -> int:
        return len(self._votes(rate))


def agrees_with_probes(capacity: Capacity) -> bool:
    """Whether the ends of a search follow from its probes."""
    search = CapacitySearch(1.0, Limit(ms=capacity.limit_ms, percentile=capacity.percentile))
    for probe in capacity.probes:
        search.add(probe.qps, probe.passed)
    return search.find_ends() == (capacity.passes_qps, capacity.fails_qps)


class CapacityVerdict(Struct, frozen=True, kw_only=True):
    """Whether a configuration carries more requests than the first; `ratio` is its capacity over that one's."""

    base: str
    candidate: str
    verdict: Verdict
    ratio: Estimate | None
    ratio_validity: RatioValidity | None = None
    reasons: tuple[str, ...] = ()
    trials_needed: int | None = field(default=None, name="repetitions_needed")


def compare_capacities(
    base: Sequence[Capacity], candidate: Sequence[Capacity], names: tuple[str, str]
) -> CapacityVerdict:
    """Compare capacities that were measured interleaved, one pair a round.

    Each is taken as the geometric middle of its interval. As everywhere, a verdict needs six rounds, and `faster` means
    that the interval of the ratio is above the margin. A round that ran out of time is left out: its ends have not met,
    so their middle shows where the search stopped and not what the engine carries.
    """
    rounds = [(a, b) for a, b in zip(base, candidate, strict=False) if "budget" not in (a.ended, b.ended)]
    pairs = [(find_middle(a), find_middle(b)) for a, b in rounds]
    measured = [(a, b) for a, b in pairs if a and b]
    if not measured:
        ended = "no round came to its end on both sides: raise --time-budget"
        why = "no round found a rate that meets the limit on both sides" if rounds else ended
        return CapacityVerdict(base=names[0], candidate=names[1], verdict="not_comparable", ratio=None, reasons=(why,))
    spread = measure_series([math.log(b / a) for a, b in measured])
    shown, why = decide_verdict(spread, CAPACITY_MARGIN)
    ratio = estimate_geometric(spread, 0.95, 1.0, "t interval over the logs of the rounds' ratios")
    disturbed = [sum(pair[side].suspect for pair in rounds) / len(rounds) for side in (0, 1)]
    validity, why_not_good = grade_ratio(ratio, disturbed, spread.correlation)
    alike = disturbed_alike(disturbed)  # else the difference may be that of the disturbance
    verdict: Verdict = shown if alike else "not_shown"
    of_ratio = "" if validity == "good" else f"the validity of the ratio is {validity}: {why_not_good}"
    needed = count_needed(spread, CAPACITY_MARGIN) if spread.n >= MIN_TRIALS else MIN_TRIALS
    return CapacityVerdict(
        base=names[0],
        candidate=names[1],
        verdict=verdict,
        ratio=ratio,
        ratio_validity=validity,
        reasons=tuple(filter(None, (why, of_ratio))),
        trials_needed=needed if shown == "not_shown" else None,
    )


def find_middle(capacity: Capacity) -> float | None:
    if capacity.passes_qps is None:
        return None
    return math.sqrt(capacity.passes_qps * (capacity.fails_qps or capacity.passes_qps))


def join_capacities(capacities: Iterable[Capacity]) -> Capacity | None:
    """Join the capacities of all rounds: the rates that passed in each of them, and that failed in each.

    A round that ran out of time counts only where no other was completed.
    """
    every = list(capacities)
    if not every:
        return None
    rounds = [one for one in every if one.ended != "budget"] or every
    passes = [one.passes_qps for one in rounds]
    fails = [one.fails_qps for one in rounds if one.fails_qps is not None]
    return Capacity(
        passes_qps=min(filter(None, passes)) if all(passes) else None,
        fails_qps=max(fails, default=None),
        limit_ms=rounds[0].limit_ms,
        percentile=rounds[0].percentile,
        probes=tuple(probe for one in every for probe in one.probes),
        suspect=any(one.suspect for one in rounds),
        ended=rounds[-1].ended if all(one.ended == rounds[0].ended for one in rounds) else "budget",
    )
