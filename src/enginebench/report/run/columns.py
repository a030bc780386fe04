"""The columns of a table that a program reads: a heading, and what a row has under it."""

from __future__ import annotations

from collections.abc import Callable

from enginebench.core.records import Estimate
from enginebench.core.shapes import format_shapes
from enginebench.report.run.rows import Row

Cell = str | int | float | bool | None

# Plain fields come first, in the order in which a person reads a row; estimates are spread over three columns.
PLAIN = (
    "id",
    "engine",
    "precision",
    "requested_precision",
    "recipe",
    "batch",
    "scope",
    "cache",
    "device",
    "threads",
    "weights",
    "clock",
    "modelled",
    "status",
    "reason",
    "validity",
    "n",
    "processes",
)
ESTIMATES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms", "mean_ms", "p50_unmarked_ms", "p50_device_ms", "enqueue_ms")
MORE = (
    "throughput_per_s",
    "throughput_pipelined_per_s",
    "max_abs_diff",
    "cosine",
    "centred_cosine",
    "top1_agreement",
    "agreement",
    "nonfinite",
    "outputs_agree",
    "verdict",
    "baseline",
    "build_s",
    "size_bytes",
    "peak_memory_bytes",
    "energy_mj",
    "marked_share",
    "bound_ms",
    "of_limit",
    "bound_by",
    "unmapped_share",
    "pareto",
    "result",
    "built_beside",
    "ratio_validity",
    "outputs",
)


def list_columns() -> dict[str, Callable[[Row], Cell]]:
    """Heading -> what a row has there, for a table that a program reads: one number a cell, units in the headings."""
    columns: dict[str, Callable[[Row], Cell]] = {name: _take(name) for name in PLAIN}
    for name in (*ESTIMATES, "speedup"):
        columns |= {
            name: _take_part(name, "value"),
            f"{name}_low": _take_part(name, "low"),
            f"{name}_high": _take_part(name, "high"),
        }
    columns |= {"metric": lambda row: row.scores[0].metric if row.scores else None}
    columns |= {f"score{end}": _take_score(part) for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))}
    columns["p99_supported"] = _take_part("p99_ms", "supported")
    columns |= {name: _take(name) for name in MORE}
    columns["shapes"] = lambda row: format_shapes(row.shapes)
    columns |= {name: _take(name) for name in ("bucket", "axes")}
    columns |= {name: _take_capacity(name) for name in ("passes_qps", "fails_qps")}
    columns["caveats"] = lambda row: " ".join(dict.fromkeys(c.code for c in row.caveats))
    return columns


def _take(name: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value: Cell = getattr(row, name)
        return value

    return cell


def _take_capacity(end: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value: Cell = getattr(row.capacity, end, None)
        return value

    return cell


def _take_part(name: str, part: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        estimate: Estimate | None = getattr(row, name)
        value: Cell = getattr(estimate, part) if estimate else None
        return value

    return cell


def _take_score(part: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value: Cell = getattr(row.scores[0].value, part) if row.scores else None
        return value

    return cell
