"""Batches in flight over streams that are threads: each does its work late, in its own order and at its own pace."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from enginebench.core.errors import FeedError, MeasurementError, UsageError
from enginebench.core.records import TensorSpec
from enginebench.engines.pipeline import Lanes, Pipeline, Slot
from enginebench.measure.slots import check_slots

X = TensorSpec(name="x", dtype="float32", shape=("batch", 4))


class ThreadLane:
    """A stream as a thread. `deaf`: it does not wait for events of other streams, which is the fault to be found;
    `slow` is the stream that it should have waited for.
    """

    def __init__(self, seed: int, deaf: bool = False, slow: bool = False) -> None:
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._random, self._deaf = random.Random(seed), deaf
        self._longest_s = 0.02 if slow else 0.001
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        while (work := self._work.get()) is not None:
            time.sleep(self._longest_s * (0.5 + self._random.random()))
            work()

    def call(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def make_event(self) -> dict[str, threading.Event]:
        return {}

    def record(self, event: dict[str, threading.Event]) -> None:
        event["now"] = threading.Event()  # as CUDA has it: who waits, waits for the record that was made last
        self._work.put(event["now"].set)

    def follow(self, event: dict[str, threading.Event]) -> None:
        now = event["now"]
        self._work.put(now.is_set if self._deaf else lambda: now.wait(10))

    def wait(self, event: dict[str, threading.Event]) -> None:
        assert event["now"].wait(10)

    def synchronize(self) -> None:
        event = self.make_event()
        self.record(event)
        self.wait(event)

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(10)


class Buffers:
    """The memory of one slot; `clashes` names what was touched by two streams at once, or read before its time."""

    def __init__(self, clashes: list[str], batch: int = 2) -> None:
        self.host_in, self.device_in, self.device_out, self.host_out = (
            np.full((batch, 4), np.nan, np.float32) for _ in range(4)
        )
        self._clashes, self._busy, self._lock = clashes, set[str](), threading.Lock()
        self.closed = False

    def _move(self, source: str, target: str, change: Callable[[Any], Any] = lambda x: x) -> Callable[[], None]:
        def work() -> None:
            with self._lock:
                self._clashes.extend(self._busy & {source, target})
                self._busy |= {source, target}
            read, written = getattr(self, source), getattr(self, target)
            for row in range(len(read)):
                written[row] = change(read[row])
                time.sleep(0.0005)
            with self._lock:
                self._busy -= {source, target}

        return work

    def make_slot(self) -> Slot:
        return Slot(
            {"x": self.host_in},
            self._move("host_in", "device_in"),
            self._move("device_in", "device_out", lambda row: 2 * row + 1),
            self._move("device_out", "host_out"),
            lambda: {"y": self.host_out.copy()},
            lambda: setattr(self, "closed", True),
        )


@pytest.fixture
def make_pipeline() -> Iterator[Callable[..., Any]]:
    lanes: list[ThreadLane] = []

    def make(depth: int = 3, deaf: int | None = None) -> tuple[Pipeline, list[Buffers], list[str]]:
        lanes.extend(ThreadLane(place, deaf == place, slow=deaf == place + 1) for place in range(3))
        clashes: list[str] = []
        buffers = [Buffers(clashes) for _ in range(depth)]
        return Pipeline((X,), Lanes(*lanes[-3:]), [b.make_slot() for b in buffers]), buffers, clashes

    yield make
    for lane in lanes:
        lane.end()


def draw(number: int) -> dict[str, Any]:
    return {"x": np.full((2, 4), number, np.float32) + np.arange(4, dtype=np.float32) / 8}


def answer(feeds: dict[str, Any]) -> dict[str, Any]:
    return {"y": 2 * feeds["x"] + 1}


@pytest.mark.parametrize("depth", [1, 3])
def test_each_batch_gets_its_own_answer_in_order_and_no_slot_is_touched_twice_at_once(
    depth: int, make_pipeline: Callable[..., Any]
) -> None:
    pipeline, _, clashes = make_pipeline(depth)
    found = []
    for number in range(20):
        if number >= depth:
            found.append(pipeline.collect()["y"])
        feeds = draw(number)
        pipeline.submit(feeds)
        feeds["x"][:] = np.nan  # the caller's array is the caller's again
    found += [pipeline.collect()["y"] for _ in range(depth)]
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one, answer(draw(number))["y"])
    assert clashes == []
    check_slots(pipeline, draw(0), answer)  # type: ignore[arg-type]


@pytest.mark.parametrize("deaf", [1, 2])
def test_a_stream_that_does_not_wait_is_found(deaf: int, make_pipeline: Callable[..., Any]) -> None:
    """The proof that the tests above would see a slot that is read before it was written."""
    pipeline, _, _ = make_pipeline(deaf=deaf)
    with pytest.raises(MeasurementError, match="scope pipelined: output 'y' of batch 0 in slot 0 is not what"):
        check_slots(pipeline, draw(0), answer)  # type: ignore[arg-type]


def test_a_full_pipeline_takes_no_more_and_an_empty_one_gives_nothing(make_pipeline: Callable[..., Any]) -> None:
    pipeline, _, _ = make_pipeline(2)
    with pytest.raises(UsageError, match="nothing is on its way"):
        pipeline.collect()
    pipeline.submit(draw(0))
    pipeline.submit(draw(1))
    with pytest.raises(UsageError, match="all 2 slots are on their way"):
        pipeline.submit(draw(2))
    np.testing.assert_array_equal(pipeline.collect()["y"], answer(draw(0))["y"])


def test_what_fails_in_the_middle_leaves_the_others_whole(make_pipeline: Callable[..., Any]) -> None:
    pipeline, buffers, clashes = make_pipeline()
    pipeline.submit(draw(0))
    with pytest.raises(FeedError, match="shape 3x4; the slots were made for 2x4"):
        pipeline.submit({"x": np.zeros((3, 4), np.float32)})
    with pytest.raises(FeedError, match="missing input 'x'"):
        pipeline.submit({})
    pipeline.submit(draw(1))
    pipeline.submit(draw(2))
    found = [pipeline.collect()["y"] for _ in range(3)]
    for number, one in enumerate(found):
        np.testing.assert_array_equal(one, answer(draw(number))["y"])
    pipeline.submit(draw(3))
    pipeline.close()  # with one on its way: it is waited for, then its memory is freed
    pipeline.close()
    assert all(b.closed for b in buffers) and clashes == []
