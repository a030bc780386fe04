"""Jobs for child processes, and their responses: plain records, one JSON document each way.

A job names the type of its response, and imports the function that performs it in the child. So a new job is a record
and a function: there is no list of jobs.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import Struct, field

from enginebench.core.features import find
from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    ColdStart,
    Drift,
    EngineSpec,
    Facts,
    LayerTime,
    LeastWork,
    Measurement,
    MeasureSpec,
    ModelSource,
    Placing,
    Precision,
    Recipe,
    ReferenceKind,
    ResultWarning,
    Score,
    Task,
    TrafficCell,
)

Response = TypeVar("Response")
# Reports the progress of a child.
NoteCall: TypeAlias = Callable[[str], None]
# Sends the results so far before the child goes on.
KeepCall: TypeAlias = Callable[[Response], None]


class Job(Struct, Generic[Response], frozen=True, kw_only=True):
    """A job for a child; one class each: `class EchoJob(Job[EchoResponse], tag="echo")`."""

    timed: ClassVar[bool] = False  # whether the response has times that are compared

    def perform(self, note: NoteCall, keep: KeepCall[Response]) -> Response:
        """Perform the job with what the child alone imports; `keep` gets the results before a record is made."""
        raise NotImplementedError(f"{type(self).__name__} does not name its result")


class Proof(Struct, frozen=True, kw_only=True):
    """The contents of an engine's own record; `effective_precision` is None if it keeps none, or if it failed."""

    effective_precision: dict[str, float] | None = None
    failure: str | None = None  # why there is no record, of an engine that keeps one
    weights: Precision | None = None  # the eight-bit precision that most weights of a module are stored in
    layers: tuple[LayerTime, ...] = ()
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class Provable(Struct, frozen=True, kw_only=True):
    """A response that is valid even if the record that is made after it fails."""

    proof: Proof | None = None


class SourceResponse(Struct, frozen=True, kw_only=True):
    artifacts: tuple[Artifact, ...]
    no_graph: str | None = None  # why there is no ONNX graph, where the job can do without


class SourceJob(Job[SourceResponse], frozen=True, kw_only=True, tag="source"):
    """Make the artifacts that a run starts from: PyTorch weights, the ONNX graph, or both."""

    source: ModelSource
    out_dir: str
    batch: int = 1
    any_batch: bool = False  # no batch was requested: a graph that is wanted as a file keeps the model's own
    onnx: bool = True
    needs_onnx: bool = True  # else the response has why an export failed, beside the PyTorch artifact
    onnx_out: str | None = None
    dynamic_batch: bool = True
    dynamic_axes: dict[str, tuple[int, ...]] = {}
    opset: int | None = None
    data: str | None = None  # the user's data, whose first entries serve as inputs where there are no others

    def perform(self, note: NoteCall, keep: KeepCall[SourceResponse]) -> SourceResponse:
        from enginebench.runs.child.perform.sources import make_source

        return make_source(self, note, keep)


class QuantizeJob(Job[Artifact], frozen=True, kw_only=True, tag="quantize"):
    """Bring a graph into another precision; ranges are taken once a run and kept in its folder."""

    model: str
    artifact: Artifact
    precision: Precision
    recipe: Recipe | None
    out: str
    calibration_path: str
    data: str
    method: str
    n: int
    seed: int
    threads: int
    input_size: int | None = None
    inputs: str | None = None  # folder of the user's inputs, which take the place of `data`
    exclude: tuple[str, ...] = ()  # nodes that stay in FP32
    verb: str = "run"  # whose options a warning advises

    def perform(self, note: NoteCall, keep: KeepCall[Artifact]) -> Artifact:
        from enginebench.runs.child.perform.sources import quantize_graph

        return quantize_graph(self, note)


class Labelled(Struct, frozen=True, kw_only=True):
    """Samples for every configuration, and the metrics of its outputs; without labels outputs are only compared."""

    data: str | None  # `digits`, a folder of pictures, or prepared arrays; None: the user's inputs
    n: int
    input_size: int | None = None
    metrics: tuple[str, ...] = ("top1", "top5")
    targets: str | None = None  # the file of labels; None: the data have labels of their own
    task: Task | None = None
    unlabelled: str | None = None  # why there are no labels; then there are no metrics either


class PrepareResponse(Provable, frozen=True, kw_only=True):
    artifact: Artifact
    engine_version: str | None
    build_s: float | None  # None of a finished plan, which is only loaded
    size_bytes: int | None
    fingerprint: str | None = None  # of what was built; None: nothing that could be hashed
    lowered: Artifact | None = None  # the graph in an older operator set, of which it was built
    drift: Drift | None = None  # of a finished plan, from its graph
    varies: float = 0.0  # by what share of their largest value two outputs for the same inputs differ


class PrepareJob(Job[PrepareResponse], frozen=True, kw_only=True, tag="prepare"):
    """Build an engine, run the check inputs through it once, and save its outputs."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    outputs_path: str
    samples: int
    seed: int
    prove: bool = True  # read the record of a loaded engine; a self-timed one always has its record read
    # What the metrics need of the outputs for it goes to `labelled_path`; without labels they are the outputs.
    labelled: Labelled | None = None
    labelled_path: str = ""
    inputs: str | None = None  # folder of the user's inputs
    graph: str | None = None  # of a finished plan, to compare its outputs with
    further_path: str = ""  # for the outputs on sets of inputs that reach further; "": none
    examples: str = ""  # where the example inputs of the user's module lie, if it has any
    recheck_path: str = ""  # for the outputs that each trial must reproduce; "": none

    def perform(self, note: NoteCall, keep: KeepCall[PrepareResponse]) -> PrepareResponse:
        from enginebench.runs.child.perform.build import prepare_engine

        return prepare_engine(self, note, keep)


class ReferenceResponse(Struct, frozen=True, kw_only=True):
    varies: float  # by what share of their largest value two outputs for the same inputs differ


class ReferenceJob(Job[ReferenceResponse], frozen=True, kw_only=True, tag="reference"):
    """Compute the outputs of an unchanged graph for the inputs of a configuration's check, and save them."""

    check: PrepareJob  # the check; its engine has the threads and the batch, and no options
    kind: ReferenceKind
    budget_s: float  # fewer calls are made where all of them would take longer

    def perform(self, note: NoteCall, keep: KeepCall[ReferenceResponse]) -> ReferenceResponse:
        from enginebench.runs.child.perform.reference import compute_reference

        return compute_reference(self, note)


class LabelledResponse(Struct, frozen=True, kw_only=True):
    n: int
    nonfinite: int = 0  # samples whose outputs are not all finite
    preprocess_sha256: str | None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class LabelledJob(Job[LabelledResponse], frozen=True, kw_only=True, tag="answer"):
    """Run one engine on labelled data, read as it is needed; save what the metrics need of its outputs."""

    model: str  # whose preprocessing the data go through
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    labelled_path: str
    labelled: Labelled
    seed: int
    inputs: str | None = None  # of the user, as `--inputs` names them

    def perform(self, note: NoteCall, keep: KeepCall[LabelledResponse]) -> LabelledResponse:
        from enginebench.runs.child.perform.outputs import run_labelled

        return run_labelled(self, note)


class MeasureResponse(Provable, frozen=True, kw_only=True):
    measurement: Measurement
    shapes: dict[str, tuple[int, ...]] = {}  # of the inputs that were timed; empty if a tool made them itself


class Neighbour(Struct, frozen=True, kw_only=True):
    """Another engine that is called without a pause while one is timed."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    seed: int
    placing: Placing
    inputs: str | None = None


class MeasureJob(Job[MeasureResponse], frozen=True, kw_only=True, tag="measure"):
    timed = True

    model: str
    artifact: Artifact
    engine: EngineSpec
    measure: MeasureSpec
    out_dir: str  # where the engine was built; a compiler finds its cache there
    trial: int = field(name="repetition")
    order: int
    last_level_cache_bytes: int | None = None
    pin: bool = True
    prove: bool = False
    imported_ahead: bool = False  # the child has the engine's packages, imported while others imported theirs
    inputs: str | None = None  # folder of the user's inputs
    recheck_path: str = ""  # outputs of the check, to be reproduced after the timed calls; "": none
    beside: Neighbour | None = None

    def perform(self, note: NoteCall, keep: KeepCall[MeasureResponse]) -> MeasureResponse:
        from enginebench.runs.child.perform.measure import measure_trial

        return measure_trial(self, note, keep)


class StartResponse(Struct, frozen=True, kw_only=True):
    start: ColdStart
    files: tuple[str, ...]  # that the process has opened: code, libraries, the model


class StartJob(Job[StartResponse], frozen=True, kw_only=True, tag="start"):
    """Start an engine and have its first output, as a trial does, without timing calls."""

    timed = True

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    seed: int
    inputs: str | None = None

    def perform(self, note: NoteCall, keep: KeepCall[StartResponse]) -> StartResponse:
        from enginebench.runs.child.perform.start import time_start

        return time_start(self)


class LeastWorkJob(Job[LeastWork], frozen=True, kw_only=True, tag="least-work"):
    """Count the work of one call, or of the mean request of a mix, that no engine can leave out."""

    path: str
    cells: tuple[TrafficCell, ...]  # with the shapes of all inputs; of one call one, of weight 1

    def perform(self, note: NoteCall, keep: KeepCall[LeastWork]) -> LeastWork:
        from enginebench.models.onnx.source import load_graph
        from enginebench.models.onnx.work import count_least_work

        path = Path(self.path)
        graph = load_graph(path)
        works = [(cell.weight, count_least_work(graph, cell.shapes, cell.batch, path)) for cell in self.cells]
        totals = {
            name: sum(weight * getattr(work, name) for weight, work in works) for name in LeastWork.__struct_fields__
        }
        return LeastWork(**totals)


class BuildResponse(Provable, frozen=True, kw_only=True):
    artifact: Artifact
    engine_version: str | None
    build_s: float
    lowered: Artifact | None = None  # the graph in an older operator set, of which it was built


class BuildJob(Job[BuildResponse], frozen=True, kw_only=True, tag="build"):
    """Build an engine file from an ONNX file or an artifact, or take a finished one; `prove` its precision."""

    source: str | Artifact
    engine: EngineSpec
    out_dir: str
    prove: bool = True

    def perform(self, note: NoteCall, keep: KeepCall[BuildResponse]) -> BuildResponse:
        from enginebench.runs.child.perform.build import build_file

        return build_file(self, note, keep)


class ProbeJob(Job[Availability], frozen=True, kw_only=True, tag="probe"):
    """Check whether an engine works here: importing a broken runtime may kill the process."""

    engine: str
    to_build: tuple[Artifact, EngineSpec] | None = None  # refuse what its version is known not to build

    def perform(self, note: NoteCall, keep: KeepCall[Availability]) -> Availability:
        from enginebench.runs.child.perform.build import probe_engine

        return probe_engine(self)


class MetricsJob(Job[tuple[Facts, ...]], frozen=True, kw_only=True, tag="metrics"):
    """Read the facts of the metrics and check that the targets can be read, before anything is built."""

    metrics: tuple[str, ...]
    targets: str | None = None

    def perform(self, note: NoteCall, keep: KeepCall[tuple[Facts, ...]]) -> tuple[Facts, ...]:
        from enginebench.runs.child.collecting import describe_metrics

        return describe_metrics(self)


class ScoreJob(Job[Score], frozen=True, kw_only=True, tag="score"):
    """Ask a metric that looks at all samples together; it may be the user's code."""

    metric: str
    labelled_path: str
    reference_path: str | None = None

    def perform(self, note: NoteCall, keep: KeepCall[Score]) -> Score:
        from enginebench.runs.child.collecting import score_outputs

        return score_outputs(self)


class PreloadJob(Struct, frozen=True, kw_only=True, tag="preload"):
    """Import what a measurement of this engine needs, say so, and wait for the job itself."""

    engine: EngineSpec
    kind: ArtifactKind
    out_dir: str
    pin: bool = False  # to the engine's cores, before the import: as the job itself would first


class FinalResponse(Struct, Generic[Response], frozen=True, kw_only=True, tag="answered"):
    response: Response = field(name="answer")


class Kept(Struct, Generic[Response], frozen=True, kw_only=True, tag="kept"):
    """The results before a profiler starts that may end the process: times, an engine."""

    response: Response = field(name="answer")


class ErrorResponse(Struct, frozen=True, kw_only=True, tag="error"):
    """An error that was raised in the child (`across`)."""

    kind: str  # the class, or the nearest one of its ancestors, in `core.errors`
    message: str
    exit_code: int
    attributes: dict[str, Any] = {}
    causes: tuple[str, ...] = ()  # what it was raised from, the nearest first: "ValueError: ..."


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """Everything is imported; the job may come."""


class Note(Struct, frozen=True, kw_only=True, tag="note"):
    """A line about progress; any number of them precede the response."""

    text: str


Message: TypeAlias = FinalResponse[Response] | Kept[Response] | ErrorResponse | Ready | Note


def read_job(line: bytes) -> Job[Any] | PreloadJob:
    """Read a job; those of a feature, or of a verb other than `run`, are registered when their module is imported."""
    tag = msgspec.json.decode(line)["type"]
    if tag not in _list_kinds() and find("jobs", tag) is None:
        import_module(f"{__package__}.other_jobs")
    job: Job[Any] | PreloadJob = msgspec.json.decode(line, type=_list_kinds()[tag])
    return job


def _list_kinds() -> dict[Any, Any]:
    kinds: list[Any] = [PreloadJob, *Job.__subclasses__()]
    return {kind.__struct_config__.tag: kind for kind in kinds}


def read_message(line: bytes, response: type[Response]) -> Message[Response]:
    message: Any = Message
    decoded: Message[Response] = msgspec.json.decode(line, type=message[response])
    return decoded


def find_response_type(job: type[Job[Response]]) -> type[Response]:
    bases: tuple[Any, ...] = job.__orig_bases__  # type: ignore[attr-defined]
    (argument,) = get_args(bases[0])
    response: type[Response] = argument
    return response
