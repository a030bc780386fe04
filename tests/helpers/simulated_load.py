"""A load in simulated time: the same server, queue and stamps, with arrivals and an engine that move a clock.

What queueing theory says of such an engine is known exactly, so that a wrong figure cannot hide.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.streams import Ended
from enginebench.engines.fake import FakeClock
from enginebench.features.load.arrivals import START, BoardSink, MemoryBoard
from enginebench.features.load.serving import Batcher, Waiting, serve

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Feeds

    Times = NDArray[np.int64]


class SimulatedClock(FakeClock):
    def move_to(self, moment_ns: int) -> None:
        """Moves it on; never back."""
        self.now_ns = max(self.now_ns, moment_ns)


class SimulatedArrivals:
    """A source whose requests come when the board's schedule says; waiting for one moves the clock to it."""

    def __init__(self, board: MemoryBoard, clock: SimulatedClock, late_ns: int = 0) -> None:
        self._board, self._clock, self._late_ns = board, clock, late_ns
        self._due = board.scheduled.tolist()
        self._taken = 0

    def take(self) -> list[Waiting]:
        first = self._taken
        while self._taken < len(self._due) and self._due[self._taken] + self._late_ns <= self._clock():
            self._board.released[self._taken] = self._due[self._taken] + self._late_ns
            self._taken += 1
        return [Waiting(number, self._due[number]) for number in range(first, self._taken)]

    def wait(self, until_ns: int | None) -> None:
        moments = [self._due[self._taken] + self._late_ns] if not self.exhausted else []
        moments += [until_ns] if until_ns is not None else []
        self._clock.move_to(min(moments))

    @property
    def exhausted(self) -> bool:
        return self._taken >= len(self._due)


class SimulatedStreams:
    """An engine that takes `service_ns(requests)` for each submission; waiting for it moves the clock to its end."""

    polled = False

    def __init__(self, clock: SimulatedClock, depth: int, service_ns: Callable[[int], int]) -> None:
        self.depth = depth
        self._clock, self._service_ns = clock, service_ns
        self._flying: list[tuple[int, int, int]] = []  # (end, ticket, start)

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        start = self._clock()
        heapq.heappush(self._flying, (start + self._service_ns(len(samples)), ticket, start))

    def collect(self, wait: bool) -> list[Ended]:
        if wait:
            self._clock.move_to(self._flying[0][0])
        ended = []
        while self._flying and self._flying[0][0] <= self._clock():
            end, ticket, start = heapq.heappop(self._flying)
            ended.append(Ended(ticket, start, end, end, {}))
        return ended

    def close(self) -> None:
        """Nothing is held."""


def simulate(
    offsets: Times,
    service_ns: Callable[[int], int],
    *,
    streams: int = 1,
    batcher: Batcher | None = None,
    late_ns: int = 0,
    deadline_ns: int | None = None,
) -> tuple[MemoryBoard, int]:
    """The board of a load whose requests come at `offsets`, in simulated time, and the ns that streams were busy.

    `service_ns` is of so many requests that are computed together. By default one at a time is, without a limit.
    """
    clock, board = SimulatedClock(), MemoryBoard(offsets)
    board.head[START] = 1  # a stamp of 0 means that it has not happened
    work = serve(
        SimulatedArrivals(board, clock, late_ns),
        BoardSink(board),
        SimulatedStreams(clock, streams, service_ns),
        Batcher() if batcher is None else batcher,  # an empty one is false
        find_sample=lambda number: {},
        clock=clock,
        deadline_ns=deadline_ns,
    )
    return board, work.busy_ns
