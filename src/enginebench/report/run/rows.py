"""Turn results into the rows of every table, file and verdict of a run: schema `enginebench.run/1`."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine, format_options, parse_engine
from enginebench.core.recipes import FEW_BITS
from enginebench.core.records import (
    Axes,
    BoundBy,
    Cache,
    Capacity,
    Clock,
    ColdStart,
    Estimate,
    Machine,
    Measurement,
    Outputs,
    Precision,
    RatioValidity,
    Recipe,
    Result,
    ResultWarning,
    RunPart,
    Scope,
    Score,
    Status,
    StopRule,
    Validity,
    Verdict,
)
from enginebench.core.shapes import PAD, format_bucket, measure_padding
from enginebench.core.store import Group
from enginebench.core.text import inflect
from enginebench.core.warnings import limit_to_processes, make_warning
from enginebench.stats.assessment import Agreement, Assessment, compare_configurations
from enginebench.stats.builds import BuildEffect, describe_builds, list_build_warnings
from enginebench.stats.compare import MIN_TRIALS, Comparison, Unit
from enginebench.stats.drift import list_sample_warnings
from enginebench.stats.headline import Headline, find_start_s
from enginebench.stats.metrics.scores import find_value
from enginebench.stats.needs import find_median, find_memory
from enginebench.stats.profile import list_bound_warnings, list_kernel_warnings, share_of_limit
from enginebench.stats.quantiles import median
from enginebench.stats.ranking import USUAL, RecommendedBy, Ref, Rules, rank_results
from enginebench.stats.summary import Summary, mean_or_none
from enginebench.stats.traffic import CellTimes, list_cell_times

RUN_SCHEMA = "enginebench.run/1"


class RowSetup(Group, frozen=True, kw_only=True):
    """Further settings of a configuration, and what it ran on."""

    engine_version: str | None = None
    shapes: dict[str, tuple[int, ...]] = {}  # of the inputs that were timed
    bucket: str = ""  # the shapes that were asked for, where a run has rows of several
    axes: Axes | None = None  # "fixed": the engine was made for these shapes alone
    gpu: str | None = None  # its name
    workspace_mb: str | None = None  # scratch memory that the builder was allowed
    calibration: str | None = None  # where the ranges of 8 bits come from


class RowTimes(Group, frozen=True, kw_only=True):
    """Times of a configuration beyond the median, p99 and mean."""

    p90_ms: Estimate | None = None
    p95_ms: Estimate | None = None
    p999_ms: Estimate | None = None
    p50_unmarked_ms: Estimate | None = None
    percentiles_ms: dict[str, Estimate] = {}
    marked_share: float = 0.0
    stop_rules: tuple[StopRule, ...] = ()
    cold_start_s: float | None = None  # from importing to the first output, files read from the disk; one process
    start_s: float | None = None  # from loading to the first output in a new process, median
    load_s: float | None = None  # of that start, its parts: medians, too
    first_run_s: float | None = None
    import_s: float | None = None  # of the engine's packages before it; None: not measured alone
    cells: tuple[CellTimes, ...] = ()  # of a mix of requests, whose weighted mean the median and the mean are of
    padded_values: float | None = None  # values of the inputs after padding over those before; None: it does not pad


class RowComparison(Group, frozen=True, kw_only=True):
    """Ratios to the baseline, the fastest and the next slower configuration, and to the engine with more bits."""

    ratio_validity: RatioValidity | None = None  # of `speedup`, whatever the `validity` of the times
    ratio_reason: str = ""  # why it is not `good`
    speedup_reason: str | None = None  # why `speedup` is empty
    trials_needed: int | None = field(default=None, name="repetitions_needed")
    unit: Unit = "process"  # what was repeated for `verdict`; `trials_needed` counts it
    ratio_to_fastest: Estimate | None = None  # of the fastest row's median to this one's, paired
    verdict_to_fastest: Verdict | None = None
    ratio_to_next: Estimate | None = None  # of the next slower row's median to this one's, paired
    verdict_to_next: Verdict | None = None  # "faster": than the next slower row of its batch and shape
    wider: str | None = None  # id of the same engine's fastest row with the next more bits
    ratio_to_wider: Estimate | None = None  # of that row's median to this one's, paired
    exact: str | None = None  # of one that pads: id of the same engine's row that does not
    ratio_to_exact: Estimate | None = None  # of this row's time to that one's, paired: what padding costs


class RowCosts(Group, frozen=True, kw_only=True):
    """Costs beside time: building, files, memory, energy."""

    build_s: float | None = None
    built_beside: int = 0  # other rows that were built at the same time: with any, `build_s` is an upper bound
    builds: BuildEffect | None = None  # how far several builds of the engine differ
    size_bytes: int | None = None
    peak_memory_bytes: int | None = None
    peak_device_memory_bytes: int | None = None
    memory_bytes: dict[str, int] = {}  # the highest of each phase of a process, and at its end the proportional one
    energy_mj: float | None = None
    energy_interval_mj: tuple[float, float] | None = None  # what the resolution of the counter leaves open


class RowLimit(Group, frozen=True, kw_only=True):
    """The median against the least time by this machine's peaks; None: none were stored."""

    bound_ms: float | None = None  # the least time by this machine's peaks; None: none were stored
    of_limit: float | None = None  # bound_ms over the median, on a GPU the median device time: 1 is the limit
    bound_by: BoundBy | None = None
    unmapped_share: float | None = None  # of the layers' time, in those that stand for no node of the ONNX graph


class Row(Struct, frozen=True, kw_only=True):
    """One row of a run, as `cli.md` defines it. Times in ms, fractions 0 to 1; None means not measured."""

    id: str
    engine: str
    precision: Precision | None
    requested_precision: Precision | None
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
    top1_accuracy: Estimate | None  # of the labelled samples, where the model classifies
    scores: tuple[Score, ...]  # of the labelled samples; the first one decides
    effective_precision: dict[str, float] | None
    pareto: bool
    warnings: tuple[ResultWarning, ...] = field(name="caveats")
    result: str
    mix: str = ""  # nodes of the graph that stay in FP32 by choice, as `name_mix` names them; "": none
    setup: RowSetup = RowSetup()
    times: RowTimes = RowTimes()
    comparison: RowComparison = RowComparison()
    costs: RowCosts = RowCosts()
    limit: RowLimit = RowLimit()
    agreement: Agreement = Agreement()
    baseline: str | None = None  # id of the row that `speedup` is taken against
    outputs: Outputs = "not_judged"
    outputs_reason: str = ""
    verdict: Verdict | None = None  # against the baseline
    is_reference: bool = False  # the row that others were compared with
    capacity: Capacity | None = None  # requests a second under a limit, of rows that won


class RunDocument(Struct, frozen=True, kw_only=True):
    """The document that `run --json` prints and `report` reads."""

    schema: str = RUN_SCHEMA
    model: str
    machine: Machine | None
    spec: dict[str, Any]
    rows: tuple[Row, ...]
    fastest: Ref | None
    recommended: Ref | None
    margin: float = MARGIN
    recommended_by: RecommendedBy = "drift"
    p99_limit_ms: float | None = None  # that `recommended` keeps to
    needs: dict[str, float] = {}  # that `recommended` meets, in bytes and seconds
    for_calls: int | None = None  # calls of a process, whose whole time the headlines compare
    headline: Headline | None = None  # of the first batch and shape in which anything was measured
    headlines: tuple[Headline, ...] = ()  # of every one
    missing: tuple[str, ...] = ()  # ids of rows that the run names and of which nothing is stored
    took_s: float | None = None  # the run, with what it built and checked
    parts_s: dict[RunPart, float] = {}  # of these: making the model and its graphs, building and checking, timing
    notes: tuple[str, ...] = ()  # what the defaults left out, and why there is no accuracy
    p99_reasons: dict[str, str] = {}  # of a headline whose p99 another one beats: where they differ most


def describe_row(assessment: Assessment) -> Row:
    result, comparison, summary = assessment.result, assessment.comparison, assessment.summary
    engine, measure, bound = result.engine, result.measure, result.bound
    # A bound is held against the device's own time where it has a clock: launching may hide behind it.
    limited_ms = None if summary is None or assessment.modelled else (summary.p50_device or summary.p50).value
    beaten = list_bound_warnings(bound, limited_ms)
    builds = describe_builds(result)
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
        clock=assessment.clock,
        modelled=assessment.modelled,
        status=result.status,
        reason=result.reason,
        validity="suspect" if beaten and assessment.validity == "valid" else assessment.validity,
        n=summary.n if summary else 0,
        processes=summary.processes if summary else 0,
        p50_ms=summary.p50 if summary else None,
        p99_ms=summary.p99 if summary else None,
        mean_ms=summary.mean if summary else None,
        p50_device_ms=summary.p50_device if summary else None,
        enqueue_ms=summary.enqueue if summary else None,
        throughput_per_s=summary.throughput_per_s if summary else None,
        throughput_pipelined_per_s=summary.throughput_pipelined_per_s if summary else None,
        speedup=assessment.speedup,
        top1_accuracy=find_value(result.scores, "top1"),
        scores=result.scores,
        effective_precision=result.effective_precision,
        pareto=assessment.pareto,
        warnings=_collect_warnings(result, (*assessment.warnings, *list_build_warnings(builds), *beaten)),
        result=f"rows/{result.id}.json",
        mix=engine.mix,
        setup=_describe_setup(result),
        times=_describe_times(result, summary),
        comparison=RowComparison(
            ratio_validity=comparison.ratio_validity if comparison else None,
            ratio_reason=comparison.ratio_reason if comparison else "",
            speedup_reason="; ".join(comparison.reasons) if comparison and comparison.ratio is None else None,
            trials_needed=comparison.trials_needed if comparison else None,
            unit=comparison.unit if comparison else "process",
            ratio_to_fastest=assessment.ratio_to_fastest,
            verdict_to_fastest=assessment.verdict_to_fastest,
        ),
        costs=_describe_costs(result, builds),
        limit=RowLimit(
            bound_ms=bound.bound_ms if bound else None,
            of_limit=share_of_limit(bound, limited_ms),
            bound_by=bound.bound_by if bound else None,
            unmapped_share=bound.unmapped_share if bound else None,
        ),
        agreement=assessment.agreement,
        baseline=assessment.baseline,
        outputs=assessment.outputs,
        outputs_reason=assessment.outputs_reason,
        verdict=comparison.verdict if comparison else None,
        is_reference=assessment.is_reference,
        capacity=result.capacity,
    )


def _describe_setup(result: Result) -> RowSetup:
    engine = result.engine
    gpus = result.machine.gpus if result.machine else ()
    made_with = {**(result.artifacts[-1].made_with if result.artifacts else {}), **engine.options}
    return RowSetup(
        engine_version=result.engine_version,
        shapes=result.shapes,
        bucket=format_bucket(engine),
        axes=result.axes,
        gpu=next((gpu.name for gpu in gpus if engine.device == f"cuda:{gpu.index}"), None),
        workspace_mb=made_with.get("workspace_mb"),
        calibration=made_with.get("calibration"),
    )


def _describe_times(result: Result, summary: Summary | None) -> RowTimes:
    cells, inputs = result.engine.traffic, result.artifacts[-1].inputs if result.artifacts else ()
    times = RowTimes(
        stop_rules=tuple(sorted({m.stop_rule for m in result.measurements if m.latency_ns})),
        start_s=find_start_s(result),
        load_s=find_median(result, attrgetter("load_s")),
        first_run_s=find_median(result, attrgetter("first_run_s")),
        import_s=find_median(result, attrgetter("import_s")),
        cold_start_s=_sum_start(result.cold_start) if result.cold_start else None,
        cells=list_cell_times(result),
        padded_values=measure_padding(result.engine, inputs) if result.engine.options.get(PAD) and cells else None,
    )
    if summary is None:
        return times
    return replace(
        times,
        p90_ms=summary.p90,
        p95_ms=summary.p95,
        p999_ms=summary.p999,
        p50_unmarked_ms=summary.p50_unmarked,
        percentiles_ms=summary.percentiles,
        marked_share=summary.marked_share,
    )


def _sum_start(start: ColdStart) -> float:
    return start.import_s + start.load_s + start.first_run_s


def _describe_costs(result: Result, builds: BuildEffect | None) -> RowCosts:
    measured = [m for m in result.measurements if m.latency_ns]
    return RowCosts(
        build_s=result.build_s,
        built_beside=result.built_beside,
        builds=builds,
        size_bytes=result.size_bytes,
        peak_memory_bytes=max((m.peak_memory_bytes for m in measured if m.peak_memory_bytes), default=None),
        peak_device_memory_bytes=max(
            (m.peak_device_memory_bytes for m in measured if m.peak_device_memory_bytes), default=None
        ),
        memory_bytes=find_memory(result),
        energy_mj=mean_or_none([m.energy_mj for m in measured]),
        energy_interval_mj=_bound_energy(measured),
    )


def name_items(rows: Iterable[Row]) -> str:
    """Return the unit of a batch: images if all known shapes are one of four axes with one or three channels, else
    inputs."""
    shapes = [[*row.setup.shapes.values()] for row in rows if row.setup.shapes]
    alike = all(len(inputs) == 1 and len(inputs[0]) == 4 and {1, 3} & {inputs[0][1], inputs[0][3]} for inputs in shapes)
    return "images" if alike else "inputs"


def find_best_p99(row: Row, rows: Sequence[Row], refused: Collection[str] = ()) -> Row | None:
    """Return the row of the same setting and clock with the lowest, clearly lower p99; none with one trial.

    Args:
        refused: the ids of those that may not be named.
    """
    setting = attrgetter("batch", "setup.shapes", "scope", "cache", "modelled", "clock", "status")
    usable = (r for r in rows if r.id not in refused and r.outputs != "changed" and r.validity != "implausible")
    candidates = [r for r in usable if setting(r) == setting(row) and r.processes > 1]
    candidates = [r for r in candidates if r.p99_ms and r.p99_ms.supported and r.p99_ms.high]
    best = min(candidates, key=lambda r: r.p99_ms.value if r.p99_ms else 0.0, default=row)
    mine, theirs = row.p99_ms, best.p99_ms
    lower = row in candidates and mine and mine.low and theirs and theirs.high and theirs.high < mine.low
    return best if lower else None


def group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows that are compared with each other, in the order of their settings, each group fastest first."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.batch, row.setup.bucket, row.scope, row.cache), []).append(row)
    return [sorted(group, key=lambda row: row.p50_ms.value if row.p50_ms else math.inf) for group in groups.values()]


def _add_ratios(rows: Sequence[Row], results: Sequence[Result], margin: float) -> tuple[Row, ...]:
    """Add each row's ratio to the next slower one, with a verdict after enough trials, and to more bits."""
    results_by_id = {result.id: result for result in results}
    comparisons = {row.id: row.comparison for row in rows}

    def measure_ratio(slower: Row, faster: Row) -> Comparison:
        return compare_configurations(results_by_id[slower.id], results_by_id[faster.id], margin)

    for group in group_rows([row for row in rows if row.p50_ms]):
        for row, slower in pairwise(group):
            to_next = measure_ratio(slower, row)
            if to_next.ratio is not None:
                verdict = to_next.verdict if to_next.ratio.n >= MIN_TRIALS else None
                comparison = replace(comparisons[row.id], ratio_to_next=to_next.ratio, verdict_to_next=verdict)
                comparisons[row.id] = comparison
        for row in group:
            wider = _find_wider(row, group)
            if wider is not None:
                ratio = measure_ratio(wider, row).ratio
                comparisons[row.id] = replace(comparisons[row.id], wider=wider.id, ratio_to_wider=ratio)
            exact = _find_exact(row, group)
            if exact is not None:
                ratio = measure_ratio(row, exact).ratio
                comparisons[row.id] = replace(comparisons[row.id], exact=exact.id, ratio_to_exact=ratio)
    return tuple(replace(row, comparison=comparisons[row.id]) for row in rows)


def _find_wider(row: Row, group: Sequence[Row]) -> Row | None:
    """Find the same engine's fastest row with the next more bits; `group` is sorted, the fastest first."""
    wider = [other for other in group if other.engine == row.engine and _count_bits(other) > _count_bits(row)]
    return min(wider, key=_count_bits, default=None)


def _find_exact(row: Row, group: Sequence[Row]) -> Row | None:
    """Find the row of a padding one that differs from it in that alone."""
    if row.times.padded_values is None:
        return None
    name, options = parse_engine(row.engine)
    bare = format_options(name, {key: value for key, value in options.items() if key != PAD})
    alike = (other for other in group if other.engine == bare)
    kind = row.precision, row.recipe, row.mix, row.threads
    return next((one for one in alike if (one.precision, one.recipe, one.mix, one.threads) == kind), None)


def _count_bits(row: Row) -> int:
    precision = row.requested_precision or row.precision  # the requested one of a relabelled row, too
    if precision in FEW_BITS:
        return 8
    return 16 if precision in ("fp16", "bf16") else 32


def _bound_energy(measurements: Sequence[Measurement]) -> tuple[float, float] | None:
    """Return lowest and highest energy per image that the counter's resolution allows, averaged over the processes."""
    pairs = [(m.energy_mj, m.energy_resolution_mj) for m in measurements]
    measured = [(energy, step) for energy, step in pairs if energy is not None and step is not None]
    if not measured:
        return None
    low, high = (sum(max(0.0, e + sign * r) for e, r in measured) / len(measured) for sign in (-1, 1))
    return low, high


def _collect_warnings(result: Result, warnings: Sequence[ResultWarning]) -> tuple[ResultWarning, ...]:
    """Collect every warning about a row once: of the row, its artifacts, its processes, its samples, its outputs."""
    # Older versions warned of every virtual machine; TRUST shows it where it matters.
    collected = [
        c for c in (result.machine.warnings if result.machine else ()) if "virtual" not in c.template + c.message
    ]
    collected += result.warnings
    collected += [warning for artifact in result.artifacts for warning in artifact.warnings]
    # Of the processes one a code; where not every process has it, with the number of those that do.
    each = [{warning.code: warning for warning in m.warnings} for m in result.measurements]
    first = {code: warning for own in reversed(each) for code, warning in own.items()}
    counts, total = Counter(code for own in each for code in own), len(each)
    collected += [first[c] if n == total else limit_to_processes(first[c], n, total) for c, n in counts.items()]
    collected += warnings
    device_ns = [median(m.device_ns) for m in result.measurements if m.device_ns]
    collected += list_kernel_warnings(result.layers, median(device_ns) if device_ns else None)
    if result.drift and result.drift.unlike:
        why = "; ".join(result.drift.unlike)
        collected.append(make_warning("outputs_not_compared", reference=result.drift.reference, why=why))
    collected += list_sample_warnings(result.drift) if result.drift else ()
    if result.drift and (count := sum(o.nonfinite for o in result.drift.outputs)):
        what = f"output {inflect(count, 'values')}, its own and the reference's together"
        collected.append(make_warning("nonfinite", count=count, what=what))
    return tuple(dict.fromkeys(collected))


def describe_run(
    *, model: str, machine: Machine | None, spec: Mapping[str, Any], results: Sequence[Result], rules: Rules = USUAL
) -> RunDocument:
    """Make the document of a run: its rows in their order, and the headlines."""
    ranking = rank_results(results, rules)
    condensed = [assessment.result for assessment in ranking.assessments]
    return RunDocument(
        model=model,
        machine=machine,
        spec=dict(spec),
        rows=_add_ratios([describe_row(assessment) for assessment in ranking.assessments], condensed, rules.margin),
        headline=ranking.headlines[0] if ranking.headlines else None,
        headlines=ranking.headlines,
        fastest=ranking.fastest,
        recommended=ranking.recommended,
        margin=rules.margin,
        recommended_by=ranking.recommended_by,
        p99_limit_ms=rules.p99_limit_ms,
        needs=dict(rules.needs),
        for_calls=rules.for_calls,
    )
