"""The best that a machine was seen to do: trials of known work, each tried again and again, and the best one kept.

A rate that was reached once can be reached: noise only ever takes away. So a ceiling is a best, never a mean, and the
spread of the bests over repetitions says how near it is to settled.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

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


def time_calls(call: Callable[[], object], count: int) -> float:
    """Seconds of `count` calls by the host's clock: for what is complete when it returns."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def observe(
    trials: Iterable[Trial],
    *,
    device: str,
    threads: int | None,
    budget_s: float,
    timer: Timer = time_calls,
    clock: Callable[[], float] = time.perf_counter,
    repetitions: int = 1,
) -> list[Ceiling]:
    """The best of each ceiling in each repetition, over all trials of it.

    Trials take turns within a repetition, so that none has all of the quiet moments.

    Args:
        trials: several of one kind and precision are ways to the same ceiling.
        budget_s: seconds for each ceiling in each repetition.
    """
    groups: dict[tuple[CeilingKind, Precision | None], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.kind, trial.precision), []).append(trial)
    counts = {id(trial): count_calls(trial, timer) for group in groups.values() for trial in group}
    best = [_time_group(group, counts, budget_s, timer, clock) for _ in range(repetitions) for group in groups.values()]
    return [
        Ceiling(
            kind=trial.kind,
            precision=trial.precision,
            threads=threads,
            value=value,
            unit=UNITS[trial.kind],
            low=value,
            high=value,
            device=device,
            capacity_bytes=trial.capacity_bytes,
            how=trial.how,
        )
        for value, trial in best
    ]


def count_calls(trial: Trial, timer: Timer) -> int:
    """Calls that are timed together, so that a clock can tell them from nothing; warms up, too."""
    timer(trial.call, 1)
    count = 1
    while count < MOST_CALLS and timer(trial.call, count) < SHORTEST_S:
        count *= 2
    return count


def _time_group(
    group: Sequence[Trial], counts: dict[int, int], budget_s: float, timer: Timer, clock: Callable[[], float]
) -> tuple[float, Trial]:
    best: dict[int, float] = {}
    end = clock() + budget_s
    while not best or clock() < end:
        for trial in group:
            count = counts[id(trial)]
            seconds = timer(trial.call, count) / count
            best[id(trial)] = min(seconds, best.get(id(trial), seconds))
    values = [(find_value(trial, best[id(trial)]), trial) for trial in group]
    return (min if _is_cost(group[0].kind) else max)(values, key=lambda pair: pair[0])


def find_value(trial: Trial, seconds: float) -> float:
    """What a trial shows that took so long, in the unit of its kind."""
    if _is_cost(trial.kind):
        return 1e6 * seconds / trial.work
    return trial.work / max(seconds, 1e-12) / 1e9


def _is_cost(kind: CeilingKind) -> bool:
    return UNITS[kind] == "us"


def join_best(found: Iterable[Ceiling]) -> tuple[Ceiling, ...]:
    """Of each ceiling the best over repetitions or processes, and how far apart these are."""
    groups: dict[tuple[CeilingKind, Precision | None], list[Ceiling]] = {}
    for ceiling in found:
        groups.setdefault((ceiling.kind, ceiling.precision), []).append(ceiling)
    return tuple(
        replace(
            (min if _is_cost(kind) else max)(group, key=lambda one: one.value),
            low=min(one.low for one in group),
            high=max(one.high for one in group),
            n=sum(one.n for one in group),
        )
        for (kind, _), group in groups.items()
    )
