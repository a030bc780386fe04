"""Who may race: settings that were built, answered, and whose answers are as good as the limits ask."""

from __future__ import annotations

from collections.abc import Mapping

from enginebench.analyze.drift import keeps_limits, tell_broken
from enginebench.analyze.metrics.scores import find_drop, find_score, loses_too_much, measure_loss
from enginebench.core.records import Drift, Result
from enginebench.workflow.campaign import has_answered


def find_refusal(
    result: Result,
    reference: Result | None,
    *,
    max_drop: float | None = None,
    limits: Mapping[str, float] | None = None,
) -> str | None:
    """Why a row may not race; None if it may.

    Where the reference has a score, the score decides, as for the recommended row of a run; limits of drift that the
    user named hold beside it. Else the drift decides.

    Args:
        result: the row, built and checked.
        reference: the row that its answers were compared with, if there is one.
        max_drop: what may be lost of the metric; None: the usual.
        limits: of drift, by name; None: those of the precision, which were applied when the answers were compared.
    """
    if not has_answered(result):
        return result.reason or result.status
    if reference is None:
        return "its answers could not be compared with the reference's"
    if result.id == reference.id:
        return None
    scored = bool(find_score(reference.scores))
    lost = _find_loss(result, reference, max_drop) if scored else None
    return lost or _find_drift(result.drift, limits, by_score=scored)


def _find_loss(result: Result, reference: Result, max_drop: float | None) -> str | None:
    base = find_score(reference.scores)
    assert base is not None
    score = find_score(result.scores, base.metric)
    if score is None:
        return f"it has no {base.metric}"
    if not loses_too_much(base, score, max_drop):
        return None
    return (
        f"{base.metric} {score.value.value:.4g} against {base.value.value:.4g}: "
        f"it loses {measure_loss(base, score):.3g}, and may lose {find_drop(base, max_drop):.3g}"
    )


def _find_drift(drift: Drift | None, limits: Mapping[str, float] | None, *, by_score: bool) -> str | None:
    if drift is None:
        return None
    if drift.unlike:
        return f"its answers cannot be compared: {'; '.join(drift.unlike)}"
    if any(output.nonfinite for output in drift.outputs):
        return "its answers are not finite"
    if limits is not None:
        kept = all(keeps_limits(output, limits) for output in drift.outputs)
        held = limits
    else:
        kept, held = drift.passed or by_score, drift.limits
    return None if kept else f"its answers differ too much: {_describe(drift, held)}"


def _describe(drift: Drift, limits: Mapping[str, float]) -> str:
    """The limits that an output does not keep, and the figure that was held against each."""
    broken = [(output, tell_broken(output, limits)) for output in drift.outputs]
    several = len(drift.outputs) > 1
    told = [f"{o.name}: {text}" if several else text for o, texts in broken for text in texts.values()]
    if any("centred_cosine" in texts for _, texts in broken):
        return ", ".join(told)
    centred = [o.centred_cosine_mean for o in drift.outputs if o.centred_cosine_mean is not None]
    seen = f" (centred cosine {min(centred):.4f})" if centred else ""
    return f"{', '.join(told) or 'the limits'}{seen}"
