"""The bytes of requests: other processes write them into shared memory, and the engine reads them where they lie.

A slot is written ahead of its request, as a network card would fill a buffer; the request is released once it is there.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.core.errors import MeasurementError
from enginebench.features.load.arrivals import FEEDING, MAX_FEEDERS, PENDING, START, WRITTEN

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds
    from enginebench.features.load.arrivals import MemoryBoard

ALIGNMENT = 64  # bytes: a line of the cache, and what engines ask of a tensor that they read in place
# Of all slots: what the last cache of a server's processor holds, as it holds what a network card has just written.
RING_BYTES = 1 << 25
MAX_SLOTS = 1 << 14
# What one process is counted on to write per second; on the host of an H200 it was 5 GB.
FED_BYTES_PER_S = 2e9
FEED_POLL_S = 0.0002
# The process that releases requests has to be on time, so it has priority. But at 19, on two cores that others kept
# busy, bytes came 27 to 77 ms late in 3 of 4 loads (900 requests a second of 602 kB); at 5 they came 3 to 4 ms late.
FEED_NICENESS = 5
FREED_NS = 1_000_000  # from when a slot comes free until its next bytes are there, at most, where a core is free


class Ring:
    """A file in memory: the number and size of its slots, the samples, the slots; each as large as the largest sample.

    The bytes of request n lie in slot n % slots.
    """

    def __init__(self, descriptor: int) -> None:
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # the first to touch a page would wait for it
        memory = np.frombuffer(mmap.mmap(descriptor, 0, flags=flags), np.uint8)
        self.slots, self.size, samples = memory[:24].view(np.int64).tolist()
        body = memory[ALIGNMENT : ALIGNMENT + (samples + self.slots) * self.size].reshape(-1, self.size)
        self.samples, self.slot_bytes = body[:samples], body[samples:]

    def write(self, number: int, sample: int) -> None:
        self.slot_bytes[number % self.slots] = self.samples[sample]


def create_ring(descriptor: int, samples: Sequence[Feeds], requests: int, at_once: int) -> Ring:
    """A ring with the bytes of the samples, for `requests` of which the engine holds `at_once` at most."""
    size = max(ALIGNMENT, *(sum(map(count_slot_bytes, sample.values())) for sample in samples))
    slots = min(requests, max(2 * at_once, min(MAX_SLOTS, RING_BYTES // size)))
    os.ftruncate(descriptor, ALIGNMENT + (len(samples) + slots) * size)
    os.pwrite(descriptor, np.array([slots, size, len(samples)]).tobytes(), 0)
    ring = Ring(descriptor)
    for i, sample in enumerate(samples):
        for name, tensors in view_tensors(ring.samples, sample).items():
            tensors[i] = sample[name]
    return ring


def count_slot_bytes(array: Array) -> int:
    """Return the bytes of a tensor in a slot. Strings take none: they stay in the engine's process."""
    return 0 if array.dtype.hasobject else -(-array.nbytes // ALIGNMENT) * ALIGNMENT


def view_tensors(slots: Array, sample: Feeds) -> Feeds:
    """The tensors of such a sample as they lie in slots, whose number is their first axis; without strings."""
    tensors, begin = {}, 0
    for name, array in sample.items():
        if not array.dtype.hasobject:
            inside = slots[:, begin : begin + array.nbytes]
            tensors[name] = inside.view(array.dtype).reshape(len(slots), *array.shape)
            begin += count_slot_bytes(array)
    return tensors


def find_requests(ring: Ring, samples: Sequence[Feeds], calls: Sequence[int]) -> Callable[[int], Feeds]:
    """Return a function that gives the tensors of a request from its slot; `calls` has the sample of each request."""
    view = cache(lambda sample: view_tensors(ring.slot_bytes, samples[sample]))

    def find(number: int) -> Feeds:
        slot, sample = number % ring.slots, calls[number]
        return {**samples[sample], **{name: tensors[slot, ...] for name, tensors in view(sample).items()}}

    return find


def count_feeders(ring: Ring, board: MemoryBoard, cpus: int) -> int:
    """Processes that write the bytes of these requests in time, as far as there are CPUs and a slot to begin with."""
    seconds = float(board.offset[-1]) / 1e9
    needed = -(-board.count * ring.size / seconds // FED_BYTES_PER_S)
    return int(min(MAX_FEEDERS, ring.slots, max(1, cpus - 1), max(1, needed)))


class Feeders:
    """Processes that write the requests of a board into a ring, each its part of them, until they are all written."""

    def __init__(self, board: MemoryBoard, ring: Ring, cpus: int) -> None:
        self._board, self._ring, self.count = board, ring, count_feeders(ring, board, cpus)
        start = multiprocessing.get_context("fork").Process
        parts = [(board, ring, index, self.count) for index in range(self.count)]
        self._processes = [start(target=_feed_behind, args=part, daemon=True) for part in parts]
        for process in self._processes:
            process.start()
        while self.written < min(ring.slots, board.count):
            self.check()
            time.sleep(FEED_POLL_S)
        board.head[FEEDING:] = 0  # what is written before the start is no part of the load

    @property
    def written(self) -> int:
        """The first request whose bytes are not there yet."""
        return min(self._board.count, int(self._board.head[WRITTEN : WRITTEN + self.count].min()))

    @property
    def full(self) -> bool:
        """Whether it is the engine that the next bytes wait for: no slot was free in time when they were due."""
        board, next_one = self._board, self.written
        before = next_one - self._ring.slots
        if before < 0 or next_one == board.count:
            return False
        due_ns = int(board.offset[next_one] + board.head[START])
        return int(board.status[before]) == PENDING or int(board.done[before]) > due_ns - FREED_NS

    def check(self) -> None:
        """Raise if one of the processes has failed."""
        if codes := [process.exitcode for process in self._processes if process.exitcode]:
            raise MeasurementError(f"a process that writes the bytes of requests ended with status {codes[0]}")

    def close(self) -> None:
        """End the processes; their CPU time counts as this process's from then on."""
        for process in self._processes:
            process.kill()
            process.join()


def _feed_behind(*part: Any) -> None:
    os.nice(FEED_NICENESS)
    feed(*part)


def feed(board: MemoryBoard, ring: Ring, index: int, feeders: int) -> None:
    """Write every request whose number is `index` modulo `feeders`, in turn, as soon as its slot is free."""
    head, status, samples, offset = board.head.data, board.status.data, board.sample.data, board.offset.data
    clock = time.perf_counter_ns
    for number in range(index, board.count, feeders):
        while (before := number - ring.slots) >= 0 and status[before] == PENDING:
            time.sleep(max(FEED_POLL_S, (head[START] + offset[before] - clock()) / 1e9))
        begin_ns = clock()
        ring.write(number, samples[number])
        head[FEEDING + index] += clock() - begin_ns
        head[WRITTEN + index] = number + feeders
    head[WRITTEN + index] = board.count
