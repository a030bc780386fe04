"""The open loop: requests are scheduled beforehand and released on time, even if the engine is busy.

Generator and engine are two processes. They share a `SharedBoard`, a file in memory that holds the four times
of every request, so that nothing measured is lost with either of them, and a `Ring` of the bytes. A pipe wakes the
engine; it carries no data.
"""

from __future__ import annotations

import mmap
import os
import select
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.store import check_regular, parsing
from enginebench.core.streams import Clock, Ended
from enginebench.core.text import parse_finite
from enginebench.features.load.serving import Waiting

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.features.load.ring import Feeders

    Times = NDArray[np.int64]

# Status of a request on the board.
PENDING, DONE, FAILED, DROPPED = range(4)
# Words at the head of the board.
START, RELEASED, FINISHED, RELEASING = range(4)  # RELEASING: nanoseconds that the generator was at work
READY = 4  # the first of the words in which servers say that they are ready
MAX_SERVERS = MAX_FEEDERS = 8
# Of each process that writes the bytes of requests: the next request that it will write, and nanoseconds at work.
WRITTEN = READY + MAX_SERVERS
FEEDING = WRITTEN + MAX_FEEDERS
HEAD = FEEDING + MAX_FEEDERS
COLUMNS = ("offset", "sample", "released", "started", "computed", "done", "status")
# A sleeping process wakes up about this late at worst, on a core without other work; the rest is waited busily.
SLEEP_ERROR_NS = 200_000
# From the moment that the engine is ready to the first arrival: both sides must have come to their loops.
HEAD_START_NS = 100_000_000
READY_POLL_S = 0.002
WRITTEN_POLL_S = 0.0001


def schedule_poisson(rate_per_s: float, count: int, seed: int) -> Times:
    """Offsets in nanoseconds of `count` arrivals with exponential gaps; the same for the same seed."""
    gaps = np.random.default_rng(seed).exponential(1e9 / rate_per_s, count)
    return np.cumsum(gaps).astype(np.int64)


def schedule_constant(rate_per_s: float, count: int) -> Times:
    """Offsets in nanoseconds of `count` arrivals at equal distances."""
    return (np.arange(1, count + 1) * (1e9 / rate_per_s)).astype(np.int64)


def read_arrivals(path: Path) -> Times:
    """Offsets in nanoseconds of a text file with one time in seconds on each line, the first arrival at 0."""
    expected = "one time in seconds on each line, none before the one above it"
    with parsing(path, expected, OSError, UnicodeError):
        lines = check_regular(path).read_text(encoding="utf-8").splitlines()
    times: list[float] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        moment = parse_finite(text)
        if moment is None or (times and moment < times[-1]):
            raise ParseError(path, f"line {number}", repr(text), expected)
        times.append(moment)
    if len(times) < 2:
        raise ParseError(path, "", f"{len(times)} times", "two or more")
    return ((np.asarray(times) - times[0]) * 1e9).astype(np.int64)


class MemoryBoard:
    """The times of every request. Columns are arrays in `words`, which may be memory shared by several processes.

    `offset` is relative to the start, the other times are host nanoseconds; 0 before the event.
    """

    def __init__(self, offsets: Sequence[int] | Times, words: Times | None = None) -> None:
        self.count = len(offsets)
        words = np.zeros(HEAD + len(COLUMNS) * self.count, np.int64) if words is None else words
        self.head = words[:HEAD]
        table = words[HEAD:].reshape(len(COLUMNS), self.count)
        self.offset, self.sample, self.released, self.started, self.computed, self.done, self.status = table
        self.offset[:] = offsets

    @property
    def scheduled(self) -> Times:
        """The time at which each request was due, in host nanoseconds; in a closed loop, when it was released."""
        return np.asarray(self.offset + self.head[START])


class SharedBoard(MemoryBoard):
    """A board in a file that its processes map into their memory; they inherit its descriptor, since it has no name."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        words = np.frombuffer(self._memory, np.int64)
        count = (len(words) - HEAD) // len(COLUMNS)
        super().__init__(words[HEAD : HEAD + count], words)


def create_board(descriptor: int, offsets: Sequence[int] | Times, samples: Sequence[int] | Times) -> SharedBoard:
    os.ftruncate(descriptor, 8 * (HEAD + len(COLUMNS) * len(offsets)))
    board = SharedBoard(descriptor)
    board.offset[:] = offsets
    board.sample[:] = samples
    return board


def release_all(
    board: MemoryBoard,
    wake: Callable[[], bool],  # False if there is no engine any more
    spin: bool,  # wait busily for what a sleep would miss; only on a core of one's own
    feeding: Feeders | None = None,  # writes the bytes; None: there are none to write
) -> int:
    """Release every request when it is due and its bytes are there, and wake the engine; return their number.

    A request that finds no free slot counts as released when it is due: it waits for the engine, not for the generator.
    """
    due, clock = (board.offset + board.head[START]).tolist(), time.perf_counter_ns
    head, released = board.head.data, board.released.data  # single words are written faster than through NumPy
    index = came = busy_ns = 0
    count = len(due)
    written = 0 if feeding else count
    margin_ns = SLEEP_ERROR_NS if spin else 0
    while index < count:
        while (left := due[index] - clock()) > margin_ns:
            time.sleep((left - margin_ns) / 1e9)
        while (now := clock()) < due[index]:
            pass
        if feeding and written < count and due[written] <= now:
            written = feeding.written
        while came < count and due[came] <= now and (came < written or (feeding and feeding.full)):
            released[came] = now if came < written else due[came]
            came += 1
        first, index = index, min(came, written)
        head[RELEASED] = index
        woken = wake()
        busy_ns += clock() - now
        head[RELEASING] = busy_ns
        if not woken:
            break
        if feeding and index == first:
            feeding.check()
            time.sleep(WRITTEN_POLL_S)
    return index


def wait_until_ready(board: SharedBoard, servers: int) -> None:
    while not board.head[READY : READY + servers].all():
        time.sleep(READY_POLL_S)


def set_start(board: SharedBoard) -> None:
    board.head[START] = time.perf_counter_ns() + HEAD_START_NS


def open_wakeup(descriptor: int) -> Callable[[], bool]:
    """Make a function that wakes the engine through a pipe without waiting; False once no process reads the pipe."""
    os.set_blocking(descriptor, False)

    def ring() -> bool:
        try:
            os.write(descriptor, b".")
        except BlockingIOError:  # the pipe is full of earlier rings: the engine will look
            pass
        except BrokenPipeError:
            return False
        return True

    return ring


class BoardSource:
    """The requests that the generator releases on the board; it wakes this process through the pipe `wakeup`.

    Only requests whose samples are of one kind are computed together. `share` is (i, n): of n servers this is the one
    numbered i, which takes every n-th request.
    """

    def __init__(
        self, board: SharedBoard, wakeup: int, kinds: Sequence[Hashable], clock: Clock, share: tuple[int, int] = (0, 1)
    ) -> None:
        self._board, self._wakeup, self._kinds, self._clock = board, wakeup, kinds, clock
        self._share = share
        os.set_blocking(wakeup, False)
        self._taken = 0

    def begin(self) -> int:
        """Report that the engine is ready, and return the start that the generator sets; the parent watches both."""
        self._board.head[READY + self._share[0]] = 1
        while not self._board.head[START]:
            time.sleep(READY_POLL_S)
        self._due = self._board.scheduled.tolist()
        return int(self._board.head[START])

    def take(self) -> list[Waiting]:
        released = int(self._board.head[RELEASED])
        first, self._taken = self._taken, released
        index, servers = self._share
        numbers = range(first + (index - first) % servers, released, servers)
        samples = self._board.sample[numbers.start : released : servers].tolist()
        return [
            Waiting(number, self._due[number], self._kinds[sample])
            for number, sample in zip(numbers, samples, strict=True)
        ]

    def wait(self, until_ns: int | None) -> None:
        timeout = None if until_ns is None else max(0.0, (until_ns - self._clock()) / 1e9)
        if select.select([self._wakeup], [], [], timeout)[0]:
            with suppress(BlockingIOError):
                os.read(self._wakeup, 1 << 16)

    @property
    def exhausted(self) -> bool:
        return self._taken >= self._board.count


class ClosedLoop:
    """A source that releases `query` requests whenever all earlier ones have ended, until the time is over.

    Its requests are due when they are released, so none is ever late.
    """

    def __init__(
        self, board: MemoryBoard, query: int, kinds: Sequence[Hashable], clock: Clock, duration_ns: int
    ) -> None:
        self._board, self._query, self._kinds, self._clock = board, query, kinds, clock
        self._taken = 0
        board.head[START] = clock()
        self._end_ns = int(board.head[START]) + duration_ns

    def take(self) -> list[Waiting]:
        board, first = self._board, self._taken
        if self.exhausted or board.head[FINISHED] < first:
            return []
        now = self._clock()
        self._taken = min(first + self._query, board.count)
        board.released[first : self._taken] = now
        board.offset[first : self._taken] = now - board.head[START]
        board.head[RELEASED] = self._taken
        return [Waiting(i, now, self._kinds[int(board.sample[i])]) for i in range(first, self._taken)]

    def wait(self, until_ns: int | None) -> None:
        """Return at once: new requests come only after others have ended, which the server notices by itself."""

    @property
    def exhausted(self) -> bool:
        return self._taken >= self._board.count or self._clock() >= self._end_ns


class BoardSink:
    def __init__(self, board: MemoryBoard) -> None:
        self._board = board
        self.reasons: dict[str, int] = {}  # why requests failed -> how many

    def finish(self, batch: Sequence[Waiting], ended: Ended) -> None:
        board = self._board
        for request in batch:
            board.started[request.number] = ended.started_ns
            board.computed[request.number] = ended.computed_ns
            board.done[request.number] = ended.done_ns
            board.status[request.number] = DONE if ended.error is None else FAILED
        board.head[FINISHED] += len(batch)
        if ended.error is not None:
            self.reasons[ended.error] = self.reasons.get(ended.error, 0) + len(batch)

    def drop(self, request: Waiting) -> None:
        self._board.status[request.number] = DROPPED
        self._board.head[FINISHED] += 1


def count_arrivals(rate_per_s: float, duration_s: float) -> int:
    """Arrivals of a rate in a time; at least one."""
    count = max(1, round(rate_per_s * duration_s))
    if count > MAX_ARRIVALS:
        raise UsageError(f"{rate_per_s:g} requests a second for {duration_s:g} s are {count}; at most {MAX_ARRIVALS}")
    return count


def count_fullest(offsets: Times, window_s: float) -> int:
    """The largest number of arrivals of a schedule within any window of `window_s` seconds."""
    ends = np.searchsorted(offsets, offsets + round(1e9 * window_s), side="right")
    return int((ends - np.arange(len(offsets))).max())


# The board of as many is 560 MB of memory.
MAX_ARRIVALS = 10_000_000
