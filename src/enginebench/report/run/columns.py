"""The columns of a table of results, declared once: for people, and for programs."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from string import ascii_lowercase
from typing import Any, get_args

from enginebench.core.names import NOT_KNOWN, show_precision
from enginebench.core.records import Capacity, Estimate, Outputs
from enginebench.core.shapes import format_shapes
from enginebench.core.store import list_figures
from enginebench.report.numbers import format_digits, format_rate, format_ratio, format_significant, format_small
from enginebench.report.run.rows import Row, name_items
from enginebench.report.scores import format_score
from enginebench.report.table import Column, Span, Value
from enginebench.stats.metrics.scores import find_metric, find_score
from enginebench.stats.metrics.tasks import name_metric

SPEED_UP = "speed-up"  # the title of this column in every table of configurations, and in a tooltip
# Titles of the columns of memory by phase; `before` is no cost of the engine.
MEMORY_PHASES = {"load MB": "load", "1st run MB": "first_run", "steady MB": "steady", "PSS MB": "proportional"}
OUTPUTS: dict[Outputs, str] = {name: name.replace("_", " ") for name in get_args(Outputs)}
OUTPUTS["within_limits"] = "within"
# Fields of a row that no cell can hold, beside those that `list_fields` spreads over several.
_NOT_IN_FILES = {"percentiles_ms", "effective_precision", "top1_accuracy", "stop_rules", "builds", "energy_interval_mj"}
_NOT_IN_FILES |= {"memory_bytes", "ratio_to_fastest", "ratio_to_next", "ratio_to_wider", "wider"}


def list_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """List the columns of a table of these rows for people."""
    metric = find_metric(rows)
    capacity = next((row.capacity for row in rows if row.capacity), None)
    items = f"{name_items(rows)}/s"
    overlap = any(row.scope == "pipelined" for row in rows)  # of which the rate is what counts
    ties = mark_ties(rows)
    return (
        Column("engine", name_engine),
        Column("precision", format_ran_precision),
        *(Column(name, _take_text(name), when=_varies(name)) for name in ("device", "threads")),
        Column(
            "axes",
            lambda row: (row.setup.axes or "").replace("open", "dynamic"),
            when=_varies("setup.axes"),
            wide=True,
            spare=8,
        ),
        Column(
            "mean request" if any(row.times.cells for row in rows) else "p50",
            lambda row: "~ {}" if is_disturbed(row) else "{}",
            take_end("p50_ms"),
            align="decimal",
            bar=True,
            is_time=True,
        ),
        make_time("p99", "p99_ms", spare=2),
        Column(
            SPEED_UP,
            format_speedup,
            take_end("speedup"),
            align="right",
            span=take_span,
            hint="95% interval of the ratio of medians, over paired trials",
        ),
        Column(
            "=",
            lambda row: ties.get(row.id, ""),
            when=lambda _: bool(ties),
            spare=2,
            hint="no significant difference between neighbours with the same letter",
        ),
        Column("outputs", lambda row: "ref." if row.is_reference else OUTPUTS[row.outputs], spare=1),
        Column(
            name_metric(metric) if metric else "",
            lambda row: format_score(row, metric, 1),
            lambda row: score.value.value if metric and (score := find_score(row.scores, metric)) else None,
            when=lambda _: metric is not None,
            align="decimal",
            spare=1,
        ),
        Column(
            f"req/s, p{capacity.percentile:g} <= {capacity.limit_ms:g} ms" if capacity else "",
            lambda row: _format_capacity(row.capacity) if row.capacity else "",
            lambda row: row.capacity.passes_qps if row.capacity else None,
            when=lambda _: capacity is not None,
            align="right",
            spare=3,
            hint="the highest rate within the limit, to the lowest beyond it; ?: its probes were disturbed",
        ),
        Column(
            items,
            lambda row: "" if row.throughput_per_s is None else format_rate(row.throughput_per_s),
            attrgetter("throughput_per_s"),
            align="decimal",
            wide=not overlap,
            spare=0 if overlap else 4,
            hint="the batch times the queries per second that ran",
        ),
        *_list_details(),
    )


def _list_details() -> tuple[Column, ...]:
    """List the columns of the wide table alone, which are the same for all runs."""
    return (
        make_time("p99.9", "times.p999_ms", spare=8, wide=True),
        make_time("mean", "mean_ms", spare=8, wide=True),
        Column(
            "max diff",
            lambda row: "" if row.agreement.max_abs_diff is None else format_small(row.agreement.max_abs_diff),
            attrgetter("agreement.max_abs_diff"),
            when=_any("agreement.max_abs_diff"),
            align="right",
            wide=True,
            spare=7,
        ),
        Column("ran in", format_shares, when=_any("effective_precision"), wide=True, spare=9, hint="fraction of time"),
        Column(
            "of peak",
            lambda row: "" if row.limit.of_limit is None else f"{row.limit.of_limit:.0%} {row.limit.bound_by}",
            attrgetter("limit.of_limit"),
            when=_any("limit.of_limit"),
            align="right",
            wide=True,
            spare=3,
            hint="the least time by this machine's roofline, over the median; and what sets it",
        ),
        Column(
            "build s",
            _format_build,
            attrgetter("costs.build_s"),
            when=_any("costs.build_s"),
            align="decimal",
            wide=True,
            spare=6,
        ),
        Column(
            "workspace MiB",
            _take_text("setup.workspace_mb"),
            when=_any("setup.workspace_mb"),
            align="right",
            wide=True,
            spare=7,
        ),
        Column("calibration", _take_text("setup.calibration"), when=_any("setup.calibration"), wide=True, spare=9),
        _make_scaled("size MB", "costs.size_bytes", 1e-6, 6),
        _make_scaled("memory MB", "costs.peak_memory_bytes", 1e-6, 5),
        *(_make_phase(title, phase) for title, phase in MEMORY_PHASES.items()),
        _make_scaled("import s", "times.import_s", 1.0, 5),
        _make_scaled("start s", "times.start_s", 1.0, 5),
        _make_scaled("energy mJ", "costs.energy_mj", 1.0, 4),
        Column("times", lambda row: row.validity, when=lambda rows: any(map(is_disturbed, rows)), wide=True, spare=10),
    )


def mark_ties(rows: Sequence[Row]) -> dict[str, str]:
    """Return row id -> letter, for rows in the order of a table; neighbours without a significant difference share
    one."""
    marks: dict[str, str] = {}
    letters = iter(ascii_lowercase)
    for row, slower in pairwise(rows):
        if row.comparison.verdict_to_next in ("equivalent", "not_shown"):
            letter = marks.get(row.id) or next(letters, "z")
            marks |= {row.id: letter, slower.id: letter}
    return marks


def make_time(title: str, name: str, *, wide: bool = False, spare: int = 0) -> Column:
    def show(row: Row) -> str:
        estimate: Estimate | None = take(row)
        return "{}?" if hint and estimate and not estimate.supported else "{}"

    take = attrgetter(name)
    hint = "?: too few samples for this percentile" if name != "mean_ms" else ""
    return Column(title, show, take_end(name), align="decimal", wide=wide, spare=spare, hint=hint, is_time=True)


def _make_scaled(title: str, name: str, factor: float, spare: int) -> Column:
    find = attrgetter(name)

    def take(row: Row) -> float | None:
        value: float | None = find(row)
        return None if value is None else value * factor

    return Column(
        title, lambda row: format_digits(take(row)), take, when=_any(name), align="decimal", wide=True, spare=spare
    )


def _make_phase(title: str, phase: str) -> Column:
    def take(row: Row) -> float | None:
        size = row.costs.memory_bytes.get(phase)
        return None if size is None else size * 1e-6

    return Column(
        title,
        lambda row: format_digits(take(row)),
        take,
        when=lambda rows: any(take(row) is not None for row in rows),
        align="decimal",
        wide=True,
        spare=5,
        hint="the most resident memory in this phase of a process; PSS: at its end, shared pages counted in part",
    )


def _format_build(row: Row) -> str:
    if row.costs.build_s is None:
        return ""
    mark = "≤ " if row.costs.built_beside else ""  # at most so many where others were built at the same time
    return mark + format_significant(row.costs.build_s, 2)


def name_engine(row: Row) -> str:
    """Format ENGINE, with what limits its times."""
    marks: list[str] = [row.status] if row.status != "ok" else []
    if row.modelled:
        marks.append("modelled")
    if row.id.endswith("-against"):
        marks.append("against")
    return row.engine + "".join(f" ({mark})" for mark in marks)


def format_ran_precision(row: Row) -> str:
    """Format `int8 nncf`; `int8 71%` where less ran in it than requested; `fp32 (not int8)` where nothing did."""
    parts = [
        show_precision(row.engine, row.precision) or NOT_KNOWN,
        row.recipe or "",
        f"mix {row.mix}" if row.mix else "",
    ]
    share = (row.effective_precision or {}).get(row.precision or "")
    if share is not None and any(warning.code == "low_effective_precision" for warning in row.warnings):
        parts.append(f"{share:.0%}")
    requested = row.requested_precision
    return " ".join(filter(None, parts)) + (f" (not {requested})" if requested not in (None, row.precision) else "")


def is_disturbed(row: Row) -> bool:
    """Whether the absolute times of a row are unreliable."""
    return row.validity != "valid" and row.p50_ms is not None


def format_speedup(row: Row) -> str:
    """Format `6.7 - 7.7x`, `1x` for the baseline, `about 12x` for a single trial; nothing without a ratio."""
    if row.speedup is None:
        return ""
    return "1x" if row.id == row.baseline else format_ratio(row.speedup)


def take_span(row: Row) -> Span | None:
    return (row.speedup.low, row.speedup.value, row.speedup.high) if row.speedup else None


def _format_capacity(capacity: Capacity) -> str:
    """Format `7030 - 7210`: requests a second that meet the limit, and that do not."""
    if capacity.passes_qps is None:
        return f"below {format_significant(capacity.fails_qps)}" if capacity.fails_qps else ""
    fails = f" - {format_significant(capacity.fails_qps)}" if capacity.fails_qps else " or more"
    return format_significant(capacity.passes_qps) + fails + ("?" if capacity.suspect else "")


def format_shares(row: Row) -> str:
    """Format the fraction of time in each precision, by the runtime's own record: `int8 83%, fp32 17%`."""
    shares = sorted((row.effective_precision or {}).items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in shares)


def _take_text(name: str) -> Callable[[Row], str]:
    take = attrgetter(name)
    return lambda row: str(take(row) or "")


def _varies(name: str) -> Callable[[Sequence[Row]], bool]:
    take = attrgetter(name)
    return lambda rows: len({take(row) for row in rows}) > 1


def _any(name: str) -> Callable[[Sequence[Row]], bool]:
    take = attrgetter(name)
    return lambda rows: any(take(row) is not None for row in rows)


_ENDS = {"value": "", "low": "_low", "high": "_high"}


def list_fields() -> tuple[Column, ...]:
    """List the fields of a row for programs: one number in a cell, full precision, units in the headings."""
    columns: dict[str, Callable[[Any], Value]] = {}
    for name, field in list_figures(Row):
        if field.name in _NOT_IN_FILES:
            continue
        if field.type == Estimate | None:
            columns |= {field.name + suffix: take_end(name, end) for end, suffix in _ENDS.items()}
        elif name == "scores":
            columns["metric"] = lambda row: row.scores[0].metric if row.scores else None
            columns |= {f"score{suffix}": _take_score(end) for end, suffix in _ENDS.items()}
        elif name == "capacity":
            columns |= {end: take_end("capacity", end) for end in ("passes_qps", "fails_qps")}
        elif field.name == "cells":
            columns["mix"] = lambda row: " ".join(f"{cell.name}:{cell.p50_ms.value:.6g}" for cell in row.times.cells)
        elif field.name == "shapes":
            columns[field.name] = lambda row: format_shapes(row.setup.shapes)
        elif name == "warnings":
            columns[field.encode_name] = lambda row: " ".join(dict.fromkeys(c.code for c in row.warnings))
        else:
            columns[field.encode_name] = attrgetter(name)
    columns["p99_supported"] = take_end("p99_ms", "supported")
    return tuple(Column(name, str, take) for name, take in columns.items())


def take_end(name: str, end: str = "value") -> Callable[[Any], Value]:
    take = attrgetter(name)
    return lambda row: getattr(take(row), end, None)


def _take_score(end: str) -> Callable[[Any], Value]:
    return lambda row: getattr(row.scores[0].value, end) if row.scores else None
