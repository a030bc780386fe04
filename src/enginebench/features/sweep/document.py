"""The document of a sweep: one cell for each configuration, each with the figures that the matrix shows."""

from collections.abc import Mapping
from operator import attrgetter

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.records import Capacity, Estimate, Result, ResultWarning, Score, Status, Validity, Verdict
from enginebench.core.store import list_figures
from enginebench.core.warnings import make_warning
from enginebench.report.run.rows import Row
from enginebench.stats.quantiles import median


class SweepRow(Struct, frozen=True, kw_only=True):
    """The figures of one configuration, named as those of a run. Times in ms."""

    id: str
    status: Status
    reason: str | None = None
    validity: Validity = "valid"
    device: str = "cpu"
    threads: int = 1
    n: int = 0
    processes: int = 0
    p50_ms: Estimate | None = None
    p99_ms: Estimate | None = None
    throughput_per_s: float | None = None
    speedup: Estimate | None = None
    verdict: Verdict | None = None
    outputs_agree: bool | None = None
    scores: tuple[Score, ...] = ()
    capacity: Capacity | None = None
    energy_mj: float | None = None
    engine_version: str | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    result: str = ""  # of the configuration's file, below the store
    # Beside those of a run.
    environment: str = ""  # of `machines`
    reference_ms: float | None = None  # the fixed kernel
    machines: int = 1  # physical ones that its trials come from
    cost_per_million: float | None = None  # inferences, in the currency of the prices


class MatrixCell(Struct, frozen=True, kw_only=True):
    model: str
    machine_kind: str
    engine: str
    precision: str
    batch: int = 1
    scope: str = "compute"


class SweepCell(MatrixCell, frozen=True, kw_only=True):
    row: SweepRow | None = None


class FailedCell(MatrixCell, frozen=True, kw_only=True):
    reason: str


class Environment(Struct, frozen=True, kw_only=True):
    """A machine with its installed packages: results of two of these are never compared."""

    id: str
    machine_kind: str
    cpu_model: str
    gpus: tuple[str, ...]
    versions: dict[str, str]
    rows: int = 0
    reference_ms: float | None = None  # median of its configurations
    price_per_hour: float | None = None


class Interference(Struct, frozen=True, kw_only=True):
    """The cost of sharing a machine: a configuration's time beside others over its time alone; above 1 is slower."""

    model: str
    machine_kind: str
    row: str
    ratio: Estimate | None
    verdict: Verdict
    reasons: tuple[str, ...] = ()


class Tuned(Struct, frozen=True, kw_only=True):
    """The result of a search over settings, of one model and batch on one kind of machine.

    `ratio` is the speed of the setting that won the race over that of the best default, in the final. The winner is
    that default itself where the other is not significantly faster: then `beaten` is false.
    """

    model: str
    machine_kind: str
    batch: int
    winner: str = ""
    default: str = ""
    challenger: str = ""  # who won the race
    beaten: bool = False
    finished: bool = False  # else its budget ended before the final did
    verdict: Verdict | None = None
    ratio: Estimate | None = None
    processes: int = 0
    spent_s: float = 0.0
    page: str = ""  # below the store; `tune.json` lies beside it
    reason: str = ""  # why there is no result


class SweepDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `sweep`, and of `report` on its store."""

    schema: str = "enginebench.sweep/1"
    store: str
    cells: tuple[SweepCell, ...]
    failed: tuple[FailedCell, ...]
    machines: tuple[Environment, ...] = ()
    interference: tuple[Interference, ...] = ()
    tuned: tuple[Tuned, ...] = ()
    unread: tuple[str, ...] = ()
    currency: str = ""
    started_utc: str = ""


_OWN = {"result", "machines", "warnings"}
_SHARED = {
    field.name: attrgetter(path)
    for path, field in list_figures(Row)
    if field.name in SweepRow.__struct_fields__ and field.name not in _OWN
}


def take_row(row: Row, result: Result, folder: str, environment: str) -> SweepRow:
    """The row of a run, whose folder is that one below the store, as a row of a sweep."""
    count = len({m.machine for m in result.measurements}) or 1
    warnings = (*row.warnings, *([make_warning("several_machines", count=count)] if count > 1 else []))
    kernels = [median(m.reference_ns) for m in result.measurements if m.reference_ns]
    return SweepRow(
        **{name: take(row) for name, take in _SHARED.items()},
        warnings=warnings,
        result=f"{folder}/rows/{row.id}.json",
        environment=environment,
        reference_ms=median(kernels) / 1e6 if kernels else None,
        machines=count,
    )


def price(document: SweepDocument, prices: Mapping[str, float], currency: str = "") -> SweepDocument:
    """Add the cost of a million inferences wherever the price of an hour is known."""
    cells = []
    for cell in document.cells:
        if (row := cell.row) is not None and cell.machine_kind in prices:
            # Of a machine that is busy all the time: idle hours come on top.
            rate = (row.capacity.passes_qps if row.capacity else None) or row.throughput_per_s
            cost = prices[cell.machine_kind] * 1e6 / (3600 * rate) if rate else None
            cell = replace(cell, row=replace(row, cost_per_million=cost))
        cells.append(cell)
    machines = tuple(replace(m, price_per_hour=prices.get(m.machine_kind, m.price_per_hour)) for m in document.machines)
    return replace(document, cells=tuple(cells), machines=machines, currency=currency)
