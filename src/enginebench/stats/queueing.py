"""Requests under load, without I/O: figures from the four times of every request, and the checks of queueing theory."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from enginebench.core.records import Block, Measurement, ResultWarning, TrafficCell, Validity
from enginebench.core.shapes import name_cells
from enginebench.core.warnings import find_sentence, make_warning
from enginebench.stats.quantiles import Floats, convert_percent, nearest_rank
from enginebench.stats.validity import assess_marks, find_worst, list_mark_warnings

Times = NDArray[np.int64]

# How a request went.
DONE, FAILED, DROPPED = 1, 2, 3
# The generator's own lateness (p99) may be this share of the limit, else the point is suspect.
LATE_SHARE = 0.01
# Codes of what makes requests late beside the engine.
DISTURBANCES = frozenset({"generator_late", "cut_short", "foreign_cpu", "foreign_gpu", "throttled"})
INTERRUPTED = "interrupted"  # why a probe was cut short that somebody stopped
# Codes of what a search meets wherever it tries more than the engine carries, or too few requests to prove it.
EXPECTED = frozenset({"overload", "unsteady", "too_few_samples"})
# Little's law must hold within this: |L / (lambda W) - 1|.
LITTLE_SHARE = 0.02
MS = 1e6


class Stamps(NamedTuple):
    """The times of every request in host nanoseconds, in the order of the schedule; 0: it has not happened.

    `status` is 0 of a request that is still on its way, else `DONE`, `FAILED` or `DROPPED`.
    """

    scheduled: Times
    released: Times
    started: Times
    computed: Times
    done: Times
    status: Times


class ShapePoint(Struct, frozen=True, kw_only=True):
    """The figures of the requests of one shape of a mix."""

    name: str
    weight: float  # its fraction of the requests, as the mix has it
    offered: int
    completed: int
    late: int | None = None
    p50_ms: float | None
    p99_ms: float | None


class LoadPoint(Struct, frozen=True, kw_only=True):
    """The figures of requests at one rate. Percentiles are over all requests; one that never ended is later than any.

    `queue_ms` and `service_ms` are means, so that they add up to `mean_ms`: from the scheduled moment to the start, and
    from there until the outputs are complete.
    """

    row: str = ""  # id of the configuration
    qps: float | None  # that was asked for; None where there is no rate
    offered: int
    completed: int
    failed: int = 0
    dropped: int = 0  # turned away by a full queue, or not begun in time
    late: int | None = None  # beyond the limit, failed and dropped ones included; None without a limit
    achieved_per_s: float | None
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    percentile_ms: float | None = None  # the percentile that the limit is on
    mean_ms: float | None
    max_ms: float | None = None
    queue_ms: float | None
    service_ms: float | None
    compute_ms: float | None = None  # of the service, until the outputs are complete
    utilisation: float | None  # share of the time in which streams were at work
    stages: dict[str, float] = {}  # share of the time in which each part was at work, as if it were alone
    in_system: float | None = None  # requests in the system on average (L)
    little: float | None = None  # lambda W
    generator_late_ms: float | None  # p99; None where nothing was scheduled
    feeders: int = 0  # processes that wrote the bytes of requests into shared memory
    batch: float | None = None  # requests that were computed together, on average
    energy_mj: float | None = None  # per request
    foreign_cpu_cores: float | None = None  # cores that others kept busy meanwhile, of those of engine and generator
    by_shape: tuple[ShapePoint, ...] = ()  # of a mix
    seconds: float = 0.0  # that the probe took, from the start of its processes on
    validity: Validity = "valid"
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


def find_busiest(point: LoadPoint) -> str | None:
    """Return the part that limits: at a higher rate it is the first that is busy all the time."""
    return max(point.stages, key=lambda name: point.stages[name], default=None)


class Limit(Struct, frozen=True, kw_only=True):
    """A bound on a percentile of the latency."""

    ms: float
    percentile: float = 99.0

    @property
    def share(self) -> float:
        return convert_percent(self.percentile)


def describe_point(
    stamps: Stamps,
    *,
    qps: float | None,
    limit: Limit | None = None,
    busy_ns: int | None = None,
    streams: int = 1,
    open_loop: bool = True,
    query: int = 1,
    row: str = "",
    energy_mj: float | None = None,
    reason: str = "",
    warnings: tuple[ResultWarning, ...] = (),
    block: Block | None = None,
) -> LoadPoint:
    """Compute the point from stamps; requests that were never released do not count.

    Args:
        busy_ns: time in which streams were at work, summed over them.
        query: requests that came together and count as one, which ends with its last.
        block: what was seen of the machine meanwhile; of the probe as a whole, as if it were one sample.
    """
    came = stamps.released > 0
    stamps = leave_unfinished(Stamps(*(column[came] for column in stamps)))
    ok = stamps.status == DONE
    # Requests that began and ended in the same moments were one batch.
    moments = np.stack([stamps.started[ok], stamps.done[ok]])
    batch = float(ok.sum()) / np.unique(moments, axis=1).shape[1] if ok.any() else None
    together = query if len(stamps.status) >= query else 1
    stamps = join_queries(stamps, together)
    ok = stamps.status == DONE
    latency = np.where(ok, stamps.done - stamps.scheduled, np.inf) / MS
    latency.sort()
    offered, completed = len(ok), int(ok.sum())
    lateness = (stamps.released - stamps.scheduled) / MS
    in_system, little = compare_little(stamps) if open_loop else (None, None)
    window_ns = int(stamps.done[ok].max() - stamps.scheduled[0]) if completed else 0
    point = LoadPoint(
        row=row,
        qps=qps,
        offered=offered,
        completed=completed,
        failed=int((stamps.status == FAILED).sum()),
        dropped=int(((stamps.status == DROPPED) | (stamps.status == 0)).sum()),
        late=int((latency > limit.ms).sum()) if limit else None,
        achieved_per_s=1e9 * together * completed / window_ns if window_ns > 0 else None,
        p50_ms=_rank(latency, 0.5),
        p90_ms=_rank(latency, 0.9),
        p99_ms=_rank(latency, 0.99),
        percentile_ms=_rank(latency, limit.share) if limit else None,
        mean_ms=_mean((stamps.done - stamps.scheduled)[ok]),
        max_ms=float(latency[-1]) if completed == offered and completed else None,
        queue_ms=_mean((stamps.started - stamps.scheduled)[ok]),
        service_ms=_mean((stamps.done - stamps.started)[ok]),
        compute_ms=_mean((stamps.computed - stamps.started)[ok]),
        utilisation=busy_ns / (streams * window_ns) if busy_ns is not None and window_ns > 0 else None,
        in_system=in_system,
        little=little,
        generator_late_ms=nearest_rank(np.sort(lateness), 0.99) if open_loop and offered else None,
        batch=batch,
        energy_mj=energy_mj / completed if energy_mj is not None and completed else None,
        foreign_cpu_cores=block.foreign_cpu_cores if block else None,
    )
    return _assess_point(point, limit, reason, warnings, block)


def describe_shapes(
    stamps: Stamps, cells: Sequence[TrafficCell], drawn: Times, limit: Limit | None
) -> tuple[ShapePoint, ...]:
    """Compute the figures of each shape of a mix; `drawn` has the place of each request's cell."""
    came = stamps.released > 0
    stamps, drawn = leave_unfinished(Stamps(*(column[came] for column in stamps))), drawn[came]
    ok = stamps.status == DONE
    latency = np.where(ok, stamps.done - stamps.scheduled, np.inf) / MS
    points = []
    for i, (name, cell) in enumerate(zip(name_cells(cells), cells, strict=True)):
        own = np.sort(latency[drawn == i])
        points.append(
            ShapePoint(
                name=name,
                weight=cell.weight,
                offered=len(own),
                completed=int(np.isfinite(own).sum()),
                late=int((own > limit.ms).sum()) if limit else None,
                p50_ms=_rank(own, 0.5),
                p99_ms=_rank(own, 0.99),
            )
        )
    return tuple(points)


def _rank(latency_ms: Floats, q: float) -> float | None:
    """The nearest rank; None where it falls among requests that never ended."""
    if not len(latency_ms):
        return None
    value = nearest_rank(latency_ms, q)
    return value if math.isfinite(value) else None


def _mean(times_ns: Times) -> float | None:
    return float(times_ns.mean()) / MS if len(times_ns) else None


def leave_unfinished(stamps: Stamps) -> Stamps:
    """Mark requests as unfinished that are called done but lack a time, or whose times run backwards."""
    times = np.stack([stamps.scheduled, stamps.started, stamps.computed, stamps.done])
    ordered = (times > 0).all(axis=0) & (np.diff(times, axis=0) >= 0).all(axis=0)
    return stamps._replace(status=np.where((stamps.status == DONE) & ~ordered, 0, stamps.status))


def join_queries(stamps: Stamps, query: int) -> Stamps:
    """Join requests to queries of so many each: begun with the first, done with the last; a rest is left out.

    A query with an unfinished request has not ended.
    """
    if query == 1:
        return stamps
    count = len(stamps.status) // query * query
    *times, status = (column[:count].reshape(-1, query) for column in stamps)
    bad = np.where(status == DONE, 0, status).max(axis=1)
    ends = np.where((status == DONE).all(axis=1), DONE, bad)
    columns = [c.min(axis=1) if i < 3 else c.max(axis=1) for i, c in enumerate(times)]
    return Stamps._make([*columns, ends])


def compare_little(stamps: Stamps) -> tuple[float | None, float | None]:
    """Return (L, lambda W) over the time in which requests came; they differ where the queue was not steady.

    L is the number in the system averaged over that window alone, W the whole latency of the requests that came in it:
    a queue that grows is paid for after the window, which only W sees. The last request ends the window and did not
    come in it: among few requests it alone would exceed the allowed difference.

    Source: J. D. C. Little, "A proof for the queuing formula L = lambda W", Operations Research 9 (1961).
    """
    if len(stamps.scheduled) < 2:
        return None, None
    begin, end = int(stamps.scheduled[0]), int(stamps.scheduled[-1])
    finished = (stamps.status == DONE) | (stamps.status == FAILED)
    if end <= begin or not finished.any():
        return None, None
    finished[-1] = False
    came, left = stamps.scheduled[finished], np.where(stamps.done[finished] > 0, stamps.done[finished], end)
    inside = np.minimum(left, end) - np.minimum(came, end)
    return float(inside.sum()) / (end - begin), float((left - came).sum()) / (end - begin)


def _assess_point(
    point: LoadPoint, limit: Limit | None, reason: str, warnings: tuple[ResultWarning, ...], block: Block | None
) -> LoadPoint:
    """Add warnings and validity to a point; `block`: the state of the machine, assessed by the rules for a trial."""
    watched = [Measurement(clock="host", latency_ns=[0], blocks=(block,), stop_rule="time_limit")] if block else []
    raised = [*warnings, *list_mark_warnings(watched)]
    bound, late_ms = limit.ms if limit else point.p99_ms, point.generator_late_ms
    if late_ms is not None and bound is not None and late_ms > LATE_SHARE * bound:
        what = "the limit" if limit else "p99"
        raised.append(make_warning("generator_late", late_ms=late_ms, bound_ms=bound, what=what))
    if point.dropped and not was_cut_short(warnings):  # requests under way when the engine was lost do not count
        late = "" if point.late is None else f", and {point.late} were late in all"
        raised.append(make_warning("overload", dropped=point.dropped, offered=point.offered, late=late))
    inside, expected = point.in_system, point.little
    if inside is not None and expected is not None and abs(inside - expected) > LITTLE_SHARE * expected:
        raised.append(make_warning("unsteady", in_system=inside, expected=expected))
    if point.failed:
        raised.append(make_warning("failed_requests", failed=point.failed, offered=point.offered, reason=reason))
    percentile = limit.percentile if limit else 99.0
    needed = strict_min_samples(convert_percent(percentile), 0)
    if point.offered < needed:
        percentile_text = f"{percentile:g}"
        raised.append(
            make_warning(
                "too_few_samples", n=point.offered, units="requests", percentile=percentile_text, needed=needed
            )
        )
    suspect = any(warning.code in ("generator_late", "unsteady", "cut_short") for warning in raised)
    own: Validity = "suspect" if suspect else "valid"
    return replace(point, warnings=tuple(raised), validity=find_worst([assess_marks(watched), own]))


def was_interrupted(point: LoadPoint) -> bool:
    return any(
        warning.figures.get("reason") == INTERRUPTED for warning in point.warnings if warning.code == "cut_short"
    )


def was_cut_short(warnings: Iterable[ResultWarning]) -> bool:
    """Whether a probe ended before its requests had, for whatever reason."""
    return any(warning.code == "cut_short" for warning in warnings)


def is_interfered(point: LoadPoint) -> bool:
    """Whether something beside the engine may have delayed requests; a queue that grows is the engine's own."""
    return any(warning.code in DISTURBANCES for warning in point.warnings)


def assess_search(points: Sequence[LoadPoint]) -> tuple[Validity, tuple[ResultWarning, ...]]:
    """Return (validity, warnings) of a whole search; that some of its rates are too high does not count against it."""
    disturbed = [point.validity for point in points if is_interfered(point)]
    warnings = {find_sentence(c): c for point in points for c in point.warnings if c.code not in EXPECTED}
    return find_worst(disturbed), tuple(warnings.values())


def meets_limit(point: LoadPoint, limit: Limit) -> bool | None:
    """Whether the limit is met at this rate: True or False where the requests show it, None where they are too few.

    It is met if the fraction of late requests is below that of the percentile with 99 % confidence (LoadGen's early
    stopping: n must reach the least number that allows as many late requests). It is not if more were late than the
    percentile allows.
    """
    late = point.late or 0
    if point.offered and point.offered >= strict_min_samples(limit.share, late):
        return True
    return False if late > (1 - limit.share) * point.offered else None


def seems_to_meet(point: LoadPoint, limit: Limit, planned: int) -> bool:
    """Whether no more requests were late than the percentile allows: a guess, which few requests cannot prove.

    A probe that ended before all planned requests had come does not count.
    """
    whole = point.offered >= planned and not was_cut_short(point.warnings)
    return whole and (point.late or 0) <= (1 - limit.share) * point.offered


def strict_min_samples(q: float, exceedances: int = 1) -> int:
    """Return the least n at which `exceedances` slower samples still show, one-sided, that the q-quantile is not
    slower.

    p99: 459 with none, 662 with one. It is the smallest n with P(Binomial(n, 1 - q) <= exceedances) <= 0.01.

    Source: MLPerf Inference rules, appendix "Early stopping criterion"; LoadGen, `early_stopping.cc`.
    """
    from scipy.special import bdtr

    high = exceedances + 2
    while bdtr(exceedances, high, 1 - q) > 0.01:
        high *= 2
    return bisect_left(range(high), True, exceedances + 1, key=lambda n: bdtr(exceedances, n, 1 - q) <= 0.01)
