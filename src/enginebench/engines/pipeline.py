"""Several batches on their way at once: copied in, computed and copied out, each on a stream of its own.

Every batch has a slot: inputs and outputs on both sides that no other batch touches. Three events order what is done
to a slot: its copy in, its computation and its copy out come one after the other, whatever the streams do besides. A
slot is filled again only once its outputs were collected, which is after all that read or wrote it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from enginebench.core.engine_api import show_shape
from enginebench.core.errors import FeedError, UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import TensorSpec


class Lane(Protocol):
    """A stream. Everything but `wait` returns at once."""

    def call(self, work: Callable[[], object]) -> None:
        """Has `work` put what it does on this stream."""
        ...

    def make_event(self) -> Any: ...

    def record(self, event: Any) -> None: ...

    def follow(self, event: Any) -> None:
        """What comes later on this stream waits until everything before the event is done."""
        ...

    def wait(self, event: Any) -> None:
        """The host waits."""
        ...

    def synchronize(self) -> None: ...


class Lanes(NamedTuple):
    """The three streams that all slots share."""

    copy_in: Lane
    compute: Lane
    copy_out: Lane


class Slot(NamedTuple):
    """What one batch works on, and how: `views` are written by the host, `read` copies the outputs from the host's."""

    views: Mapping[str, Array]  # pinned memory
    move_in: Callable[[], object]
    launch: Callable[[], object]
    move_out: Callable[[], object]
    read: Callable[[], dict[str, Array]]
    close: Callable[[], object] = lambda: None


class Pipeline:
    """Slots in turn. `submit` returns while the batch is on its way; `collect` waits for the oldest one.

    Not for several threads at once. After an error it can only be closed.
    """

    def __init__(self, inputs: Sequence[TensorSpec], lanes: Lanes, slots: Sequence[Slot]) -> None:
        self._inputs, self._lanes = inputs, lanes
        events = [tuple(lane.make_event() for lane in lanes) for _ in slots]
        self._free = deque(zip(slots, events, strict=True))
        self._busy: deque[tuple[Slot, tuple[Any, ...]]] = deque()

    @property
    def depth(self) -> int:
        """How many batches can be on their way."""
        return len(self._free) + len(self._busy)

    def submit(self, feeds: Feeds) -> None:
        """Copies the arrays into a free slot and puts all of its work on the streams."""
        if not self._free:
            raise UsageError(f"all {self.depth} slots are on their way; collect one before the next submit")
        slot, (came_in, computed, done) = self._free[0]
        check_feeds(self._inputs, feeds)
        for name, view in slot.views.items():
            if view.shape != feeds[name].shape:
                found, held = show_shape(feeds[name].shape), show_shape(view.shape)
                raise FeedError(f"input {name!r} has shape {found}; the slots were made for {held}")
            np.copyto(view, feeds[name])
        copy_in, compute, copy_out = self._lanes
        copy_in.call(slot.move_in)
        copy_in.record(came_in)
        compute.follow(came_in)
        compute.call(slot.launch)
        compute.record(computed)
        copy_out.follow(computed)
        copy_out.call(slot.move_out)
        copy_out.record(done)
        self._busy.append(self._free.popleft())

    def collect(self) -> dict[str, Array]:
        """The outputs of the batch that was submitted first, which is waited for; its slot is free then."""
        if not self._busy:
            raise UsageError("nothing is on its way; submit before collect")
        slot, events = self._busy[0]
        self._lanes.copy_out.wait(events[-1])
        answer = slot.read()
        self._free.append(self._busy.popleft())
        return answer

    def close(self) -> None:
        """Waits for what is on its way and frees the slots; may be called twice."""
        for lane in self._lanes:
            lane.synchronize()
        for slot, _ in (*self._busy, *self._free):
            slot.close()
        self._busy.clear()
        self._free.clear()
