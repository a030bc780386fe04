"""Results to the rows that every table, file and verdict of a run is made of: schema `enginebench.run/1`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.compare import Comparison, comparable, compare
from enginebench.analyze.layers import doubt_kernel_times
from enginebench.analyze.quantiles import median
from enginebench.analyze.summary import Summary, summarize
from enginebench.analyze.validity import judge
from enginebench.core.names import format_engine
from enginebench.core.records import (
    Cache,
    Caveat,
    Clock,
    Drift,
    Estimate,
    Machine,
    Measurement,
    Precision,
    Recipe,
    Result,
    Scope,
    Status,
    StopRule,
    Validity,
    Verdict,
)

RUN_SCHEMA = "enginebench.run/1"
# Outputs of different FP32 kernels differ in the sixth digit; that must not decide which row is on the Pareto front.
QUALITY_DIGITS = 4


class Row(Struct, frozen=True, kw_only=True):
    """One row of a run, as `cli.md` lays it down. Times in ms, shares 0 to 1; None means not measured."""

    id: str
    engine: str
    precision: Precision
    requested_precision: Precision
    recipe: Recipe | None
    batch: int
    scope: Scope
    cache: Cache
    device: str
    threads: int
    weights: str | None
    clock: Clock | None
    modelled: bool
    status: Status
    reason: str | None
    validity: Validity
    n: int
    processes: int
    p50_ms: Estimate | None
    p99_ms: Estimate | None
    mean_ms: Estimate | None
    p50_device_ms: Estimate | None
    enqueue_ms: Estimate | None
    throughput_per_s: float | None
    throughput_pipelined_per_s: float | None
    speedup: Estimate | None
    max_abs_diff: float | None
    cosine: float | None
    centred_cosine: float | None
    top1_agreement: float | None
    top1_accuracy: Estimate | None
    effective_precision: dict[str, float] | None
    build_s: float | None
    size_bytes: int | None
    peak_memory_bytes: int | None
    energy_mj: float | None
    pareto: bool
    caveats: tuple[Caveat, ...]
    result: str
    # Beside the contract.
    p90_ms: Estimate | None = None
    p95_ms: Estimate | None = None
    p50_unmarked_ms: Estimate | None = None
    percentiles_ms: dict[str, Estimate] = {}
    marked_share: float = 0.0
    stop_rules: tuple[StopRule, ...] = ()
    engine_version: str | None = None
    baseline: str | None = None  # id of the row that `speedup` is taken against
    speedup_reason: str | None = None  # why `speedup` is empty
    verdict: Verdict | None = None  # against the baseline
    repetitions_needed: int | None = None
    nonfinite: int = 0
    outputs_agree: bool | None = None  # None: not compared
    peak_device_memory_bytes: int | None = None
    energy_interval_mj: tuple[float, float] | None = None  # what the resolution of the counter leaves open


class Ref(Struct, frozen=True, kw_only=True):
    """The row that an answer names. `tied_with`: rows that it was not shown to be faster than."""

    id: str
    engine: str
    precision: Precision
    batch: int
    speedup: float | None
    verdict: Verdict | None = None
    tied_with: tuple[str, ...] = ()


class RunDocument(Struct, frozen=True, kw_only=True):
    """What `run --json` prints and `report` reads."""

    schema: str = RUN_SCHEMA
    model: str
    machine: Machine | None
    spec: dict[str, Any]
    rows: tuple[Row, ...]
    fastest: Ref | None
    recommended: Ref | None
    margin: float = 0.02
    recommended_by: Literal["accuracy", "drift"] = "drift"


def find_baseline(result: Result, results: Iterable[Result], engine: str = "pytorch") -> Result | None:
    """The row that `result` is compared to: `engine` in FP32 with the same batch, scope and cache, else the first.

    Only rows with samples count. Options of the engine do not: plain `pytorch` comes before `pytorch:x=y`.
    """
    group = [r for r in results if _group(r) == _group(result) and any(m.latency_ns for m in r.measurements)]
    named = [r for r in group if r.engine.precision == "fp32" and engine in (r.engine.backend, format_engine(r.engine))]
    named.sort(key=lambda r: (format_engine(r.engine) != engine, len(r.engine.options)))
    return named[0] if named else (group[0] if group else None)


def _group(result: Result) -> tuple[object, ...]:
    return result.engine.batch, result.measure.scope, result.measure.cache


def describe_row(result: Result, baseline: Result | None, *, margin: float = 0.02, path: str = "") -> Row:
    """The row of one result; `pareto` is left False, since it belongs to a run.

    Args:
        result: with whatever was measured, also failed or skipped.
        baseline: what `speedup` is taken against; `result` itself gives 1.
        margin: for the verdict.
        path: of the result file, relative to the run; `rows/<id>.json` if empty.
    """
    measured = [m for m in result.measurements if m.latency_ns]
    engine, measure = result.engine, result.measure
    beyond = [p for p in measure.percentiles if p not in (50.0, 90.0, 95.0, 99.0) and 0 < p < 100]
    summary = summarize(measured, batch=engine.batch, percentiles=beyond) if measured else None
    validity, doubts = judge(measured)
    clocks = sorted({m.clock for m in measured})
    return Row(
        id=result.id,
        engine=format_engine(engine),
        precision=engine.precision,
        requested_precision=result.requested_precision,
        recipe=engine.recipe,
        batch=engine.batch,
        scope=measure.scope,
        cache=measure.cache,
        device=engine.device,
        threads=engine.threads,
        weights=result.artifacts[0].weights if result.artifacts else None,
        clock=clocks[0] if clocks else None,
        modelled="modelled" in clocks,
        status=result.status,
        reason=result.reason,
        validity=validity,
        effective_precision=result.effective_precision,
        build_s=result.build_s,
        size_bytes=result.size_bytes,
        peak_memory_bytes=max((m.peak_memory_bytes for m in measured if m.peak_memory_bytes), default=None),
        peak_device_memory_bytes=max((b for m in measured if (b := m.peak_device_memory_bytes)), default=None),
        energy_mj=_mean([m.energy_mj for m in measured]),
        energy_interval_mj=_bound_energy(measured),
        pareto=False,
        top1_accuracy=result.accuracy.top1 if result.accuracy else None,
        caveats=_collect_caveats(result, doubts if measured else []),
        result=path or f"rows/{result.id}.json",
        stop_rules=tuple(sorted({m.stop_rule for m in measured})),
        engine_version=result.engine_version,
        **_describe_times(summary),
        **_describe_speedup(result, baseline, margin),
        **_describe_drift(result.drift),
    )


def _describe_times(summary: Summary | None) -> dict[str, Any]:
    """The fields of a row that come from its samples."""
    estimates = ("p50", "p90", "p95", "p99", "mean", "p50_device", "enqueue", "p50_unmarked")
    fields: dict[str, Any] = {f"{name}_ms": getattr(summary, name, None) for name in estimates}
    return fields | {
        "n": summary.n if summary else 0,
        "processes": summary.processes if summary else 0,
        "marked_share": summary.marked_share if summary else 0.0,
        "throughput_per_s": summary.throughput_per_s if summary else None,
        "throughput_pipelined_per_s": summary.throughput_pipelined_per_s if summary else None,
        "percentiles_ms": summary.percentiles if summary else {},
    }


def _describe_speedup(result: Result, baseline: Result | None, margin: float) -> dict[str, Any]:
    """The fields of a row that come from its comparison with the baseline of the same run."""
    if baseline is None or not any(m.latency_ns for m in result.measurements):
        return {"speedup": None}
    if baseline.id == result.id:
        k = sum(bool(m.latency_ns) for m in result.measurements)
        one = Estimate(value=1.0, low=1.0, high=1.0, level=0.95, n=k, method="the baseline itself")
        return {"speedup": one, "baseline": baseline.id}
    found = compare_rows(baseline, result, margin)
    return {
        "speedup": found.ratio,
        "baseline": baseline.id,
        "speedup_reason": "; ".join(found.reasons) if found.ratio is None else None,
        "verdict": found.verdict,
        "repetitions_needed": found.repetitions_needed,
    }


def compare_rows(base: Result, cand: Result, margin: float) -> Comparison:
    """The comparison of two rows of one run; `not_comparable` with the reasons where they are unlike."""
    reasons = comparable(base, cand, margin, neighbours=True)
    if reasons:
        return Comparison(verdict="not_comparable", ratio=None, reasons=tuple(reasons), margin=margin)
    return compare(base.measurements, cand.measurements, margin=margin)


def _describe_drift(drift: Drift | None) -> dict[str, Any]:
    """The fields of a row that come from its outputs: of several outputs, the worst."""
    outputs = drift.outputs if drift else ()
    return {
        "max_abs_diff": _worst((o.max_abs_diff for o in outputs), max),
        "cosine": _worst((o.cosine_mean for o in outputs), min),
        "centred_cosine": _worst((o.centred_cosine_mean for o in outputs), min),
        "top1_agreement": _worst((o.top1_agreement for o in outputs), min),
        "nonfinite": sum(o.nonfinite for o in outputs),
        "outputs_agree": drift.passed if drift else None,
    }


def _worst(values: Iterable[float | None], choose: Callable[[list[float]], float]) -> float | None:
    known = [v for v in values if v is not None]
    return choose(known) if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _bound_energy(measurements: Sequence[Measurement]) -> tuple[float, float] | None:
    """Lowest and highest energy per image that the counter's resolution allows, averaged over the processes."""
    known = [
        (m.energy_mj, m.energy_resolution_mj)
        for m in measurements
        if m.energy_mj is not None and m.energy_resolution_mj is not None
    ]
    if not known:
        return None
    low, high = (sum(max(0.0, e + sign * r) for e, r in known) / len(known) for sign in (-1, 1))
    return low, high


def _collect_caveats(result: Result, doubts: Sequence[Caveat]) -> tuple[Caveat, ...]:
    """Every doubt about a row once: of the row, its artefacts, its processes, its samples, its outputs."""
    found = [
        *(result.machine.caveats if result.machine else ()),
        *result.caveats,
        *(c for a in result.artifacts for c in a.caveats),
    ]
    found += _merge_process_caveats(result)
    found += doubts
    found += doubt_kernel_times(result.layers, _find_device_time(result.measurements))
    if result.drift and (count := sum(o.nonfinite for o in result.drift.outputs)):
        seen = f"{count} output values are not finite"
        found.append(Caveat(code="nonfinite", message=seen, advice="use a wider precision; see `drift`"))
    return tuple(dict.fromkeys(found))


def _find_device_time(measurements: Sequence[Measurement]) -> float | None:
    """Median over the processes of the median device time, ns."""
    known = [median(m.device_ns) for m in measurements if m.device_ns]
    return median(known) if known else None


def _merge_process_caveats(result: Result) -> list[Caveat]:
    """One caveat a code; where not every process has it, with the number of those that do."""
    first: dict[str, Caveat] = {}
    count: dict[str, int] = {}
    for measurement in result.measurements:
        for caveat in {c.code: c for c in measurement.caveats}.values():
            first.setdefault(caveat.code, caveat)
            count[caveat.code] = count.get(caveat.code, 0) + 1
    total = len(result.measurements)
    return [
        caveat
        if count[code] == total
        else Caveat(
            code=caveat.code,
            message=f"{caveat.message} ({count[code]} of {total} processes)",
            advice=caveat.advice,
        )
        for code, caveat in first.items()
    ]


def describe_run(
    *,
    model: str,
    machine: Machine | None,
    spec: Mapping[str, Any],
    results: Sequence[Result],
    baseline_engine: str = "pytorch",
    margin: float = 0.02,
    max_top1_drop: float = 1.0,
    p99_limit_ms: float | None = None,
) -> RunDocument:
    """The document of a run: its rows in the order given, and the two answers.

    `fastest` is the ok row with the largest speed-up whose outputs agree with the baseline's (the baseline
    itself counts), among rows with the batch, scope and cache of the first row. `recommended` is the fastest within the
    accuracy limit; without labelled data the outputs' agreement has to do, so it is `fastest`, unless its p99 is too
    slow.

    Args:
        model: as the user wrote it.
        machine: where it ran.
        spec: what was asked.
        results: in the order of the table.
        baseline_engine: ENGINE whose FP32 row speed-ups are taken against.
        margin: for verdicts.
        max_top1_drop: points of top-1 accuracy (1.0 = one per cent of the images) that `recommended` may lose.
        p99_limit_ms: `recommended` keeps to it.
    """
    baselines = [find_baseline(result, results, baseline_engine) for result in results]
    rows = [describe_row(r, b, margin=margin) for r, b in zip(results, baselines, strict=True)]
    rows = mark_pareto(rows)
    by_id = {r.id: r for r in results}
    agreeing = [row for row in _rank(rows) if _agrees(row)]
    accurate = _within_accuracy(_rank(rows), rows, max_top1_drop)
    chosen = agreeing if accurate is None else accurate
    if p99_limit_ms is not None:
        chosen = [row for row in chosen if row.p99_ms and row.p99_ms.value <= p99_limit_ms]
    return RunDocument(
        model=model,
        machine=machine,
        spec=dict(spec),
        rows=tuple(rows),
        fastest=_make_ref(agreeing, by_id, margin),
        recommended=_make_ref(chosen, by_id, margin),
        margin=margin,
        recommended_by="drift" if accurate is None else "accuracy",
    )


def _rank(rows: Sequence[Row]) -> list[Row]:
    """Rows that an answer may name, fastest first: measured, believable, and like the first row in what was timed."""
    named = [
        row
        for row in rows
        if row.status == "ok" and row.validity != "invalid" and not row.modelled and row.speedup is not None
    ]
    first = [row for row in named if _kind(row) == _kind(named[0])]
    return sorted(first, key=lambda row: -row.speedup.value if row.speedup else 0.0)


def _kind(row: Row) -> tuple[object, ...]:
    return row.batch, row.scope, row.cache


def _agrees(row: Row) -> bool:
    return row.outputs_agree is True or (row.outputs_agree is None and row.id == row.baseline)


def _within_accuracy(ranked: Sequence[Row], rows: Sequence[Row], max_top1_drop: float) -> list[Row] | None:
    """The ranked rows that lose at most so many points of top-1 against FP32; None without labelled data."""
    # A row that was relabelled FP32 is none: its graph is still in the shorter precision.
    known = [row for row in rows if row.top1_accuracy and row.precision == row.requested_precision == "fp32"]
    known.sort(key=lambda row: row.id != row.baseline)
    if not known or known[0].top1_accuracy is None:
        return None
    # 1e-9: a drop of exactly the limit is allowed, whatever the last bit of the two shares says.
    floor = known[0].top1_accuracy.value - max_top1_drop / 100 - 1e-9
    return [r for r in ranked if r.top1_accuracy and r.top1_accuracy.value >= floor and not r.nonfinite]


def _make_ref(ranked: Sequence[Row], results: Mapping[str, Result], margin: float) -> Ref | None:
    if not ranked:
        return None
    best, others = ranked[0], ranked[1:]
    return Ref(
        id=best.id,
        engine=best.engine,
        precision=best.precision,
        batch=best.batch,
        speedup=best.speedup.value if best.speedup else None,
        verdict=best.verdict,
        tied_with=tuple(
            row.id for row in others if compare_rows(results[row.id], results[best.id], margin).verdict != "faster"
        ),
    )


def mark_pareto(rows: Sequence[Row]) -> list[Row]:
    """The rows with `pareto` set where no other row is as fast and as good, and better in one of the two.

    Good is top-1 accuracy where it was measured for any row, else the centred cosine to the reference, to
    four digits. Only ok rows of one batch, scope and cache are held against each other, and none that is invalid.
    """
    by_accuracy = any(row.top1_accuracy for row in rows)
    points = [_place(row, by_accuracy) for row in rows]
    return [
        replace(row, pareto=point is not None and not any(_beats(other, point) for other in points if other))
        for row, point in zip(rows, points, strict=True)
    ]


Place = tuple[tuple[object, ...], float, float]


def _place(row: Row, by_accuracy: bool) -> Place | None:
    """(kind, p50 in ms, quality) of a row that can be on the front."""
    quality = find_quality(row, by_accuracy)
    if row.status != "ok" or row.p50_ms is None or row.nonfinite or row.modelled or quality is None:
        return None
    if row.validity == "invalid":
        return None
    return (*_kind(row), row.clock), row.p50_ms.value, round(quality, QUALITY_DIGITS)


def find_quality(row: Row, by_accuracy: bool) -> float | None:
    """Top-1 accuracy, or the centred cosine to the reference; None where the row has none.

    A baseline whose outputs were never compared is its own reference. One that was compared is not: without an FP32 row
    of its scope or cache, a row in a shorter precision is the baseline of the others.
    """
    if by_accuracy:
        return row.top1_accuracy.value if row.top1_accuracy else None
    return 1.0 if row.id == row.baseline and row.centred_cosine is None else row.centred_cosine


def _beats(other: Place, point: Place) -> bool:
    better = other[1] < point[1] or other[2] > point[2]
    return other[0] == point[0] and other[1] <= point[1] and other[2] >= point[2] and better
