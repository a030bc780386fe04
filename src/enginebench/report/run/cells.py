"""Cells that the terminal, markdown and the page write in the same words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from enginebench.core.shapes import show_shape
from enginebench.report.numbers import format_interval, format_significant
from enginebench.report.run.rows import Row

MISSING = "-"
# Inputs whose shapes a heading tells; a decoder with a cache has fifty.
SHOWN = 4


def describe_setting(row: Row) -> str:
    """What the rows of one table have in common: `batch 1, compute, cpu, 1 thread`."""
    cache = ", cold cache" if row.cache == "cold" else ""
    threads = f"{row.threads} thread" + ("s" if row.threads != 1 else "")
    bucket = f", {row.bucket}" if row.bucket else ""
    return f"batch {row.batch}{bucket}, {row.scope}{cache}, {row.device}, {threads}"


def name_table(setting: str, rows: Sequence[Row]) -> str:
    """The heading of a table: what its rows have in common, and the shapes that were timed."""
    shapes = next((row.shapes for row in rows if row.shapes), {})
    return f"{setting}, {show_shapes(shapes)}" if shapes else setting


def show_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The shapes that were timed: `1x3x224x224` of one input, `ids 1x128, mask 1x128` of more."""
    told = [show_shape(shape) for shape in shapes.values()]
    if len(told) == 1:
        return told[0]
    more = f" and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    return ", ".join(f"{name} {shape}" for name, shape in list(zip(shapes, told, strict=True))[:SHOWN]) + more


def break_lines(text: str, letters: int) -> list[str]:
    """`text` in lines of so many letters, broken at spaces; a longer word is broken at a hyphen, or anywhere."""
    words = wrap(text, letters, break_long_words=False, break_on_hyphens=False)
    return [line for word in words for line in wrap(word, letters)]


def name_doubt(row: Row) -> str:
    """`suspect` or `invalid`, to stand at the figures of a row; nothing of a row that is valid or has none."""
    return row.validity if row.validity != "valid" and row.p50_ms else ""


def format_p99(row: Row, factor: float, missing: str = MISSING) -> str:
    """p99 times `factor`; a question mark says that n cannot carry it."""
    if row.p99_ms is None:
        return missing
    return format_significant(row.p99_ms.value * factor) + ("" if row.p99_ms.supported else "?")


def format_build(row: Row) -> str:
    """Seconds of the build; at most so many where others were built at the same time; "" where nothing was built."""
    if row.build_s is None:
        return ""
    seconds = format_significant(row.build_s, 2)
    return f"≤ {seconds}" if row.built_beside else seconds


def format_speedup(row: Row, plus_minus: str, missing: str = MISSING) -> str:
    """`2.02x ±0.03`; `1x` of the baseline itself; `missing` where it was not or cannot be taken."""
    if row.speedup is None or row.ratio_validity == "not_given":
        return missing
    if row.id == row.baseline:
        return "1x"
    return format_interval(row.speedup, 1.0, plus_minus, "x")


def has_limits(rows: Sequence[Row]) -> bool:
    """Whether ceilings of the machine were stored when these rows were measured."""
    return any(row.of_limit is not None for row in rows)


def format_limit(row: Row, missing: str = MISSING) -> str:
    """`63% compute`: how near a row is to its bound, and what sets that."""
    return missing if row.of_limit is None else f"{row.of_limit:.0%} {row.bound_by}"


def format_capacity(row: Row, missing: str = MISSING) -> str:
    """`7030 to 7210`: requests a second at which the limit holds, and at which it does not."""
    found = row.capacity
    if found is None:
        return missing
    if found.passes_qps is None:
        return f"below {format_significant(found.fails_qps)}" if found.fails_qps else missing
    fails = f" to {format_significant(found.fails_qps)}" if found.fails_qps else " or more"
    return format_significant(found.passes_qps) + fails + ("?" if found.suspect else "")


def name_capacity(rows: Sequence[Row]) -> str:
    """What stands over capacities: `requests/s, p99 <= 20 ms`; "" where no row has one."""
    found = next((row.capacity for row in rows if row.capacity), None)
    return f"requests/s, p{found.percentile:g} <= {found.limit_ms:g} ms" if found else ""
