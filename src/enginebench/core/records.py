"""The records: frozen, with their units in their names, stored as JSON exactly as they stand here.

Raw samples are kept; summaries (`Estimate`, and what `analyze` makes of them) are derived on read.
`None` always means "not measured".
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Precision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8"]
Recipe = Literal["tensorrt", "cpu", "nncf", "weak", "qat"]
ArtifactKind = Literal["onnx", "torch", "plan", "openvino", "design"]
Scope = Literal["compute", "io"]
Cache = Literal["hot", "cold"]
Clock = Literal["host", "device", "tool", "modelled"]
Status = Literal["ok", "partial", "failed", "skipped"]
Validity = Literal["valid", "suspect", "invalid"]
StopRule = Literal["settled", "time_limit", "sample_limit", "iterations"]
Mark = Literal["foreign_cpu", "throttled", "low_clock", "foreign_gpu", "cold_start"]
Verdict = Literal["faster", "slower", "equivalent", "not_shown", "not_comparable"]
Weights = Literal["trained", "pretrained", "random", "file", "in-graph"]

CaveatCode = Literal[
    "call_overhead",  # Python's own call is a visible part of the median
    "clock_drift",
    "cuda_graph_failed",
    "disturbed_profile",  # kernels took longer under the profiler than the run that was timed
    "enqueue_bound",
    "environment",  # something about the machine makes numbers doubtful (no pinning, power saving)
    "external_preprocess",
    "failed_proof",  # the record that would show in what the engine computed could not be made
    "fallback",
    "foreign_cpu",
    "foreign_gpu",
    "kept_fp32",  # nodes that a precision transform left in FP32
    "log_disagrees",
    "low_coverage",
    "low_effective_precision",
    "modelled",  # the time comes from a model, not from a clock
    "no_device_telemetry",
    "no_foreign_cpu_figure",
    "no_layer_times",  # the engine's profiler failed; nothing else depends on it
    "nonfinite",
    "not_settled",
    "random_calibration",
    "random_inputs",
    "random_weights",
    "relabelled",
    "single_process",
    "tf32",
    "throttled",
    "too_few_samples",
    "uneven_processes",  # processes of one row disagree by more than the verdicts' margin
    "unproved_precision",  # the engine keeps no record that could show in what it computed
    "unverified_engine",
]


class TensorSpec(Struct, frozen=True, kw_only=True):
    """One input or output of a graph. A dynamic axis is a name ("batch"), a static one a number."""

    name: str
    dtype: str  # numpy's name: "float32", "int64", ...
    shape: tuple[int | str, ...]


class Caveat(Struct, frozen=True, kw_only=True):
    """A doubt about a number: what was seen, and what to do about it."""

    code: CaveatCode
    message: str
    advice: str = ""


class FileHash(Struct, frozen=True, kw_only=True):
    """One file of an artefact. `path` is relative to the run's folder where it lies inside it."""

    path: str
    sha256: str
    size_bytes: int


class ExportCheck(Struct, frozen=True, kw_only=True):
    """Largest differences between PyTorch and the exported graph, over seeded inputs."""

    batches: tuple[int, ...]
    max_abs_diff: float
    max_rel_diff: float
    seed: int


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
    precision: Precision = "fp32"
    recipe: Recipe | None = None
    weights: Weights = "in-graph"
    parent_sha256: str | None = None
    preprocess_sha256: str | None = None  # "external" where the user's own array took its place
    made_by: dict[str, str] = {}  # tool -> version
    export_check: ExportCheck | None = None
    opset: int | None = None
    caveats: tuple[Caveat, ...] = ()


class EngineSpec(Struct, frozen=True, kw_only=True):
    """Which engine, set how. `options` are the `key=value` pairs of ENGINE, as text."""

    backend: str
    options: dict[str, str] = {}
    device: str = "cpu"
    precision: Precision = "fp32"
    recipe: Recipe | None = None
    batch: int = 1
    threads: int = 1


class MeasureSpec(Struct, frozen=True, kw_only=True):
    """How one row is measured. `warmup` and `iters` of None mean: until settled."""

    warmup: int | None = None
    iters: int | None = None
    time_limit_s: float = 3.0  # of timed samples in one process
    processes: int = 10
    scope: Scope = "compute"
    cache: Cache = "hot"
    seed: int = 0
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)


class Block(Struct, frozen=True, kw_only=True):
    """Neighbouring samples that were watched together: samples[start:stop]."""

    start: int
    stop: int
    duration_ns: int
    foreign_cpu_cores: float | None = None  # cores kept busy by others, of those that the process is pinned to
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()  # those that NVML gave for the clock being below what it could be
    marks: tuple[Mark, ...] = ()


class Measurement(Struct, frozen=True, kw_only=True):
    """What one process measured. `latency_ns[i]` is one call of the scope, by `clock`."""

    clock: Clock
    latency_ns: list[int]
    blocks: tuple[Block, ...]
    stop_rule: StopRule
    repetition: int = 0
    started_utc: str = ""  # ISO 8601, seconds
    order: int = 0  # position in the run's interleaved order, 0 first
    warmup_dropped: int = 0
    warmup_settled: bool | None = None
    untimed_calls: int = 0  # at the head of blocks, to refill the caches; neither warm-up nor samples
    device_ns: list[int] | None = None
    enqueue_ns: list[int] | None = None
    h2d_ns: list[int] | None = None
    d2h_ns: list[int] | None = None
    staging_ns: list[int] | None = None  # host's share of scope `io`: checks, copies into and out of pinned memory
    reference_ns: list[int] = []  # the fixed reference kernel, timed before and after
    call_overhead_ns: float | None = None  # an empty call through the same loop
    load_s: float | None = None
    first_run_s: float | None = None
    peak_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    energy_mj: float | None = None  # per image
    energy_resolution_mj: float | None = None  # `energy_mj` is known to within this, either way
    throughput_pipelined_per_s: float | None = None
    pinned_cpus: tuple[int, ...] | None = None
    caveats: tuple[Caveat, ...] = ()


class OutputDrift(Struct, frozen=True, kw_only=True):
    """Differences of one output, candidate against reference, over n samples."""

    name: str
    mean_abs_diff: float | None
    max_abs_diff: float | None
    mean_rel_diff: float | None
    cosine_mean: float | None
    cosine_min: float | None
    centred_cosine_mean: float | None
    snr_db: float | None
    top1_agreement: float | None
    top5_agreement: float | None
    nonfinite: int
    # Classes only. A flip is another best class; a near tie is a sample that noise of the size seen could flip.
    flips: int | None = None
    flips_beyond_noise: int | None = None
    near_ties: int | None = None


class Drift(Struct, frozen=True, kw_only=True):
    """What two engines answered to the same inputs. Non-finite values never pass."""

    n: int
    outputs: tuple[OutputDrift, ...]
    limits: dict[str, float] = {}
    passed: bool = True
    reference: str = ""  # id of the row (or SIDE) that was taken as the truth


class Estimate(Struct, frozen=True, kw_only=True):
    """A number that says how sure it is. `supported` is False where n cannot carry the statement."""

    value: float
    low: float | None
    high: float | None
    level: float  # 0.95
    n: int
    method: str
    supported: bool = True


class Accuracy(Struct, frozen=True, kw_only=True):
    """Correct answers on labelled data."""

    n: int
    top1: Estimate
    top5: Estimate | None = None
    delta: Estimate | None = None
    mcnemar_p: float | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU as NVML describes it."""

    index: int
    name: str
    driver: str
    memory_bytes: int
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    power_limit_w: float | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """Where it ran. Holds no host name, user name, home path or environment variable."""

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
    caveats: tuple[Caveat, ...] = ()


class Availability(Struct, frozen=True, kw_only=True):
    """Whether an engine can run here, and if not, what adds it."""

    engine: str
    available: bool
    version: str | None = None
    devices: tuple[str, ...] = ()
    reason: str | None = None
    fix: str | None = None
    verified_on: str | None = None


class LayerTime(Struct, frozen=True, kw_only=True):
    """One layer in a profile that was taken in a run of its own. `mean_ns` is of one run, with the profiler on."""

    name: str
    mean_ns: float
    precision: str | None = None  # in which it computed, by the runtime's own record
    kind: str | None = None  # operator type, as the runtime calls it
    median_ns: float | None = None


class LayerProfile(Struct, frozen=True, kw_only=True):
    """An engine's layers in the order in which they first ran, with the profiler's own cost inside their times."""

    layers: tuple[LayerTime, ...]
    runs: int  # that the means are over
    profiler: str  # whose record it is
    notes: tuple[str, ...] = ()  # what a reader of these layers must know


class StageTime(Struct, frozen=True, kw_only=True):
    """One stage of the way from file to label (decode, preprocess, copy in, compute, copy out, postprocess)."""

    name: str
    latency_ns: list[int]


RESULT_SCHEMA = "enginebench.result/1"


class Result(Struct, frozen=True, kw_only=True):
    """One row of a run, with everything needed to believe it. One JSON file; no summaries inside."""

    schema: str = RESULT_SCHEMA
    id: str
    model: str
    engine: EngineSpec
    measure: MeasureSpec
    requested_precision: Precision
    status: Status
    reason: str | None = None
    stderr_tail: str | None = None
    artifacts: tuple[Artifact, ...] = ()  # the chain: source first, what the engine loaded last
    machine: Machine | None = None
    engine_version: str | None = None
    measurements: tuple[Measurement, ...] = ()
    drift: Drift | None = None
    accuracy: Accuracy | None = None
    effective_precision: dict[str, float] | None = None  # precision -> share of time
    build_s: float | None = None
    size_bytes: int | None = None
    caveats: tuple[Caveat, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    stages: tuple[StageTime, ...] = ()  # in the order in which they happen
