"""Write summaries, series and tables of one trtexec artifact, for `enginebench parse ... --out DIR`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from enginebench.core.store import write_atomic, write_document
from enginebench.features.trtexec.records import ROWS, Stat
from enginebench.features.trtexec.times import PERCENTILES, TimedQueries, find_trtexec_index
from enginebench.report.csv_table import write_table
from enginebench.report.layer_table import write_layer_times
from enginebench.stats.quantiles import find_rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.records import Estimate
    from enginebench.features.trtexec.records import LogDocument, TimesDocument
    from enginebench.stats.layer_records import DiffSide, LayersDocument, ProfileDocument

Cell = str | int | float | bool | None

# Of latency_percentiles.csv; shares are decimals, as in PERCENTILES.
_CURVE = {"1": 0.01, "5": 0.05, "10": 0.1, "25": 0.25, "50": 0.5, "75": 0.75, "90": 0.9}
_CURVE |= {"95": 0.95, "99": 0.99, "99.9": 0.999, "99.99": 0.9999, "100": 1.0}
_SHARED = ("model", "precision", "batch")
_OF_RUN = (
    *_SHARED,
    "status",
    "version",
    "device",
    "throughput_qps",
    "queries",
    "host_walltime_s",
    "gpu_cov_percent",
    "build_s",
    "engine_bytes",
)
_OF_TIMES = (*_SHARED, "n", "throughput_qps", "images_per_s", "host_walltime_s")


def read_label(label: str) -> float:
    """Read a percentile's label as a number; a damaged label sorts last."""
    try:
        return float(label)
    except ValueError:
        return float("inf")


def _write_rows(path: Path, rows: Sequence[Mapping[str, Cell]]) -> Path:
    return write_table(path, list(rows[0]), [list(row.values()) for row in rows])


def write_log(document: LogDocument, out: Path) -> list[Path]:
    """Write summary.json, and summary.csv: a line for each run, with the rows and percentiles that any of the runs
    has."""
    stats = {row: [stat for run in document.runs if (stat := getattr(run, row))] for row in ROWS}
    # What a damaged log has for a percentile goes last.
    labels = {
        row: sorted({p for s in row_stats for p in s.percentiles}, key=read_label) for row, row_stats in stats.items()
    }
    rows = []
    for run in document.runs:
        cells: dict[str, Cell] = {name: getattr(run, name) for name in _OF_RUN}
        for row in (row for row, row_stats in stats.items() if row_stats):
            stat, bare = getattr(run, row) or Stat(), row.removesuffix("_ms")
            cells |= {f"{bare}_{name}_ms": getattr(stat, name) for name in ("min", "max", "mean", "median")}
            cells |= {f"{bare}_p{label}_ms": stat.percentiles.get(label) for label in labels[row]}
        rows.append(cells)
    return [write_document(document, out / "summary.json"), _write_rows(out / "summary.csv", rows)]


def write_times(document: TimesDocument, timed: TimedQueries, out: Path) -> list[Path]:
    """Write summary.json, summary.csv, latency_percentiles.csv, and a series for each time that the file holds."""
    series = {"latency": "latency_ms", "enqueue": "enqueue_ms", "compute": "gpu_compute_ms"}
    return [
        write_document(document, out / "summary.json"),
        _write_rows(out / "summary.csv", [list_time(document, name) for name in ROWS if getattr(document, name)]),
        write_percentiles(document, timed.columns["latency"], out / "latency_percentiles.csv"),
        *(
            write_series(column, series[name], out / f"{name}_series.csv")
            for name in series
            if (column := timed.columns.get(name)) is not None  # type: ignore[call-overload]
        ),
    ]


def list_time(document: TimesDocument, name: str) -> dict[str, Cell]:
    """Make a line for one time: throughput, figures with intervals where there are any, CoV, trtexec's percentiles."""
    stat: Stat = getattr(document, name)
    intervals = document.intervals.get(name, {})
    cells: dict[str, Cell] = {"row": name} | {key: getattr(document, key) for key in _OF_TIMES}
    cells |= {"min_ms": stat.min, "max_ms": stat.max, "mean_ms": stat.mean}
    cells |= {f"mean_{end}_ms": getattr(intervals.get("mean"), end, None) for end in ("low", "high")}
    cells["median_ms"] = stat.median
    for label in PERCENTILES:
        cells |= {f"p{label}_ms": stat.percentiles[label]} | _list_bounds(intervals.get(label), f"p{label}_")
    cells["cov"] = document.cov.get(name)
    return cells | {f"trtexec_p{label}_ms": document.trtexec[name].percentiles[label] for label in PERCENTILES}


def _list_bounds(estimate: Estimate | None, before: str = "") -> dict[str, Cell]:
    names = {"low": "low_ms", "high": "high_ms", "supported": "supported"}
    return {before + name: getattr(estimate, end, None) for end, name in names.items()}


def write_percentiles(document: TimesDocument, latency_ms: NDArray[np.float64], path: Path) -> Path:
    """Write latency by percentile, by our rule and by trtexec's, with intervals where there are any."""
    ascending = np.sort(latency_ms[np.isfinite(latency_ms)])
    n = len(ascending)
    rows: list[dict[str, Cell]] = []
    for label, share in _CURVE.items():
        ours, theirs = ascending[find_rank(n, share) - 1], ascending[find_trtexec_index(n, label)]
        cells: dict[str, Cell] = {"percentile": float(label), "nearest_rank_ms": float(ours)}
        cells["trtexec_ms"] = float(theirs)
        rows.append(cells | _list_bounds(document.intervals.get("latency_ms", {}).get(label)))
    return _write_rows(path, rows)


def write_series(values: NDArray[np.float64], name: str, path: Path) -> Path:
    """Write one line a query, in the order of the run, without the warm-up; an empty line where the time is nan.

    The JSON encoder makes the lines: shortest floats, a tenth of the time of formatting each.
    """
    body = msgspec.json.encode(values.tolist())[1:-1].replace(b",", b"\n").replace(b"null", b"")
    write_atomic(path, b"%b\n%b\n" % (name.encode(), body))
    return path


def write_profile(document: ProfileDocument, out: Path) -> list[Path]:
    """Write summary.json and per_layer_times.csv, slowest layer first."""
    table = write_layer_times(document.layers, out / "per_layer_times.csv")
    return [write_document(document, out / "summary.json"), table]


def write_layers(document: LayersDocument, out: Path) -> list[Path]:
    """Write summary.json, layers.csv, and layer_diff.csv if another engine was given."""
    names = ("name", "type", "precision", "precision_in", "precision_out", "overhead", "average_ms", "share")
    rows = [[*(getattr(x, n) for n in names), " + ".join(x.onnx_nodes), x.tactic] for x in document.layers]
    paths = [write_document(document, out / "summary.json")]
    paths.append(write_table(out / "layers.csv", ["layer", *names[1:], "onnx_nodes", "tactic"], rows))
    if document.diff is not None:
        sides = [f"{side}_{name}" for side in ("base", "candidate") for name in _SIDE]
        deltas: list[list[Cell]] = [
            [" + ".join(row.onnx_nodes), *_list_side(row.base), *_list_side(row.candidate), row.delta_ms]
            for row in document.diff
        ]
        paths.append(write_table(out / "layer_diff.csv", ["onnx_nodes", *sides, "delta_ms"], deltas))
    return paths


_SIDE = ("layers", "precision", "ms", "overhead_ms")


def _list_side(side: DiffSide | None) -> list[Cell]:
    return [" | ".join(side.layers), side.precision, side.average_ms, side.overhead_ms] if side else [None] * len(_SIDE)
