"""Engines with several requests or batches on their way at once, beside `Engine`, which takes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar, runtime_checkable

from enginebench.core.engine_api import DeviceTimes
from enginebench.core.records import Artifact, EngineSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds

# Host nanoseconds, by a clock that all processes of the machine share.
Clock = Callable[[], int]


class Ended(NamedTuple):
    """One submission that has ended: its outputs, joined in the order of its samples, or why there are none."""

    ticket: int
    started_ns: int
    computed_ns: int
    done_ns: int
    outputs: dict[str, Array] | None
    error: str | None = None
    device_ns: DeviceTimes | None = None  # of engines that measure them; they are the last that happens before the end


def fail_request(ticket: int, started_ns: int, now_ns: int, error: Exception) -> Ended:
    """A submission that failed, with the first words of why."""
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return Ended(ticket, started_ns, now_ns, now_ns, None, reason)


T = TypeVar("T")


def collect_ended(ended: SimpleQueue[T], wait: bool) -> list[T]:
    """Return the submissions that other threads have put in the queue; with `wait` at least one."""
    submissions = [ended.get()] if wait else []
    while not ended.empty():
        submissions.append(ended.get())
    return submissions


class Streams(Protocol):
    """An engine that takes up to `depth` submissions at a time and returns each when it has ended, in any order.

    A submission is one or more samples of equal shapes, each with a first axis for its entries; they are computed
    together. What goes wrong with one ends that one alone. `close` may be called twice.
    """

    @property
    def depth(self) -> int: ...
    @property
    def polled(self) -> bool:
        """Whether `collect` must be called all the time: submissions get the time of their end only there."""

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None: ...
    def collect(self, wait: bool) -> list[Ended]:
        """Return the submissions that ended since the last call; with `wait` at least one, if any is pending."""

    def close(self) -> None: ...


@runtime_checkable
class Overlapping(Protocol):
    """An engine that works on one batch while its caller does something else, if `overlaps` is true."""

    @property
    def overlaps(self) -> bool: ...
    def begin(self, samples: Sequence[Feeds]) -> None:
        """Copy the samples, each with a first axis, into its buffers, and start what follows: copies and computing.

        What of its batch they leave free keeps what it held, zeros at first.
        """

    def is_done(self) -> bool: ...
    def finish(self) -> tuple[dict[str, Array], DeviceTimes]:
        """Wait until it is done, and return copies of the outputs."""


class StreamsSpec(NamedTuple):
    """The settings of an engine for many requests: streams, each with the threads of its `EngineSpec`, and batches."""

    streams: int = 1
    max_batch: int = 1


@runtime_checkable
class Streaming(Protocol):
    """A backend with an asynchronous interface of its own; None where its options ask for one engine a stream."""

    def open_streams(
        self, artifact: Artifact, spec: EngineSpec, wanted: StreamsSpec, clock: Clock
    ) -> Streams | None: ...


@runtime_checkable
class LoadsSeveral(Protocol):
    """A backend whose engines can share what is loaded: one engine for each spec; they differ in their batch alone.

    Each has buffers of its own, so that each can be called from a thread of its own.
    """

    def load_several(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> Sequence[Engine]: ...
