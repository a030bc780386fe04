"""The headline of one batch and shape as a record: the configuration to use, its baseline, its ratio and validity."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from enginebench.core.entry import EAGER
from enginebench.core.records import Estimate, Measurement, Outputs, RatioValidity, Result, Validity
from enginebench.core.shapes import format_bucket
from enginebench.stats.assessment import Assessment, compare_configurations, find_today, is_plain_fp32
from enginebench.stats.compare import MIN_TRIALS, NOUNS, Comparison, Times, choose_clock
from enginebench.stats.drift import FULL, default_limits, find_kept, keeps_limits, list_exceeded
from enginebench.stats.quantiles import median
from enginebench.stats.validity import SPEED_RATIO, WIDE_RATIO, find_worst

# `only`: one configuration was measured. `none_agrees`: all that is faster than the baseline changes the outputs.
# `searched`: a search recommends it; the proof is in the search's own document.
State = Literal["fastest", "tie", "baseline", "none_agrees", "only", "searched"]
# The reason to take one of several whose every trial was faster than all of theirs.
ALWAYS_FASTER = "was faster in every trial"
# Among configurations of one speed the outputs decide, the surest first.
_SURE: tuple[Outputs, ...] = ("same", "within_limits", "not_judged", "changed")


class Rejected(Struct, frozen=True, kw_only=True):
    """A configuration that would have been faster, and the reason why it is not named."""

    id: str
    ratio: Estimate | None  # against the headline's baseline
    reason: str
    limit: str = ""  # as `--limit` takes it: one that its outputs would keep


class Behind(Struct, frozen=True, kw_only=True):
    """A configuration that took longer in the few trials so far, from which no verdict follows."""

    id: str
    factor: float  # its time over that of the configuration that is named
    n: int  # trials (or builds) that both have
    unit: str  # what `n` counts: "trials" or "builds"


class Excesses(Struct, frozen=True, kw_only=True):
    """The figures of a configuration that are beyond the limits of the user."""

    p99_ms: float | None = None  # None: within the limit, or there is none
    needs: tuple[str, ...] = ()  # each with its verb: `takes 612 MB of memory; needed: 512 MB`

    def list_reasons(self) -> list[str]:
        if self.p99_ms is None:
            return [*self.needs]
        shown = f"{self.p99_ms:.3g}" if self.p99_ms < 1000 else f"{self.p99_ms:,.0f}"
        return [f"has a p99 of {shown} ms, beyond the limit", *self.needs]


class Headline(Struct, frozen=True, kw_only=True):
    """The content of `USE`, `OUTPUTS` and `TRUST`."""

    batch: int
    shapes: str  # that were asked for, where a run has several
    scope: str
    cache: str
    state: State
    id: str
    baseline: str | None  # what the user runs today, or named as --baseline
    is_today: bool  # it is what the user runs today
    ratio: Estimate | None  # to the baseline; None: not given
    ratio_validity: RatioValidity | None
    ratio_reason: str  # why it is not `good`, or not given
    strict: str | None  # strict FP32, where the baseline is another configuration
    strict_ratio: Estimate | None
    tied_with: tuple[str, ...]  # no significant difference to them
    behind: tuple[Behind, ...]  # of these, those that took much longer in the few trials that there are
    equivalent: bool  # to all of these, within the margin
    tie_reason: str  # why it is unknown which of these is faster; empty: by their ratios none clearly is
    choice: tuple[str, ...]  # why it was taken among those, each with its verb: `is smaller`
    outputs: Outputs
    outputs_reason: str
    rejected: Rejected | None
    refused: tuple[str, ...] = ()  # all that may not be named, whatever their times
    keeps_p99: bool  # False: no configuration keeps the limit of p99
    unmet: tuple[str, ...] = ()  # needs that this configuration does not meet, because none meets all
    for_calls: int | None = None  # its times and ratio are of a new process with so many calls; None: of one call
    total_ms: Estimate | None = None  # of that process, from importing the engine to its last output
    validity: Validity  # the worst of the absolute times of this configuration and of the baseline
    disturbed: int  # of `measured` configurations, those whose absolute times are not valid
    measured: int

    @property
    def near(self) -> tuple[str, ...]:
        """Those of `tied_with` that did not take much longer."""
        slower = {one.id for one in self.behind}
        return tuple(name for name in self.tied_with if name not in slower)


def order_by_speed(assessments: Sequence[Assessment]) -> list[Assessment]:
    """Order the configurations of one setting that a headline may name, fastest first.

    An interrupted one counts with the trials that it has: without it a slower one would be named. Modelled ones only if
    there are no others; never one whose times are those of a part of the work.
    """
    timed = [
        assessment
        for assessment in assessments
        if assessment.summary and not assessment.hides_work and assessment.result.status != "failed"
    ]
    whole = [assessment for assessment in timed if not assessment.modelled] or timed
    times = _measure_together(whole)
    return sorted(whole, key=lambda assessment: times[assessment.result.id])


def _measure_together(assessments: Sequence[Assessment]) -> dict[str, float]:
    """Return times to sort by: over the trials that all have, since one with fewer trials saw other disturbances.

    By a clock that all share (trtexec's own leaves out the launch), else by the ratio to the baseline; without one,
    last.
    """
    common = choose_clock([m for assessment in assessments for m in assessment.result.measurements], ())[1]
    clock = next(
        (assessment.clock for assessment in assessments if assessment.result.id == assessment.baseline),
        assessments[0].clock if assessments else None,
    )
    medians = {
        assessment.result.id: {m.trial: _find_median(m, common) for m in assessment.result.measurements if m.latency_ns}
        for assessment in assessments
        if common or assessment.clock == clock
    }
    shared = set[int].intersection(*(set(by_trial) for by_trial in medians.values())) if medians else set()
    times = {
        configuration_id: math.fsum(math.log(by_trial[i] or 1.0) for i in shared or by_trial) / len(shared or by_trial)
        for configuration_id, by_trial in medians.items()
    }
    for assessment in assessments:
        compared = assessment.speedup is not None and assessment.baseline in times
        position = (
            times[str(assessment.baseline)] - math.log(assessment.speedup.value)
            if assessment.speedup and compared
            else math.inf
        )
        times.setdefault(assessment.result.id, position)
    return times


def _find_median(measurement: Measurement, times: Times | None) -> float:
    return median((times and times(measurement)) or measurement.latency_ns)


def choose_agreeing(ranked: Sequence[Assessment]) -> list[Assessment]:
    """Return the configurations whose outputs are not known to be changed; those never compared only if all others
    changed."""
    compared = [assessment for assessment in ranked if assessment.outputs != "changed" and not assessment.uncompared]
    return compared or [assessment for assessment in ranked if assessment.outputs != "changed"]


def make_headline(
    group: Sequence[Assessment],
    chosen: Sequence[Assessment],
    reasons: dict[str, str],
    engine: str,
    margin: float,
    *,
    scored: str = "",
    excesses: Mapping[str, Excesses] = {},
    for_calls: int | None = None,
) -> Headline:
    """Make the headline of one setting.

    Args:
        chosen: those that may be named, fastest first; not empty.
        engine: the baseline that was named; `EAGER`: none.
        scored: the metric by which they were chosen; "": by their outputs alone.
        excesses: of those whose outputs are accepted, by id; empty: there is none.
        for_calls: the times are those of a new process with so many calls each; None: of single calls.
    """
    ranked = order_by_speed(group)
    baseline = find_today([one.result for one in group], engine)
    today = baseline.result
    equal, equivalent, _ = _find_ties(chosen[0], chosen, margin)
    kept = today if baseline.owned or engine != EAGER else None  # not what is merely the first
    named = _choose_among_equals(equal, kept, margin, equivalent=equivalent)
    # Ties are not transitive: what counts is who ties with the one that is named, not with the fastest.
    (_, *tied), equivalent, unknown = _find_ties(named, chosen, margin)
    behind = [slower for one in tied if (slower := _find_behind(one, named, margin)) is not None]
    near = [one for one in tied if one.result.id not in {slower.id for slower in behind}]
    is_today = today is not None and today.id == named.result.id
    comparison = _compare_with(today, named, margin)
    if is_today:  # then the next one's ratio shows how it compares
        comparison = next((_compare_with(today, one, margin) for one in ranked if one is not named), None)
    rank = [one.result.id for one in ranked].index(named.result.id)
    faster = next((one for one in ranked[:rank] if one.result.id in reasons), None)
    strict = next((one for one in group if one.result.id == named.baseline and is_plain_fp32(one.result)), None)
    plain = today is None or is_plain_fp32(today)  # FP32 stands beside today's itself then
    other = strict is not None and not plain and strict.result.id != named.result.id
    measured = [one for one in group if one.summary]
    excess = excesses.get(named.result.id)
    outputs, outputs_reason = _assess_named_outputs(named, group, scored)
    alone = faster is not None and faster.outputs == "changed" and len(chosen) == 1
    return Headline(
        batch=named.result.engine.batch,
        shapes=format_bucket(named.result.engine),
        scope=named.result.measure.scope,
        cache=named.result.measure.cache,
        state=_find_state(measured=len(measured), tied=bool(tied), is_today=is_today, alone=alone),
        id=named.result.id,
        baseline=today.id if today else None,
        is_today=baseline.owned,
        ratio=comparison.ratio if comparison and not is_today else None,
        ratio_validity=comparison.ratio_validity if comparison else None,
        ratio_reason=baseline.lost or _explain_ratio(comparison),
        strict=strict.result.id if strict and other else None,
        strict_ratio=named.speedup if other else None,
        tied_with=tuple(one.result.id for one in tied),
        equivalent=equivalent,
        tie_reason=unknown,
        behind=tuple(behind),
        choice=_format_choice(named, near, is_today),
        outputs=outputs,
        outputs_reason=outputs_reason,
        keeps_p99=excess is None or excess.p99_ms is None,
        unmet=excess.needs if excess is not None else (),
        refused=tuple(reasons),
        for_calls=for_calls,
        total_ms=named.summary.p50 if named.summary and for_calls is not None else None,
        rejected=_reject(faster, today, reasons, margin, scored) if faster is not None else None,
        validity=find_worst(one.validity for one in measured if one.result.id in (named.result.id, today and today.id)),
        disturbed=sum(one.validity != "valid" for one in measured),
        measured=len(measured),
    )


def _reject(faster: Assessment, today: Result | None, reasons: dict[str, str], margin: float, scored: str) -> Rejected:
    """Return a configuration that is faster than the named one, with the reason why it is not named."""
    comparison = _compare_with(today, faster, margin)
    return Rejected(
        id=faster.result.id,
        ratio=comparison.ratio if comparison else None,
        reason=reasons[faster.result.id],
        limit=_find_cure(faster.result) if faster.outputs == "changed" and not scored else "",
    )


def _choose_among_equals(
    equal: Sequence[Assessment], kept: Result | None, margin: float, *, equivalent: bool
) -> Assessment:
    """Choose among equals the one that the user has, else the most certain outputs; then the lowest median.

    Never one that another beats in every trial or is clearly faster than, unless they are equivalent; nor one that took
    much longer than the fastest in the few trials that there are.
    """
    left = list(equal)
    if not equivalent:
        left = [one for one in equal if not any(_always_beats(other, one) for other in equal)]
        left = [one for one in left if _find_behind(one, equal[0], margin) is None]
        left = [one for one in left if not any(_is_clearly_faster(other, one, margin) for other in equal)]
    return min(left or equal[:1], key=lambda one: (kept is None or one.result.id != kept.id, _SURE.index(one.outputs)))


def _is_clearly_faster(assessment: Assessment, other: Assessment, margin: float) -> bool:
    return assessment is not other and compare_configurations(other.result, assessment.result, margin).clear


def _find_behind(assessment: Assessment, best: Assessment, margin: float) -> Behind | None:
    """Return by how much a row was behind another in few trials; None: by no more than a speed state explains."""
    comparison = compare_configurations(assessment.result, best.result, margin)
    if (
        assessment is best
        or comparison.ratio is None
        or comparison.ratio.n >= MIN_TRIALS
        or comparison.ratio.value <= SPEED_RATIO
    ):
        return None
    return Behind(
        id=assessment.result.id, factor=comparison.ratio.value, n=comparison.ratio.n, unit=NOUNS[comparison.unit]
    )


def _find_state(*, measured: int, tied: bool, is_today: bool, alone: bool) -> State:
    """Return the kind of headline. `alone`: all that is faster than the one that may be used changes the outputs."""
    if measured == 1:
        return "only"
    if tied:
        return "tie"
    if not is_today:
        return "fastest"
    return "none_agrees" if alone else "baseline"


def _find_cure(result: Result) -> str:
    """Return the limit that would accept changed outputs; "" where they are wrong, not rounded.

    They are wrong if the graph itself has other outputs in the same precision, or if FP32 or TF32 is further from the
    reference than FP16 may be.
    """
    drift = result.drift
    if drift is None or any(warning.code == "outputs_differ" for warning in result.warnings):
        return ""
    rounding = default_limits("fp16")
    if result.requested_precision in FULL and not all(keeps_limits(output, rounding) for output in drift.outputs):
        return ""
    return find_kept(drift)


def _assess_named_outputs(assessment: Assessment, group: Sequence[Assessment], scored: str) -> tuple[Outputs, str]:
    """Return the verdict on the outputs of the named configuration; a metric within its limit outweighs the outputs."""
    if scored and assessment.outputs != "same":
        return "within_limits", f"{scored} is within its limit"
    others = (one.result.drift for one in group if one.result.id != assessment.result.id)
    compared = any(drift and drift.reference == assessment.result.id for drift in others)
    if assessment.outputs == "same" and assessment.is_reference and not compared:
        return "not_judged", "nothing was compared with it"
    return assessment.outputs, assessment.outputs_reason


def _find_ties(first: Assessment, chosen: Sequence[Assessment], margin: float) -> tuple[list[Assessment], bool, str]:
    """Return (the first and those of `chosen` that it is not clearly faster than, whether all are equivalent to it, why
    a ratio is not given)."""
    comparisons = [
        (assessment, compare_configurations(assessment.result, first.result, margin))
        for assessment in chosen
        if assessment is not first
    ]
    tied = [
        (assessment, one) for assessment, one in comparisons if not one.clear and not _is_ahead(first, assessment, one)
    ]
    unknown = next((_explain_ratio(one) for _, one in tied if one.ratio is None), "")
    return (
        [first, *(assessment for assessment, _ in tied)],
        all(one.verdict == "equivalent" for _, one in tied),
        unknown,
    )


def _is_ahead(assessment: Assessment, other: Assessment, comparison: Comparison) -> bool:
    """Whether the first is the faster one though no verdict shows it.

    For unlike ones (devices, clocks) the ratio is unknown, but one may be faster in every trial. With few trials the
    interval is so wide that thirteen times as slow would be a tie: there each trial must be twofold ahead.
    """
    if comparison.ratio_validity is None:
        return _always_beats(assessment, other)
    few = comparison.ratio is not None and comparison.ratio.n < MIN_TRIALS
    return few and _always_beats(assessment, other, WIDE_RATIO)


def _always_beats(assessment: Assessment, other: Assessment, step: float = 1.0) -> bool:
    """Whether its slowest trial is faster than the fastest one of the other, by more than `step`.

    With one trial each, which a disturbance alone may set apart, by at least a factor of two.
    """
    times = choose_clock(assessment.result.measurements, other.result.measurements)[1]
    sides = [[_find_median(m, times) for m in one.result.measurements if m.latency_ns] for one in (assessment, other)]
    if min(map(len, sides)) == 1:
        step = WIDE_RATIO
    return max(sides[0]) * step < min(sides[1])


def _format_choice(assessment: Assessment, tied: Sequence[Assessment], is_today: bool) -> tuple[str, ...]:
    """Format why this one of several equals is named; a start or a size is a reason where noise does not explain it."""
    if not tied:
        return ()
    if is_today:
        return ("is what you have",)
    if all(_always_beats(assessment, one) for one in tied):
        trials = min(len([m for m in one.result.measurements if m.latency_ns]) for one in (assessment, *tied))
        lead = ALWAYS_FASTER if trials > 1 else "was much faster in the one trial of each"
        clocks = {m.clock for one in (assessment, *tied) for m in one.result.measurements}
        return (f"{lead} by the device clock of all" if len(clocks) > 1 else lead,)
    reasons = []
    if assessment.outputs == "same" and any(one.outputs != "same" for one in tied):
        reasons.append("keeps the same outputs")
    size, sizes = assessment.result.size_bytes, [one.result.size_bytes for one in tied]
    if size and all(other and size * SPEED_RATIO <= other for other in sizes):
        reasons.append("is smaller")
    start, starts = find_start_s(assessment.result), [find_start_s(one.result) for one in tied]
    if start and all(other and start * SPEED_RATIO <= other for other in starts):
        reasons.append(f"starts sooner ({start:.2g} s against {min(other or 0.0 for other in starts):.2g})")
    return tuple(reasons) or ("has the lowest median",)


def find_start_s(result: Result) -> float | None:
    """Return the seconds from loading to the first output in a new process: the median over the trials."""
    pairs = [(m.load_s, m.first_run_s) for m in result.measurements]
    starts_s = [load_s + first_s for load_s, first_s in pairs if load_s is not None and first_s is not None]
    return median(starts_s) if starts_s else None


def _compare_with(today: Result | None, assessment: Assessment, margin: float) -> Comparison | None:
    if today is None or today.id == assessment.result.id:
        return None
    return (
        assessment.comparison
        if today.id == assessment.baseline
        else compare_configurations(today, assessment.result, margin)
    )


def _explain_ratio(comparison: Comparison | None) -> str:
    """Explain why a ratio is not good, or why there is none."""
    if comparison is None:
        return ""
    return comparison.ratio_reason if comparison.ratio_validity else "; ".join(comparison.reasons)


def format_change(assessment: Assessment) -> str:
    """Format how outputs change: `changes 12 of 1000 predictions` where these are too many, else by the differences."""
    if drift := assessment.result.drift:
        flips = max((output.flips for output in drift.outputs if output.flips), default=0)
        if flips > (1 - drift.limits.get("agreement", 0.0)) * drift.n:
            return f"changes {flips} of {drift.n} predictions"
        if reasons := list_exceeded(drift):  # the warnings of the configuration have all
            return f"changes the outputs ({reasons[0].short})"
    return f"changes the outputs ({assessment.outputs_reason})"
