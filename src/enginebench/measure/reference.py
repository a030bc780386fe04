"""Time a fixed piece of work in every trial, to show whether runs made at different times are comparable."""

import time
from collections.abc import Callable

import numpy as np

# Three float32 vectors of this length fill a first-level cache of 48 KiB.
VECTOR_LENGTH = 4096
# Half a millisecond to a millisecond: far above the clock's resolution, below the scheduler's time slice.
VECTOR_ROUNDS = 500


def time_reference(repeats: int, clock: Callable[[], int] = time.perf_counter_ns) -> list[int]:
    """Return the times, in ns, of `repeats` runs of the reference kernel, after one that is not timed.

    The kernel multiplies and adds fixed float32 vectors, with the widest instructions that NumPy has on this CPU. It
    runs on one thread, touches no memory beyond the core's first-level cache, and gives the same result everywhere. It
    is meant to follow what changes an engine's speed from outside: the clock, and the part of the core's arithmetic
    that a hidden sibling takes; it does not follow memory bandwidth. At half this length its times correlated with
    those of mobilenet_v3_small (0.69 to 0.75 between the logarithms, n = 120). Since NumPy does the work, only runs of
    one environment can be compared by it.
    """
    kernel, times = _make_kernel(), list[int]()
    kernel()
    for _ in range(repeats):
        begin = clock()
        kernel()
        times.append(clock() - begin)
    return times


def _make_kernel() -> Callable[[], object]:
    factor = np.linspace(0.5, 1.5, VECTOR_LENGTH, dtype=np.float32)
    value, result = np.ones(VECTOR_LENGTH, np.float32), np.empty(VECTOR_LENGTH, np.float32)

    def run_kernel() -> None:
        for _ in range(VECTOR_ROUNDS):
            np.multiply(value, factor, out=result)
            np.add(result, factor, out=result)

    return run_kernel
