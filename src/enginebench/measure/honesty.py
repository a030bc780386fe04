"""Whether an engine does the work of the model in each call that is timed; asked outside of the timed calls.

An engine could compute in `bind`, in the first call after it, or for inputs that it has not seen, and hand out in every
other call what it has. Its outputs are right then, and its times are those of nothing.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from enginebench.core.protocols import Array, Engine, Feeds
from enginebench.core.records import ResultWarning
from enginebench.core.warnings import make_warning

Clock = Callable[[], int]

# Rounds of a first look, as many as fit into so many nanoseconds, and at least two: an engine is asked for more only
# where the least of them is far from what was timed.
ROUNDS = 7
LEAST_ROUNDS = 2
LOOK_NS = 50_000_000
# Half of the work in the wrong place is far from what an honest engine does, and from what the clock can blur: of four
# engines on a CPU the first call on new inputs took 1.1 to 1.3 times as long as a repeated one of 17 to 230 us.
HALF = 0.5
# An engine is at fault where so many of the rounds of a second look agree: who disturbs it does not keep to its rounds.
SECOND_ROUNDS = 5
AGREEING = 4
# How long a round of the second look waits for calls to become short, and how many consecutive short ones end it.
WAIT_NS = 3_000_000_000
SHORT_CALLS = 3
# Below this no difference counts: a clock has its tick, and Python its call.
TICK_NS = 2_000
# What an honest `bind` may take: it checks, converts and copies its inputs, to a GPU twice. Of 256 bytes, which take
# 0.6 us to copy, it took four engines on a CPU 6 to 11 us.
BIND_COPIES = 20
BIND_NS = 50_000


def find_skipped_work(
    engine: Engine, feeds: Feeds, timed_ns: float, *, waits: bool = False, clock: Clock = time.perf_counter_ns
) -> list[ResultWarning]:
    """Return a warning for work that is done elsewhere than in the timed calls; none where all is as it should be.

    Args:
        feeds: those that were timed; they are changed by turning their values round, and bound again at the end.
        timed_ns: the median of the timed calls.
        waits: work of `bind` may go on after it, as a copy to a GPU does; it is over when outputs are fetched.
    """
    unseen = _make_unseen(feeds)
    bind_ns, first_ns = _time_first_calls(engine, unseen, waits, clock)
    found = []
    allowed_ns = BIND_NS + BIND_COPIES * _time_copies(feeds, clock)
    if bind_ns - allowed_ns > HALF * (bind_ns + timed_ns):
        found.append(make_warning("implausible_time.bind", bind_ms=bind_ns / 1e6, run_ms=timed_ns / 1e6))
    if timed_ns < HALF * (first_ns - TICK_NS):
        found += _look_again(engine, unseen, feeds, waits, clock)
    engine.bind(feeds)
    return found


def _make_unseen(feeds: Feeds) -> Iterator[Feeds]:
    """Yield inputs that the engine has not seen, of the same values in another order."""
    for turn in itertools.count(1):
        yield {name: np.roll(array, turn) for name, array in feeds.items()}


def _time_first_calls(engine: Engine, unseen: Iterator[Feeds], waits: bool, clock: Clock) -> tuple[int, int]:
    """Return the least nanoseconds of a `bind` of new inputs and of the call after it."""
    rounds: list[tuple[int, int]] = []
    while len(rounds) < LEAST_ROUNDS or (len(rounds) < ROUNDS and sum(map(sum, rounds)) < LOOK_NS):
        rounds.append(_time_first_call(engine, next(unseen), waits, clock))
    bind_ns, first_ns = zip(*rounds, strict=True)
    return min(bind_ns), min(first_ns)


def _time_first_call(engine: Engine, feeds: Feeds, waits: bool, clock: Clock) -> tuple[int, int]:
    begin = clock()
    engine.bind(feeds)
    bound = clock()
    if waits:
        engine.fetch()
    return bound - begin, _time_call(engine, clock)


def _time_call(engine: Engine, clock: Clock) -> int:
    run = engine.run
    begin = clock()
    run()
    return clock() - begin


def _time_copies(feeds: Feeds, clock: Clock) -> int:
    """Return the least nanoseconds of a plain copy of the inputs."""
    times = []
    for _ in range(ROUNDS):
        begin = clock()
        _copy(feeds)
        times.append(clock() - begin)
    return min(times)


def _copy(feeds: Feeds) -> list[Array]:
    return [array.copy() for array in feeds.values()]


def _look_again(
    engine: Engine, unseen: Iterator[Feeds], feeds: Feeds, waits: bool, clock: Clock
) -> Sequence[ResultWarning]:
    """Compare calls on new inputs with calls on the same inputs, once these are as short as they become.

    Both are made after a copy of as many bytes as `bind` takes, and a fetch: what a `bind` does to the caches, and to
    threads that wait, makes an honest call longer as well.
    """
    firsts, repeats, agreeing = [], [], 0
    for turn in range(SECOND_ROUNDS):
        if turn - agreeing > SECOND_ROUNDS - AGREEING:
            return ()  # too few can agree
        first_ns = _time_first_call(engine, next(unseen), waits, clock)[1]
        short, end = 0, clock() + WAIT_NS
        while short < SHORT_CALLS and clock() < end:
            short = short + 1 if _time_call(engine, clock) < HALF * first_ns else 0
        _copy(feeds)
        engine.fetch()
        again_ns = _time_call(engine, clock)
        agreeing += again_ns < HALF * (first_ns - TICK_NS)
        firsts.append(first_ns)
        repeats.append(again_ns)
    if agreeing < AGREEING:
        return ()
    first_ms, again_ms = min(firsts) / 1e6, sorted(repeats)[len(repeats) // 2] / 1e6
    return (make_warning("implausible_time.repeated", first_ms=first_ms, again_ms=again_ms),)
