"""The columns of a table that a program reads: a heading, and what a row has under it."""

from __future__ import annotations

from collections.abc import Callable

from enginebench.core.records import Estimate
from enginebench.report.rows import Row

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
    "nonfinite",
    "outputs_agree",
    "verdict",
    "baseline",
    "build_s",
    "size_bytes",
    "peak_memory_bytes",
    "energy_mj",
    "marked_share",
    "pareto",
    "result",
)


def list_columns() -> dict[str, Callable[[Row], Cell]]:
    """Heading -> what a row has there, for a table that a program reads: one number a cell, units in the headings."""
    columns: dict[str, Callable[[Row], Cell]] = {name: _take(name) for name in PLAIN}
    for name in (*ESTIMATES, "speedup", "top1_accuracy"):
        columns |= {
            name: _take_part(name, "value"),
            f"{name}_low": _take_part(name, "low"),
            f"{name}_high": _take_part(name, "high"),
        }
    columns["p99_supported"] = _take_part("p99_ms", "supported")
    columns |= {name: _take(name) for name in MORE}
    columns["caveats"] = lambda row: " ".join(dict.fromkeys(c.code for c in row.caveats))
    return columns


def _take(name: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        value: Cell = getattr(row, name)
        return value

    return cell


def _take_part(name: str, part: str) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        estimate: Estimate | None = getattr(row, name)
        value: Cell = getattr(estimate, part) if estimate else None
        return value

    return cell
