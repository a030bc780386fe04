"""What the parent asks of a child process, and what the child answers: plain records, one JSON document each way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    Caveat,
    Clock,
    EngineSpec,
    LayerProfile,
    LayerTime,
    Measurement,
    MeasureSpec,
    Precision,
    Recipe,
    TensorSpec,
)

# How a child tells, while it works, what it is at.
NoteCall: TypeAlias = Callable[[str], None]
# How it hands over times before it goes on.
KeepCall: TypeAlias = Callable[["MeasureAnswer"], None]


class SourceJob(Struct, frozen=True, kw_only=True, tag="source"):
    """Make the artefacts that a run starts from: PyTorch weights, the ONNX graph, or both."""

    model: str
    out_dir: str
    weights: str = "default"
    seed: int = 0
    input_size: int | None = None
    input_shapes: dict[str, tuple[int, ...]] | None = None
    batch: int = 1
    onnx: bool = True
    onnx_out: str | None = None
    dynamic_batch: bool = True
    opset: int | None = None


class QuantizeJob(Struct, frozen=True, kw_only=True, tag="quantize"):
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


class PrepareJob(Struct, frozen=True, kw_only=True, tag="prepare"):
    """Build an engine, run the check inputs through it once, and save its outputs.

    With `prove` a loaded engine is asked for its record; one that times itself is asked in any case.
    """

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    outputs_path: str
    samples: int
    seed: int
    prove: bool = True
    data: str | None = None  # labelled data; the answers to it go to `logits_path`
    logits_path: str = ""
    data_n: int = 0
    input_size: int | None = None


class MeasureJob(Struct, frozen=True, kw_only=True, tag="measure"):
    """One repetition of one row; with `prove` a loaded engine is asked for its record after it."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    measure: MeasureSpec
    out_dir: str  # where the engine was built; a compiler finds its cache there
    repetition: int
    order: int
    last_level_cache_bytes: int | None = None
    pin: bool = True
    prove: bool = False


class PreloadJob(Struct, frozen=True, kw_only=True, tag="preload"):
    """Import what a measurement of this engine needs, say so, and wait for the job itself."""

    engine: EngineSpec
    kind: ArtifactKind
    out_dir: str


class BuildJob(Struct, frozen=True, kw_only=True, tag="build"):
    """Build an engine file from an ONNX file, or take a finished one; `prove` its precision."""

    source: str
    engine: EngineSpec
    out_dir: str
    prove: bool = True


class ProbeJob(Struct, frozen=True, kw_only=True, tag="probe"):
    """Say whether an engine works here: importing a broken runtime may kill the process."""

    engine: str


class StagesJob(Struct, frozen=True, kw_only=True, tag="stages"):
    """Time a model from JPEG file to label, stage by stage and overlapped."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    images_dir: str
    n: int  # pictures
    decoders: int  # threads that decode ahead
    lanes: int  # batches on their way at a time
    time_limit_s: float
    input_size: int | None = None


class ProfileJob(Struct, frozen=True, kw_only=True, tag="profile"):
    """Time one engine, then its layers."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    measure: MeasureSpec
    out_dir: str


class InferJob(Struct, frozen=True, kw_only=True, tag="infer"):
    """Run one engine on the arrays of a file: all at once, or `step` entries at a time."""

    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    inputs_path: str
    outputs_path: str
    step: int | None = None


class AnswerJob(Struct, frozen=True, kw_only=True, tag="answer"):
    """Run one engine on labelled data, read as it is needed; save its logits and the labels."""

    model: str  # whose preprocessing the data go through
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    logits_path: str
    data: str
    data_n: int
    seed: int
    input_size: int | None = None


Job: TypeAlias = (
    SourceJob
    | QuantizeJob
    | PrepareJob
    | MeasureJob
    | BuildJob
    | ProbeJob
    | InferJob
    | AnswerJob
    | StagesJob
    | ProfileJob
)


class SourceAnswer(Struct, frozen=True, kw_only=True, tag="source"):
    artifacts: tuple[Artifact, ...]
    seconds: float


class QuantizeAnswer(Struct, frozen=True, kw_only=True, tag="quantize"):
    artifact: Artifact
    seconds: float


class Proof(Struct, frozen=True, kw_only=True):
    """What an engine's own record shows; `effective_precision` is None where it keeps none, or where it failed."""

    effective_precision: dict[str, float] | None = None
    failure: str | None = None  # why there is no record, of an engine that keeps one
    layers: tuple[LayerTime, ...] = ()
    caveats: tuple[Caveat, ...] = ()


class PrepareAnswer(Struct, frozen=True, kw_only=True, tag="prepare"):
    artifact: Artifact
    engine_version: str | None
    build_s: float
    size_bytes: int | None
    samples: int
    proof: Proof | None = None


class MeasureAnswer(Struct, frozen=True, kw_only=True, tag="measure"):
    measurement: Measurement
    proof: Proof | None = None


class BuildAnswer(Struct, frozen=True, kw_only=True, tag="build"):
    artifact: Artifact
    engine_version: str | None
    build_s: float
    effective_precision: dict[str, float] | None = None


class ProbeAnswer(Struct, frozen=True, kw_only=True, tag="probe"):
    availability: Availability


class InferAnswer(Struct, frozen=True, kw_only=True, tag="infer"):
    outputs: tuple[TensorSpec, ...]


class LabelledAnswer(Struct, frozen=True, kw_only=True, tag="labelled"):
    n: int
    preprocess_sha256: str | None


class StagesAnswer(Struct, frozen=True, kw_only=True, tag="stages"):
    stages_ns: dict[str, list[int]]  # stage -> one value a batch
    device_ns: dict[str, list[int]]  # h2d, compute, d2h by the device's clock; empty on a CPU
    overlapped_per_s: float
    top_classes: list[int]
    engine_version: str | None = None


class ProfileAnswer(Struct, frozen=True, kw_only=True, tag="profile"):
    profile: LayerProfile
    end_to_end_ns: float  # median run without the profiler
    clock: Clock
    effective_precision: dict[str, float] | None = None
    engine_version: str | None = None
    caveats: tuple[Caveat, ...] = ()


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """Everything is imported; the job may come."""


class Kept(Struct, frozen=True, kw_only=True, tag="kept"):
    """What is sure already: times that are taken, before a profiler starts that may take the process with it."""

    answer: MeasureAnswer


class ErrorAnswer(Struct, frozen=True, kw_only=True, tag="error"):
    """An error that was raised on purpose in the child; `kind` is its class in `core.errors`."""

    kind: str
    message: str
    exit_code: int


class Note(Struct, frozen=True, kw_only=True, tag="note"):
    """A line about progress; any number of them precede the answer."""

    text: str


Answer: TypeAlias = (
    SourceAnswer
    | QuantizeAnswer
    | PrepareAnswer
    | MeasureAnswer
    | BuildAnswer
    | ProbeAnswer
    | InferAnswer
    | LabelledAnswer
    | StagesAnswer
    | ProfileAnswer
    | ErrorAnswer
    | Ready
    | Kept
    | Note
)
