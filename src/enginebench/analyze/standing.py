"""What one row of a run says: its samples, its outputs, and its times beside those of its baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.alike import judge_outputs
from enginebench.analyze.compare import Comparison, comparable, compare, find_level
from enginebench.analyze.summary import Summary, summarize
from enginebench.analyze.validity import hides_work, judge, judge_ratio
from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine, show_engine
from enginebench.core.records import (
    Caveat,
    Clock,
    Drift,
    Estimate,
    Measurement,
    Outputs,
    RatioValidity,
    Result,
    Validity,
    Verdict,
)
from enginebench.core.shapes import find_size

# Percentiles that every summary has; others are asked for.
_USUAL = (50.0, 90.0, 95.0, 99.0)


class Agreement(Struct, frozen=True, kw_only=True):
    """How far the outputs of a row lie from the reference's: of several outputs, the worst; None: not compared."""

    max_abs_diff: float | None = None
    cosine: float | None = None
    centred_cosine: float | None = None
    top1_agreement: float | None = None
    agreement: float | None = None  # share of the reference's decisions that the row shares
    nonfinite: int = 0
    outputs_agree: bool | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """A result with all that is derived from it and its baseline."""

    result: Result
    summary: Summary | None  # None: no samples
    validity: Validity
    doubts: tuple[Caveat, ...]  # that the samples raise
    clock: Clock | None
    modelled: bool
    baseline: str | None  # id of the row that `speedup` is taken against
    comparison: Comparison | None  # with the baseline; None for the baseline itself
    speedup: Estimate | None
    ratio_validity: RatioValidity | None  # of `speedup`; None: there is none
    ratio_reason: str  # why it is not `good`
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
        """Rows that an answer holds against each other have this in common."""
        return find_setting(self.result)


def find_setting(result: Result) -> tuple[object, ...]:
    """(batch, shapes, scope, cache): rows that differ in one of them are never held against each other."""
    return *find_size(result.engine), result.measure.scope, result.measure.cache


def find_baseline(result: Result, results: Iterable[Result], engine: str = "pytorch") -> Result | None:
    """The row that `result` is compared to: `engine` in FP32 with the same batch, scope and cache, else the first.

    Only rows with samples count. Options of the engine do not: plain `pytorch` comes before `pytorch:x=y`. A row that
    was relabelled FP32 is none: its graph is still in the shorter precision.
    """
    group = [r for r in results if find_setting(r) == find_setting(result) and _list_measured(r)]
    fp32 = [r for r in group if is_plain_fp32(r)]
    named = [r for r in fp32 if engine in (r.engine.backend, format_engine(r.engine))]
    named.sort(key=lambda r: (format_engine(r.engine) != engine, len(r.engine.options)))
    return named[0] if named else (group[0] if group else None)


# What a user runs without EngineBench, first found first: a module by PyTorch as it is (on a GPU that allows TF32), a
# graph by ONNX Runtime. None: any precision.
TODAY = (("pytorch:defaults=1", None), ("pytorch", "tf32"), ("pytorch", "fp32"), ("pytorch", None))
TODAY_OF_GRAPH = (("ort-cuda", "fp32"), ("ort-cuda", None), ("ort", "fp32"), ("ort", None))


def find_today(group: Sequence[Result], engine: str = "pytorch") -> tuple[Result | None, str]:
    """(row of one setting that its headline is against, or None and why there is none).

    What the user runs today, or the baseline that was named.
    """
    measured = [r for r in group if _list_measured(r) and r.status != "failed"]
    wanted = TODAY + TODAY_OF_GRAPH if engine == "pytorch" else ((engine, "fp32"), (engine, None)) if engine else ()
    for name, precision in wanted:
        for r in measured:
            if format_engine(r.engine) == name and precision in (None, r.requested_precision):
                return r, ""
        failed = next((r for r in group if r.status == "failed" and format_engine(r.engine) == name), None)
        if failed and precision is None:
            return None, f"{name_result(failed)} failed"
    return (measured[0] if measured else None), ""


def name_result(result: Result) -> str:
    """`openvino fp32`, `ort int8 (cpu)`."""
    engine = result.engine
    return show_engine(format_engine(engine), engine.precision, engine.recipe, engine.mix)


def weigh_ratio(found: Comparison | None, base: Result, cand: Result) -> tuple[RatioValidity | None, str]:
    """(validity of the ratio of two rows, why it is not `good`); None: there is no ratio."""
    if found is None or found.ratio is None:
        return None, "; ".join(found.reasons) if found else ""
    return judge_ratio(_list_measured(base), _list_measured(cand), found.ratio, (name_result(base), name_result(cand)))


def refuse_ratio(found: Comparison, base: Result, cand: Result) -> Comparison:
    """The comparison with the validity of its ratio; without ratio and verdict where others slowed one side alone."""
    validity, why = weigh_ratio(found, base, cand)
    if validity == "not_given":
        reasons = (why, *found.reasons)
        return replace(found, verdict="not_comparable", ratio=None, ratio_validity=validity, reasons=reasons)
    doubts = [f"the validity of the ratio is {validity}: {why}"] if validity in ("low", "medium") else []
    return replace(found, ratio_validity=validity, reasons=(*found.reasons, *doubts))


def is_plain_fp32(result: Result) -> bool:
    """Whether FP32 was asked for and ran; a row that was relabelled FP32 holds a graph of a shorter precision."""
    return result.engine.precision == result.requested_precision == "fp32"


def compare_rows(base: Result, cand: Result, margin: float) -> Comparison:
    """The comparison of two rows of one run; `not_comparable` with the reasons where they are unlike."""
    reasons = comparable(base, cand, margin, neighbours=True)
    if reasons:
        return Comparison(verdict="not_comparable", ratio=None, reasons=tuple(reasons), margin=margin)
    looks = [row.look for row in (base, cand) if row.look is not None]
    level, trials = find_level(base, cand), min(looks, default=None)
    return compare(base.measurements, cand.measurements, margin=margin, level=level, trials=trials)


def weigh(result: Result, baseline: Result | None, *, margin: float = MARGIN, is_reference: bool = False) -> Standing:
    """What the samples and the outputs of a row say.

    Args:
        result: with whatever was measured, also failed or skipped.
        baseline: what `speedup` is taken against; `result` itself gives 1; None: nothing.
        margin: for the verdict.
        is_reference: whether others were compared with its outputs.
    """
    measured = _list_measured(result)
    asked = [p for p in result.measure.percentiles if p not in _USUAL and 0 < p < 100]
    validity, doubts = judge(measured)
    clocks: list[Clock] = sorted({m.clock for m in measured})
    base = baseline if measured else None
    found = compare_rows(base, result, margin) if base and base.id != result.id else None
    ratio_validity, ratio_reason = weigh_ratio(found, base, result) if found and base else (None, "")
    outputs, outputs_reason = judge_outputs(result, is_reference=is_reference)
    return Standing(
        result=result,
        summary=(
            summarize(measured, batch=result.engine.batch, percentiles=asked, level=find_level(result))
            if measured
            else None
        ),
        validity=validity,
        doubts=tuple(doubts) if measured else (),
        clock=clocks[0] if clocks else None,
        modelled="modelled" in clocks,
        baseline=base.id if base else None,
        comparison=found,
        speedup=found.ratio if found else _give_one(len(measured)) if base else None,
        ratio_validity=ratio_validity,
        ratio_reason=ratio_reason,
        agreement=_find_agreement(result.drift),
        outputs=outputs,
        outputs_reason=outputs_reason,
        is_reference=is_reference,
        hides_work=bool(measured) and hides_work(measured),
    )


def _list_measured(result: Result) -> list[Measurement]:
    return [m for m in result.measurements if m.latency_ns]


def _give_one(k: int) -> Estimate:
    return Estimate(value=1.0, low=1.0, high=1.0, level=0.95, n=k, method="the baseline itself")


def _find_agreement(drift: Drift | None) -> Agreement:
    outputs = drift.outputs if drift else ()
    return Agreement(
        max_abs_diff=_worst((o.max_abs_diff for o in outputs), max),
        cosine=_worst((o.cosine_mean for o in outputs), min),
        centred_cosine=_worst((o.centred_cosine_mean for o in outputs), min),
        top1_agreement=_worst((o.top1_agreement for o in outputs), min),
        agreement=_worst((o.agreement for o in outputs), min),
        nonfinite=sum(o.nonfinite for o in outputs),
        outputs_agree=drift.passed if drift and not drift.unlike else None,
    )


def _worst(values: Iterable[float | None], choose: Callable[[list[float]], float]) -> float | None:
    known = [v for v in values if v is not None]
    return choose(known) if known else None
