"""Optional protocols of engines: tools that time themselves and keep logs, long builds, late imports.

All of them are found with `isinstance`. An engine that our own loop times needs none of them.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import (
    AheadOfTime,
    Artifact,
    EngineSpec,
    LayerProfile,
    MeasureSpec,
    Precision,
    ResultWarning,
)


@runtime_checkable
class ReportsProgress(Protocol):
    """A backend whose builds take minutes and report their progress."""

    def take_note(self, note: Callable[[str], None]) -> None: ...


@runtime_checkable
class ImportsLate(Protocol):
    """A backend that imports more when it loads than when it is opened, and can do so before."""

    def import_ahead(self) -> None: ...


@runtime_checkable
class RecordsLayers(Protocol):
    """An engine that names the layers of a call also where all are too short for its clock."""

    def record_layers(self) -> LayerProfile: ...


@runtime_checkable
class CountsWork(Protocol):
    """An engine whose threads wait for each other: CPU time of a call without the others, over the threads; or 0."""

    def count_least_ns(self) -> float: ...


@runtime_checkable
class WarnsOnLoad(Protocol):
    """An engine that may run a model differently from the request, and warns of it."""

    def list_warnings(self) -> tuple[ResultWarning, ...]: ...


@runtime_checkable
class StoresWeights(Protocol):
    """An engine of a module that may come quantized: the eight-bit precision of most of its weights, or None."""

    def find_weight_precision(self) -> Precision | None: ...


class Reader(NamedTuple):
    """A reader of graphs, with its version and the newest operator set that it supports."""

    title: str
    newest_opset: int


@runtime_checkable
class NamesFlags(Protocol):
    """A backend whose builder takes flags, by the names that a program of its own needs to build the same."""

    def name_flags(self, spec: EngineSpec) -> dict[str, object]: ...


@runtime_checkable
class ReadsOpsets(Protocol):
    """A backend whose tool takes a newer graph for another network, or does not read it."""

    def describe_reader(self, spec: EngineSpec) -> Reader: ...


@runtime_checkable
class ChecksAhead(Protocol):
    """A backend that knows what its version cannot build before the graph for it is made."""

    def check_ahead(self, artifact: Artifact, spec: EngineSpec) -> None: ...


@runtime_checkable
class LeavesCode(Protocol):
    """A backend whose build is no artifact: it compiles while it loads, and leaves code for the next process."""

    def hash_code(self) -> str | None:
        """Return a hash, equal for builds that left the same code; None if there is none."""


class PlanReader(Protocol):
    """Reads the files that TensorRT's inspector and profiler leave; `runs` hands it to the backends that need it."""

    def read_precision(self, layers: Path, profile: Path) -> dict[str, float] | None:
        """precision -> fraction of time; None where the layers carry no precision or no times."""

    def read_layers(self, layers: Path, profile: Path) -> LayerProfile:
        """The layers of the engine with their times."""

    def read_ahead(self, layers: Path) -> AheadOfTime:
        """The layers of a plan that has not run."""


@runtime_checkable
class NeedsPlanReader(Protocol):
    """A backend that reads those files with the reader it is given."""

    def take_reader(self, reader: PlanReader) -> None: ...


@runtime_checkable
class ComputesOutputs(Protocol):
    """A self-timed backend that also returns its outputs for all of `feeds`, joined."""

    def compute_outputs(self, artifact: Artifact, spec: EngineSpec, feeds: Sequence[Feeds]) -> dict[str, Array]: ...


class Composed(NamedTuple):
    """A command line that would be run, the version of its tool, and warnings about it."""

    argv: tuple[str, ...]
    version: str
    warnings: tuple[str, ...] = ()


ChangedPart: TypeAlias = Literal["command", "calibration cache", "graph"]


class Change(Struct, frozen=True, kw_only=True):
    """One thing that another version needs otherwise: what it is, what to do, and the command that does it, if any."""

    part: ChangedPart
    item: str
    change: str
    command: str | None = None


@runtime_checkable
class Composing(Protocol):
    """A backend of a program that can compose the command without running it, for the version given or installed."""

    def compose_build(self, artifact: Artifact, plan: str, spec: EngineSpec, version: str | None) -> Composed: ...

    def compose_measure(
        self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec, version: str | None
    ) -> Composed: ...

    def adapt_build(
        self, artifact: Artifact, plan: str, spec: EngineSpec, version: str
    ) -> tuple[EngineSpec, tuple[Change, ...]]:
        """The engine of a command for older versions as this one builds it, and what had to change."""


# How the folder of one process of a tool begins; its number follows.
PROCESS = "process-"


@runtime_checkable
class KeepsLog(Protocol):
    """Can be a backend: the tool that it runs writes logs."""

    def find_logs(self, artifact: Artifact, spec: EngineSpec, measure: MeasureSpec) -> list[Path]:
        """Those of the build of `artifact` and of the processes that measured it, in this order."""


@runtime_checkable
class TunedShapes(Protocol):
    """A backend that tunes what it builds for some shapes: the spec that runs it at those, and is sure to run."""

    def run_at_best(self, artifact: Artifact, spec: EngineSpec) -> EngineSpec: ...


@runtime_checkable
class PlanProof(Protocol):
    """A self-timed backend that can report the time of an artifact by precision; None if it is not recorded."""

    def prove_precision(self, artifact: Artifact, spec: EngineSpec) -> dict[str, float] | None: ...


@runtime_checkable
class PlanProfiler(Protocol):
    """A self-timed backend that can time the layers of an artifact."""

    def profile_plan(self, artifact: Artifact, spec: EngineSpec) -> LayerProfile: ...
