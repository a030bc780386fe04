"""Cells that the terminal and markdown write in the same words."""

from __future__ import annotations

from enginebench.report.numbers import format_interval, format_significant
from enginebench.report.rows import Row

MISSING = "-"


def describe_setting(row: Row) -> str:
    """What the rows of one table have in common: `batch 1, compute, cpu, 1 thread`."""
    cache = ", cold cache" if row.cache == "cold" else ""
    threads = f"{row.threads} thread" + ("s" if row.threads != 1 else "")
    return f"batch {row.batch}, {row.scope}{cache}, {row.device}, {threads}"


def format_p99(row: Row, factor: float, missing: str = MISSING) -> str:
    """p99 times `factor`; a question mark says that n cannot carry it."""
    if row.p99_ms is None:
        return missing
    return format_significant(row.p99_ms.value * factor) + ("" if row.p99_ms.supported else "?")


def format_speedup(row: Row, plus_minus: str, missing: str = MISSING) -> str:
    """`2.02x ±0.03`; `1x` of the baseline itself; `missing` where it was not or cannot be taken."""
    if row.speedup is None:
        return missing
    if row.id == row.baseline:
        return "1x"
    return format_interval(row.speedup, 1.0, plus_minus, "x")
