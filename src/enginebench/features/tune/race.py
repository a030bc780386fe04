"""A race of settings: rounds of fresh processes; a candidate that cannot win any more is dropped. No clock, no engine.

A cost is the result of one process, lower if better: a median time, a time for each sample, the inverse of a capacity.
In each round every remaining candidate gets one process. So candidates are compared round by round with the leader, and
whatever slows the machine for a while slows both.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from enginebench.core.limits import MARGIN
from enginebench.core.records import Estimate
from enginebench.features.tune.records import Dropped
from enginebench.stats.compare import Comparison, conclude
from enginebench.stats.intervals import Spread, estimate_geometric, measure_series, measure_spread

# Rounds after which candidates that cannot win are dropped. The first is the least with an interval; looking less and
# less often keeps the errors of many looks few, and each look has about half of the candidates of the one before.
# Source of the idea: K. Jamieson, A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
# optimization", AISTATS (2016), which halves by rank; here the interval decides.
LOOKS = (2, 3, 4, 6, 8, 10)
LEVEL = 0.95
# A candidate that takes so many times as long as the leader in the first round is out, unless all others fail.
FAR = 2.0
# A final that can still show that the default is beaten goes on to at most so many times its first length; one of a
# single setting, which has nothing to beat, has so many rounds for the interval of its time.
MOST_TIMES, ALONE = 3, 3
# It is looked at twice, after its first length and at its end: half of the error of LEVEL each. Looks after every round
# named a challenger that is ahead by no more than the margin in 8 to 10 % of simulated finals, not in 2.5 %.
FINAL_LEVEL = 1 - (1 - LEVEL) / 2


def pool_spreads(spreads: Sequence[Spread]) -> list[Spread]:
    """Give each mean the error that follows from the pooled variance: few values alone estimate it badly."""
    estimated = [s for s in spreads if s.error is not None]
    freedom = math.fsum(s.freedom for s in estimated)
    if not estimated:
        return list(spreads)
    variance = math.fsum((s.error or 0.0) ** 2 * s.n * s.freedom for s in estimated) / freedom
    errors = [None if s.error is None else math.sqrt(variance / s.n) for s in spreads]
    return [Spread(mean=s.mean, error=e, freedom=freedom, n=s.n) for s, e in zip(spreads, errors, strict=True)]


class Race:
    """A race in progress.

    A dropped candidate is, with 95 % confidence, not faster than the leader by more than the margin. So equals drop out
    as soon as none of them can be worth more, and the race is over when one is left.
    """

    def __init__(
        self, candidates: Sequence[str], *, generation: int = 1, first: int = 0, looks: Sequence[int] = LOOKS
    ) -> None:
        """Start with candidates of different names, earlier ones preferred at equal cost; `first`: number of its first
        round."""
        self._logs: dict[str, list[float]] = {name: [] for name in candidates}
        self._generation, self._first, self._looks = generation, first, tuple(looks)
        self.alive = list(candidates)
        self.drops: list[Dropped] = []
        self.rounds = 0

    @property
    def next_round(self) -> int:
        return self._first + self.rounds

    @property
    def over(self) -> bool:
        return len(self.alive) <= 1 or self.rounds >= self._looks[-1]

    @property
    def leader(self) -> str | None:
        """The candidate with the lowest mean; None if all failed."""
        return min(self.alive, key=self._mean, default=None)

    def list_turns(self) -> list[str]:
        """List the candidates of the next round in order; the order is reversed every round, so that a machine that
        becomes slower and slower favours none."""
        return self.alive[::-1] if self.rounds % 2 else list(self.alive)

    def fail(self, candidate: str, reason: str) -> None:
        self.alive.remove(candidate)
        number = self.next_round + 1
        self.drops.append(Dropped(candidate=candidate, generation=self._generation, round=number, reason=reason))
        if not self.alive:
            self.alive = [drop.candidate for drop in self.drops if drop.ratio and drop.ratio.n == 1]
            self.drops = [drop for drop in self.drops if drop.candidate not in self.alive]

    def add_round(self, costs: Mapping[str, float]) -> None:
        """Add the costs of all remaining candidates; at a look, drop those that cannot win any more."""
        for name in self.alive:
            self._logs[name].append(math.log(costs[name]))
        self.rounds += 1
        if self.rounds == 1 or self.rounds in self._looks:
            self._look()

    def compare(self, candidate: str) -> Spread:
        """Return the log of a candidate's speed over the leader's, round by round: below 0, it is slower."""
        leader = self._logs[self.leader or candidate]
        own = self._logs[candidate]
        return measure_spread([theirs - mine for theirs, mine in zip(leader, own, strict=False)])

    def measure_leads(self) -> dict[str, float]:
        """Return each candidate's cost over the leader's, by the rounds that it took part in; none for those that
        failed."""
        failed = {drop.candidate for drop in self.drops if drop.ratio is None}
        ran = [name for name, logs in self._logs.items() if logs and name not in failed]
        return {name: math.exp(-self.compare(name).mean) for name in ran if self.leader is not None}

    def _mean(self, name: str) -> float:
        logs = self._logs[name]
        return math.fsum(logs) / len(logs) if logs else 0.0

    def _look(self) -> None:
        leader = self.leader
        others = [name for name in self.alive if name != leader]
        for name, spread in zip(others, pool_spreads([self.compare(name) for name in others]), strict=True):
            bounds = spread.interval(LEVEL)
            # Without an interval, after the first round, only those that are far slower are dropped.
            loses = spread.mean < -math.log(FAR) if bounds is None else bounds[1] < math.log1p(MARGIN)
            if loses:
                self.alive.remove(name)
                slower = bounds is None or bounds[1] < 0
                why = "slower than the leader" if slower else f"not faster than the leader by more than {MARGIN:.1%}"
                range_ = ", {:.3f} to {:.3f}".format(*map(math.exp, bounds)) if bounds else " in the first round"
                method = f"{spread.n} rounds, Student t with pooled variance over ln(leader / candidate)"
                dropped = Dropped(
                    candidate=name,
                    generation=self._generation,
                    round=self.next_round,
                    reason=f"{why}: {math.exp(spread.mean):.3f}x as fast{range_}",
                    leader=leader,
                    ratio=estimate_geometric(spread, LEVEL, 1.0, method),
                )
                self.drops.append(dropped)


class Final:
    """The winner of a race against the defaults, re-measured: winning a race takes luck, too.

    It ends after `length` rounds, unless the best default may still be beaten: then it continues for as many as should
    show it, at most three times the length.
    """

    def __init__(
        self,
        challenger: str,
        defaults: Sequence[str],
        *,
        length: int,
        assess: Callable[[str, str, Comparison], Comparison] = lambda base, candidate, comparison: comparison,
    ) -> None:
        """Start with the challenger, which may be a default. `assess` adds the validity of a ratio, by the disturbances
        meanwhile; without a ratio, no default is beaten."""
        self._assess = assess
        self.challenger, self.defaults = challenger, tuple(defaults)
        self._logs: dict[str, list[float]] = {name: [] for name in dict.fromkeys((challenger, *defaults))}
        self._length = self._end = length if len(self._logs) > 1 else min(length, ALONE)
        self.failed: dict[str, str] = {}
        self.rounds = 0

    @property
    def alive(self) -> list[str]:
        names = [name for name in self._logs if name not in self.failed]
        return names[::-1] if self.rounds % 2 else names

    @property
    def over(self) -> bool:
        return not self.alive or self.rounds >= self._end

    def fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason

    def add_round(self, costs: Mapping[str, float]) -> None:
        for name in self.alive:
            self._logs[name].append(math.log(costs[name]))
        self.rounds += 1
        comparison = self.compare(self.best_default) if self.best_default and self.rounds == self._length else None
        if (
            comparison is not None
            and comparison.verdict == "not_shown"
            and comparison.ratio
            and comparison.ratio.value > 1 + MARGIN
        ):
            self._end = max(self._length, min(MOST_TIMES * self._length, comparison.trials_needed or 0))

    @property
    def best_default(self) -> str | None:
        left = [name for name in self.defaults if name not in self.failed and self._logs[name]]
        return min(left, key=lambda name: math.fsum(self._logs[name]) / len(self._logs[name]), default=None)

    @property
    def beaten(self) -> bool:
        """Whether the challenger was shown to be faster than the best default: by a verdict, or by so much that neither
        a warning about the ratio nor a lack of trials changes which one is faster."""
        comparison = self.compare(self.best_default) if self.best_default else None
        shown = comparison is not None and (comparison.verdict == "faster" or comparison.clear)
        return shown and self.challenger not in self.failed

    @property
    def winner(self) -> str | None:
        """The challenger if it beat the best default; else that default: without proof nothing should be changed.

        If no default was measured, the challenger, if it was measured.
        """
        left = self.challenger not in self.failed and self._logs[self.challenger]
        if self.beaten or (self.best_default is None and left):
            return self.challenger
        return self.best_default

    def compare(self, default: str) -> Comparison | None:
        """Compare the challenger with a default; None for itself, and where one of them was not measured."""
        pairs = list(zip(self._logs[default], self._logs[self.challenger], strict=False))
        if default == self.challenger or not pairs:
            return None
        spread = measure_series([theirs - ours for theirs, ours in pairs])
        method = f"{spread.n} rounds of fresh processes, Student t over ln(default / winner)"
        return self._assess(default, self.challenger, conclude(spread, method, MARGIN, FINAL_LEVEL, "host", ()))

    def estimate(self, name: str, unit: float = 1.0) -> Estimate | None:
        """Estimate the geometric mean of a setting's costs, times `unit`; None if it was not measured."""
        logs = self._logs[name]
        return estimate_geometric(measure_spread(logs), LEVEL, unit, f"{len(logs)} processes") if logs else None
