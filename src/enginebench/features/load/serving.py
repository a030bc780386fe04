"""The server's side of a load: requests come from a source, wait, are batched, computed, and stamped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from enginebench.core.streams import Clock, Streams

if TYPE_CHECKING:
    from enginebench.core.protocols import Feeds
    from enginebench.features.load.arrivals import BoardSink


class Waiting(NamedTuple):
    """A request in the queue. Only requests of one `kind` (the shapes of their inputs) are computed together."""

    number: int
    since_ns: int
    kind: Hashable = ()


class Batcher:
    """The queue of an engine, first come, first served.

    The oldest request waits `max_wait_ns` for others to fill its batch. A request that comes while `limit` are waiting
    is turned away.
    """

    def __init__(self, max_batch: int = 1, max_wait_ns: int = 0, limit: int | None = None) -> None:
        self._max_batch, self._max_wait_ns, self._limit = max_batch, max_wait_ns, limit
        self._queue: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Waiting) -> bool:
        if self._limit is not None and len(self._queue) >= self._limit:
            return False
        self._queue.append(request)
        return True

    def take(self, now_ns: int) -> list[Waiting]:
        """The next batch, oldest first: full, or as full as it got in time; none while it may still fill."""
        batch: list[Waiting] = []
        for request in self._queue:
            if len(batch) >= self._max_batch:
                break
            if not batch or request.kind == batch[0].kind:
                batch.append(request)
        if len(batch) < self._max_batch and (due := self.due_ns) is not None and now_ns < due:
            return []
        for request in batch:
            self._queue.remove(request)  # nearly always the first one
        return batch

    @property
    def due_ns(self) -> int | None:
        """Return when the oldest request has waited long enough; None if none is waiting."""
        return self._queue[0].since_ns + self._max_wait_ns if self._queue else None

    def clear(self) -> list[Waiting]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting


class Source(Protocol):
    def take(self) -> Sequence[Waiting]:
        """Those that have come since the last call."""

    def wait(self, until_ns: int | None) -> None:
        """Return when a request has arrived, at `until_ns`, or when no further request can arrive."""

    @property
    def exhausted(self) -> bool:
        """Whether every request has come."""


class Span:
    """The time at work, from pieces that may overlap and come roughly in the order of their ends."""

    def __init__(self) -> None:
        self.total_ns = self._end_ns = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        self.total_ns += max(0, end_ns - max(start_ns, self._end_ns))
        self._end_ns = max(self._end_ns, end_ns)


class TimedBatch(NamedTuple):
    busy_ns: int  # summed over all streams, from a submission to its end
    # By part, each as if it were alone; `compute` of an engine that does not say more is `busy_ns` over the streams.
    stages: dict[str, int]


def serve(
    source: Source,
    sink: BoardSink,
    streams: Streams,
    batcher: Batcher,
    *,
    find_sample: Callable[[int], Feeds],
    clock: Clock,
    deadline_ns: int | None = None,
) -> TimedBatch:
    """Serve until the source is exhausted and everything has ended; return how long each part was at work.

    Requests go to `sink` in the order in which they end. From `deadline_ns` on nothing new is begun, and waiting
    requests are dropped.
    """
    flying: dict[int, list[Waiting]] = {}
    busy_ns = ticket = own_ns = host_ns = 0
    copy_in, compute, copy_out = parts = Span(), Span(), Span()
    while True:
        begin_ns, first, waited_ns = clock(), ticket, 0
        came = source.take()
        for request in came:
            if not batcher.add(request):
                sink.drop(request)
        late = deadline_ns is not None and clock() >= deadline_ns
        if late:
            for request in batcher.clear():
                sink.drop(request)
        while len(flying) < streams.depth and (batch := batcher.take(clock())):
            flying[ticket] = batch
            samples, submit_ns = [find_sample(request.number) for request in batch], clock()
            streams.submit(ticket, samples)
            waited_ns += clock() - submit_ns
            ticket += 1
        host_ns += waited_ns
        none_to_come = late or (source.exhausted and not len(batcher))
        if none_to_come and not flying:
            break
        must_end = none_to_come or len(flying) >= streams.depth  # nothing else can go on before a batch has ended
        wait_ns = clock()
        if not must_end:
            moments = (batcher.due_ns, deadline_ns, wait_ns if streams.polled and flying else None)
            source.wait(min((at for at in moments if at is not None), default=None))
        completed = streams.collect(must_end) if flying else []
        waited_ns += clock() - wait_ns
        for ended in completed:
            busy_ns += ended.done_ns - ended.started_ns
            sink.finish(flying.pop(ended.ticket), ended)
            if ended.device_ns is not None:  # the parts follow each other, and the copy out ends last
                end_ns = ended.computed_ns + ended.device_ns.copy_out
                for part, took_ns in zip(reversed(parts), reversed(ended.device_ns), strict=True):
                    part.add(end_ns - took_ns, end_ns)
                    end_ns -= took_ns
        if came or completed or ticket > first:
            own_ns += clock() - begin_ns - waited_ns
    stages = {"batcher": own_ns}
    if compute.total_ns:
        device = {"copy in": copy_in.total_ns, "compute": compute.total_ns, "copy out": copy_out.total_ns}
        return TimedBatch(busy_ns, {**stages, "host": host_ns, **device})
    return TimedBatch(busy_ns, {**stages, "compute": busy_ns // streams.depth})
