"""Summarize the measurements of one configuration: each estimate with interval, n, and method. Times in ms."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Block, Estimate, Measurement
from enginebench.stats.intervals import (
    estimate_geometric,
    estimate_spread,
    join_builds,
    measure_series,
    measure_spread,
    take_logs,
)
from enginebench.stats.quantiles import Floats, autocorrelation_time, convert_percent, estimate_tails, median
from enginebench.stats.trials import count_timed, mark_samples

MS_PER_NS = 1e-6


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one configuration. Times in ms; `n` counts samples, `processes` those that have any."""

    p50: Estimate
    p90: Estimate
    p95: Estimate
    p99: Estimate
    p999: Estimate
    mean: Estimate
    p50_unmarked: Estimate | None  # without the samples of marked blocks
    n: int
    processes: int
    marked_share: float
    p50_device: Estimate | None
    enqueue: Estimate | None
    throughput_per_s: float  # batch times queries per second: as counted, else by the mean of one after another
    throughput_pipelined_per_s: float | None
    percentiles: dict[str, Estimate] = {}  # those asked for beyond the four above: "99.9" -> estimate


def summarize(
    measurements: Sequence[Measurement],
    *,
    batch: float = 1,
    level: float = 0.95,
    percentiles: Sequence[float] = (),
    requests_ns: Sequence[Floats] = (),
) -> Summary:
    """Summarize the raw samples of all processes of one configuration; `percentiles`: further ones, in percent.

    Args:
        requests_ns: of a mix the times of its requests in each process, of which the percentiles are; () of one shape.
    """
    kept = sorted((m for m in measurements if m.latency_ns), key=lambda m: m.trial)
    if not kept:
        raise MeasurementError(f"none of {len(measurements)} processes has a sample; at least one is needed")
    # Divided, not multiplied: 1e-6 is no binary number, and 63.81687 would print as 63.816869999999994.
    times_ns = [np.asarray(m.latency_ns, dtype=np.float64) for m in kept]
    series = [own / 1e6 for own in times_ns]
    time = autocorrelation_time(series)
    counted = mean_or_none([m.throughput_pipelined_per_s for m in kept])
    ran = None if kept[0].clock == "modelled" else counted  # what a board could overlap did not run
    all_percentiles = (90.0, 95.0, 99.0, 99.9, *percentiles)
    # Together: they share one sorting, which costs more than all the rest.
    pooled = [own / 1e6 for own in requests_ns] or series
    estimates = estimate_tails(pooled, [convert_percent(p) for p in all_percentiles], level=level, time=time)
    tails = dict(zip(all_percentiles, estimates, strict=True))
    p50 = _estimate_medians([*map(median, times_ns)], [m.build for m in kept], "latency", level)
    unmarked: Estimate | None = p50
    if any(block.marks for m in kept for block in m.blocks):
        clean = [
            (own[~mark_samples(len(own), _list_marked(m))], m.build) for own, m in zip(times_ns, kept, strict=True)
        ]
        own = [(median(values), build) for values, build in clean if values.size]
        unmarked = _estimate_medians([ns for ns, _ in own], [b for _, b in own], "latency", level) if own else None
    return Summary(
        p50=p50,
        p90=tails[90.0],
        p95=tails[95.0],
        p99=tails[99.0],
        p999=tails[99.9],
        mean=estimate_spread(
            measure_spread([float(np.mean(s)) for s in series]),
            level,
            f"mean of {len(series)} process means, Student t",
        ),
        p50_unmarked=unmarked,
        n=sum(len(s) for s in series),
        processes=len(kept),
        marked_share=share_marked(kept),
        p50_device=_estimate_field(kept, lambda m: m.device_ns, "device", level),
        enqueue=_estimate_field(kept, lambda m: m.enqueue_ns, "enqueue", level),
        throughput_per_s=ran or batch * 1000 / float(np.mean(np.concatenate(series))),
        throughput_pipelined_per_s=counted,
        percentiles={f"{p:g}": tails[p] for p in percentiles},
    )


def estimate_p50(measurements: Sequence[Measurement], *, level: float = 0.95) -> Estimate:
    """Estimate the geometric mean of the process medians in ms, with Student's t interval over their logs.

    It is wider where processes resemble the ones before, as that of a ratio is. One process gives a value without an
    interval, and `supported` is False. For an engine that was built several times each build is one value.
    """
    kept = sorted((m for m in measurements if m.latency_ns), key=lambda m: m.trial)
    return _estimate_medians([median(m.latency_ns) for m in kept], [m.build for m in kept], "latency", level)


def share_marked(measurements: Sequence[Measurement], mark: str | None = None) -> float:
    """Return the fraction of samples in blocks that carry `mark`, or any mark at all; 0 to 1."""
    total = sum(map(count_timed, measurements))
    trials = [(count_timed(m), _list_marked(m, mark)) for m in measurements]
    marked = sum(int(np.count_nonzero(mark_samples(n, blocks))) for n, blocks in trials if blocks)
    return marked / total if total else 0.0


def _list_marked(measurement: Measurement, mark: str | None = None) -> list[Block]:
    """List the blocks of a trial that carry `mark`, or any mark at all."""
    return [block for block in measurement.blocks if block.marks and (mark is None or mark in block.marks)]


def _estimate_medians(medians_ns: Sequence[float], builds: Sequence[int | None], what: str, level: float) -> Estimate:
    built = any(build is not None for build in builds)
    # Trials may resemble the ones before; means of builds have no order.
    logs = join_builds(take_logs(medians_ns, f"the median {what}"), builds)
    spread = measure_spread(logs) if built else measure_series(logs)
    of = "builds, each of its process medians" if built else "process medians"
    method = f"geometric mean of {spread.n} {of}, Student t over their logs"
    return estimate_geometric(spread, level, MS_PER_NS, method)


def _estimate_field(
    measurements: Sequence[Measurement], field: Callable[[Measurement], list[int] | None], what: str, level: float
) -> Estimate | None:
    """Estimate p50 of a field that every process must have: a median over half of them would be of something else."""
    lists = [field(m) for m in measurements]
    medians = [median(values) for values in lists if values]
    # A tool rounds an enqueue time of nothing to zero; there is no log of it and no estimate.
    if len(medians) < len(lists) or min(medians) <= 0:
        return None
    return _estimate_medians(medians, [m.build for m in measurements], what, level)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without any."""
    present = [v for v in values if v is not None]
    return math.fsum(present) / len(present) if present else None
