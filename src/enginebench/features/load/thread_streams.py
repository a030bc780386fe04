"""Streams made of engines that take one call at a time: each in a thread of its own, or one of them in the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from enginebench.core.feeds import cut_entries, join_samples, sum_entries
from enginebench.core.streams import Clock, Ended, Overlapping, fail_request

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds

    Answer = tuple[int, dict[str, Array]]  # when it was computed, and the outputs
    Lane = Callable[[Sequence[Feeds]], Answer]


def make_lane(engines: Mapping[int, Engine], any_batch: bool, clock: Clock) -> Lane:
    """One stream: what computes a batch on the engine that fits it, padded where its batch is fixed.

    Args:
        any_batch: there is one engine, and it takes what comes.
    """
    sizes = sorted(engines)

    def compute(samples: Sequence[Feeds]) -> Answer:
        entries = sum_entries(samples)
        size = next((size for size in sizes if size >= entries), sizes[-1])
        engine = engines[size]
        engine.bind(join_samples(samples, None if any_batch else size))
        engine.run()
        computed_ns = clock()
        outputs = engine.fetch()
        return computed_ns, outputs if any_batch else cut_entries(outputs, entries, size)

    return compute


def answer(lane: Lane, ticket: int, samples: Sequence[Feeds], clock: Clock) -> Ended:
    """What came of one submission: what goes wrong with it is its answer."""
    started_ns = clock()
    try:
        computed_ns, outputs = lane(samples)
    except Exception as error:  # each runtime has its own
        return fail_request(ticket, started_ns, clock(), error)
    return Ended(ticket, started_ns, computed_ns, clock(), outputs)


class InlineStream:
    """One stream in the caller's own thread: nothing is handed over, and `submit` returns when it has ended."""

    depth = 1
    polled = False

    def __init__(self, lane: Lane, close: Callable[[], None], clock: Clock) -> None:
        self._lane, self._close, self._clock = lane, close, clock
        self._ended: list[Ended] = []

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        self._ended.append(answer(self._lane, ticket, samples, self._clock))

    def collect(self, wait: bool) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._close()


class OverlappedStreams:
    """Streams in the caller's own thread, of engines that work while it does something else: one batch on each.

    Args:
        lanes: batch -> engine of each stream.
    """

    polled = True

    def __init__(self, lanes: Sequence[Mapping[int, Overlapping]], close: Callable[[], None], clock: Clock) -> None:
        self._close, self._clock = close, clock
        self.depth = len(lanes)
        self._free = [*lanes]
        self._flying: list[Flight] = []
        self._failed: list[Ended] = []

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        started_ns, lane = self._clock(), self._free.pop()
        entries = sum_entries(samples)
        size = min((size for size in lane if size >= entries), default=max(lane))
        try:
            lane[size].begin(samples)
        except Exception as error:  # each runtime has its own
            self._free.append(lane)
            self._failed.append(fail_request(ticket, started_ns, self._clock(), error))
        else:
            self._flying.append(Flight(ticket, started_ns, entries, size, lane))

    def collect(self, wait: bool) -> list[Ended]:
        while True:
            ended, self._failed = self._failed, []
            for flight in tuple(self._flying):
                if (one := self._look(flight)) is not None:
                    self._flying.remove(flight)
                    self._free.append(flight.lane)
                    ended.append(one)
            if ended or not wait:
                return ended

    def close(self) -> None:
        self._close()

    def _look(self, flight: Flight) -> Ended | None:
        """What came of a submission, if it has ended."""
        ticket, started_ns, entries, size, lane = flight
        try:
            if not lane[size].is_done():
                return None
            on_device_ns = self._clock()
            outputs, times = lane[size].finish()
        except Exception as error:
            return fail_request(ticket, started_ns, self._clock(), error)
        outputs = cut_entries(outputs, entries, size)
        return Ended(ticket, started_ns, on_device_ns - times.copy_out, self._clock(), outputs, None, times)


class Flight(NamedTuple):
    """A submission that is on its way."""

    ticket: int
    started_ns: int
    entries: int
    size: int
    lane: Mapping[int, Overlapping]


class ThreadStreams:
    """Several streams, each a thread that takes the next submission when it is free."""

    polled = False

    def __init__(self, lanes: Sequence[Lane], close: Callable[[], None], clock: Clock) -> None:
        self._close, self._clock = close, clock
        self._work: SimpleQueue[tuple[int, Sequence[Feeds]] | None] = SimpleQueue()
        self._ended: SimpleQueue[Ended | BaseException] = SimpleQueue()
        self.depth = len(lanes)
        self._threads = [threading.Thread(target=self._serve, args=(lane,), daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        self._work.put((ticket, samples))

    def collect(self, wait: bool) -> list[Ended]:
        found = [self._ended.get()] if wait else []
        while not self._ended.empty():
            found.append(self._ended.get())
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [one for one in found if isinstance(one, Ended)]

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._close()

    def _serve(self, lane: Lane) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._ended.put(answer(lane, *work, self._clock))
        except BaseException as error:  # the caller's to raise: it would be lost with this thread
            self._ended.put(error)
