"""The jobs of single verbs other than `run`, imported when they are used."""

from msgspec import Struct, field

from enginebench.core.records import (
    Artifact,
    Availability,
    Clock,
    EngineSpec,
    LayerProfile,
    MeasureSpec,
    ModelSource,
    ResultWarning,
    TensorSpec,
)
from enginebench.runs.child.jobs import Job, KeepCall, Neighbour, NoteCall


class StagesResponse(Struct, frozen=True, kw_only=True):
    stages_ns: dict[str, list[int]]  # stage -> one value a batch
    device_ns: dict[str, list[int]]  # h2d, compute, d2h by the device's clock; empty on a CPU
    overlapped_per_s: float
    top_classes: list[int]
    engine_version: str | None = None


class StagesJob(Job[StagesResponse], frozen=True, kw_only=True, tag="stages"):
    timed = True

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

    def perform(self, note: NoteCall, keep: KeepCall[StagesResponse]) -> StagesResponse:
        from enginebench.runs.child.perform.stages import perform_stages

        return perform_stages(self, note)


class ProfileResponse(Struct, frozen=True, kw_only=True):
    profile: LayerProfile
    shapes: dict[str, tuple[int, ...]] = {}  # of the inputs; empty if a tool made them itself
    end_to_end_ns: float  # median run without the profiler
    clock: Clock
    effective_precision: dict[str, float] | None = None
    engine_version: str | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class ProfileJob(Job[ProfileResponse], frozen=True, kw_only=True, tag="profile"):
    timed = True

    model: str
    artifact: Artifact
    engine: EngineSpec
    measure: MeasureSpec
    out_dir: str
    inputs: str | None = None  # folder of the user's inputs

    def perform(self, note: NoteCall, keep: KeepCall[ProfileResponse]) -> ProfileResponse:
        from enginebench.runs.child.perform.profile import perform_profile

        return perform_profile(self, note)


class ProbeLayersJob(Job[Availability], frozen=True, kw_only=True, tag="probe_layers"):
    """Say whether an engine works here; one that cannot time its layers is refused."""

    engine: str

    def perform(self, note: NoteCall, keep: KeepCall[Availability]) -> Availability:
        from enginebench.runs.child.perform.profile import probe_layers

        return probe_layers(self)


class InferResponse(Struct, frozen=True, kw_only=True):
    outputs: tuple[TensorSpec, ...]
    refused: dict[str, str] = {}  # of `further`: why there are no outputs
    varies: float | None = None  # largest difference of two outputs for the first inputs, over the largest value


class InferJob(Job[InferResponse], frozen=True, kw_only=True, tag="infer"):
    """Run one engine on the arrays of a file: all at once, or `step` entries at a time and the first of them twice."""

    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    inputs_path: str
    outputs_path: str
    step: int | None = None
    further: dict[str, str] = {}  # set of inputs -> folder of its entries, on which it is run, too
    further_path: str = ""  # for their outputs

    def perform(self, note: NoteCall, keep: KeepCall[InferResponse]) -> InferResponse:
        from enginebench.runs.child.perform.infer import infer_arrays

        return infer_arrays(self, note)


class FitJob(Job[bool], frozen=True, kw_only=True, tag="fit"):
    """Check that a model known by its name exists, and that a file of weights fits it.

    At the lowest priority, since another run is timed.
    """

    source: ModelSource

    def perform(self, note: NoteCall, keep: KeepCall[bool]) -> bool:
        from enginebench.runs.child.perform.sources import check_named_model

        return check_named_model(self.source)


class BusyJob(Job[int], frozen=True, kw_only=True, tag="busy"):
    """Call an engine without a pause until the parent ends the process; the first note says that it has begun."""

    timed = True

    neighbour: Neighbour

    @property
    def engine(self) -> EngineSpec:
        return self.neighbour.engine

    def perform(self, note: NoteCall, keep: KeepCall[int]) -> int:
        from enginebench.runs.child.perform.beside import call_forever

        return call_forever(self, note)
