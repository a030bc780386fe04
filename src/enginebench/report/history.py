"""All stored configurations of a folder as one table, their trends (p50 over time), and exports to Parquet and
MLflow."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import fields

from enginebench.core.errors import ArtifactError, explaining, importing
from enginebench.core.names import format_precision, show_precision
from enginebench.core.store import write_atomic
from enginebench.core.text import clean_text, count_of
from enginebench.report.charts import GREY, Point, Spec, alt, finish
from enginebench.report.csv_table import format_csv
from enginebench.report.run.charts import PALETTE
from enginebench.report.table import Column, Section, make_notes, make_table

HISTORY_SCHEMA = "enginebench.history/1"


class HistoryRow(Struct, frozen=True, kw_only=True):
    """One stored row in figures: medians over its processes, without intervals. Times in ms."""

    path: str  # of the row's file, relative to the folder
    run: str  # the run's folder, relative to it
    id: str
    started_utc: str
    model: str
    engine: str
    engine_version: str | None
    precision: str
    recipe: str | None
    batch: int
    shapes: str  # of the inputs that were timed; of a mix its shapes with their weights
    scope: str
    cache: str
    device: str
    threads: int
    status: str
    validity: str
    clock: str | None
    n: int
    processes: int
    p50_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    reference_ms: float | None  # the fixed kernel: shows a change of the machine
    metric: str | None  # that decides about the row
    score: float | None
    build_s: float | None
    size_bytes: int | None
    cpu_model: str | None
    gpu: str | None
    mix: str = ""  # which nodes stay in FP32 by choice


class Unread(Struct, frozen=True, kw_only=True):
    """A file that looks like a row and cannot be read."""

    path: str
    reason: str


class HistoryDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `history`, oldest first."""

    schema: str = HISTORY_SCHEMA
    rows: tuple[HistoryRow, ...]
    unread: tuple[Unread, ...] = ()
    copies: int = 0  # rows that are stored twice, as in a baseline, and counted once


def identify_row(row: HistoryRow) -> str:
    """Return the key that two copies of a measured configuration share; without samples no other has it."""
    return f"{row.model} {row.id} {row.started_utc} {row.n} {row.p50_ms}" if row.n else row.path


def name_series(row: HistoryRow) -> str:
    """Return the parts that two configurations share if they are points of one line."""
    parts = [row.model, format_precision(row.precision, row.recipe, row.mix), f"b{row.batch}"]
    parts += [row.shapes] if row.shapes else []
    parts += [row.scope] if row.scope != "compute" else []
    parts += [row.device] if row.device != "cpu" else []
    parts += [f"{row.threads}t"] if row.device == "cpu" else []  # those of the host are no setting of what a GPU runs
    return clean_text(" ".join(parts))


def _format_p50(row: HistoryRow) -> str:
    if row.p50_ms is None:
        return row.status
    return "{}" if row.validity == "valid" else "~ {}"


_FIELDS = tuple(Column(field.name, str, attrgetter(field.name)) for field in fields(HistoryRow))
_COLUMNS = (
    Column("started", lambda row: row.started_utc[:16], spare=1),
    Column("model", attrgetter("model")),
    Column("engine", attrgetter("engine")),
    Column("precision", lambda row: format_precision(show_precision(row.engine, row.precision), row.recipe, row.mix)),
    Column("batch", lambda row: str(row.batch), attrgetter("batch"), align="right", spare=3),
    Column("shapes", attrgetter("shapes"), when=lambda rows: any(row.shapes for row in rows), spare=2),
    Column("p50", _format_p50, attrgetter("p50_ms"), align="decimal", is_time=True),
    Column("p99", lambda row: "{}", attrgetter("p99_ms"), align="decimal", spare=4, is_time=True),
    Column("n", lambda row: str(row.n), attrgetter("n"), align="right", spare=5),
)


def format_history_csv(rows: Sequence[HistoryRow]) -> str:
    return format_csv(_FIELDS, rows)


def list_history(document: HistoryDocument, last: int) -> list[Section]:
    """List how many configurations there are, the latest of them with the oldest first, and files that cannot be
    read."""
    rows = document.rows[-last:] if last else ()
    hidden = max(0, len(document.rows) - last)
    title = f"{count_of(len(document.rows), 'results')}" + (f", the latest {last} shown" if hidden else "")
    unread = [f"not read: {one.path}: {one.reason}" for one in document.unread[:10]]
    unread += [f"not read: {len(document.unread) - 10} more files"] if len(document.unread) > 10 else []
    table = [make_table(_COLUMNS, rows, file="history")] if rows else []
    return [Section(title=title, parts=(*table, *make_notes(unread)))]


# Of one line: more than this lie within a pixel of each other on a picture 680 units wide.
_POINTS = 600
OTHERS = "others"


def collect_trends(rows: Sequence[HistoryRow]) -> dict[str, list[Point]]:
    """Engine -> the points of its picture, the oldest first; rows without a time or a median are left out.

    A picture has as many lines as there are colours; the series with the fewest rows share the last one.
    """
    engines: dict[str, list[tuple[str, HistoryRow]]] = {}
    for row in rows:
        if row.p50_ms and row.started_utc:
            engines.setdefault(row.engine, []).append((name_series(row), row))
    return {engine: _collect_points(members) for engine, members in sorted(engines.items())}


def _collect_points(rows: Sequence[tuple[str, HistoryRow]]) -> list[Point]:
    kept = {name for name, _ in Counter(name for name, _ in rows).most_common(len(PALETTE) - 1)}
    series: dict[str, list[HistoryRow]] = {}
    for name, row in rows:
        series.setdefault(name if name in kept else OTHERS, []).append(row)
    return [
        {
            "at": row.started_utc,
            "series": name,
            "p50": row.p50_ms,
            "p99": row.p99_ms,
            "validity": row.validity,
            "run": clean_text(row.run),
            "cpu": clean_text(row.cpu_model or ""),
        }
        for name, members in series.items()
        for row in _thin(members)
    ]


def _thin(rows: list[HistoryRow]) -> list[HistoryRow]:
    """Evenly chosen rows, the first and the last among them."""
    step = (len(rows) - 1) / (_POINTS - 1)
    return [rows[round(i * step)] for i in range(_POINTS)] if len(rows) > _POINTS else rows


def draw_trend(engine: str, points: Sequence[Point]) -> Spec:
    """The p50 of one engine over time, a line for each model, precision and batch."""
    legend = alt.Legend(orient="bottom", columns=2, labelLimit=330, title=None)
    base = alt.Chart(alt.NamedData(name="points")).encode(
        x=alt.X("at:T", title="measured (UTC)", scale=alt.Scale(type="utc")),
        y=alt.Y("p50:Q", title="p50 latency (ms), log axis", scale=alt.Scale(type="log", nice=False, padding=10)),
        color=alt.Color("series:N", scale=alt.Scale(range=PALETTE), legend=legend),
    )
    line = base.transform_filter(f"datum.series != '{OTHERS}'").mark_line(strokeWidth=1, opacity=0.6)
    when = alt.Tooltip("at:T", format="%Y-%m-%d %H:%M")
    tooltip = ["series:N", when, "p50:Q", "p99:Q", "validity:N", "run:N", "cpu:N"]
    dots = base.transform_filter("datum.validity == 'valid'").mark_point(filled=True, size=22, opacity=0.9)
    crosses = base.transform_filter("datum.validity != 'valid'").mark_point(shape="cross", size=40, opacity=0.9)
    layers = alt.layer(line, dots.encode(tooltip=tooltip), crosses.encode(tooltip=tooltip))
    subtitle = (
        "crosses: suspect or invalid; machines and settings may differ: `diff` reports which points may be compared"
    )
    spec = finish(layers.configure_legend(labelColor=GREY), f"Trend of {engine}", subtitle, height=320)
    return spec | {"datasets": {"points": list(points)}}


_SETTINGS = ("model", "engine", "engine_version", "precision", "recipe", "batch", "shapes", "scope", "cache", "device")
PARAMS: tuple[str, ...] = (*_SETTINGS, "threads", "clock", "validity", "metric", "cpu_model", "gpu")
METRICS = ("p50_ms", "p99_ms", "mean_ms", "reference_ms", "score", "build_s", "size_bytes", "n", "processes")
# Marks the runs that were written from here, so that a second export adds only what is new.
KEY = "enginebench.row"
# Source: MLflow, `mlflow.utils.validation`: MAX_PARAM_VAL_LENGTH 6000, older servers 250.
_LONGEST = 250


def write_parquet(rows: Sequence[Struct], path: Path, record: type[Struct] = HistoryRow) -> None:
    """Write rows to `path`, a column for each field of their record, missing values null."""
    import_pyarrow()
    import pyarrow
    import pyarrow.parquet

    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    names = [field.name for field in fields(record)]
    hints = {field.name: (get_args(field.type) or (field.type,))[0] for field in fields(record)}
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in hints.items()])
    columns = {name: [_drop_unheld(getattr(row, name)) for row in rows] for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def import_pyarrow() -> None:
    """Import what writes Parquet; MissingDependency where it is not installed."""
    with importing("pyarrow, which writes Parquet,", 'pip install "enginebench[parquet]"', ImportError):
        import pyarrow.parquet  # noqa: F401


def import_mlflow() -> None:
    """Import the client of MLflow; MissingDependency where it is not installed."""
    with importing("MLflow", 'pip install "enginebench[mlflow]"', ImportError):
        from mlflow.tracking import MlflowClient  # noqa: F401


def _drop_unheld(value: Any) -> Any:
    """Drop a number that a column of 64 bits with a sign does not hold: one row of a stored run costs no other."""
    return None if isinstance(value, int) and abs(value) >= 2**63 else value


def export_mlflow(rows: Sequence[HistoryRow], uri: str, experiment: str) -> tuple[int, int]:
    """Export settings as parameters and figures as metrics; return (runs written, runs that were there already).

    `uri`: of the tracking store: `file:DIR`, `http://...`, `sqlite:///F`.
    """
    import_mlflow()
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    with explaining(
        ArtifactError, f"MLflow refused {uri}", MlflowException, OSError, describe=lambda e: clean_text(str(e))
    ):
        client = MlflowClient(tracking_uri=uri)
        existing = client.get_experiment_by_name(experiment)
        identity = str(existing.experiment_id if existing else client.create_experiment(experiment))
        exported, page = set[str](), None
        while page is None or page.token:
            page = client.search_runs([identity], max_results=1000, page_token=None if page is None else page.token)
            exported |= {run.data.tags.get(KEY, "") for run in page}
        new = [row for row in rows if identify_row(row) not in exported]
        for row in new:
            _write_run(client, identity, row)
    return len(new), len(rows) - len(new)


def _write_run(client: Any, experiment: str, row: HistoryRow) -> None:
    from mlflow.entities import Metric, Param, RunTag

    at = 0
    with suppress(ValueError):
        at = int(datetime.fromisoformat(row.started_utc).timestamp() * 1000)
    run = client.create_run(experiment, start_time=at, run_name=clean_text(row.id))
    metrics = [Metric(n, float(value), at, 0) for n in METRICS if (value := getattr(row, n)) is not None]
    params = [
        Param(name, clean_text(str(value))[:_LONGEST]) for name in PARAMS if (value := getattr(row, name)) is not None
    ]
    tags = [RunTag(KEY, identify_row(row)), RunTag("status", row.status), RunTag("path", clean_text(row.path))]
    client.log_batch(run.info.run_id, metrics=metrics, params=params, tags=tags)
    client.set_terminated(run.info.run_id, status="FINISHED" if row.status == "ok" else "FAILED", end_time=at)
