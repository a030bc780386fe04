"""A probe that is interrupted while its engine goes on: what has ended is counted, and nothing else."""

from typing import Any

import numpy as np

from enginebench.core.streams import Ended
from enginebench.features.load.arrivals import RELEASED, START, BoardSink, MemoryBoard
from enginebench.features.load.probe import copy_stamps
from enginebench.features.load.serving import Waiting
from enginebench.stats.queueing import describe_point

MS = 1_000_000


class StillServed:
    """A board on which another request ends each time that somebody looks at a column."""

    def __init__(self, board: MemoryBoard) -> None:
        self._board, self._sink, self._next = board, BoardSink(board), 0

    def __getattr__(self, name: str) -> Any:
        self.end_next()
        return getattr(self._board, name)

    def end_next(self) -> None:
        number, due = self._next, int(self._board.scheduled[self._next])
        ended = Ended(ticket=number, started_ns=due + MS, computed_ns=due + 4 * MS, done_ns=due + 5 * MS, outputs=None)
        self._sink.finish([Waiting(number, due)], ended)
        self._next += 1


def test_requests_that_end_while_the_stamps_are_copied_have_no_negative_queue() -> None:
    board = MemoryBoard(np.arange(1, 101) * 10 * MS)
    board.head[START], board.head[RELEASED] = 250 * MS, board.count
    board.released[:] = board.scheduled
    served: Any = StillServed(board)
    for _ in range(40):
        served.end_next()
    point = describe_point(copy_stamps(served), qps=100)
    assert 40 <= point.completed < 50, "those that ended meanwhile may count or not"
    assert (point.queue_ms, point.service_ms, point.compute_ms, point.mean_ms) == (1.0, 4.0, 3.0, 5.0)
