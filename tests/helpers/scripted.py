"""Engines that move a clock, which nothing else does: the loop can be checked to the nanosecond."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from enginebench.core.records import TensorSpec
from enginebench.engines.fake import FakeClock


class ScriptedEngine:
    """Each `run` takes the next latency of the script; the last one is repeated for ever."""

    inputs = (TensorSpec(name="x", dtype="float32", shape=(1,)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=(1,)),)

    def __init__(
        self,
        clock: FakeClock,
        latencies_ns: Iterable[int],
        *,
        bind_ns: int = 0,
        fetch_ns: int = 0,
        on_run: Callable[[int], None] = lambda call: None,
    ) -> None:
        script = list(latencies_ns)
        self._clock = clock
        self._script = itertools.chain(script, itertools.repeat(script[-1]))
        self._bind_ns, self._fetch_ns = bind_ns, fetch_ns
        self._on_run = on_run
        self.calls = 0
        self.run_lookups = 0
        self.bound: list[Mapping[str, np.ndarray[Any, Any]]] = []
        self.fetched = 0

    @property
    def run(self) -> Callable[[], None]:
        if not self.bound:
            raise RuntimeError("nothing is bound yet")
        self.run_lookups += 1
        return self._run_once

    def bind(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.bound.append(feeds)
        self._clock.advance(self._bind_ns)

    def fetch(self) -> dict[str, np.ndarray[Any, Any]]:
        self.fetched += 1
        self._clock.advance(self._fetch_ns)
        return {"y": np.zeros(1, np.float32)}

    def close(self) -> None: ...

    def __enter__(self) -> "ScriptedEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def _run_once(self) -> None:
        self._on_run(self.calls)
        self.calls += 1
        self._clock.advance(next(self._script))


class ScriptedDevice(ScriptedEngine):
    """A device whose own clock reads a third of the latency, its enqueueing a tenth; reading takes 7 ns."""

    latency_ns = 0

    def _run_once(self) -> None:
        before = self._clock.now_ns
        super()._run_once()
        self.latency_ns = self._clock.now_ns - before

    def last_device_ns(self) -> int:
        self._clock.advance(7)
        return self.latency_ns // 3

    def last_enqueue_ns(self) -> int:
        return self.latency_ns // 10
