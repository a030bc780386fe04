"""The server's side of a load: requests come from a source, wait, are batched, computed, and stamped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

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


class Span:
    """How long something was at work, of pieces that may overlap and come roughly in the order of their ends."""

    def __init__(self) -> None:
        self.total_ns = self._end_ns = 0

    def add(self, start_ns: int, end_ns: int) -> None:
        self.total_ns += max(0, end_ns - max(start_ns, self._end_ns))
        self._end_ns = max(self._end_ns, end_ns)


class Work(Struct, frozen=True):
    """For how long each part of a server was at work, in nanoseconds.

    Args:
        busy_ns: summed over all streams, from a submission to its answer.
        stages: nanoseconds by part, each as if it were alone; `compute` of an engine that does not say more is
            `busy_ns` over the number of streams.
    """

    busy_ns: int
    stages: dict[str, int]


def serve(
    source: Source,
    sink: Sink,
    streams: Streams,
    batcher: Batcher,
    *,
    find_sample: Callable[[int], Feeds],
    clock: Clock,
    deadline_ns: int | None = None,
) -> Work:
    """Serves until the source is exhausted and everything has ended; returns who was at work for how long.

    Args:
        sink: where they go, in the order in which they end.
        deadline_ns: from then on nothing new is begun, and whoever waits is dropped.
    """
    flying: dict[int, list[Waiting]] = {}
    busy_ns = ticket = own_ns = given_ns = 0
    copy_in, compute, copy_out = parts = Span(), Span(), Span()
    while True:
        begin_ns, first, waited_ns = clock(), ticket, 0
        came = source.take()
        for request in came:
            if not batcher.add(request):
                sink.drop(request)
        late = deadline_ns is not None and clock() >= deadline_ns
        for request in batcher.clear() if late else ():
            sink.drop(request)
        while len(flying) < streams.depth and (batch := batcher.take(clock())):
            flying[ticket] = batch
            samples, submit_ns = [find_sample(request.number) for request in batch], clock()
            streams.submit(ticket, samples)
            waited_ns += clock() - submit_ns
            ticket += 1
        given_ns += waited_ns
        none_to_come = late or (source.exhausted and not len(batcher))
        if none_to_come and not flying:
            break
        must_end, wait_ns = none_to_come or len(flying) >= streams.depth, clock()
        if not must_end:
            moments = (batcher.due_ns, deadline_ns, wait_ns if streams.polled and flying else None)
            source.wait(min((at for at in moments if at is not None), default=None))
        found = streams.collect(must_end) if flying else []
        waited_ns += clock() - wait_ns
        for ended in found:
            busy_ns += ended.done_ns - ended.started_ns
            sink.finish(flying.pop(ended.ticket), ended)
            if ended.device_ns is not None:
                moment = ended.computed_ns + ended.device_ns.copy_out
                for part, took_ns in zip(reversed(parts), reversed(ended.device_ns), strict=True):
                    part.add(moment - took_ns, moment)
                    moment -= took_ns
        if came or found or ticket > first:
            own_ns += clock() - begin_ns - waited_ns
    stages = {"batcher": own_ns}
    if compute.total_ns:
        device = {"copy in": copy_in.total_ns, "compute": compute.total_ns, "copy out": copy_out.total_ns}
        return Work(busy_ns, {**stages, "host": given_ns, **device})
    return Work(busy_ns, {**stages, "compute": busy_ns // streams.depth})
