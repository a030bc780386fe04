"""The bytes of requests in shared memory: who gets which, and who is late when they are not there."""

import os
import time

import numpy as np
import pytest

from enginebench.core.errors import MeasurementError
from enginebench.features.load import child
from enginebench.features.load.arrivals import (
    DONE,
    FEEDING,
    RELEASED,
    RELEASING,
    START,
    WRITTEN,
    MemoryBoard,
    create_board,
    release_all,
)
from enginebench.features.load.jobs import ArriveJob
from enginebench.features.load.probe import open_memory
from enginebench.features.load.ring import Feeders, Ring, count_feeders, create_ring, find_requests

SAMPLES = [
    {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "words": np.array(["a", "b"], object)},
    {"x": np.full((1, 3), 7, np.float32), "words": np.array(["c"], object)},
    {"x": np.empty((0, 3), np.float32), "words": np.empty(0, object)},
]


def test_each_request_finds_its_own_bytes_while_two_processes_write() -> None:
    """The engine is slow and the slots are few, so that each is written many times."""
    asked = np.random.default_rng(0).integers(0, 3, 400)
    with open_memory() as memory, open_memory() as file:
        board = create_board(memory, np.arange(400), asked)
        create_ring(file, SAMPLES, 6, at_once=3)
        ring = Ring(file)
        assert (ring.slots, ring.size) == (6, 64)
        feeders, find = Feeders(board, ring, 3), find_requests(ring, SAMPLES, asked.tolist())
        assert feeders.full and feeders.written == 6, "no process writes what the engine has not read"
        assert not board.head[FEEDING:].any(), "what is written before the start is no part of the load"
        for number in range(400):
            while feeders.written <= number:
                time.sleep(0.001)
            found, expected = find(number), SAMPLES[asked[number]]
            np.testing.assert_array_equal(found["x"], expected["x"])
            assert found["words"] is expected["words"]
            assert found["x"].ctypes.data % 64 == 0 or not found["x"].size
            board.status[number] = DONE
        feeders.close()
        assert feeders.written == 400 and not feeders.full
        assert np.count_nonzero(board.head[FEEDING:]) == np.count_nonzero(board.head[WRITTEN:FEEDING]) == 2


def test_a_slot_that_came_free_too_late_is_the_engines_doing() -> None:
    with open_memory() as memory, open_memory() as file:
        board = create_board(memory, np.array([0, 0, 0, 5_000_000, 6_000_000]), np.zeros(5, np.int64))
        create_ring(file, SAMPLES, 3, at_once=1)
        board.head[START], feeders = 1000, Feeders(board, Ring(file), 1)
        feeders.close()
        assert feeders.written == 3 and feeders.full
        board.status[0], board.done[0] = DONE, 4_002_000
        assert feeders.full, "request 3 was due at 5,001,000, and to write it takes a millisecond"
        board.done[0] = 4_000_000
        assert not feeders.full


def test_a_writer_that_dies_is_reported() -> None:
    with open_memory() as memory, open_memory() as file:
        board = create_board(memory, np.arange(9), np.zeros(9, np.int64))
        create_ring(file, SAMPLES, 4, at_once=2)
        feeders = Feeders(board, Ring(file), 1)
        behind = os.getpriority(os.PRIO_PROCESS, feeders._processes[0].pid) - os.getpriority(os.PRIO_PROCESS, 0)
        assert 0 < behind < 10, "after who releases requests; but whoever else computes there does not starve it"
        feeders._processes[0].kill()
        with pytest.raises(MeasurementError, match="writes the bytes of requests ended with status -9"):
            while True:
                feeders.check()


def test_who_releases_does_not_take_a_feeder_its_only_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to go before all others it would wait busily, and a feeder there would hardly ever run."""
    spun: list[bool] = []
    for name in ("pin_to", "rest_collector", "take_precedence"):
        monkeypatch.setattr(child, name, lambda *_: None)
    monkeypatch.setattr(child, "release_all", lambda board, wake, spin, feeding: spun.append(spin) or 9)
    with open_memory() as memory, open_memory() as file:
        create_board(memory, np.arange(9), np.zeros(9, np.int64))
        create_ring(file, SAMPLES, 9, at_once=1)
        for cpus in ((0,), (0, 1)):
            child.release_board(ArriveJob(board=memory, ring=file, wakeups=(), cpus=cpus))
    assert spun == [False, True]


def test_so_many_processes_write_as_the_bytes_of_a_second_need() -> None:
    second = MemoryBoard(np.linspace(0, 1e9, 40_000).astype(np.int64))
    at_once = MemoryBoard(np.linspace(0, 1e6, 40_000).astype(np.int64))
    ring = Ring.__new__(Ring)
    for ring.size, ring.slots, board, cpus, count in (
        (602_112, 55, second, 16, 8),
        (602_112, 2, second, 16, 2),  # a third would wait for a slot, and everybody for its first request
        (150_528, 222, second, 16, 4),
        (150_528, 222, second, 3, 2),
        (64, 999, second, 16, 1),
        (64, 999, at_once, 16, 2),
        (64, 999, at_once, 1, 1),
    ):
        assert count_feeders(ring, board, cpus) == count


class Writers:
    """Whose bytes are there at the tenth look; `full`: because the engine has not read what is before them."""

    def __init__(self, full: bool) -> None:
        self.full, self.looks = full, 0

    @property
    def written(self) -> int:
        self.looks += 1
        return 9 if self.looks >= 10 else 2

    def check(self) -> None:
        pass


@pytest.mark.parametrize("full", [False, True])
def test_bytes_that_are_late_delay_a_release_and_a_full_ring_is_the_engines_doing(full: bool) -> None:
    board, writers, seen = MemoryBoard(np.zeros(9, np.int64)), Writers(full), []
    board.head[START] = time.perf_counter_ns()

    def wake() -> bool:
        assert not seen or board.head[RELEASING], (
            "the engine may be done, and this process ended, before all is released"
        )
        seen.append(int(board.head[RELEASED]))
        return True

    assert release_all(board, wake, False, writers) == 9
    late, due = board.released > board.released[0], board.released == board.head[START]
    assert late.tolist() == [False] * 2 + [not full] * 7
    assert due.tolist() == [False] * 2 + [full] * 7, "nobody is late who waits for a slot"
    assert seen == [2] * 9 + [9]
