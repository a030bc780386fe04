"""The places where features join in: one protocol each, which says what is called with what, and what it returns.

A feature brings a function for a protocol (`Feature.hooks`); who calls it looks it up by the protocol (`find_hooks` in
`core/features.py`), and so is checked against the same types. What the types name is imported for type checkers alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from msgspec import Struct

    from enginebench.core.protocols import Array
    from enginebench.core.records import Artifact, Bound, Capacity, EngineSpec, LayerTime, Result, ResultWarning
    from enginebench.report.drift import DriftDocument
    from enginebench.report.located import Located
    from enginebench.report.run.deploy import Delivery
    from enginebench.report.run.rows import RunDocument
    from enginebench.report.table import Section
    from enginebench.runs.folder import RunFolder, RunRecord, RunRequest
    from enginebench.runs.progress import Reporter
    from enginebench.runs.reporting import Written
    from enginebench.runs.targets.sides import OpenSide
    from enginebench.stats.capacity import LoadOutcome
    from enginebench.stats.diff import DiffDocument
    from enginebench.stats.engine_profile import LimitedLayers
    from enginebench.stats.layer_records import LayerDelta

# The files of a report, the document that they show, and what lists its sections for a terminal, if anything does.
Report: TypeAlias = "tuple[Written, Struct, Callable[[Any], Sequence[Section]] | None]"


class RunFinished(Protocol):
    """After the last trial of a run: completes its results, and stores what it changes (`folder.write_result`)."""

    def __call__(
        self, folder: RunFolder, record: RunRecord, results: dict[str, Result], reporter: Reporter, /
    ) -> None: ...


class ReportSections(Protocol):
    """Sections at the end of a run's report (report.html and report.md); `folder` is that of the run."""

    def __call__(self, document: RunDocument, folder: Path, /) -> Sequence[Section]: ...


class FolderMatch(Protocol):
    """Whether a folder, or an address such as s3://BUCKET/PREFIX, holds what the feature writes or reads."""

    def __call__(self, path: str, /) -> bool: ...


class FolderReport(Protocol):
    """The report on a folder that holds no run; None if it holds nothing that the feature knows."""

    def __call__(self, path: str, formats: Sequence[str], options: Mapping[str, Any], /) -> Report | None: ...


class FileReader(Protocol):
    """The document of a file or folder that is none of EngineBench's own; None if the feature does not know it."""

    def __call__(self, path: Path, /) -> Struct | None: ...


class HistoryFolder(Protocol):
    """The folder with the results that `history` reads, for a folder or the address of a store."""

    def __call__(self, path: str, /) -> Path: ...


class NodeQuery(Protocol):
    """For each node of a cluster its name and the response of `ask` there, or the reason why there is none."""

    def __call__(
        self, address: str, ask: Callable[[bytes], bytes], /, *, timeout_s: float
    ) -> Sequence[tuple[str, bytes | str]]: ...


class EnvironmentDiff(Protocol):
    """The verdict on every configuration in one environment against another, within the same runs."""

    def __call__(
        self,
        runs: Sequence[Path],
        environments: str,
        margin: float,
        /,
        *,
        allow_not_comparable: bool = False,
        metric: str | None = None,
        max_metric_drop: float | None = None,
    ) -> DiffDocument: ...


class FaultLocator(Protocol):
    """Searches the sides of a comparison for the first node whose outputs leave the reference of its own graph.

    `calls`: inputs of a call, each for where those before it show nothing. `out`: a folder for reproductions.
    """

    def __call__(
        self,
        sides: Sequence[OpenSide],
        calls: Sequence[Mapping[str, Array]],
        /,
        *,
        slice_mb: int,
        scratch: Path,
        out: Path | None,
        reporter: Reporter,
    ) -> Located: ...


class DriftSections(Protocol):
    """Sections below the table of `drift`."""

    def __call__(self, document: DriftDocument, /) -> Sequence[Section]: ...


class DiffNotes(Protocol):
    """Sentences above the table of a comparison."""

    def __call__(self, document: DiffDocument, /) -> Sequence[str]: ...


class LayerPairing(Protocol):
    """The layers of two configurations that compute the same ONNX nodes, the largest difference of time first."""

    def __call__(self, base: Sequence[LayerTime], candidate: Sequence[LayerTime], /) -> Sequence[LayerDelta]: ...


class LayerLimits(Protocol):
    """The layers of a profile with their bounds; `ran`: engine, the artifact that it started from, input shapes."""

    def __call__(
        self,
        request: RunRequest,
        folder: Path,
        ran: tuple[EngineSpec, Artifact, dict[str, tuple[int, ...]]],
        layers: Sequence[LayerTime],
        reporter: Reporter,
        /,
    ) -> LimitedLayers: ...


class ModelBound(Protocol):
    """The least time that the machine needs for a model, or None and why it is not known."""

    def __call__(
        self, folder: RunFolder, record: RunRecord, result: Result, timeout_s: float, reporter: Reporter, /
    ) -> tuple[Bound | None, str]: ...


class TrtexecChoice(Protocol):
    """Makes an executable the trtexec of this process and of its children."""

    def __call__(self, path: str, /) -> None: ...


class ToolDifference(Protocol):
    """The reasons why two configurations of a comparison differ that are no difference of speed."""

    def __call__(self, results: Sequence[Result], /) -> Iterable[ResultWarning]: ...


class RegionEngineCheck(Protocol):
    """Raises UsageError unless regions of a graph can be timed on this ENGINE."""

    def __call__(self, engine: str, /) -> object: ...


class SlowRegions(Protocol):
    """Names of the nodes that stay in FP32, since 8 bits do not make them faster on ENGINE."""

    def __call__(
        self, artifact: Artifact, quantized: Artifact, engine: str, reporter: Reporter, /
    ) -> tuple[str, ...]: ...


class SettingsSearch(Protocol):
    """Searches the settings of a request's engines; the result lies in `root` and is returned."""

    def __call__(
        self,
        request: RunRequest,
        root: Path,
        /,
        *,
        threads: int | None,
        budget_s: float,
        reporter: Reporter,
        wait: bool,
    ) -> Struct: ...


class LoadCheck(Protocol):
    """Raises UsageError unless a configuration can be put under load in so many streams and batches."""

    def __call__(self, folder: RunFolder, result: Result, streams: int, max_batch: int, /) -> object: ...


class LoadTrial(Protocol):
    """One configuration under load; `settings` are fields of the record in load.json."""

    def __call__(
        self,
        folder: RunFolder,
        result: Result,
        streams: int,
        max_batch: int,
        settings: Mapping[str, Any],
        /,
        *,
        name: str,
        earlier: Sequence[Capacity],
        seed: int,
        timeout_s: float,
        reporter: Reporter,
    ) -> LoadOutcome: ...


class BundlePlace(Protocol):
    """Raises UsageError unless a bundle can be written to this folder."""

    def __call__(self, out: Path, /) -> None: ...


class BundlePlan(Protocol):
    """Whether a configuration of the run in `root` can be delivered: why not, or the options that it takes."""

    def __call__(self, root: Path, request: RunRequest, result: Result, /) -> Delivery: ...


class BundleWriter(Protocol):
    """Writes a configuration of a run as a bundle; `options` are those of `enginebench.deliver`."""

    def __call__(self, run: str | os.PathLike[str], out: str | os.PathLike[str], /, **options: Any) -> Struct: ...


class BundlePrinter(Protocol):
    """Writes the recommended configuration of a run as a bundle, and prints on stderr what is in it."""

    def __call__(self, root: Path, out: str | os.PathLike[str], /) -> None: ...
