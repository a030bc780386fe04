"""Check, outside of the timed calls, that an engine does the work of the model in each call that is timed.

An engine could compute in `bind`, in the first call after it, or only for inputs that it has not seen before, and
return stored outputs in every other call. Its outputs would be right, but its times would be those of no work at all.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from enginebench.core.protocols import Array, Engine, Feeds, RunCall
from enginebench.core.records import ResultWarning
from enginebench.core.warnings import make_warning

Clock = Callable[[], int]

# A first look takes at most ROUNDS rounds, as many as fit into LOOK_NS, and at least two. A second look follows only
# where the shortest of them is far from the time that was measured.
ROUNDS = 7
LEAST_ROUNDS = 2
LOOK_NS = 50_000_000
# An engine that does half of its work outside of the timed calls is far from an honest one, and further than the clock
# can blur: of four engines on a CPU the first call on new inputs took 1.1 to 1.3 times as long as a repeated one of 17
# to 230 us.
HALF = 0.5
# An engine is at fault where so many rounds of the second look agree: a disturbance from outside does not keep to them.
SECOND_ROUNDS = 9
AGREEING = 7
# How long a round of the second look waits for calls to become short, and how many short calls end it.
WAIT_NS = 3_000_000_000
SHORT_CALLS = 3
# Repeated calls of a round that follow, of which the lower quartile counts: an engine may work in every second call.
REPEATED_CALLS = 8
# An engine may tell a timed call by that it follows the one before at once: so many calls do, and so many come after a
# pause, in which nothing touches the caches. Waking the threads of an honest engine may take WAKE_NS after a long one;
# after a short one they still wait actively: on two quiet cores calls of ONNX Runtime, OpenVINO and PyTorch of 2 us to
# 3.4 ms took at most 38 us longer in seven of nine rounds, as many as must agree; beside three busy loops those of ONNX
# Runtime and OpenVINO no more.
PAUSED_CALLS = 4
PAUSE_NS = 1_000_000
WAKE_NS = 500_000
SHORT_PAUSE_NS = 50_000
SHORT_WAKE_NS = 50_000
# Differences below this do not count: the clock's tick and a Python call take as long.
TICK_NS = 2_000
# What an honest `bind` may take: it checks, converts and copies its inputs, to a GPU twice. With inputs of 256 bytes,
# which take 0.6 us to copy, `bind` took 6 to 11 us in four engines on a CPU.
BIND_COPIES = 20
BIND_NS = 50_000
# An input of fewer values than this is a setting (a scale, a length), whose value stays. Floats of larger ones get so
# much smaller with each new input: too little for other work, and enough for FP16 and BF16 to hold it.
FEWEST_DATA = 8
SHRINK = 2.0**-7
# Untimed calls after the timed ones, so that an engine that stops computing after some hundred calls is found also
# where fewer were enough for its time: this many times as many, as far as they fit into half a second.
LONGER = 5
LONGER_NS = 500_000_000
LATEST = 2  # they end after twice that time, where calls took longer than the short ones before


def find_skipped_work(
    engine: Engine, feeds: Feeds, timed_ns: float, *, waits: bool = False, clock: Clock = time.perf_counter_ns
) -> list[ResultWarning]:
    """Return a warning for each kind of work that is done outside of the timed calls; an empty list if there is none.

    Args:
        feeds: those that were timed; new inputs are made of their values, and `feeds` are bound at the end.
        timed_ns: `find_short_ns` of the timed calls.
        waits: the work of `bind` may go on after it returns, like a copy to a GPU; fetching outputs waits for it.
    """
    unseen = _make_unseen(feeds)
    warnings = []
    copy_ns = _time_copies(feeds, clock)
    allowed_ns = BIND_NS + BIND_COPIES * copy_ns
    bind_ns, first_ns = _time_first_calls(engine, unseen, waits, clock, allowed_ns)
    if bind_ns - allowed_ns > HALF * (bind_ns + timed_ns):
        evidence = f"binding the inputs takes {bind_ns / 1e6:.2g} ms, and a timed call {timed_ns / 1e6:.2g} ms"
        warnings.append(make_warning("implausible_time.outside_run", evidence=evidence))
    # New inputs may have to come from memory, repeated ones lie in a cache: that may take as long as to copy them.
    excused_ns = TICK_NS + copy_ns
    if not warnings and timed_ns < HALF * (first_ns - excused_ns):
        time_first = partial(_time_first_call, engine, waits=waits, clock=clock, allowed_ns=allowed_ns)
        warnings += _look_again(engine, lambda: time_first(next(unseen))[1], feeds, waits, clock, excused_ns)
    engine.bind(feeds)
    return warnings


def run_longer(engine: Engine, timed_ns: Sequence[float], cells: int = 1, clock: Clock = time.perf_counter_ns) -> None:
    """Run an engine on its bound inputs, for more calls than were timed; the cells of a mix share the time for that.

    They shared the time of the timed calls, too: twelve cells with the time of one shape each would take six seconds.
    An engine that works in one of eight calls only would take minutes for them: most of its calls are short.
    """
    run, share_ns = engine.run, LONGER_NS / cells
    end = clock() + LATEST * share_ns
    for _ in range(min(LONGER * len(timed_ns), int(share_ns / max(1, find_short_ns(timed_ns))))):
        if clock() > end:
            break
        run()


def find_short_ns(times_ns: Sequence[float]) -> float:
    """Return the lower quartile of times: of an engine that works in every second call, a call without work."""
    return sorted(times_ns)[len(times_ns) // 4]


def _make_unseen(feeds: Feeds) -> Iterator[Feeds]:
    """Yield inputs that the engine has not seen, with other sums, too: it might know inputs by a checksum.

    No process makes those of another: an engine could keep outputs in a file.
    """
    chance = np.random.default_rng()
    for turn in itertools.count(1):
        yield {name: _vary(array, turn, chance) for name, array in feeds.items()}


def _vary(array: Array, turn: int, chance: np.random.Generator) -> Array:
    """Return values like those of the array: floats rotated and a little smaller, others drawn from its own.

    No value of another type is made up: it may be one that the model does not take.
    """
    rotated: Array = np.roll(array, int(chance.integers(1, max(2, array.size))))
    if array.size < FEWEST_DATA:
        return rotated
    if array.dtype.kind == "f":
        smaller: Array = np.multiply(rotated, 1 - (turn - chance.random() / 2) * SHRINK, dtype=array.dtype)
        return smaller
    drawn = chance.integers(0, array.size, array.shape)
    others: Array = array.reshape(-1)[drawn]
    return others


def _time_first_calls(
    engine: Engine, unseen: Iterator[Feeds], waits: bool, clock: Clock, allowed_ns: int
) -> tuple[int, int]:
    """Return the shortest time, in ns, of a `bind` of new inputs, and that of the call after it."""
    rounds: list[tuple[int, int]] = []
    while len(rounds) < LEAST_ROUNDS or (len(rounds) < ROUNDS and sum(map(sum, rounds)) < LOOK_NS):
        rounds.append(_time_first_call(engine, next(unseen), waits=waits, clock=clock, allowed_ns=allowed_ns))
    bind_ns, first_ns = zip(*rounds, strict=True)
    return min(bind_ns), min(first_ns)


def _time_first_call(engine: Engine, feeds: Feeds, *, waits: bool, clock: Clock, allowed_ns: int) -> tuple[int, int]:
    """Return what a `bind` takes, and the call after it, both in ns.

    What the `bind` takes beyond `allowed_ns` belongs to the call: a thread that `bind` starts may work in either.
    """
    begin = clock()
    engine.bind(feeds)
    bound = clock()
    if waits:
        engine.fetch()
    bind_ns = bound - begin
    return bind_ns, max(0, bind_ns - allowed_ns) + _time_call(engine.run, clock)


def _time_call(run: RunCall, clock: Clock) -> int:
    begin = clock()
    run()
    return clock() - begin


def _time_paused_call(run: RunCall, pause_ns: int, clock: Clock) -> int:
    end = clock() + pause_ns
    while clock() < end:
        pass
    return _time_call(run, clock)


def _time_repeated_call(engine: Engine, run: RunCall, feeds: Feeds, waits: bool, clock: Clock) -> int:
    next(_make_unseen(feeds))
    _copy(feeds)
    if waits:
        engine.fetch()
    return _time_call(run, clock)


def _time_copies(feeds: Feeds, clock: Clock) -> int:
    """Return the shortest time, in ns, of a plain copy of the inputs."""
    times = []
    for _ in range(ROUNDS):
        begin = clock()
        _copy(feeds)
        times.append(clock() - begin)
    return min(times)


def _copy(feeds: Feeds) -> list[Array]:
    return [array.copy() for array in feeds.values()]


def _look_again(
    engine: Engine, time_first: Callable[[], int], feeds: Feeds, waits: bool, clock: Clock, excused_ns: int
) -> Sequence[ResultWarning]:
    """Compare calls on new inputs with calls on the same inputs, once some of these are short.

    What makes new inputs, and a copy of as many bytes as `bind` takes, come before each: their effect on the caches and
    on waiting threads makes an honest call longer as well. Calls at once are also compared with calls after a pause. No
    fetch comes between, and all are calls of one callable, as where times are taken.
    """
    firsts, repeats, agreeing = [], [], 0
    for turn in range(SECOND_ROUNDS):
        if turn - agreeing > SECOND_ROUNDS - AGREEING:
            return ()  # too few can agree
        first_ns, run = time_first(), engine.run
        short, end = 0, clock() + WAIT_NS
        while short < SHORT_CALLS and clock() < end:
            if _time_call(run, clock) < HALF * first_ns:
                short += 1
        at_once_ns = find_short_ns([_time_call(run, clock) for _ in range(PAUSED_CALLS)])
        paused_ns = min(_time_paused_call(run, PAUSE_NS, clock) for _ in range(PAUSED_CALLS))
        shortly_ns = min(_time_paused_call(run, SHORT_PAUSE_NS, clock) for _ in range(PAUSED_CALLS))
        full_ns = max(paused_ns - WAKE_NS, shortly_ns - SHORT_WAKE_NS)
        again_ns = find_short_ns([_time_repeated_call(engine, run, feeds, waits, clock) for _ in range(REPEATED_CALLS)])
        pairs = ((again_ns, first_ns - excused_ns), (at_once_ns, full_ns))
        if skipped := [short_ns for short_ns, long_ns in pairs if short_ns < HALF * long_ns]:
            agreeing += 1
        firsts.append(first_ns)
        repeats.append(min(skipped, default=again_ns))
    # On a busy machine one call takes three times as long as another, whatever its inputs: rounds may agree by chance,
    # and then the first calls of some are no longer than the repeated ones of others.
    first_ns, again_ns = min(firsts), sorted(repeats)[AGREEING - 1]
    if agreeing < AGREEING or again_ns >= HALF * (first_ns - excused_ns):
        return ()
    return (make_warning("implausible_time.repeated", first_ms=first_ns / 1e6, again_ms=again_ns / 1e6),)
