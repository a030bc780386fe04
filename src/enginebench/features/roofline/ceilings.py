"""The best that a machine was seen to do: trials of known work, each tried again and again, and the best one kept.

A rate that was reached once can be reached: noise only ever takes away. So a ceiling is a best, never a mean, and the
spread of the bests over repetitions says how near it is to settled.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct

from enginebench.core.ceilings import UNITS, Ceiling, CeilingKind
from enginebench.core.records import Precision

# Seconds of so many calls in a row.
Timer: TypeAlias = Callable[[Callable[[], object], int], float]
# A clock that ticks in nanoseconds and costs some tens of them is told apart from nothing by this much.
SHORTEST_S = 20e-6
# Nobody waits for a trial that takes longer; the first call of each is not counted.
MOST_CALLS = 1 << 16


class Trial(Struct, frozen=True, kw_only=True):
    """One way to reach a ceiling: `call` does `work`: multiply-accumulates, bytes, or how often a cost is paid."""

    kind: CeilingKind
    call: Callable[[], object]
    work: float
    precision: Precision | None = None
    how: str = ""
    capacity_bytes: int | None = None


class Observed(Struct, frozen=True, kw_only=True):
    """The best of one ceiling in one process."""

    kind: CeilingKind
    precision: Precision | None
    value: float
    how: str
    capacity_bytes: int | None = None


def time_calls(call: Callable[[], object], count: int) -> float:
    """Seconds of `count` calls by the host's clock: for what is complete when it returns."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def observe(
    trials: Iterable[Trial],
    *,
    budget_s: float,
    timer: Timer = time_calls,
    clock: Callable[[], float] = time.perf_counter,
    repetitions: int = 1,
) -> list[list[Observed]]:
    """For each repetition the best of each ceiling, over all trials of it.

    Trials take turns within a repetition, so that none has all of the quiet moments.

    Args:
        trials: several of one kind and precision are ways to the same ceiling.
        budget_s: seconds for each ceiling in each repetition.
    """
    groups: dict[tuple[CeilingKind, Precision | None], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.kind, trial.precision), []).append(trial)
    counts = {id(trial): count_calls(trial, timer) for group in groups.values() for trial in group}
    return [
        [_observe_group(group, counts, budget_s, timer, clock) for group in groups.values()] for _ in range(repetitions)
    ]


def count_calls(trial: Trial, timer: Timer) -> int:
    """Calls that are timed together, so that a clock can tell them from nothing; warms up, too."""
    timer(trial.call, 1)
    count = 1
    while count < MOST_CALLS and timer(trial.call, count) < SHORTEST_S:
        count *= 2
    return count


def _observe_group(
    group: Sequence[Trial], counts: dict[int, int], budget_s: float, timer: Timer, clock: Callable[[], float]
) -> Observed:
    best: dict[int, float] = {}
    end = clock() + budget_s
    while not best or clock() < end:
        for trial in group:
            count = counts[id(trial)]
            seconds = timer(trial.call, count) / count
            best[id(trial)] = min(seconds, best.get(id(trial), seconds))
    values = [(find_value(trial, best[id(trial)]), trial) for trial in group]
    value, trial = (min if _is_cost(group[0].kind) else max)(values, key=lambda pair: pair[0])
    return Observed(
        kind=trial.kind, precision=trial.precision, value=value, how=trial.how, capacity_bytes=trial.capacity_bytes
    )


def find_value(trial: Trial, seconds: float) -> float:
    """What a trial shows that took so long, in the unit of its kind."""
    if _is_cost(trial.kind):
        return 1e6 * seconds / trial.work
    return trial.work / max(seconds, 1e-12) / 1e9


def _is_cost(kind: CeilingKind) -> bool:
    return UNITS[kind] == "us"


def join_repetitions(
    repetitions: Sequence[Sequence[Observed]], *, device: str, threads: int | None
) -> tuple[Ceiling, ...]:
    """The peaks of one device and number of threads: of each the best over all repetitions, with the spread."""
    groups: dict[tuple[CeilingKind, Precision | None], list[Observed]] = {}
    for observed in (one for repetition in repetitions for one in repetition):
        groups.setdefault((observed.kind, observed.precision), []).append(observed)
    return tuple(_join(group, device, threads) for group in groups.values())


def _join(group: Sequence[Observed], device: str, threads: int | None) -> Ceiling:
    ranked = sorted(group, key=lambda one: one.value)
    best = ranked[0] if _is_cost(group[0].kind) else ranked[-1]
    return Ceiling(
        kind=best.kind,
        precision=best.precision,
        threads=threads,
        value=best.value,
        unit=UNITS[best.kind],
        low=ranked[0].value,
        high=ranked[-1].value,
        device=device,
        capacity_bytes=best.capacity_bytes,
        n=len(group),
        how=best.how,
    )
