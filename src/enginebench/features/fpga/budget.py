"""The latency budget of an accelerator: T_total = T_pre + T_copy_in + T_compute + T_copy_back + T_post."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.features.fpga.links import Link

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The largest batch at which a break-even is looked for; beyond a million items a call is no longer a call.
LARGEST_BATCH = 1 << 20
# Far beyond every use, and small enough that no sum or product here leaves 64 bits or the range of a float.
LARGEST_TIME_MS = 1e15
LARGEST_BYTES = 1 << 40
# Points of the curve over the link rate, spread evenly on a logarithmic axis: four decades, ten points each.
CURVE_POINTS = 41


class Transfer(Struct, frozen=True, kw_only=True):
    """A copy over a link: `item_bytes` for each item of the batch, `frame_bytes` once a call."""

    link: Link
    item_bytes: int
    frame_bytes: int = 0

    def size_bytes(self, batch: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Bytes of one call with `batch` items."""
        return np.asarray(batch, dtype=np.int64) * self.item_bytes + self.frame_bytes


class BudgetSpec(Struct, frozen=True, kw_only=True):
    """What is known of one call. Times are of one item; a copy is a time or a `Transfer`.

    `call_ms` is paid once a call, whatever the batch (driver, launch), and counts as compute. `baseline_ms` is the
    time that one item takes on what the accelerator replaces.
    """

    pre_ms: float = 0.0
    copy_in: float | Transfer = 0.0
    compute_ms: float = 0.0
    copy_back: float | Transfer = 0.0
    post_ms: float = 0.0
    call_ms: float = 0.0
    batch: int = 1
    baseline_ms: float | None = None


class CurvePoint(Struct, frozen=True, kw_only=True):
    """The call as it would be on a link that carries this many payload bytes a second."""

    bytes_per_s: float
    total_ms: float
    speedup: float | None


class Budget(Struct, frozen=True, kw_only=True):
    """One call, term by term; also the JSON document of `budget`. None: cannot be told, `notes` say why."""

    schema: str = "enginebench.budget/1"
    batch: int
    link: str | None
    terms_ms: dict[str, float]
    total_ms: float
    per_item_ms: float
    shares: dict[str, float]
    bottleneck: str
    throughput_serial_per_s: float | None
    throughput_pipelined_per_s: float | None
    baseline_ms: float | None
    speedup: float | None
    speedup_bound: float | None  # with compute at zero
    compute_gain_bound: float | None  # over this budget, with compute at zero
    break_even_bytes_per_s: float | None
    link_bytes_per_s: float | None
    break_even_batch: int | None
    curve: tuple[CurvePoint, ...] = ()
    notes: tuple[str, ...] = ()


def compute_budget(spec: BudgetSpec) -> Budget:
    """Every figure of the budget.

    The pipelined throughput lets calls overlap: each term is a stage of its own, and the slowest one sets the pace;
    on a half-duplex link both copies are one stage.

    Source: G. Amdahl, "Validity of the single processor approach", AFIPS 1967, for both bounds.
    """
    check_spec(spec)
    terms = {name: float(time) for name, time in compute_terms(spec, spec.batch).items()}
    total = math.fsum(terms.values())
    without_compute = math.fsum(time for name, time in terms.items() if name != "compute")
    baseline = None if spec.baseline_ms is None else spec.baseline_ms * spec.batch
    stage, slowest = find_bottleneck(spec, terms)
    rate, rate_note = find_break_even_rate(spec, terms)
    batch, batch_note = find_break_even_batch(spec)
    link = find_link(spec)
    return Budget(
        batch=spec.batch,
        link=link.name if link else None,
        terms_ms=terms,
        total_ms=total,
        per_item_ms=total / spec.batch,
        shares={name: _divide(time, total) or 0.0 for name, time in terms.items()},
        bottleneck=stage,
        throughput_serial_per_s=_divide(1e3 * spec.batch, total),
        throughput_pipelined_per_s=_divide(1e3 * spec.batch, slowest),
        baseline_ms=spec.baseline_ms,
        speedup=_divide(baseline, total),
        speedup_bound=_divide(baseline, without_compute),
        compute_gain_bound=_divide(total, without_compute),
        break_even_bytes_per_s=rate,
        link_bytes_per_s=link.payload_bytes_per_s if link else None,
        break_even_batch=batch,
        curve=sweep_rates(spec),
        notes=tuple(note for note in (rate_note, batch_note) if note),
    )


def check_spec(spec: BudgetSpec) -> None:
    """Checks that the budget can be computed."""
    times = {"pre": spec.pre_ms, "compute": spec.compute_ms, "post": spec.post_ms, "call": spec.call_ms}
    times |= {n: c for n, c in (("copy_in", spec.copy_in), ("copy_back", spec.copy_back)) if isinstance(c, int | float)}
    for name, time in times.items():
        if not 0 <= time <= LARGEST_TIME_MS:
            raise UsageError(f"the time of {name} is {time:g} ms; expected 0 to {LARGEST_TIME_MS:g}")
    for name, copy in (("copy_in", spec.copy_in), ("copy_back", spec.copy_back)):
        sizes = (copy.item_bytes, copy.frame_bytes) if isinstance(copy, Transfer) else ()
        if not all(0 <= size <= LARGEST_BYTES for size in sizes):
            raise UsageError(f"{name} carries {' + '.join(map(str, sizes))} bytes; expected 0 to {LARGEST_BYTES} each")
    if not 1 <= spec.batch <= LARGEST_BATCH:
        raise UsageError(f"the batch is {spec.batch}; expected 1 to {LARGEST_BATCH}")
    if spec.baseline_ms is not None and not 0 < spec.baseline_ms <= LARGEST_TIME_MS:
        raise UsageError(f"the baseline is {spec.baseline_ms:g} ms; expected above 0 and at most {LARGEST_TIME_MS:g}")


def compute_terms(spec: BudgetSpec, batch: NDArray[np.int64] | int) -> dict[str, NDArray[np.float64]]:
    """The five terms of a call, in milliseconds, for one batch or an array of them."""
    count = np.asarray(batch, dtype=np.float64)
    return {
        "pre": spec.pre_ms * count,
        "copy_in": _time_copy(spec.copy_in, batch, answer=False),
        "compute": spec.call_ms + spec.compute_ms * count,
        "copy_back": _time_copy(spec.copy_back, batch, answer=True),
        "post": spec.post_ms * count,
    }


def _time_copy(copy: float | Transfer, batch: NDArray[np.int64] | int, answer: bool) -> NDArray[np.float64]:
    if isinstance(copy, Transfer):
        return 1e3 * copy.link.transfer_s(copy.size_bytes(batch), answer)
    return copy * np.asarray(batch, dtype=np.float64)


def find_link(spec: BudgetSpec) -> Link | None:
    """The link that a copy goes over; None if both are given as times."""
    return next((c.link for c in (spec.copy_in, spec.copy_back) if isinstance(c, Transfer)), None)


def find_bottleneck(spec: BudgetSpec, terms: Mapping[str, float]) -> tuple[str, float]:
    """(name, milliseconds) of the slowest stage when calls overlap."""
    stages = dict(terms)
    link = find_link(spec)
    if link is not None and link.half_duplex:
        stages["copies"] = stages.pop("copy_in") + stages.pop("copy_back")
    name = max(stages, key=lambda stage: stages[stage])
    return name, stages[name]


def find_break_even_rate(spec: BudgetSpec, terms: Mapping[str, float]) -> tuple[float | None, str | None]:
    """(payload bytes per second at which the call takes as long as the baseline, or the reason why there is none).

    What goes over the link must fit into what the baseline leaves after all other terms and the link's latencies.
    """
    if spec.baseline_ms is None:
        return None, None
    copies = {n: c for n, c in (("copy_in", spec.copy_in), ("copy_back", spec.copy_back)) if isinstance(c, Transfer)}
    size = sum(int(copy.size_bytes(spec.batch)) for copy in copies.values())
    if not size:
        return None, "no break-even link rate: no copy is given in bytes over a link"
    fixed = math.fsum(time for name, time in terms.items() if name not in copies)
    slack = spec.baseline_ms * spec.batch - fixed - 1e3 * _sum_latencies(spec)
    if slack <= 0:
        return None, "no link rate breaks even: without its bytes on the wire the call is no faster than the baseline"
    return 1e3 * size / slack, None


def _sum_latencies(spec: BudgetSpec) -> float:
    total = 0.0
    for copy, answer in ((spec.copy_in, False), (spec.copy_back, True)):
        if isinstance(copy, Transfer) and int(copy.size_bytes(spec.batch)):
            total += copy.link.latency_s + (copy.link.answer_latency_s if answer else 0.0)
    return total


def find_break_even_batch(spec: BudgetSpec) -> tuple[int | None, str | None]:
    """(smallest batch whose call takes no longer than the baseline for as many items, or why there is none)."""
    if spec.baseline_ms is None:
        return None, None
    first = 1
    while first <= LARGEST_BATCH:
        batches = np.arange(first, 2 * first, dtype=np.int64)
        totals = sum(compute_terms(spec, batches).values(), np.zeros(1))
        wins = np.flatnonzero(totals <= spec.baseline_ms * batches)
        if wins.size:
            return int(batches[wins[0]]), None
        first *= 2
    return None, f"no batch up to {LARGEST_BATCH} breaks even: an item costs more than on the baseline in every one"


def sweep_rates(spec: BudgetSpec) -> tuple[CurvePoint, ...]:
    """The call on links two decades slower to two decades faster than the given one; empty without a link."""
    link = find_link(spec)
    if link is None:
        return ()
    return tuple(_point(spec, float(factor)) for factor in np.logspace(-2, 2, CURVE_POINTS))


def _point(spec: BudgetSpec, factor: float) -> CurvePoint:
    faster = _scale_rate(spec, factor)
    total = math.fsum(float(time) for time in compute_terms(faster, spec.batch).values())
    link = find_link(faster)
    assert link is not None
    baseline = None if spec.baseline_ms is None else spec.baseline_ms * spec.batch
    return CurvePoint(bytes_per_s=link.payload_bytes_per_s, total_ms=total, speedup=_divide(baseline, total))


def _scale_rate(spec: BudgetSpec, factor: float) -> BudgetSpec:
    def scale(copy: float | Transfer) -> float | Transfer:
        if not isinstance(copy, Transfer):
            return copy
        return replace(copy, link=replace(copy.link, wire_bytes_per_s=copy.link.wire_bytes_per_s * factor))

    return replace(spec, copy_in=scale(spec.copy_in), copy_back=scale(spec.copy_back))


def _divide(value: float | None, by: float) -> float | None:
    """The quotient, or None where there is no finite one."""
    return None if value is None or by <= 0 else value / by
