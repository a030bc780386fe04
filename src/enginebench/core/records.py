"""The records: frozen, with their units in their names, stored as JSON exactly as they stand here.

Raw samples are kept; summaries (`Estimate`, and what `stats` makes of them) are derived on read.
`None` always means "not measured".
"""

from typing import Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

from enginebench.core.engine_api import TEXT as TEXT

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "int4"]
Recipe = Literal[
    "tensorrt", "cpu", "nncf", "nncf:mixed", "smooth", "dynamic", "w8", "w4", "pt2e", "static", "weak", "qat"
]
ArtifactKind = Literal["onnx", "torch", "plan", "openvino", "design", "aoti"]
# What an engine has built already, as files.
BUILT: tuple[ArtifactKind, ...] = ("plan", "aoti")
Scope = Literal["compute", "io", "pipelined"]
# The parts of a run: making its model and graphs, building and checking its configurations, timing them.
RunPart = Literal["model", "builds", "trials"]
Cache = Literal["hot", "cold"]
Clock = Literal["host", "device", "tool", "modelled"]
Status = Literal["ok", "partial", "failed", "skipped"]
# `implausible`: no correct engine takes so little time, or the work was not done in each timed call.
Validity = Literal["valid", "suspect", "invalid", "implausible"]
# Of a ratio; `not_given`: other programs slowed one side alone, so that the ratio has no meaning.
RatioValidity = Literal["good", "medium", "low", "not_given"]
# Of a configuration against the reference, by the limits of its precision.
Outputs = Literal["same", "within_limits", "changed", "not_judged"]
StopRule = Literal["settled", "time_limit", "sample_limit", "iterations"]
Mark = Literal["foreign_cpu", "throttled", "low_clock", "foreign_gpu", "cold_start"]
Verdict = Literal["faster", "slower", "equivalent", "not_shown", "not_comparable"]
# The task of a model: how its outputs are read, and the metric that evaluates them.
Task = Literal["classification", "detection", "segmentation", "regression", "text", "embedding", "asr"]
Axes = Literal["open", "fixed"]
# Where another engine is called without a pause while one is timed: in a process of its own, or in a thread.
Placing = Literal["process", "thread"]
# What outputs are compared with: those of a configuration, or of the model's unchanged graph, which ONNX Runtime
# computes without graph optimizations or, where it cannot, onnx's reference evaluator.
ReferenceKind = Literal["configuration", "ort_unoptimized", "onnx_evaluator"]
Weights = Literal["trained", "pretrained", "random", "file", "in-graph"]

# What sets the least time that work can take.
BoundBy = Literal["compute", "bandwidth", "launch", "call"]

WarningCode = Literal[
    "builds_differ",  # the engine's builds have times of their own: one of them is a draw
    "beats_bound",  # faster than the peaks of the machine allow: one of the two is wrong
    "call_overhead",  # Python's own call is a visible part of the median
    "checked_by_evaluator",  # ONNX Runtime cannot run the graph that was exported
    "chosen_shapes",  # the graph has dynamic axes, and no length was given for them
    "clock_drift",
    "constant_answers",  # the reference gives equal outputs for all inputs: agreement with it shows little
    "cut_short",  # a load ended before all its requests had come
    "disturbed_profile",  # kernels took longer under the profiler than the run that was timed
    "enqueue_bound",
    "eval_mode",  # a module came in train mode, in which its layers behave otherwise
    "environment",  # something about the machine makes numbers doubtful (no pinning, power saving)
    "external_preprocess",
    "failed_proof",  # the record that would show in what the engine computed could not be made
    "failed_requests",
    "fallback",
    "foreign_cpu",
    "foreign_gpu",
    "generator_late",  # requests were released after they were due
    "implausible_time",  # shorter than any correct engine can be, or without the work of the model in each call
    "kept_fp32",  # nodes that a precision transform left in FP32
    "log_disagrees",
    "lost_variance",  # parts of an output are constant in the candidate, and vary in the reference
    "low_coverage",
    "low_effective_precision",
    "modelled",  # the time comes from a model, not from a clock
    "no_score",  # a metric failed on the outputs of this configuration
    "no_layer_times",  # the engine's profiler failed; nothing else depends on it
    "noisier_than_usual",  # accepted by the limits of a coarser precision, or with a few other decisions in FP32
    "nonfinite",
    "not_settled",
    "not_watched",  # nothing shows whether other programs were there
    "optimizer_changes",  # ONNX Runtime's: other outputs than the graph has as it is written
    "outputs_differ",  # an engine's from those of the graph that it was built from
    "outputs_not_compared",  # inputs or outputs differ from those of the intended reference
    "outputs_vary",  # from call to call on the same inputs: agreement with them proves nothing
    "overload",  # requests were turned away
    "partly_compared",  # outputs were compared on fewer samples than requested
    "random_calibration",
    "random_inputs",
    "random_weights",
    "relabelled",
    "rewritten_graph",  # the engine does not read the graph as it is
    "rounding_dominates",  # the outputs of a module depend on how FP32 rounds
    "several_machines",  # a sweep moved to another machine during this configuration
    "shared_cores",  # the generator of a load has no core of its own
    "state_restored",  # buffers that the module changes are put back before every call
    "tf32",
    "throttled",
    "too_few_samples",
    "too_few_trials",
    "uneven_processes",  # trials of one configuration differ by more than the verdicts' margin
    "unread_boxes",  # boxes that were compared as numbers
    "unsteady",  # Little's law does not hold: the queue grew or shrank
    "unnamed_precision",  # FP64, or weights of few bits in a graph that computes in floats
    "unproved_precision",  # no record shows the precision that ran, or it covers less than most of the time
    "unverified_engine",
    "work_outside_run",  # `run` returned before its work was done: the times are those of a part
]


class Normalize(Struct, frozen=True, kw_only=True):
    """The first step of a graph on a picture in bytes: less `mean`, divided by `std`, both in levels of 0 to 255.

    Of `shape` both are broadcast. As a user gives it, without `mean` it is the model's own, and there is no shape yet.
    `input` is the picture; "": the only one.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    shape: tuple[int, ...] = ()
    input: str = ""


class ModelSource(Struct, frozen=True, kw_only=True):
    """A model as the user names it: enough to make the same weights, inputs and graph again."""

    model: str  # MODEL, or a file
    weights: str = "default"  # "default", "random", or the path of a state dict
    seed: int = 0  # of random weights, and of inputs
    input_size: int | None = None  # height and width of its images; None: its own
    normalize: Normalize | None = None  # of pictures that come as bytes; None: what its inputs are
    input_shapes: dict[str, tuple[int, ...]] | None = None  # input name to whole shape; None: the model's own
    operator_libraries: tuple[str, ...] = ()  # of the custom operators in an ONNX file
    inputs: str | None = None  # an .npz file, a folder of them, or package.module:function; None: made up


class TensorSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One input or output of a graph. A dynamic axis is a name ("batch"), a static one a number.

    A sequence or a map is described by the tensors in it. `sizes` and `values` say what an input is like where nobody
    gives one: see `core/feeds.py`.
    """

    name: str
    dtype: str  # numpy's name: "float32", "int64", ..., "str"
    shape: tuple[int | str, ...]
    sizes: tuple[int, ...] = ()  # length of each open axis; 0 where it is the batch, or `shape` says it
    values: tuple[float, float] | None = None  # lowest and highest; None: whatever is usual for the dtype
    widest: tuple[float, float] | None = None  # that it may have, where `values` are those of an example


# Codes of earlier versions, as stored documents have them, and what they are called now.
FormerCode = Literal[
    "cuda_graph_failed",
    "double_precision",
    "no_device_telemetry",
    "no_foreign_cpu_figure",
    "packed_weights",
    "single_process",
]
FORMER_CODES: dict[str, WarningCode] = {
    "cuda_graph_failed": "log_disagrees",
    "double_precision": "unnamed_precision",
    "no_device_telemetry": "not_watched",
    "no_foreign_cpu_figure": "not_watched",
    "packed_weights": "unnamed_precision",
    "single_process": "too_few_trials",
}

Figure = int | float | str


class ResultWarning(Struct, frozen=True, kw_only=True):
    """A warning about a number: what was seen, and what to do about it. `core/warnings.py: make_warning` words it.

    A warning of an older version, or of a plug-in, has its words alone.
    """

    code: WarningCode | FormerCode
    message: str
    advice: str = ""
    template: str = ""  # name of the sentence that `figures` fill
    figures: dict[str, Figure] = {}

    def __post_init__(self) -> None:
        force_setattr(self, "code", FORMER_CODES.get(self.code, self.code))

    def __hash__(self) -> int:
        return hash((self.code, self.message, self.advice))


class FileHash(Struct, frozen=True, kw_only=True):
    """One file of an artifact. `path` is relative to the run's folder where it lies inside it."""

    path: str
    sha256: str
    size_bytes: int


class InputsCheck(Struct, frozen=True, kw_only=True):
    """Largest differences between PyTorch and the exported graph over one set of inputs."""

    inputs: str  # given: the user's; or a set of `core/input_sets.py`
    n: int  # calls
    max_abs_diff: float
    max_rel_diff: float


class ExportCheck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Largest differences between PyTorch and the exported graph as it is written, over seeded inputs."""

    batches: tuple[int, ...]
    max_abs_diff: float
    max_rel_diff: float
    seed: int
    others: tuple[InputsCheck, ...] = ()  # beside those seeded inputs


class ShapeRange(Struct, frozen=True, kw_only=True):
    """The shapes that one input of a plan may have."""

    smallest: tuple[int, ...]
    largest: tuple[int, ...]
    best: tuple[int, ...] = ()  # that it is tuned for, where that is known


class PlannedLayer(Struct, frozen=True, kw_only=True):
    """One layer of a plan as its builder decided it."""

    name: str
    kind: str | None
    precision: str | None
    onnx_nodes: tuple[str, ...] = ()


class AheadOfTime(Struct, frozen=True, kw_only=True):
    """A builder's decisions about a plan before any GPU saw it: nothing was timed, and a GPU may decide differently.

    A precision is that of the inputs: only a GPU shows that FP32 is multiplied in TF32.
    """

    products: dict[str, int]  # precision -> layers that multiply: convolutions and matrix products
    layers: tuple[PlannedLayer, ...]


class Artifact(Struct, frozen=True, kw_only=True):
    """A model in one form. `sha256` is over all its files; `parent_sha256` leads back to where it came from.

    kind "torch": `path` is the state dict (may be "" for a factory that brings its own weights) and `model` the
    spec from which the module is rebuilt in the child process.
    """

    kind: ArtifactKind
    model: str  # the MODEL as the user wrote it
    path: str
    sha256: str
    files: tuple[FileHash, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: Precision | None = "fp32"
    recipe: Recipe | None = None
    weights: Weights = "in-graph"
    parent_sha256: str | None = None
    excluded: tuple[str, ...] = ()  # nodes of the FP32 graph that stayed in FP32 by choice
    preprocess_sha256: str | None = None  # "external" where the user's own array took its place
    normalize: Normalize | None = None  # of the bytes that it was changed to take
    made_by: dict[str, str] = {}  # tool -> version
    made_with: dict[str, str] = {}  # "calibration": where its ranges come from; "workspace_mb" of a plan
    export_check: ExportCheck | None = None
    opset: int | None = None
    # Of custom operators in the graph: shared libraries, or modules whose `get_library_path` names one.
    operator_libraries: tuple[str, ...] = ()
    # Of a plan: its open inputs, in the chosen profile. Of a PyTorch model that takes one batch: those that have it.
    allowed: dict[str, ShapeRange] = {}
    ahead_of_time: AheadOfTime | None = None  # of a plan whose builder asks no GPU
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class TrafficCell(Struct, frozen=True, kw_only=True):
    """One shape of a mix of requests, and the fraction of them that have it."""

    weight: float
    batch: int = 1
    shapes: dict[str, tuple[int, ...]] = {}  # whole ones, of the inputs that the batch alone does not describe


class EngineSpec(Struct, frozen=True, kw_only=True):
    """An engine with its settings. `options` are the `key=value` pairs of ENGINE, as text."""

    backend: str
    options: dict[str, str] = {}
    device: str = "cpu"
    precision: Precision | None = "fp32"
    recipe: Recipe | None = None
    batch: int = 1
    threads: int = 1
    shapes: dict[str, tuple[int, ...]] = {}  # of the inputs, where a run measures several shapes
    mix: str = ""  # `core/names.py: name_mix` of a graph with nodes left in FP32 by choice
    # What one process serves; `batch` and `shapes` are those of the first. Empty: calls of that one shape.
    traffic: tuple[TrafficCell, ...] = ()


class MeasureSpec(Struct, frozen=True, kw_only=True):
    """The settings of the measurement of a configuration. `warmup` and `iters` of None mean: until settled."""

    warmup: int | None = None
    warmup_ms: int | None = None  # in place of calls, for an engine that times itself
    iters: int | None = None
    time_limit_s: float = 1.0  # of timed samples in one process
    processes: int = 10
    settle: float | None = None  # margin of verdicts that end the trials early; None: exactly so many trials
    builds: int = 1  # of an engine that builds: process i times build i modulo this many
    scope: Scope = "compute"
    depth: int = 3  # batches on their way at once in scope `pipelined`
    cache: Cache = "hot"
    seed: int = 0
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)


class BlockReading(Struct, frozen=True, kw_only=True):
    """Readings during one block; None where something cannot be read here."""

    foreign_cpu_cores: float | None = None  # cores kept busy by others, of those that the process is pinned to
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()  # those that NVML gave for the clock being below what it could be
    marks: tuple[Mark, ...] = ()


class Block(BlockReading, frozen=True, kw_only=True):
    """Neighbouring samples that were watched together: samples[start:stop]."""

    start: int
    stop: int
    duration_ns: int


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it; where NVML is missing its name, by CUDA's driver or a tool's log."""

    index: int
    name: str
    driver: str  # "" if unknown
    memory_bytes: int
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_w: float | None = None


class MemoryPhases(Struct, frozen=True, kw_only=True):
    """The highest resident memory of one process in each phase of its life, in bytes; None: the system did not say."""

    before_bytes: int | None = None  # with Python and EngineBench alone, before the engine was imported
    import_bytes: int | None = None  # while the engine's packages were imported
    load_bytes: int | None = None
    first_run_bytes: int | None = None
    steady_bytes: int | None = None  # while it was timed
    proportional_bytes: int | None = None  # at the end, pages that other processes share counted in part


class ColdStart(Struct, frozen=True, kw_only=True):
    """The start of one process whose files were not in the page cache."""

    import_s: float
    load_s: float
    first_run_s: float
    read_bytes: int  # from the disk; files that other processes have open stay in the cache


class Measurement(Struct, frozen=True, kw_only=True):
    """The measurement of one process. `latency_ns[i]` is one call of the scope, by `clock`.

    Of a mix of requests it is the weighted mean over the cells of one round of calls.
    """

    clock: Clock
    latency_ns: list[int]
    blocks: tuple[Block, ...]
    stop_rule: StopRule
    trial: int = field(default=0, name="repetition")
    build: int | None = None  # which of several builds it timed, 0 first; None: there is one
    started_utc: str = ""  # ISO 8601, seconds
    order: int = 0  # position in the planned interleaved order, 0 first; failed trials leave gaps
    warmup_dropped: int = 0
    warmup_settled: bool | None = None
    untimed_calls: int = 0  # at the head of blocks, to refill the caches; neither warm-up nor samples
    cells_ns: list[list[int]] = []  # of a mix: the calls of each cell, from which `latency_ns` is made
    device_ns: list[int] | None = None
    enqueue_ns: list[int] | None = None
    h2d_ns: list[int] | None = None
    d2h_ns: list[int] | None = None
    staging_ns: list[int] | None = None  # host's share of scope `io`: checks, copies into and out of pinned memory
    reference_ns: list[int] = []  # the fixed reference kernel, timed before and after
    call_overhead_ns: float | None = None  # an empty call through the same loop
    least_ns: float | None = None  # least time of a call without other load; 0: unknown
    import_s: float | None = None  # of the engine's packages; None: imported while other processes did the same
    load_s: float | None = None
    first_run_s: float | None = None
    peak_memory_bytes: int | None = None
    memory: MemoryPhases | None = None
    peak_device_memory_bytes: int | None = None
    energy_mj: float | None = None  # per image
    energy_resolution_mj: float | None = None  # `energy_mj` is known to within this, either way
    throughput_pipelined_per_s: float | None = None
    pinned_cpus: tuple[int, ...] | None = None
    machine: str = ""  # in a sweep, which of the machines of its kind: a salted hash, no name
    gpu: Gpu | None = None  # that a tool which times itself named
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


Decisions = Literal["labels", "boxes", "sequences"]


class Slices(Struct, frozen=True, kw_only=True):
    """One output along the axis whose slices differ most in scale, and the worst of the groups of a like scale."""

    axis: int
    of: int  # slices along the axis
    constant: int = 0  # left out: they do not vary in the reference
    lost: int = 0  # vary in the reference, and hardly in the candidate
    first: int = 0  # slice of the worst group
    count: int = 0  # slices in it; 0: all are of a like scale, and compared as a whole
    snr_db: float | None = None
    centred_cosine_mean: float | None = None


class OutputDrift(Struct, frozen=True, kw_only=True):
    """Differences of one output, candidate against reference, over n samples; None: the output has no such figure."""

    name: str
    mean_abs_diff: float | None = None
    max_abs_diff: float | None = None
    mean_rel_diff: float | None = None
    cosine_mean: float | None = None
    cosine_min: float | None = None
    centred_cosine_mean: float | None = None
    snr_db: float | None = None
    top1_agreement: float | None = None
    top5_agreement: float | None = None
    nonfinite: int  # of both sides together
    nonfinite_alike: int = 0  # places where both have the same infinity, or no number
    infinite_alike: int = 0  # of those, the places with the same infinity: equal values, as in masked logits
    # Classes only. A flip is another best class; a near tie is a sample that noise of the size seen could flip.
    flips: int | None = None
    flips_beyond_noise: int | None = None
    near_ties: int | None = None
    # What was decided, and the fraction of the reference's decisions that the candidate shares: the values of an
    # output of whole numbers, the classes of pixels, boxes that have a partner, sequences that read the same.
    decisions: Decisions | None = None
    decided: int | None = None  # how many the reference took
    agreement: float | None = None
    agreement_min: float | None = None  # the least of a class, or at a place
    agreement_min_at: str = ""  # which that is
    agreement_faint: float | None = None  # of boxes with a low score
    # Of slices and of samples, where these say more than all values together.
    slices: Slices | None = None
    samples: float | None = None  # a share of the samples
    snr_most_db: float | None = None  # what so many of the samples have at least
    snr_min_db: float | None = None  # the least of any slice, beyond chance; of boxes, of their corners
    snr_min_at: str = ""  # which slice that is
    boxes_like: bool = False  # looks like the boxes of a detector, but matching was not requested

    @property
    def broken(self) -> int:
        """Count the values of both sides that are no numbers, or an infinity that the other side does not have."""
        return self.nonfinite - 2 * self.infinite_alike


class Drift(Struct, frozen=True, kw_only=True):
    """The differences of outputs of two engines on the same inputs. NaN never passes, nor an infinity
    that one side alone has."""

    n: int  # samples with outputs of both
    n_requested: int | None = field(default=None, name="asked")  # samples to compare, where that is recorded
    outputs: tuple[OutputDrift, ...]
    limits: dict[str, float] = {}
    undecided: dict[str, float] = {}  # of older runs: the limits of outputs that decide nothing; now always empty
    passed: bool = True
    reference: str = ""  # id of the configuration (or SIDE) taken as the reference
    reference_kind: ReferenceKind = "configuration"
    elsewhere: bool = False  # the reference is none of the configurations that are stored beside this one
    unlike: tuple[str, ...] = ()  # why no comparison was possible; then `passed` is False
    inputs: str = ""  # of `further`: which set of `core/input_sets.py`
    further: "tuple[Drift, ...]" = ()  # the same on other inputs, each by limits of its own; `passed` counts them


class Estimate(Struct, frozen=True, kw_only=True):
    """A number with its confidence interval. `supported` is False where n is too small for it."""

    value: float
    low: float | None
    high: float | None
    level: float  # 0.95
    n: int
    method: str
    supported: bool = True


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of a metric that do not need its code."""

    name: str
    higher_is_better: bool = True
    share: bool = False


class Score(Struct, frozen=True, kw_only=True):
    """The value of a metric on outputs for labelled samples. A configuration's first score decides its gate."""

    metric: str  # the name of a built-in one, or package.module:function
    value: Estimate
    higher_is_better: bool = True
    share: bool = False  # between 0 and 1: printed in percent and points
    delta: Estimate | None = None  # this value less the reference's, on the same samples
    mcnemar_p: float | None = None  # of that difference, where every output is right or wrong


class Machine(Struct, frozen=True, kw_only=True):
    """The machine of a measurement. Holds no host name, user name, home path or environment variable."""

    os: str
    arch: str
    cpu_model: str
    cpu_flags: tuple[str, ...]  # only those that matter: avx2, avx512_vnni, avx512_bf16, amx_int8, ...
    cores_physical: int
    cores_logical: int
    cpus_allowed: tuple[int, ...]
    cpu_quota_cores: float | None
    memory_bytes: int
    memory_limit_bytes: int | None
    governor: str | None
    cpu_mhz: float | None
    cpu_max_mhz: float | None
    load_1m: float | None
    virtual: str | None  # hypervisor or container kind, if one shows itself
    last_level_cache_bytes: int | None
    default_threads: int
    versions: dict[str, str]
    gpus: tuple[Gpu, ...] = ()
    jetson: dict[str, str] | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class Availability(Struct, frozen=True, kw_only=True):
    """Whether an engine can run here, and if not, how to get it."""

    engine: str
    available: bool
    version: str | None = None
    devices: tuple[str, ...] = ()
    reason: str | None = None
    fix: str | None = None
    verified_on: str | None = None
    package: str | None = None  # that brings it, with its version, where that is not EngineBench


class Bound(Struct, frozen=True, kw_only=True):
    """The least time of something where the peaks hold, and what sets it. The parts are least times of their own."""

    bound_ms: float
    bound_by: BoundBy
    compute_ms: float = 0.0
    bandwidth_ms: float = 0.0
    launch_ms: float = 0.0
    unmapped_share: float | None = None  # of the layers' time, in those that stand for no node of the graph


class LayerTime(Struct, frozen=True, kw_only=True):
    """One layer in a profile that was taken in a run of its own. `mean_ns` is of one run, with the profiler on."""

    name: str
    mean_ns: float
    precision: str | None = None  # in which it computed, by the runtime's own record
    kind: str | None = None  # operator type, as the runtime calls it
    median_ns: float | None = None
    onnx_nodes: tuple[str, ...] = ()  # that it stands for: as the runtime itself says, then as it was joined
    kernels: tuple[str, ...] = ()  # of a GPU that did its work, longest first, where they have names
    tactic: str | None = None  # of a plan: the implementation that its builder chose
    bound: Bound | None = None  # None where no peaks are known, or nothing that it does must be done


class LayerProfile(Struct, frozen=True, kw_only=True):
    """An engine's layers in the order in which they first ran, with the profiler's own cost inside their times."""

    layers: tuple[LayerTime, ...]
    runs: int  # that the means are over
    profiler: str  # whose record it is
    notes: tuple[str, ...] = ()  # what a reader of these layers must know
    # How much longer than recorded a layer may have taken: profilers of runtimes on a CPU count in whole microseconds.
    tick_ns: float = 1e3


class Probe(Struct, frozen=True, kw_only=True):
    """One fresh process at one rate, and whether it met the limit."""

    qps: float
    passed: bool
    suspect: bool = False  # the generator was late: it may be to blame


class Capacity(Struct, frozen=True, kw_only=True):
    """Requests a second at which the limit holds: it does at `passes_qps`, and does not at `fails_qps`.

    `passes_qps` of None: no rate that was tried passes. `fails_qps` of None: all did.
    """

    passes_qps: float | None
    fails_qps: float | None
    limit_ms: float
    percentile: float
    probes: tuple[Probe, ...] = ()
    ended: Literal["settled", "budget", "nothing passes"] = "settled"
    suspect: bool = False  # an end rests on probes whose generator was late or whose engine was lost


class StageTime(Struct, frozen=True, kw_only=True):
    """One stage of the way from file to label (decode, preprocess, copy in, compute, copy out, postprocess)."""

    name: str
    latency_ns: list[int]


class Build(Struct, frozen=True, kw_only=True):
    """One of several builds of a configuration's engine, each from scratch."""

    artifact: Artifact  # what is loaded to time it
    build_s: float | None
    size_bytes: int | None = None
    fingerprint: str | None = None  # the same for builds that are alike; None: the engine leaves nothing to hash
    max_abs_diff: float | None = None  # of its outputs to those of the first build; None: not compared


class LeastWork(Struct, frozen=True, kw_only=True):
    """The work that one call must do with any engine, counted by `models/onnx/work.py`.

    Multiply-accumulates by zero weights are not counted, so that these are no whole numbers.
    """

    conv_macs: float  # as the plain definition of a convolution counts them
    gemm_macs: float
    read_bytes: float  # inputs that are needed whole
    written_bytes: float  # outputs that are computed


RESULT_SCHEMA = "enginebench.result/2"


class Result(Struct, frozen=True, kw_only=True):
    """One configuration of a run with all its evidence. One JSON file; no summaries inside."""

    schema: str = RESULT_SCHEMA
    id: str
    model: str
    engine: EngineSpec
    measure: MeasureSpec
    requested_precision: Precision | None
    status: Status
    reason: str | None = None
    stderr_tail: str | None = None
    artifacts: tuple[Artifact, ...] = ()  # the chain: source first, what the engine loaded last
    machine: Machine | None = None
    engine_version: str | None = None
    measurements: tuple[Measurement, ...] = ()
    drift: Drift | None = None
    scores: tuple[Score, ...] = ()  # of the labelled samples; the first one decides
    effective_precision: dict[str, float] | None = None  # precision -> fraction of time
    build_s: float | None = None
    built_beside: int = 0  # other configurations built at the same time: with any, `build_s` is an upper bound
    size_bytes: int | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    layers: tuple[LayerTime, ...] = ()
    stages: tuple[StageTime, ...] = ()  # in the order in which they happen
    capacity: Capacity | None = None  # requests a second, where the run looked for it
    shapes: dict[str, tuple[int, ...]] = {}  # of the inputs that were timed
    axes: Axes | None = None  # whether the engine was made for these shapes alone; None: it does not say
    beside: Placing | None = None  # where another configuration was called meanwhile; None: it was timed alone
    cold_start: ColdStart | None = None  # where a run was asked for the calls of a process
    builds: tuple[Build, ...] = ()  # where the engine was built several times; `artifacts` ends with the first
    look: int | None = None  # trials after which its verdicts were settled; None: as many as requested
    bound: Bound | None = None  # by the peaks stored for this machine when it was measured
    work: LeastWork | None = None  # of one call; None: not counted
