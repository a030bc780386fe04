"""What trtexec is asked to time, so that the samples asked for are among those that it takes."""

from __future__ import annotations

from msgspec import Struct

from enginebench.core.records import MeasureSpec

# trtexec's own; the queries of this time are not in the exported times.
WARMUP_MS = 200


class TimingRequest(Struct, frozen=True, kw_only=True):
    """Values of --warmUp, --duration and --iterations, and which of the exported queries count."""

    warmup_ms: int
    duration_s: float
    iterations: int
    drop: int = 0  # this many queries at the head are warm-up
    keep: int | None = None  # of the rest only the last so many; None: all


def plan_timing(measure: MeasureSpec) -> TimingRequest:
    """How to get the samples that `measure` asks for.

    trtexec's warm-up is a time, its iterations a minimum, and both iterations and duration must be reached. Exact
    numbers are had without its warm-up: as many queries as warm-up and samples together, the head dropped here.
    11.1 takes one query more than asked for, and the first may time transfers that are switched off: the head again,
    also behind trtexec's own warm-up, after which a slow start can leave more than the minimum.
    """
    if measure.warmup is None:
        return TimingRequest(
            warmup_ms=WARMUP_MS,
            duration_s=0 if measure.iters else measure.time_limit_s,
            iterations=measure.iters or 1,
            keep=measure.iters,
        )
    return TimingRequest(
        warmup_ms=0,
        duration_s=0 if measure.iters else measure.time_limit_s,
        iterations=measure.warmup + (measure.iters or 1),
        drop=measure.warmup,
        keep=measure.iters,
    )
