"""The price of a way around: its time over that of the faulty engine, interleaved in one process."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from enginebench.core.engine_api import RunCall
from enginebench.core.protocols import Engine
from enginebench.core.records import Estimate
from enginebench.features.locate.program import Arrays
from enginebench.stats.intervals import estimate_geometric, measure_spread

# Turns of each engine, and the seconds of a turn: the interval of twelve is 1.1 times as wide as that of twenty, and a
# turn is long against the clock. Of a large graph, whose turn is one long call, six do after so many seconds.
TURNS, FEWEST_TURNS = 12, 6
TURN_S, ENOUGH_S = 0.05, 10.0
LEVEL = 0.95


def compare_times(loads: Sequence[Callable[[], Engine]], feeds: Arrays) -> Estimate:
    """Return the time of the second engine over that of the first, interleaved, with its interval."""
    with ExitStack() as stack:
        calls = [stack.enter_context(load()) for load in loads]
        for engine in calls:
            engine.bind({spec.name: feeds[spec.name] for spec in engine.inputs})  # what nothing reads may be cut away
            engine.run()
        counts = [_count_calls(engine.run) for engine in calls]
        logs, start = list[float](), time.perf_counter()
        while len(logs) < TURNS and (len(logs) < FEWEST_TURNS or time.perf_counter() - start < ENOUGH_S):
            order = (0, 1) if len(logs) % 2 else (1, 0)
            times = {i: _time_calls(calls[i].run, counts[i]) for i in order}
            logs.append(math.log(times[1] / times[0]))
    return estimate_geometric(measure_spread(logs), LEVEL, 1.0, f"{len(logs)} turns in one process")


def _count_calls(run: RunCall) -> int:
    return max(1, int(TURN_S / max(1e-7, _time_calls(run, 1))))


def _time_calls(run: RunCall, count: int) -> float:
    """Return the seconds of one call, of so many."""
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count
