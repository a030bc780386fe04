"""`summarize_trace`: summarize an --exportTimes file: warm-up removed, by our percentile rule and by trtexec's."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Estimate, ResultWarning
from enginebench.core.text import count_of, inflect
from enginebench.core.warnings import make_warning
from enginebench.features.trtexec.other_times import Column
from enginebench.features.trtexec.records import ROWS, LogRun, Quantity, Stat, TimesDocument
from enginebench.features.trtexec.trace import Trace
from enginebench.stats.intervals import measure_spread
from enginebench.stats.quantiles import (
    BLOCK_TIMES,
    MIN_BLOCKS,
    autocorrelation_time,
    estimate_tails,
    find_rank,
    median,
    min_samples,
)

# label -> share; shares stand here as decimals because 99.9 / 100 is not 0.999 in binary.
PERCENTILES = {"50": 0.5, "90": 0.9, "95": 0.95, "99": 0.99, "99.9": 0.999}
LEVEL = 0.95
# trtexec's default in every version from 8 to 11.1.
DEFAULT_WARMUP_MS = 200.0
# 8.5 was the first to leave the warm-up out of the file.
FIRST_WITHOUT_WARMUP = (8, 5)


class TimedQueries(NamedTuple):
    """The queries that count: columns in ms without warm-up, and how many were dropped for what reason."""

    columns: dict[Quantity, Column]
    warmup_dropped: int
    reason: str


def summarize_trace(
    trace: Trace,
    path: Path,
    *,
    batch: int | None = None,
    warmup_ms: float | None = None,
    log: LogRun | None = None,
    intervals: bool = True,
) -> tuple[TimesDocument, TimedQueries]:
    """Return the figures of the timing file `path`, read as `trace`, and the queries that they are of.

    Args:
        batch: images in one query; without it images_per_s is None.
        warmup_ms: queries whose compute begins earlier are warm-up; 0 keeps all. None: the log or the file decides.
        log: the run that wrote the file, if its log is there.
    """
    timed = select_timed(trace, path, warmup_ms, log)
    rows = {name: timed.columns[quantity] for name, (*_, quantity) in ROWS.items() if quantity in timed.columns}
    finite = {name: np.sort(column[np.isfinite(column)]) for name, column in rows.items()}
    if not len(finite["latency_ms"]):
        raise ParseError(path, "", "no finite latency", "at least one query with a latency")
    n = len(rows["latency_ms"])
    walltime_s = measure_walltime(timed.columns)
    qps = n / walltime_s if walltime_s else None
    stats = {name: make_stat(column) for name, column in finite.items() if len(column)}
    total_s = float(timed.columns["compute"].sum()) / 1e3 if "compute" in timed.columns else None
    nonfinite = sum(len(rows[name]) - len(finite[name]) for name in rows)
    document = TimesDocument(
        path=str(path),
        model=log.model if log else None,
        precision=log.precision if log else None,
        n=n,
        warmup_dropped=timed.warmup_dropped,
        warmup_reason=timed.reason,
        batch=batch,
        throughput_qps=qps,
        images_per_s=qps * batch if qps and batch else None,
        host_walltime_s=walltime_s,
        gpu_compute_total_s=None if total_s is None or not math.isfinite(total_s) else total_s,
        **stats,  # type: ignore[arg-type]
        trtexec={
            name: make_trtexec_stat(column, restore_row(name, timed.columns))
            for name, column in finite.items()
            if len(column)
        },
        # As trtexec has it, which prints percent.
        cov={name: float(c.std() / c.mean()) for name, c in finite.items() if len(c) and c.mean()},
        intervals={"latency_ms": estimate_row(rows["latency_ms"])} if intervals else {},
        nonfinite=nonfinite,
        layout=trace.layout,
        notes=(*trace.notes, *note_times(timed.columns), *note_streams(log)),
        warnings=tuple(list_sample_count_warnings(n, nonfinite)),
    )
    return document, timed


def select_timed(trace: Trace, path: Path, warmup_ms: float | None, log: LogRun | None) -> TimedQueries:
    """Return the queries after the warm-up; the enqueue time is added where its start and end are known."""
    columns = dict(trace.columns)
    if "start_enqueue" in columns and "end_enqueue" in columns:
        # To a picosecond: the stamps have six digits, and what lies below is noise of the subtraction.
        columns["enqueue"] = np.round(columns["end_enqueue"] - columns["start_enqueue"], 9)
    dropped, reason = count_warmup(trace, warmup_ms, log)
    if dropped >= len(trace):
        limit_ms = warmup_ms or DEFAULT_WARMUP_MS
        actual = f"{len(trace)} queries, all of which begin within the warm-up of {limit_ms:g} ms"
        raise ParseError(path, "", actual, "queries after it", "Give --warmup-ms 0 to keep all")
    return TimedQueries({name: column[dropped:] for name, column in columns.items()}, dropped, reason)


def count_warmup(trace: Trace, warmup_ms: float | None, log: LogRun | None) -> tuple[int, str]:
    """Return (number of leading queries that are warm-up, the reason).

    Up to 8.4 the file holds the warm-up, from 8.5 on it does not, and neither states it. What decides, in this order:
    the user, the version in the log, the old keys, and the times themselves.

    Source: a query is warm-up when its compute starts before --warmUp; printPerformanceReport and exportJSONTrace in
        samples/common/sampleReporting.cpp, tags 8.4.1 and 8.5.1.
    """
    starts = trace.columns.get("start_compute")
    if starts is None:
        if warmup_ms:
            raise UsageError(f"--warmup-ms {warmup_ms:g}: the file does not hold when its queries began. Leave it out")
        return 0, "the file does not hold when its queries began: all count"
    if warmup_ms is not None:
        return count_before(starts, warmup_ms), f"queries that begin before {warmup_ms:g} ms, as asked for"
    limit = log.warmup_ms if log and log.warmup_ms is not None else DEFAULT_WARMUP_MS
    if log and log.version and "." in log.version:
        major, minor = map(int, log.version.split(".")[:2])
        if (major, minor) >= FIRST_WITHOUT_WARMUP:
            return 0, f"trtexec {major}.{minor} leaves the warm-up out of the file"
        return count_before(starts, limit), f"trtexec {major}.{minor} keeps {limit:g} ms of warm-up"
    if trace.layout == "trtexec<=8.2":
        return count_before(starts, limit), f"keys of 8.2 and older, which keep {limit:g} ms of warm-up"
    return guess_warmup(trace, starts, limit)


def count_before(starts: Column, limit_ms: float) -> int:
    return int(np.argmax(np.append(starts >= limit_ms, True)))


def guess_warmup(trace: Trace, starts: Column, limit_ms: float) -> tuple[int, str]:
    """Return the warm-up by the times alone.

    A run ends at the first query past warm-up + duration, and the duration is whole seconds: one that ends just after k
    s + 200 ms holds its warm-up, one that ends just after k s had none. Any other end is that of a number of iterations
    and shows nothing; then the first 200 ms are left out, since a few queries less change no figure that a cold start
    would not change more.
    """
    first, last = float(starts[0]), float(starts[-1])
    if not (math.isfinite(first) and math.isfinite(last)) or first >= limit_ms:
        return 0, f"the first query begins after {limit_ms:g} ms"
    if last < limit_ms:
        return 0, f"the whole run is shorter than a warm-up of {limit_ms:g} ms"
    # Queries are started at most two ahead, so the last start lies within a few latencies of the end of the run; 10 ms
    # cover the host's own delays in the files that were seen. Beyond a tenth of a second the rule proves nothing.
    slack = 10 + 4 * float(np.nanmedian(trace.columns["latency"]))
    if slack <= 100 and last >= 1000 and last % 1000 <= slack:
        return 0, "the run ends at whole seconds: it had no warm-up"
    dropped = count_before(starts, limit_ms)
    if slack <= 100 and last >= 1000 + limit_ms and (last - limit_ms) % 1000 <= slack:
        return dropped, f"the run ends at whole seconds + {limit_ms:g} ms: it holds the warm-up"
    reason = f"queries before {limit_ms:g} ms taken as warm-up, as trtexec 8.4 and older keep it"
    return dropped, f"{reason}; --warmup-ms 0 keeps them; --log gives the exact count"


def measure_walltime(columns: dict[Quantity, Column]) -> float | None:
    """Return the seconds from the first start of a copy in to the last end of a copy out.

    Source: walltime in printPerformanceReport, samples/common/sampleReporting.cpp.
    """
    if not {"start_h2d", "end_d2h"} <= columns.keys() or not is_in_order(columns):
        return None
    span = float(columns["end_d2h"][-1] - columns["start_h2d"][0]) / 1e3
    return span if math.isfinite(span) and span > 0 else None


def is_in_order(columns: dict[Quantity, Column]) -> bool:
    """Whether no query begins before the previous one; trtexec sorts them, over all streams."""
    return "start_h2d" not in columns or not bool(np.any(np.diff(columns["start_h2d"]) < 0))


def note_times(columns: dict[Quantity, Column]) -> Iterator[str]:
    """Note what no run of trtexec leaves (queries out of order, times below zero), and how coarse enqueue times are."""
    if not is_in_order(columns):
        yield ("queries do not begin one after the other: several runs in one file? No walltime, no throughput")
    negative = sum(int(np.sum(columns[quantity] < 0)) for *_, quantity in ROWS.values() if quantity in columns)
    if negative:
        yield f"{count_of(negative, 'times')} below zero, which no clock gives: the figures contain them"
    # They are differences of stamps that have six digits each.
    last = float(columns["end_enqueue"][-1]) if {"enqueue", "end_enqueue"} <= columns.keys() else 0.0
    if math.isfinite(last) and last > 0:
        step_ms = 10.0 ** (math.floor(math.log10(last)) - 5)
        yield f"enqueue times come from stamps of six digits: steps of {step_ms:g} ms at the end of the run"


def note_streams(log: LogRun | None) -> tuple[str, ...]:
    """Note that queries of several streams overlap."""
    streams = (log and log.streams) or 1
    return (f"{streams} streams: queries overlap, so only the throughput means something",) if streams > 1 else ()


def make_stat(ascending: Column) -> Stat:
    """Return the row by our rules: p50 is the median, as in all of our tables; the other percentiles are nearest
    ranks."""
    n, middle = len(ascending), median(ascending)
    ranks = {label: float(ascending[find_rank(n, q) - 1]) for label, q in PERCENTILES.items()}
    return Stat(
        min=float(ascending[0]),
        max=float(ascending[-1]),
        mean=float(ascending.mean()),
        median=middle,
        percentiles={**ranks, "50": middle},
    )


def make_trtexec_stat(ascending: Column, restored: Column) -> Stat:
    """Return the row as trtexec prints it: its percentile rule, its 32-bit floats, six digits.

    The mean is of a sum in 32 bits, from the smallest value to the largest. Its rounding errors grow with the number of
    queries, and depend on digits that the file does not hold; `restored` are the ascending times with those digits.

    Source: getPerformanceResult in samples/common/sampleReporting.cpp.
    """
    values, exact = ascending.astype(np.float32), restored.astype(np.float32)
    n = len(values)
    return Stat(
        min=print_digits(values[0]),
        max=print_digits(values[-1]),
        mean=print_digits(np.add.accumulate(exact)[-1] / np.float32(n)),
        median=print_digits(exact[n // 2] if n % 2 else (exact[n // 2 - 1] + exact[n // 2]) / np.float32(2)),
        percentiles={label: print_digits(values[find_trtexec_index(n, label)]) for label in PERCENTILES},
    )


def restore_row(name: str, columns: dict[Quantity, Column]) -> Column:
    """Return the finite times of a row of the summary, ascending, with their digits restored if the file has their
    starts."""
    *_, quantity = ROWS[name]
    times, starts = columns[quantity], columns.get("start_h2d", columns.get("start_compute"))
    if starts is not None and quantity != "enqueue":  # which comes from the stamps in the file
        times = restore_digits(times, starts)
    return np.sort(times[np.isfinite(times)])


def restore_digits(times: Column, starts: Column) -> Column:
    """Return the times with the digits that the file does not hold, as far as they are known.

    trtexec takes them as differences of two 32-bit stamps, so that each is a multiple of the step of the first stamp,
    while the file has six digits of it. A time that is no such multiple stays as it is.

    Source: InferenceTrace and traceToTiming in samples/common/sampleReporting.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.spacing(starts.astype(np.float32)).astype(np.float64)
        exact = np.round(times / steps) * steps
        last_digit = 10.0 ** (np.floor(np.log10(np.abs(times))) - 5)
        return np.where(np.abs(exact - times) <= last_digit / 2, exact, times)


def print_digits(value: np.floating[Any]) -> float:
    """Return the number as a C++ stream prints it by default: six significant digits."""
    return float(f"{value:.6g}")


def find_trtexec_index(n: int, label: str) -> int:
    """Return the index that trtexec takes for a percentile: it counts the values to leave out, in 32-bit floats.

    Source: findPercentile in samples/common/sampleReporting.cpp: max(n - 1 - int((1 - p / 100) * n), 0).
    """
    one = np.float32(1)
    excluded = int((one - np.float32(label) / np.float32(100)) * np.float32(n))
    return max(n - 1 - excluded, 0)


def estimate_row(series: Column) -> dict[str, Estimate]:
    """Estimate 95% intervals of mean and percentiles within this run; they do not cover another run."""
    series = series[np.isfinite(series)]
    time = autocorrelation_time([series])
    tails = estimate_tails([series], list(PERCENTILES.values()), level=LEVEL, time=time)
    estimates = dict(zip(PERCENTILES, tails, strict=True))
    return {"mean": estimate_mean(series, time), **estimates, "50": center_p50(estimates["50"], median(series))}


def center_p50(ranked: Estimate, middle: float) -> Estimate:
    """Put the interval of p50 around the median: the mean of the two middle values may be above the lower one."""
    high = None if ranked.high is None else max(ranked.high, middle)
    return replace(ranked, value=middle, high=high, method=ranked.method.replace("nearest rank of", "median of", 1))


def estimate_mean(series: Column, time: float) -> Estimate:
    """Estimate the mean, with Student's t over blocks of at least ten autocorrelation times; too few give no
    interval."""
    # Twenty blocks: Student's t then costs a tenth over the normal, and longer blocks are closer to independent.
    count = min(20, len(series) // math.ceil(BLOCK_TIMES * time))
    value, n = float(series.mean()), len(series)
    if count < MIN_BLOCKS:
        method = f"mean of {n} queries; {count} blocks of 10 autocorrelation times are too few for an interval"
        return Estimate(value=value, low=None, high=None, level=LEVEL, n=n, method=method, supported=False)
    bounds = measure_spread([float(block.mean()) for block in np.array_split(series, count)]).interval(LEVEL)
    low, high = bounds if bounds else (None, None)
    method = f"mean of {n} queries; Student t over {count} blocks"
    return Estimate(value=value, low=low, high=high, level=LEVEL, n=n, method=method)


def list_sample_count_warnings(n: int, nonfinite: int) -> Iterator[ResultWarning]:
    if n < min_samples(0.99):
        yield make_warning("too_few_samples", n=n, units="queries", percentile="99", needed=min_samples(0.99))
    if nonfinite:
        yield make_warning("nonfinite", count=nonfinite, what=f"{inflect(nonfinite, 'times')}, left out")
