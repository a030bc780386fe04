"""What `enginebench parse ... --out DIR` writes: summaries, series and tables of one trtexec artifact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from enginebench.core.store import write_atomic, write_document
from enginebench.features.trtexec.records import ROWS
from enginebench.features.trtexec.times import PERCENTILES, TimedQueries, find_trtexec_index
from enginebench.report.csv_table import write_table
from enginebench.report.layer_table import write_layer_times
from enginebench.report.numbers import read_label
from enginebench.stats.quantiles import find_rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.features.trtexec.records import LogDocument, Stat, TimesDocument
    from enginebench.stats.layer_records import DiffSide, EngineLayer, LayersDocument, ProfileDocument

Cell = str | int | float | bool | None

# Of latency_percentiles.csv; shares are decimals, as in PERCENTILES.
_CURVE = {"1": 0.01, "5": 0.05, "10": 0.1, "25": 0.25, "50": 0.5, "75": 0.75, "90": 0.9}
_CURVE |= {"95": 0.95, "99": 0.99, "99.9": 0.999, "99.99": 0.9999, "100": 1.0}
_FIGURES = ("min", "max", "mean", "median")


def write_log(document: LogDocument, out: Path) -> list[Path]:
    """summary.json, and summary.csv with a line for each run."""
    # A line for each run of a log, with the rows and percentiles that any of its runs has.
    path = out / "summary.csv"
    names = ["model", "precision", "batch", "status", "version", "device", "throughput_qps", "queries"]
    names += ["host_walltime_s", "gpu_cov_percent", "build_s", "engine_bytes"]
    stats = {row: [getattr(run, row) for run in document.runs] for row in ROWS}
    labels = {row: list_labels(found) for row, found in stats.items() if any(found)}
    heading = [*names, *(text for row, found in labels.items() for text in name_stat(row, found))]
    rows: list[list[Cell]] = []
    for run in document.runs:
        figures = [cell for row, found in labels.items() for cell in list_stat(getattr(run, row), found)]
        rows.append([*(getattr(run, name) for name in names), *figures])
    return [write_document(document, out / "summary.json"), write_table(path, heading, rows)]


def list_labels(stats: Sequence[Stat | None]) -> list[str]:
    """The percentiles that any of the rows has, ascending; what a damaged log has for one goes last."""
    return sorted({label for stat in stats if stat for label in stat.percentiles}, key=read_label)


def name_stat(row: str, labels: Sequence[str]) -> list[str]:
    """Headings of `list_stat`."""
    return [f"{row.removesuffix('_ms')}_{name}_ms" for name in (*_FIGURES, *(f"p{label}" for label in labels))]


def list_stat(stat: Stat | None, labels: Sequence[str]) -> list[Cell]:
    """The figures of a summary row."""
    if stat is None:
        return [None] * (len(_FIGURES) + len(labels))
    return [*(getattr(stat, name) for name in _FIGURES), *(stat.percentiles.get(label) for label in labels)]


def write_times(document: TimesDocument, timed: TimedQueries, out: Path) -> list[Path]:
    """summary.json, summary.csv, latency_percentiles.csv, and a series for each time that the file holds."""
    columns = timed.columns
    return [
        write_document(document, out / "summary.json"),
        write_times_table(document, out / "summary.csv"),
        write_percentiles(document, columns["latency"], out / "latency_percentiles.csv"),
        *(
            write_series(columns[name], title, out / f"{name}_series.csv")
            for name, title in (("latency", "latency_ms"), ("enqueue", "enqueue_ms"), ("compute", "gpu_compute_ms"))
            if name in columns
        ),
    ]


def write_times_table(document: TimesDocument, path: Path) -> Path:
    """A line for each time: throughput, figures with intervals where there are any, CoV, trtexec's percentiles."""
    heading = ["row", "model", "precision", "batch", "n", "throughput_qps", "images_per_s", "host_walltime_s"]
    heading += ["min_ms", "max_ms", "mean_ms", "mean_low_ms", "mean_high_ms", "median_ms"]
    for label in PERCENTILES:
        heading += [f"p{label}_ms", f"p{label}_low_ms", f"p{label}_high_ms", f"p{label}_supported"]
    heading += ["cov", *(f"trtexec_p{label}_ms" for label in PERCENTILES)]
    shared: list[Cell] = [document.model, document.precision, document.batch, document.n]
    shared += [document.throughput_qps, document.images_per_s, document.host_walltime_s]
    rows = [[name, *shared, *list_times_row(document, name)] for name in ROWS if getattr(document, name) is not None]
    return write_table(path, heading, rows)


def list_times_row(document: TimesDocument, name: str) -> list[Cell]:
    """The figures of one time."""
    stat: Stat = getattr(document, name)
    intervals = document.intervals.get(name, {})
    mean = intervals.get("mean")
    cells: list[Cell] = [stat.min, stat.max, stat.mean]
    cells += [mean.low if mean else None, mean.high if mean else None, stat.median]
    for label in PERCENTILES:
        estimate = intervals.get(label)
        cells.append(stat.percentiles[label])
        cells += [estimate.low, estimate.high, estimate.supported] if estimate else [None, None, None]
    ours: list[Cell] = [document.trtexec[name].percentiles[label] for label in PERCENTILES]
    return [*cells, document.cov.get(name), *ours]


def write_percentiles(document: TimesDocument, latency_ms: NDArray[np.float64], path: Path) -> Path:
    """Latency by percentile, by our rule and by trtexec's, with intervals where there are any."""
    ascending = np.sort(latency_ms[np.isfinite(latency_ms)])
    n = len(ascending)
    intervals = document.intervals.get("latency_ms", {})
    rows: list[list[Cell]] = []
    for label, share in _CURVE.items():
        ours, theirs = ascending[find_rank(n, share) - 1], ascending[find_trtexec_index(n, label)]
        estimate = intervals.get(label)
        bounds: list[Cell] = [estimate.low, estimate.high, estimate.supported] if estimate else [None, None, None]
        rows.append([float(label), float(ours), float(theirs), *bounds])
    return write_table(path, ["percentile", "nearest_rank_ms", "trtexec_ms", "low_ms", "high_ms", "supported"], rows)


def write_series(values: NDArray[np.float64], name: str, path: Path) -> Path:
    """One line a query, in the order of the run, without the warm-up; an empty line where the time is nan.

    The JSON encoder makes the lines: shortest floats, a tenth of the time of formatting each.
    """
    body = msgspec.json.encode(values.tolist())[1:-1].replace(b",", b"\n").replace(b"null", b"")
    write_atomic(path, b"%b\n%b\n" % (name.encode(), body))
    return path


def write_profile(document: ProfileDocument, out: Path) -> list[Path]:
    """summary.json and per_layer_times.csv, slowest layer first."""
    return [
        write_document(document, out / "summary.json"),
        write_layer_times(document.layers, out / "per_layer_times.csv"),
    ]


def write_layers(document: LayersDocument, out: Path) -> list[Path]:
    """summary.json, layers.csv, and layer_diff.csv where another engine was given."""
    heading = ["layer", "type", "precision", "precision_in", "precision_out", "overhead", "average_ms", "share"]
    rows = [list_layer(layer) for layer in document.layers]
    paths = [write_document(document, out / "summary.json")]
    paths.append(write_table(out / "layers.csv", [*heading, "onnx_nodes", "tactic"], rows))
    if document.diff is not None:
        heading = ["onnx_nodes", *name_side("base"), *name_side("candidate"), "delta_ms"]
        deltas: list[list[Cell]] = [
            [" + ".join(row.onnx_nodes), *list_side(row.base), *list_side(row.candidate), row.delta_ms]
            for row in document.diff
        ]
        paths.append(write_table(out / "layer_diff.csv", heading, deltas))
    return paths


def list_layer(layer: EngineLayer) -> list[Cell]:
    """A line of layers.csv."""
    cells: list[Cell] = [layer.name, layer.type, layer.precision, layer.precision_in, layer.precision_out]
    return [*cells, layer.overhead, layer.average_ms, layer.share, " + ".join(layer.onnx_nodes), layer.tactic]


def name_side(side: str) -> list[str]:
    """Headings of `list_side`."""
    return [f"{side}_{name}" for name in ("layers", "precision", "ms", "overhead_ms")]


def list_side(side: DiffSide | None) -> list[Cell]:
    """What one engine does for a row of the difference."""
    if side is None:
        return [None] * 4
    return [" | ".join(side.layers), side.precision, side.average_ms, side.overhead_ms]
