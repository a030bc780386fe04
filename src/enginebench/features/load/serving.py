"""The server's side of a load: requests come from a source, wait, are batched, computed, and stamped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from enginebench.core.streams import Clock, Ended, Streams
from enginebench.features.load.batching import Batcher, Waiting

if TYPE_CHECKING:
    from enginebench.core.protocols import Feeds


class Source(Protocol):
    def take(self) -> Sequence[Waiting]:
        """Those that have come since the last call."""
        ...

    def wait(self, until_ns: int | None) -> None:
        """Returns when a request has come, at `until_ns`, or when it is known that none will come."""
        ...

    @property
    def exhausted(self) -> bool:
        """Whether every request has come."""
        ...


class Sink(Protocol):
    def finish(self, batch: Sequence[Waiting], ended: Ended) -> None: ...

    def drop(self, request: Waiting) -> None: ...


def serve(
    source: Source,
    sink: Sink,
    streams: Streams,
    batcher: Batcher,
    *,
    find_sample: Callable[[int], Feeds],
    clock: Clock,
    deadline_ns: int | None = None,
) -> int:
    """Serves until the source is exhausted and everything has ended; returns the nanoseconds that streams were busy.

    Args:
        sink: where they go, in the order in which they end.
        deadline_ns: from then on nothing new is begun, and whoever waits is dropped.
    """
    flying: dict[int, list[Waiting]] = {}
    busy_ns = ticket = 0
    while True:
        for request in source.take():
            if not batcher.add(request):
                sink.drop(request)
        late = deadline_ns is not None and clock() >= deadline_ns
        for request in batcher.clear() if late else ():
            sink.drop(request)
        while len(flying) < streams.depth and (batch := batcher.take(clock())):
            flying[ticket] = batch
            streams.submit(ticket, [find_sample(request.number) for request in batch])
            ticket += 1
        none_to_come = late or (source.exhausted and not len(batcher))
        if none_to_come and not flying:
            return busy_ns
        must_end = none_to_come or len(flying) >= streams.depth
        if not must_end:
            source.wait(min((at for at in (batcher.due_ns, deadline_ns) if at is not None), default=None))
        for ended in streams.collect(must_end) if flying else ():
            busy_ns += ended.done_ns - ended.started_ns
            sink.finish(flying.pop(ended.ticket), ended)
