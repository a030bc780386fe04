"""Rules for the end of warm-up and of timing; they are given medians and durations, and read no clock."""

import math
from collections.abc import Sequence
from typing import Protocol

from enginebench.core.errors import UsageError
from enginebench.core.records import MeasureSpec, StopRule

# The scheduler's time slice is 3 to 4 ms and /proc/stat counts in steps of 10 ms: a block must hold many of both for
# its median, and its figure of foreign CPU, to mean something.
BLOCK_NS = 100_000_000

# Fewer give Student's t so few degrees of freedom that the interval's own width is a guess (+-24 % at ten).
MIN_BLOCKS = 10

# Full relative width of the 95% interval. Processes are the unit of every verdict and differ by about 1 %; at
# 2 % full width one process median carries a standard error of 0.44 %, which widens the spread between processes
# by a tenth (sqrt(1 + 0.44^2) = 1.09). More samples in one process would gain nothing visible.
MAX_RELATIVE_WIDTH = 0.02

# An engine of 2 us gives half a million samples a second: a million is enough for p99.99, and is 5 MB of JSON for each
# of ten trials in the file of a configuration.
MAX_SAMPLES = 1_000_000

# Warm-up is assessed in windows: long enough that one interrupt does not decide a median, short enough that an
# engine of a few microseconds is ready in tens of milliseconds. A call of 100 ms or more is a window by itself.
WINDOW_NS = 10_000_000
WINDOW_CALLS = 3
WINDOWS_COMPARED = 3

# Source: Georges, Buytaert, Eeckhout, "Statistically rigorous Java performance evaluation", OOPSLA 2007,
# section 4.2: steady state where variation falls below 1 or 2 %.
WARMUP_TOLERANCE = 0.02

_NS = 1_000_000_000


class StoppingRule(Protocol):
    """Decides after each block whether to go on."""

    def calls_left(self) -> int | None: ...  # the number of samples that may still be taken; None where time decides
    def add_block(self, calls: int, median_ns: float, duration_ns: int) -> None: ...
    def decide(self) -> StopRule | None: ...  # the rule that ended the measurement, or None to go on


class IterationsRule:
    """Ends after exactly `iterations` samples, however long they take."""

    def __init__(self, iterations: int) -> None:
        if iterations < 1:
            raise UsageError(f"iters is {iterations}; at least 1 sample must be taken")
        self._left = iterations

    def calls_left(self) -> int:
        return self._left

    def add_block(self, calls: int, median_ns: float, duration_ns: int) -> None:
        self._left -= calls

    def decide(self) -> StopRule | None:
        return "iterations" if self._left <= 0 else None


class SettledRule:
    """Ends when the medians of the blocks agree, when the time for samples is spent, or after a million of them.

    Settled: at least `MIN_BLOCKS` blocks, and the Student-t 95% interval of their mean is narrower, end to end,
    than `MAX_RELATIVE_WIDTH` of that mean. Neighbouring blocks are not independent, so this decides only when to
    stop; intervals that are reported come from whole processes.

    Args:
        time_limit_s: seconds of timed samples, the sum of the blocks.
    """

    def __init__(self, time_limit_s: float) -> None:
        if not (math.isfinite(time_limit_s) and time_limit_s > 0):
            raise UsageError(f"the time limit is {time_limit_s} s; a finite number above 0 is needed")
        self._limit_ns = time_limit_s * _NS
        self._medians: list[float] = []
        self._spent_ns = 0
        self._samples = 0

    def calls_left(self) -> None:
        return None

    def add_block(self, calls: int, median_ns: float, duration_ns: int) -> None:
        self._medians.append(median_ns)
        self._spent_ns += duration_ns
        self._samples += calls

    def decide(self) -> StopRule | None:
        if len(self._medians) >= MIN_BLOCKS and relative_width(self._medians) <= MAX_RELATIVE_WIDTH:
            return "settled"
        if self._spent_ns >= self._limit_ns:
            return "time_limit"
        return "sample_limit" if self._samples >= MAX_SAMPLES else None


class WarmupRule:
    """Ends warm-up when latencies have settled: the latest three windows agree with the three before.

    A window is at least 10 ms, and at least three calls unless these take 100 ms; it counts by its median. Settled
    means that the median of the newest three windows differs by at most 2 % from that of the three before; medians, so
    that one disturbed window decides nothing. Where a device's clock is known, it must agree in the same way: latencies
    are also steady at a clock that is about to rise. Warm-up ends at the time limit of the timing at the latest, or
    after exactly `calls` calls where that is given. Of calls so long that six windows do not fit, those that there are
    decide whether latencies had settled.

    Args:
        calls: the exact number of calls; None: until settled.
    """

    def __init__(self, calls: int | None, time_limit_s: float) -> None:
        if calls is not None and calls < 0:
            raise UsageError(f"warmup is {calls}; 0 or more calls are needed")
        self._fixed = calls
        self._limit_ns = time_limit_s * _NS
        self._medians: list[float] = []
        self._clocks_mhz: list[int] = []
        self._spent_ns = 0
        self.dropped = 0

    @property
    def settled(self) -> bool | None:
        """Return whether latencies settled; None where the number of calls was fixed."""
        return None if self._fixed is not None else self._windows_agree(len(self._medians) // 2)

    def calls_left(self) -> int | None:
        return None if self._fixed is None else self._fixed - self.dropped

    def add_window(self, calls: int, median_ns: float, duration_ns: int, clock_mhz: int | None = None) -> None:
        if clock_mhz is not None:
            self._clocks_mhz.append(clock_mhz)
        self.dropped += calls
        self._medians.append(median_ns)
        self._spent_ns += duration_ns

    def is_over(self) -> bool:
        if self._fixed is not None:
            return self.dropped >= self._fixed
        return self._windows_agree() or self._spent_ns >= self._limit_ns

    def _windows_agree(self, most: int = WINDOWS_COMPARED) -> bool:
        n = min(most, WINDOWS_COMPARED)
        return _agree(self._medians, n) and (not self._clocks_mhz or _agree(self._clocks_mhz, n))


def _agree(values: Sequence[float], n: int) -> bool:
    """Return whether the median of the newest `n` values is within the tolerance of that of the `n` before."""
    if not 0 < 2 * n <= len(values):
        return False
    older, newer = (sorted(part)[n // 2] for part in (values[-2 * n : -n], values[-n:]))
    return abs(newer - older) <= WARMUP_TOLERANCE * older


def make_stopping_rule(spec: MeasureSpec) -> StoppingRule:
    return SettledRule(spec.time_limit_s) if spec.iters is None else IterationsRule(spec.iters)


def relative_width(values: Sequence[float]) -> float:
    """Return the full width of the 95 % Student-t interval of the mean, relative to the mean; 0 if all are equal."""
    n, mean = len(values), math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    return 2 * student_t_975(n - 1) * deviation / math.sqrt(n) / mean if deviation else 0.0


def student_t_975(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t; within 0.2 % from four degrees of freedom up.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5. Written out here because importing
    scipy into every timed process costs more than the formula.
    """
    z = 1.959963984540054
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(term / degrees**power for power, term in enumerate(terms))
