"""The price of a way around: its time over that of the faulty engine, interleaved in one process."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from enginebench.core.engine_api import RunCall
from enginebench.core.protocols import Engine
from enginebench.core.records import Estimate
from enginebench.features.locate.program import Arrays
from enginebench.measure.watch import BlockWatch, Watch
from enginebench.stats.intervals import estimate_geometric, measure_spread
from enginebench.stats.validity import SPOILING_CORES

# Turns of each engine, and the seconds of a turn: the interval of twelve is 1.1 times as wide as that of twenty, and a
# turn is long against the clock. Of a large graph, whose turn is one long call, six do after so many seconds.
TURNS, FEWEST_TURNS = 12, 6
TURN_S, ENOUGH_S = 0.05, 10.0
LEVEL = 0.95
DISTURBED = "other programs used the CPU"


def compare_times(
    loads: Sequence[Callable[[], Engine]], feeds: Arrays, make_watch: Callable[[], Watch] = BlockWatch
) -> Estimate:
    """Return the time of the second engine over that of the first, interleaved, with its interval.

    Without an interval where other programs used the CPU meanwhile: beside one busy loop, intervals of a ratio of 1.37
    were 0.60 to 0.68 and 1.78 to 2.80 (ResNet-18, two threads on two cores), as threads that wait for each other lose
    more than one that does not.
    """
    watch = make_watch()
    with ExitStack() as stack:
        calls = [stack.enter_context(load()) for load in loads]
        for engine in calls:
            engine.bind({spec.name: feeds[spec.name] for spec in engine.inputs})  # what nothing reads may be cut away
            engine.run()
        counts = [_count_calls(engine.run) for engine in calls]
        logs, start = list[float](), time.perf_counter()
        watch.begin()
        while len(logs) < TURNS and (len(logs) < FEWEST_TURNS or time.perf_counter() - start < ENOUGH_S):
            order = (0, 1) if len(logs) % 2 else (1, 0)
            times = {i: _time_calls(calls[i].run, counts[i]) for i in order}
            logs.append(math.log(times[1] / times[0]))
        disturbed = (watch.end().foreign_cpu_cores or 0.0) >= SPOILING_CORES
    estimate = estimate_geometric(measure_spread(logs), LEVEL, 1.0, f"{len(logs)} turns in one process")
    return replace(estimate, low=None, high=None, method=DISTURBED) if disturbed else estimate


def _count_calls(run: RunCall) -> int:
    return max(1, int(TURN_S / max(1e-7, _time_calls(run, 1))))


def _time_calls(run: RunCall, count: int) -> float:
    """Return the median of the seconds of so many calls: a call that is interrupted takes many times as long."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
