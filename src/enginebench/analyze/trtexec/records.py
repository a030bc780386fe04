"""The records that the trtexec readers return; their JSON is what `enginebench parse ... --json` prints."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from enginebench.core.records import Caveat, Estimate

RunStatus = Literal["passed", "failed", "unknown"]

LOG_SCHEMA = "enginebench.parse-log/1"
TIMES_SCHEMA = "enginebench.parse-times/1"
PROFILE_SCHEMA = "enginebench.parse-profile/1"
LAYERS_SCHEMA = "enginebench.parse-layers/1"


class Stat(Struct, frozen=True, kw_only=True):
    """One row of a summary, in the unit of its field. None: the file does not say (or says inf or nan)."""

    min: float | None = None
    max: float | None = None
    mean: float | None = None
    median: float | None = None
    percentiles: dict[str, float | None] = {}  # "99" or "99.9" -> value


class LogRun(Struct, frozen=True, kw_only=True):
    """One run of trtexec as its log tells it. Nothing is computed: a missing line is a None."""

    version: str | None = None
    build: int | None = None
    status: RunStatus = "unknown"
    status_reason: str | None = None
    command: str | None = None
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    throughput_qps: float | None = None
    latency_ms: Stat | None = None
    end_to_end_ms: Stat | None = None
    enqueue_ms: Stat | None = None
    h2d_ms: Stat | None = None
    gpu_compute_ms: Stat | None = None
    d2h_ms: Stat | None = None
    host_walltime_s: float | None = None
    gpu_compute_total_s: float | None = None
    gpu_cov_percent: float | None = None
    queries: int | None = None
    warmup_queries: int | None = None
    warmup_ms: float | None = None
    build_s: float | None = None
    load_s: float | None = None
    engine_bytes: int | None = None
    device: str | None = None
    device_info: dict[str, str] = {}
    options: dict[str, dict[str, str]] = {}  # block ("Build Options") -> key -> value
    cuda_graph: bool | None = None  # what ran, not what was asked for
    data_transfers: bool | None = None
    spin_wait: bool | None = None
    streams: int | None = None
    profile_iterations: int | None = None
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    nonfinite: tuple[str, ...] = ()  # "Throughput = inf": values that JSON cannot hold
    notes: tuple[str, ...] = ()
    first_line: int = 1
    parent: int | None = None  # index of the tuning run that started this one


class LogDocument(Struct, frozen=True, kw_only=True):
    """All runs in one log file, in the order in which they started."""

    schema: str = LOG_SCHEMA
    path: str
    runs: tuple[LogRun, ...]

    def choose_run(self) -> LogRun:
        """The run that the log is about: the last that measured; a tuning run's children do not count."""
        own = [run for run in self.runs if run.parent is None] or list(self.runs)
        return ([run for run in own if run.latency_ms is not None] or own[:1])[-1]


class TimesDocument(Struct, frozen=True, kw_only=True):
    """A timing trace as numbers; times in ms. `trtexec` holds the same rows by trtexec's own percentile rule."""

    schema: str = TIMES_SCHEMA
    path: str
    model: str | None = None
    precision: str | None = None
    n: int
    warmup_dropped: int
    warmup_reason: str
    batch: int | None = None
    throughput_qps: float | None = None
    images_per_s: float | None = None
    host_walltime_s: float | None = None
    gpu_compute_total_s: float | None = None
    latency_ms: Stat
    end_to_end_ms: Stat | None = None
    gpu_compute_ms: Stat | None = None
    h2d_ms: Stat | None = None
    d2h_ms: Stat | None = None
    enqueue_ms: Stat | None = None
    percentile_rule: str = "nearest-rank"
    trtexec: dict[str, Stat] = {}
    cov: dict[str, float] = {}  # row -> population standard deviation over mean
    intervals: dict[str, dict[str, Estimate]] = {}  # row -> statistic -> 95 % interval
    nonfinite: int = 0
    layout: str = "trtexec"
    notes: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()


class ProfiledLayer(Struct, frozen=True, kw_only=True):
    """Time of one layer over all profiled iterations."""

    name: str
    total_ms: float | None
    average_ms: float | None
    median_ms: float | None = None
    share: float | None = None  # of the sum over all layers, 0 to 1
    position: int | None = None  # in the file, which has the order of the engine


class ProfileDocument(Struct, frozen=True, kw_only=True):
    """A layer profile, slowest layer first."""

    schema: str = PROFILE_SCHEMA
    path: str
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    count: int | None
    total_ms: float
    average_ms: float | None  # of one iteration: sum of the layers' averages
    layers: tuple[ProfiledLayer, ...]
    end_to_end_ms: float | None = None  # median GPU compute time without the profiler
    remainder_ms: float | None = None  # end_to_end_ms - average_ms: what no layer explains (negative: profiler cost)
    duplicates_merged: int = 0
    names_repaired: int = 0
    nonfinite: int = 0
    notes: tuple[str, ...] = ()


class LayerTensor(Struct, frozen=True, kw_only=True):
    """A tensor at the edge of a layer. `dtype` is "fp32", "int8", ... or None where the engine does not say."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    format: str | None = None


class EngineLayer(Struct, frozen=True, kw_only=True):
    """One layer of a built engine."""

    name: str
    type: str | None = None
    precision: str | None = None  # in which it computes
    precision_in: str | None = None
    precision_out: str | None = None
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    onnx_nodes: tuple[str, ...] = ()
    tactic: str | None = None
    overhead: bool = False  # a reformat, cast or copy: moves data, computes nothing
    average_ms: float | None = None
    share: float | None = None  # of time, when a profile was given


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers that share a type or a precision."""

    layers: int
    share: float | None  # of time with a profile, else of the number of layers
    average_ms: float | None = None


class EngineTensor(Struct, frozen=True, kw_only=True):
    """An input or output of the engine."""

    name: str
    mode: Literal["input", "output"] | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class DiffSide(Struct, frozen=True, kw_only=True):
    """What one engine does for a group of ONNX operators."""

    layers: tuple[str, ...]
    precision: str | None
    average_ms: float | None
    overhead_ms: float | None  # of reformats, casts and copies, part of average_ms


class LayerDelta(Struct, frozen=True, kw_only=True):
    """The same ONNX operators in two engines; `delta_ms` is candidate minus base."""

    onnx_nodes: tuple[str, ...]
    base: DiffSide | None
    candidate: DiffSide | None
    delta_ms: float | None


class DiffTotals(Struct, frozen=True, kw_only=True):
    """One iteration of both engines in ms, over all layers of their profiles."""

    base_ms: float
    candidate_ms: float
    delta_ms: float
    base_overhead_ms: float
    candidate_overhead_ms: float


class LayersDocument(Struct, frozen=True, kw_only=True):
    """An engine's layers, and with a profile where its time goes."""

    schema: str = LAYERS_SCHEMA
    path: str
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    layers: tuple[EngineLayer, ...]
    by_precision: dict[str, LayerGroup]
    by_type: dict[str, LayerGroup]
    overhead: LayerGroup
    io: tuple[EngineTensor, ...]
    shares_of: Literal["time", "layers"] = "layers"
    diff: tuple[LayerDelta, ...] | None = None
    diff_matched_by: Literal["name", "order"] | None = None
    diff_totals: DiffTotals | None = None
    notes: tuple[str, ...] = ()
