"""The assessment of one configuration: its samples, its outputs, and its times against those of its baseline."""

import math
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.entry import EAGER, TODAY, TODAY_OF_GRAPH
from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine, show_engine
from enginebench.core.records import (
    Clock,
    Drift,
    Estimate,
    Measurement,
    Outputs,
    Precision,
    Result,
    ResultWarning,
    Validity,
    Verdict,
)
from enginebench.core.shapes import find_size
from enginebench.core.store import Group
from enginebench.stats.alike import assess_outputs
from enginebench.stats.compare import Comparison, comparable, compare, compare_apart, find_level, refuse
from enginebench.stats.condensed import condense_result
from enginebench.stats.intervals import is_correlated
from enginebench.stats.summary import Summary
from enginebench.stats.validity import (
    CORRELATED,
    SPEED_RATIO,
    WIDE_RATIO,
    RatioAssessment,
    assess_ratio_validity,
    assess_samples,
    hides_work,
    is_implausible,
    widen_ratio,
)

# Two sides of one speed are ordered the same way in as many pairs once in 2^7 runs.
MIN_SIGNS = 8


class Agreement(Group, frozen=True, kw_only=True):
    """The distance of a configuration's outputs from the reference's; of several outputs the worst. None: not
    compared."""

    max_abs_diff: float | None = None
    cosine: float | None = None
    centred_cosine: float | None = None
    top1_agreement: float | None = None
    shared_decisions: float | None = field(default=None, name="agreement")  # fraction of the reference's decisions
    nonfinite: int = 0
    outputs_agree: bool | None = None


class Assessment(Struct, frozen=True, kw_only=True):
    """A result with everything that is derived from it and its baseline."""

    result: Result
    summary: Summary | None  # None: no samples
    validity: Validity
    warnings: tuple[ResultWarning, ...]  # that the samples raise
    clock: Clock | None
    modelled: bool
    baseline: str | None  # id of the row that `speedup` is taken against
    comparison: Comparison | None  # with the baseline; None for the baseline itself
    speedup: Estimate | None
    agreement: Agreement
    outputs: Outputs = "not_judged"
    outputs_reason: str = ""
    ratio_to_fastest: Estimate | None = None  # median of the named configuration over its own, paired
    verdict_to_fastest: Verdict | None = None
    is_reference: bool = False  # others were compared with its outputs
    hides_work: bool = False  # its times are those of a part of the work
    pareto: bool = False

    @property
    def uncompared(self) -> bool:
        """Whether nothing held its outputs against the reference's."""
        return self.agreement.outputs_agree is None and not self.is_reference

    @property
    def setting(self) -> tuple[object, ...]:
        """Configurations that are compared with each other have this in common."""
        return find_setting(self.result)


def find_setting(result: Result) -> tuple[object, ...]:
    """Return (batch, shapes, scope, cache); configurations that differ in one of them are never compared."""
    return *find_size(result.engine), result.measure.scope, result.measure.cache


def find_baseline(result: Result, results: Iterable[Result], engine: str = EAGER) -> Result | None:
    """Return the configuration that `result` is compared with: `engine` in FP32 in the same setting, else the first.

    Only configurations with samples count, and none that failed or whose times are implausible. If an engine was named,
    no other takes its place. Plain `pytorch` comes before `pytorch:x=y`. A configuration that was relabelled FP32 is no
    baseline: its graph is still in the lower precision.
    """
    alike = (r for r in results if find_setting(r) == find_setting(result))
    group = [r for r in alike if _can_lead(r)]
    named = _find_named(filter(is_plain_fp32, group), engine)
    left = group if engine in (EAGER, "") else filter(None, [_find_named(group, engine)])
    return named or next(iter(left), None)


class Today(Struct, frozen=True, kw_only=True):
    """The baseline of the headline of a setting."""

    result: Result | None  # None: there is nothing
    lost: str = ""  # why
    owned: bool = False  # the user runs it today; else it was named, or is what is left


def find_today(group: Sequence[Result], engine: str = EAGER) -> Today:
    """Return the configuration that the user runs today, else the named baseline, else the first that was measured."""
    measured = [r for r in group if _can_lead(r)]
    owned = engine == EAGER
    kinds = {r.artifacts[0].kind for r in group if r.artifacts}  # the form that the model came in
    wanted = TODAY + TODAY_OF_GRAPH
    if not owned:
        wanted = ((engine, "fp32"), (engine, None))
    elif kinds == {"torch"}:
        wanted = TODAY
    elif kinds == {"onnx"}:
        wanted = TODAY_OF_GRAPH
    for name, precision in wanted:
        alike = [r for r in measured if precision in (None, r.requested_precision)]
        if row := _find_named(alike, name, exactly=owned):
            return Today(result=row, owned=owned)
        lost = (r for r in group if r not in measured and (r.status != "skipped" or not owned))
        gone = next((r for r in lost if format_engine(r.engine) == name), None)
        if gone and precision is None:
            return Today(result=None, lost=f"{name_result(gone)} {_explain_lost(gone)}")
    return Today(result=measured[0] if measured else None)


def _can_lead(result: Result) -> bool:
    """Whether other configurations may be compared with its times."""
    return result.status != "failed" and bool(measured := _list_measured(result)) and not is_implausible(measured)


def _explain_lost(result: Result) -> str:
    if result.status == "failed":
        return "failed"
    return "has an implausible time" if _list_measured(result) else "did not run"


def _find_named(rows: Iterable[Result], engine: str, *, exactly: bool = False) -> Result | None:
    """Return the configuration of an ENGINE; plain `pytorch` before `pytorch:x=y`, which does not count if
    `exactly`."""
    matching = [r for r in rows if engine == format_engine(r.engine) or (not exactly and engine == r.engine.backend)]
    return min(matching, key=lambda r: (format_engine(r.engine) != engine, len(r.engine.options)), default=None)


def name_result(result: Result) -> str:
    """`openvino fp32`, `ort int8 (cpu)`."""
    engine = result.engine
    return show_engine(format_engine(engine), engine.precision, engine.recipe, engine.mix)


def is_plain_fp32(result: Result) -> bool:
    """Whether FP32 was requested and ran; a configuration relabelled FP32 has a graph of lower precision."""
    return result.engine.precision == result.requested_precision == "fp32"


def compare_configurations(
    base: Result, cand: Result, margin: float = MARGIN, *, neighbours: bool = True
) -> Comparison:
    """Compare two configurations, with the validity of the ratio; unlike ones are `not_comparable`, with reasons.

    If other programs slowed one side alone there is neither ratio nor verdict; which one is faster may be `clear` all
    the same.

    Args:
        neighbours: the configurations were measured interleaved, in one run.
    """
    if reasons := comparable(base, cand, margin, neighbours=neighbours):
        return refuse(*reasons, margin=margin)
    names, level = (name_result(base), name_result(cand)), find_level(base, cand)
    if not neighbours:
        comparison = compare_apart(base.measurements, cand.measurements, margin=margin, level=level)
        return add_ratio_validity(
            comparison, _list_measured(base), _list_measured(cand), names, steered=is_steered(base)
        )
    trials = min((row.look for row in (base, cand) if row.look is not None), default=None)
    comparison = compare(base.measurements, cand.measurements, margin=margin, level=level, trials=trials)
    shared = {m.trial for m in base.measurements} & {m.trial for m in cand.measurements}
    left, right = ([m for m in _list_measured(row) if m.trial in shared] for row in (base, cand))
    return add_ratio_validity(comparison, left, right, names, steered=is_steered(base))


def is_steered(result: Result) -> bool:
    """Return whether Python code runs the engine, operator by operator: then nothing limits by how much it is slowed.

    Known by what it opens: a module, or what was compiled of one.
    """
    return bool(result.artifacts) and result.artifacts[-1].kind in ("torch", "aoti")


def add_ratio_validity(
    comparison: Comparison,
    base: Sequence[Measurement],
    cand: Sequence[Measurement],
    names: tuple[str, str],
    *,
    steered: bool = False,
) -> Comparison:
    """Return the comparison with the validity of its ratio, and an interval that allows for what slowed one side
    more.

    Args:
        steered: Python code runs the base: see `is_steered`.
    """
    if comparison.ratio is None:
        return comparison
    assessment = assess_ratio_validity(base, cand, comparison.ratio, names, comparison.autocorrelation, steered=steered)
    ratio, why = widen_ratio(comparison.ratio, assessment), assessment.reason
    # A verdict has to hold also without what slowed one side more than the other.
    low, high, margin = ratio.low or 0.0, ratio.high or math.inf, 1 + comparison.margin
    if comparison.verdict == "equivalent":
        holds = ratio == comparison.ratio or (low > 1 / margin and high < margin)
    else:
        holds = low > margin or high < 1 / margin
    step = SPEED_RATIO if all(m.device_ns for m in (*base, *cand)) else WIDE_RATIO
    # The verdict has allowed for an interval that is merely wide; then all pairs must agree, too.
    good, agreed = assessment.validity == "good", assessment.alike and assessment.least > 1
    clear = comparison.verdict == "faster" and ((good and holds) or agreed)
    independent = not is_correlated(comparison.autocorrelation, ratio.n, CORRELATED)
    comparison = replace(
        comparison, clear=clear or (not good and _leads(ratio, assessment, comparison.margin, step, independent))
    )
    comparison = replace(comparison, ratio_validity=assessment.validity, ratio_reason=why)
    if assessment.validity == "not_given":
        reasons = (why, *comparison.reasons)
        return replace(comparison, verdict="not_comparable", ratio=None, trials_needed=None, reasons=reasons)
    limitations = [] if good else [f"the validity of the ratio is {assessment.validity}: {why}"]
    if not holds and comparison.verdict != "not_shown":
        limitations.append(
            f"without what other programs cost one side it may be {low:.3f} to {high:.3f}: across the margin"
        )
    verdict = comparison.verdict if holds else "not_shown"
    needed = comparison.trials_needed if good or ratio == comparison.ratio else None  # more leave what made it wider
    return replace(
        comparison, ratio=ratio, verdict=verdict, reasons=(*comparison.reasons, *limitations), trials_needed=needed
    )


def _leads(ratio: Estimate, assessment: RatioAssessment, margin: float, step: float, independent: bool) -> bool:
    """Whether the candidate is the faster one though its ratio is of low validity, or its trials too few for a verdict.

    It is if the lower end of an interval twice as wide is above the margin, or if each of so many independent pairs
    agrees that chance does so once in a hundred runs: where every other trial starves, an interval shows nothing. With
    one trial, the ratio must exceed `step`: of 208 stored neighbouring trials of one configuration on CPUs 30 % were
    more than 1.2 apart and 2 % more than 2, of 281 on GPUs 5 % more than 1.2. Where a slowdown is unknown, only its
    upper bound counts.
    """
    if not assessment.bias:
        return assessment.least > assessment.uncertainty
    least = assessment.least / assessment.uncertainty
    low = ratio.low**2 / ratio.value if ratio.low is not None else min(ratio.value, least) / step
    return max(low, least if ratio.n >= MIN_SIGNS and independent else 0.0) > 1 + margin


def assess_result(
    result: Result,
    baseline: Result | None,
    *,
    margin: float = MARGIN,
    is_reference: bool = False,
    requested: Iterable[Precision | None] = (),
) -> Assessment:
    """Assess what the samples and the outputs of a configuration show, also of one that failed or was skipped.

    Args:
        baseline: what `speedup` is taken against; `result` itself gives 1; None: nothing.
        is_reference: whether others were compared with its outputs.
        requested: the precisions of all configurations of the run.
    """
    result = condense_result(result)
    measured = _list_measured(result)
    validity, warnings = assess_samples(measured)
    clocks: list[Clock] = sorted({m.clock for m in measured})
    base = baseline if measured else None
    comparison = compare_configurations(base, result, margin) if base and base.id != result.id else None
    speedup = comparison.ratio if comparison else None
    if base and comparison is None:
        method = "the baseline itself"
        speedup = Estimate(value=1.0, low=1.0, high=1.0, level=0.95, n=len(measured), method=method)
    outputs, outputs_reason = assess_outputs(result, is_reference=is_reference, requested=requested)
    return Assessment(
        result=result,
        summary=result.summary,
        validity=validity,
        warnings=tuple(warnings) if measured else (),
        clock=clocks[0] if clocks else None,
        modelled="modelled" in clocks,
        baseline=base.id if base else None,
        comparison=comparison,
        speedup=speedup,
        agreement=_find_agreement(result.drift),
        outputs=outputs,
        outputs_reason=outputs_reason,
        is_reference=is_reference,
        hides_work=bool(measured) and hides_work(measured),
    )


def _list_measured(result: Result) -> list[Measurement]:
    return [m for m in result.measurements if m.latency_ns]


def _find_agreement(drift: Drift | None) -> Agreement:
    outputs = drift.outputs if drift else ()

    def worst(name: str, choose: Callable[..., float | None] = min) -> float | None:
        return choose((v for o in outputs if (v := getattr(o, name)) is not None), default=None)

    return Agreement(
        max_abs_diff=worst("max_abs_diff", max),
        cosine=worst("cosine_mean"),
        centred_cosine=worst("centred_cosine_mean"),
        top1_agreement=worst("top1_agreement"),
        shared_decisions=worst("agreement"),
        nonfinite=sum(o.broken for o in outputs),
        outputs_agree=drift.passed if drift and not drift.unlike else None,
    )
