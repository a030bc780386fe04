"""The interface of backends and engines, and the abilities that some of them have.

A backend offers `load` (the engine is timed by our loop) or `measure` (the tool times itself). Further abilities
are protocols of their own, found with `isinstance`. There are no base classes to inherit from.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from .engine_api import Array as Array
from .engine_api import Feeds as Feeds
from .engine_api import RunCall as RunCall
from .records import Artifact, Availability, EngineSpec, LayerProfile, Measurement, MeasureSpec, TensorSpec

# Rebuilds the PyTorch module of a `torch` artifact; `workflow` hands it to the engines that ask for it.
ModuleLoader: TypeAlias = Callable[[Artifact], Any]  # a torch.nn.Module, which core does not import


class Engine(Protocol):
    """A loaded engine. `run` returns when the outputs are complete: that promise makes times comparable.

    `bind` copies the caller's arrays in, `fetch` returns arrays that the caller owns. Wrong names, shapes or
    dtypes raise `FeedError` in `bind`. `close` may be called twice.
    """

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...
    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...
    def bind(self, feeds: Feeds) -> None: ...
    @property
    def run(self) -> RunCall: ...
    def fetch(self) -> dict[str, Array]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Engine: ...
    def __exit__(self, kind: Any, error: Any, trace: Any, /) -> None: ...


@runtime_checkable
class Backend(Protocol):
    """One engine kind. `probe` never raises; `build` makes what `load` or `measure` takes."""

    @property
    def name(self) -> str: ...
    def probe(self) -> Availability: ...
    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact: ...


@runtime_checkable
class Loadable(Protocol):
    """A backend whose engines are timed by our own loop."""

    def load(self, artifact: Artifact, spec: EngineSpec) -> Engine: ...


@runtime_checkable
class SelfTimed(Protocol):
    """A backend that measures by a clock of its own (`trtexec`, `fpga-sim`)."""

    def measure(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Measurement: ...


@runtime_checkable
class PrecisionProof(Protocol):
    """An engine that can report the fraction of its time in each precision, from its runtime's own record."""

    def effective_precision(self) -> dict[str, float]: ...


@runtime_checkable
class DeviceClock(Protocol):
    """An engine on a device: `last_device_ns` is the device time of the last `run`, by the device's own clock.

    `last_enqueue_ns` is the host time that it took to enqueue that run; 0 where the runtime does not let it be seen.
    """

    def last_device_ns(self) -> int: ...
    def last_enqueue_ns(self) -> int: ...


@runtime_checkable
class CopyClock(Protocol):
    """An engine that times its copies: of the last `bind` and `fetch`.

    h2d and d2h are device times; staging is what the host itself did in both calls (checks, pinned memory).
    """

    def last_h2d_ns(self) -> int: ...
    def last_d2h_ns(self) -> int: ...
    def last_staging_ns(self) -> int: ...


@runtime_checkable
class EmptyCall(Protocol):
    """An engine that can call into its runtime's extension without any work: what the way there and back costs."""

    def call_nothing(self) -> object: ...


@runtime_checkable
class CacheFlusher(Protocol):
    """An engine that can empty the last cache before the memory that it computes from; returns when that is done."""

    def flush_cache(self) -> None: ...


@runtime_checkable
class LayerProfiler(Protocol):
    """An engine that can time its layers, on what was bound last; over the same runs as its precision verification."""

    def profile_layers(self) -> LayerProfile: ...
