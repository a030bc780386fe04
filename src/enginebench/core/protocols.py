"""The seam: what a backend is, what an engine is, and the abilities that some of them have.

A backend offers `load` (the engine is timed by our loop) or `measure` (the tool times itself). Further abilities
are protocols of their own, found with `isinstance`. There are no base classes to inherit from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from enginebench.core.records import (
    Artifact,
    Availability,
    EngineSpec,
    LayerProfile,
    Measurement,
    MeasureSpec,
    TensorSpec,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.generic]
    Feeds: TypeAlias = Mapping[str, Array]


class Engine(Protocol):
    """A loaded engine. `run` returns when the outputs are complete: that promise makes rows comparable.

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class RunCall(Protocol):
    """`engine.run`: fetched once by the loop, then called without arguments."""

    def __call__(self) -> object: ...


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
class ImportsLate(Protocol):
    """A backend that imports more when it loads than when it is opened, and can do so before."""

    def import_ahead(self) -> None: ...


@runtime_checkable
class SelfTimed(Protocol):
    """A backend that measures by a clock of its own (`trtexec`, `fpga-sim`)."""

    def measure(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> Measurement: ...


@runtime_checkable
class PrecisionProof(Protocol):
    """An engine that can say, from its runtime's own record, in which precisions it spent its time."""

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
    """An engine that can time its layers, on what was bound last; over the same runs as its proof of precision."""

    def profile_layers(self) -> LayerProfile: ...


class ToolReader(Protocol):
    """Reads the files that trtexec and TensorRT's inspector leave; `workflow` hands it to the backends that need it."""

    def read_times(self, times: Path, log: Path, *, batch: int, drop: int, keep: int | None) -> Measurement:
        """The raw times, without the `drop` first queries, and of the rest only the last `keep` (None: all)."""
        ...

    def read_switches(self, log: Path) -> dict[str, bool | int | None]:
        """cuda_graph, data_transfers, spin_wait, streams as they took effect; None where the log does not say."""
        ...

    def read_precision(self, layers: Path, profile: Path) -> dict[str, float] | None:
        """precision -> share of time; None where the layers carry no precision or no times."""
        ...

    def read_layers(self, layers: Path, profile: Path) -> LayerProfile:
        """The layers of the engine with their times."""
        ...


@runtime_checkable
class NeedsToolReader(Protocol):
    """A backend that leaves the reading of its tool's files to `analyze`."""

    def take_reader(self, reader: ToolReader) -> None: ...


@runtime_checkable
class ReportsProgress(Protocol):
    """A backend whose building takes minutes and says how far it is."""

    def take_note(self, note: Callable[[str], None]) -> None: ...


@runtime_checkable
class Answering(Protocol):
    """A self-timed backend that also shows what it computes: outputs for some of `feeds`, the first ones, joined."""

    def answer(self, artifact: Artifact, spec: EngineSpec, feeds: Sequence[Feeds]) -> dict[str, Array]: ...


class Composed(NamedTuple):
    """A command line that would be run, the version of the tool that it is for, and what is doubtful about it."""

    argv: tuple[str, ...]
    version: str
    doubts: tuple[str, ...] = ()


@runtime_checkable
class KeepsLog(Protocol):
    """Can be a backend: the tool that it runs writes logs."""

    def find_logs(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> list[Path]:
        """Those of the build of `artifact` and of the processes that measured it, in this order."""
        ...


@runtime_checkable
class Composing(Protocol):
    """A backend that runs a program, and can say how without running it: for the version given, else the installed."""

    def compose_build(self, artifact: Artifact, plan: str, spec: EngineSpec, version: str | None) -> Composed: ...

    def compose_measure(
        self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec, version: str | None
    ) -> Composed: ...


@runtime_checkable
class PlanProof(Protocol):
    """A self-timed backend that can say in which precisions an artefact spends its time; None if it does not show."""

    def prove_precision(self, artifact: Artifact, spec: EngineSpec) -> dict[str, float] | None: ...


@runtime_checkable
class PlanProfiler(Protocol):
    """A self-timed backend that can time the layers of an artefact."""

    def profile_plan(self, artifact: Artifact, spec: EngineSpec) -> LayerProfile: ...


class SimulatedBoard(Protocol):
    """An accelerator that exists in simulation: real answers, counted cycles, a modelled time."""

    @property
    def design_sha256(self) -> str: ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def description(self) -> str: ...

    def infer(self, inputs: Array) -> tuple[Array, list[int]]:
        """(outputs [n, ...], cycles of each inference) for inputs [n, ...]."""

    def model_ns(self, cycles: int) -> tuple[int, int, int]:
        """Nanoseconds of (copy in, compute, copy back) of an inference with so many cycles."""

    def model_interval_ns(self, cycles: int) -> int:
        """Nanoseconds between answers when copies and compute overlap."""

    def close(self) -> None: ...


class BoardMaker(Protocol):
    """Puts the network of an artefact on a simulated board; `workflow` hands it to `fpga-sim`.

    `options` are those of the engine, defaults filled in; `cache_dir` keeps what was compiled.
    """

    def __call__(self, artifact: Artifact, options: Mapping[str, str], cache_dir: Path) -> SimulatedBoard: ...


class ModuleLoader(Protocol):
    """Rebuilds the PyTorch module of a `torch` artefact; `workflow` hands it to the backends that need it."""

    def __call__(self, artifact: Artifact) -> Any: ...  # torch.nn.Module, which core does not import
