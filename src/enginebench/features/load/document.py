"""The JSON document of `load`."""

from msgspec import Struct, field

from enginebench.core.names import format_engine, format_precision, show_precision
from enginebench.core.records import Capacity, EngineSpec, Machine, ResultWarning
from enginebench.core.text import count_of
from enginebench.features.load.scenario import Scenario
from enginebench.runs.traffic import TrafficPart
from enginebench.stats.capacity import RESOLUTION, CapacityVerdict
from enginebench.stats.queueing import Limit, LoadPoint


class LoadRow(Struct, frozen=True, kw_only=True):
    """One configuration: an engine, its streams, their threads and batches, and what it carried."""

    id: str
    engine: EngineSpec
    devices: tuple[str, ...] = ()  # one server on each; none: one, on the device of `engine`
    streams: int
    max_batch: int
    max_wait_ms: float
    compiled_for: tuple[int, ...] = ()  # batches, where each takes long; between two of them a batch is filled up
    offline_per_s: float | None = None  # when all requests are there at once
    capacity: Capacity | None = None  # over all rounds
    rounds: tuple[Capacity, ...] = ()
    artifact: str = ""  # SHA-256 of what the engine loads
    reason: str | None = None  # why nothing was measured, or no more


class LoadSettings(Struct, frozen=True, kw_only=True):
    scenario: Scenario = "server"
    qps: float | None = None
    arrivals: str = "poisson"  # poisson, constant, or the file of a trace
    duration_s: float | None = None
    streams: tuple[int, ...] = (1,)
    max_batches: tuple[int, ...] = (1,)
    max_wait_ms: float = 0.0
    limit_ms: float | None = None
    percentile: float = 99.0  # that the limit is on
    find_capacity: bool = False
    rounds: int = 1  # searches of each configuration, interleaved; a verdict needs six
    devices: tuple[str, ...] = ()  # with one server on each
    traffic: tuple[TrafficPart, ...] = ()  # shapes that requests are drawn from, by their weights; none: one shape
    time_budget_s: float = 900.0  # of all searches together
    resolution: float = RESOLUTION  # fails over passes at which a search ends
    strict: bool = True  # a rate passes only where its requests show that it does; False: where few enough were late

    @property
    def limit(self) -> Limit | None:
        return None if self.limit_ms is None else Limit(ms=self.limit_ms, percentile=self.percentile)


class LoadDocument(Struct, frozen=True, kw_only=True):
    """Every point of every configuration. `capacity` is the highest of all configurations.

    `pilots` are points of requests that came all at once, by which a rate or a number of requests was chosen.
    """

    schema: str = "enginebench.load/1"
    model: str
    scenario: Scenario
    arrivals: str
    limit_ms: float | None
    percentile: float
    seed: int
    points: tuple[LoadPoint, ...]
    pilots: tuple[LoadPoint, ...] = ()
    capacity: Capacity | None = None
    rows: tuple[LoadRow, ...]
    verdicts: tuple[CapacityVerdict, ...] = ()
    machine: Machine | None = None
    finished: bool = True
    settings: LoadSettings | None = None
    preparation_s: float | None = None  # to load the model and to build and check engines; no part of the time budget
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    started_utc: str = ""


def format_row(row: LoadRow) -> str:
    """The configuration in words: `ort fp32, 2 streams of 1 thread, batches up to 4`."""
    spec, streams = row.engine, count_of(row.streams, "streams")
    engine = format_engine(spec)
    name = f"{engine} {format_precision(show_precision(engine, spec.precision), spec.recipe, spec.mix)}"
    parts = [name, f"{streams} of {count_of(spec.threads, 'threads')}"]
    if spec.device != "cpu":
        parts = [f"{name} on {' and '.join(row.devices or [spec.device])}", streams]
    wait = f", waiting up to {row.max_wait_ms:g} ms" if row.max_wait_ms else ""
    made = f", compiled for {', '.join(map(str, row.compiled_for))}" if row.compiled_for else ""
    return ", ".join([*parts, f"batches up to {row.max_batch}{made}{wait}"] if row.max_batch > 1 else parts)
