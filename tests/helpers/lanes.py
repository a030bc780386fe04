"""A lane without a GPU: tensors lie on the CPU, events are moments of a clock that the test moves."""

from collections.abc import Callable
from typing import Any

import torch

from enginebench.core.records import TensorSpec


class FakeEvent:
    """A moment of the lane's clock."""

    at_ns = -1

    def synchronize(self) -> None:
        assert self.at_ns >= 0, "waits for an event that was never recorded"

    def query(self) -> bool:
        return self.at_ns >= 0

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.at_ns - self.at_ns) / 1e6


class FakeLane:
    """Does at once what a stream would do later. Every call is written into `log`.

    Args:
        copy_ns: how far the clock moves at each second event of a copy or a run, so that no time is zero.
        capture_error: raised by `capture`.
    """

    def __init__(self, copy_ns: int = 1000, capture_error: Exception | None = None) -> None:
        self.now_ns, self._step_ns, self._capture_error = 0, copy_ns, capture_error
        self.log: list[str] = []
        self.flushes = 0

    def enter(self) -> None:
        self.log.append("enter")

    def make_event(self) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent) -> None:
        self.now_ns += self._step_ns
        event.at_ns = self.now_ns
        self.log.append("record")

    def wait(self, event: FakeEvent) -> None:
        assert event.at_ns == self.now_ns, "waits for an event that is not the last"
        self.log.append("wait")

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def make_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=getattr(torch, spec.dtype))

    def make_pinned(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        return torch.empty(shape, dtype=dtype)

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        if self._capture_error is not None:
            raise self._capture_error
        call()
        self.log.append("capture")

        def replay() -> None:
            call()
            self.log.append("replay")

        return replay

    def make_flush(self) -> Callable[[], None]:
        def flush() -> None:
            self.flushes += 1

        return flush
