"""A history for other tools: Parquet, and MLflow, where each row becomes a run."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import fields

from enginebench.core.errors import ArtifactError, MissingDependency
from enginebench.core.store import write_atomic
from enginebench.core.text import clean_text
from enginebench.report.history.table import HistoryRow, identify_row

_SETTINGS = ("model", "engine", "engine_version", "precision", "recipe", "batch", "scope", "cache", "device")
PARAMS: tuple[str, ...] = (*_SETTINGS, "threads", "clock", "validity", "metric", "cpu_model", "gpu")
METRICS = ("p50_ms", "p99_ms", "mean_ms", "reference_ms", "score", "build_s", "size_bytes", "n", "processes")
# Marks the runs that were written from here, so that a second export adds only what is new.
KEY = "enginebench.row"
# Source: MLflow, `mlflow.utils.validation`: MAX_PARAM_VAL_LENGTH 6000, older servers 250.
_LONGEST = 250


def write_parquet(rows: Sequence[HistoryRow], path: Path) -> None:
    """Writes the table to `path`, a column for each field, missing values null."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependency("pyarrow, which writes Parquet,", 'pip install "enginebench[parquet]"') from error
    kinds = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    names = [field.name for field in fields(HistoryRow)]
    hints = {field.name: (get_args(field.type) or (field.type,))[0] for field in fields(HistoryRow)}
    schema = pyarrow.schema([(name, kinds[hint]) for name, hint in hints.items()])
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def export_mlflow(rows: Sequence[HistoryRow], uri: str, experiment: str) -> tuple[int, int]:
    """(runs written, rows that were there already): settings as parameters, figures as metrics.

    Args:
        uri: of the tracking store: `file:DIR`, `http://...`, `sqlite:///F`.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingDependency("MLflow", 'pip install "enginebench[mlflow]"') from error
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        identity = str(found.experiment_id if found else client.create_experiment(experiment))
        known = _list_known(client, identity)
        new = [row for row in rows if identify_row(row) not in known]
        for row in new:
            _write_run(client, identity, row)
    except (MlflowException, OSError) as error:
        raise ArtifactError(f"MLflow refused {uri}: {clean_text(str(error))}") from error
    return len(new), len(rows) - len(new)


def _list_known(client: Any, experiment: str) -> set[str]:
    known: set[str] = set()
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        known |= {run.data.tags.get(KEY, "") for run in page}
        token = page.token
        if not token:
            return known


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
