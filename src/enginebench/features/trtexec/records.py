"""The records that the trtexec readers return; `enginebench parse ... --json` prints them."""

from typing import Literal

from msgspec import Struct, field

from enginebench.core.records import Estimate, ResultWarning

RunStatus = Literal["passed", "failed", "unknown"]
Quantity = Literal[
    "start_enqueue",
    "end_enqueue",
    "start_h2d",
    "start_compute",
    "end_d2h",
    "h2d",
    "compute",
    "d2h",
    "latency",
    "end_to_end",
    "enqueue",
]

# The rows of a summary: field -> (what logs call it, what tables call it, the time of a trace that it is of).
ROWS: dict[str, tuple[str, str, Quantity]] = {
    "latency_ms": ("Latency", "latency", "latency"),
    "end_to_end_ms": ("End-to-End Host Latency", "end to end", "end_to_end"),
    "gpu_compute_ms": ("GPU Compute Time", "GPU compute", "compute"),
    "h2d_ms": ("H2D Latency", "H2D", "h2d"),
    "d2h_ms": ("D2H Latency", "D2H", "d2h"),
    "enqueue_ms": ("Enqueue Time", "enqueue", "enqueue"),
}


class Stat(Struct, frozen=True, kw_only=True):
    """One row of a summary, in the unit of its field. None: not in the file (or inf or nan)."""

    min: float | None = None
    max: float | None = None
    mean: float | None = None
    median: float | None = None
    percentiles: dict[str, float | None] = {}  # "99" or "99.9" -> value


class LogRun(Struct, frozen=True, kw_only=True):
    """One run of trtexec by its log. Only images per second are computed: a missing line is a None."""

    version: str | None = None
    build: int | None = None
    status: RunStatus = "unknown"
    status_reason: str | None = None
    command: str | None = None
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    throughput_qps: float | None = None
    images_per_s: float | None = None
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

    @property
    def loads_plan(self) -> bool:
        """Whether the log is of a plan that was loaded: its build options are those of no build."""
        return bool(self.options.get("Build Options", {}).get("Load engine"))


class Joint(Struct, frozen=True, kw_only=True):
    """Several processes of one command as one: medians over them, the smallest `min` and the largest `max`."""

    runs: int
    throughput_qps: float | None = None
    latency_ms: Stat | None = None
    end_to_end_ms: Stat | None = None
    enqueue_ms: Stat | None = None
    h2d_ms: Stat | None = None
    gpu_compute_ms: Stat | None = None
    d2h_ms: Stat | None = None
    low_ms: float | None = None  # the smallest median latency of a process
    high_ms: float | None = None


class LogDocument(Struct, frozen=True, kw_only=True):
    """All runs in one log file, in the order in which they started."""

    schema: str = "enginebench.parse-log/1"
    path: str
    joint: Joint | None = None
    runs: tuple[LogRun, ...]

    def choose_run(self) -> LogRun:
        """Return the run that the log is about: the last that measured; a tuning run's children do not count."""
        own = [run for run in self.runs if run.parent is None] or list(self.runs)
        return ([run for run in own if run.latency_ms is not None] or own[:1])[-1]


class TimesDocument(Struct, frozen=True, kw_only=True):
    """A timing trace as numbers; times in ms. `trtexec` holds the same rows by trtexec's own percentile rule."""

    schema: str = "enginebench.parse-times/1"
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
    intervals: dict[str, dict[str, Estimate]] = {}  # row -> statistic -> 95% interval
    nonfinite: int = 0
    layout: str = "trtexec"
    notes: tuple[str, ...] = ()
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
