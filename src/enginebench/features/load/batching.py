"""Requests that wait, and which of them are computed together: dynamic batching, and a queue that has an end."""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple


class Waiting(NamedTuple):
    """A request in the queue. Only requests of one `kind` (the shapes of their inputs) are computed together."""

    number: int
    since_ns: int
    kind: Hashable = ()


class Batcher:
    """The queue of an engine, first come, first served.

    Args:
        max_wait_ns: how long the oldest request waits for others to fill its batch.
        limit: requests that may wait; who comes then is turned away.
    """

    def __init__(self, max_batch: int = 1, max_wait_ns: int = 0, limit: int | None = None) -> None:
        self._max_batch, self._max_wait_ns, self._limit = max_batch, max_wait_ns, limit
        self._queue: deque[Waiting] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, request: Waiting) -> bool:
        """Whether the request was let in."""
        if self._limit is not None and len(self._queue) >= self._limit:
            return False
        self._queue.append(request)
        return True

    def take(self, now_ns: int) -> list[Waiting]:
        """The next batch, oldest first: full, or as full as it got in time; none while it may still fill."""
        batch = self._find_batch()
        if len(batch) < self._max_batch and (due := self.due_ns) is not None and now_ns < due:
            return []
        for request in batch:
            self._queue.remove(request)  # nearly always the first one
        return batch

    @property
    def due_ns(self) -> int | None:
        """When the oldest request has waited long enough; None if nobody waits."""
        return self._queue[0].since_ns + self._max_wait_ns if self._queue else None

    def _find_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        for request in self._queue:
            if len(batch) >= self._max_batch:
                break
            if not batch or request.kind == batch[0].kind:
                batch.append(request)
        return batch

    def clear(self) -> list[Waiting]:
        left = list(self._queue)
        self._queue.clear()
        return left
