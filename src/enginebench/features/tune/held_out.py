"""A figure of drift with its interval over samples, held against its limit: kept, and shown to be kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from enginebench.core.records import Estimate, OutputDrift, Score, Task
from enginebench.stats.drift import LIMITS, SampleDrift, keeps_limits, measure_drift, measure_samples, scale_alike
from enginebench.stats.metrics.metric import Metric, average
from enginebench.stats.metrics.scores import score_counts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Array

# Limits on a mean over samples, and the figure of one sample.
_MEANS = {
    "cosine": "cosine",
    "centred_cosine": "centred_cosine",
    "mean_abs": "mean_abs_diff",
    "mean_rel": "mean_rel_diff",
    "top1": "top1_agrees",
    "top5": "top5_agrees",
    "agreement": "agreement",
}


class Held(Struct, frozen=True, kw_only=True):
    """One limit, and what held-out samples show of it: `kept` by the value, `shown` by its whole interval."""

    limit: str
    bound: float
    value: Estimate | None  # of the worst output; None: it has no such figure
    kept: bool
    shown: bool


def hold_out(
    reference: Mapping[str, Array], answers: Mapping[str, Array], limits: Mapping[str, float], task: Task | None = None
) -> tuple[Held, ...]:
    """Every limit, held against replies to samples that nothing was chosen by; arguments as in `measure_drift`.

    Raises:
        FeedError: names, shapes or dtypes differ.
        UsageError: a limit is unknown.
    """
    drift = measure_drift(reference, answers, limits, task=task)
    samples = measure_samples(reference, answers, task)
    return tuple(_hold(name, bound, drift.outputs, samples, reference, answers) for name, bound in limits.items())


def hold_score(score: Score, drop: float) -> Held:
    """The change of a metric against the reference, held against what may be lost of it.

    Args:
        score: with its paired difference to the reference; without one nothing is kept.
        drop: in the metric's own unit.
    """
    bound = -drop if score.higher_is_better else drop
    delta, name = score.delta, f"change of {score.metric}"
    if delta is None:
        return Held(limit=name, bound=bound, value=None, kept=False, shown=False)
    if score.higher_is_better:
        kept, shown = delta.value >= bound, delta.low is not None and delta.low >= bound
    else:
        kept, shown = delta.value <= bound, delta.high is not None and delta.high <= bound
    return Held(limit=name, bound=bound, value=delta, kept=kept, shown=kept and shown)


def _hold(
    name: str,
    bound: float,
    outputs: Sequence[OutputDrift],
    samples: Sequence[SampleDrift],
    reference: Mapping[str, Array],
    answers: Mapping[str, Array],
) -> Held:
    decided = name != "agreement" or any(output.agreement is not None for output in outputs)
    kept = decided and all(keeps_limits(output, {name: bound}) for output in outputs)
    more_is_better = LIMITS[name][1]
    found = [
        estimate for output in outputs if (estimate := _estimate(name, output, samples, reference, answers)) is not None
    ]
    worst = (min if more_is_better else max)(found, key=lambda estimate: estimate.value, default=None)
    end = None if worst is None else worst.low if more_is_better else worst.high
    shown = kept and (worst is None or (end is not None and (end >= bound if more_is_better else end <= bound)))
    return Held(limit=name, bound=bound, value=worst, kept=kept, shown=shown)


def _estimate(
    name: str,
    output: OutputDrift,
    samples: Sequence[SampleDrift],
    reference: Mapping[str, Array],
    answers: Mapping[str, Array],
) -> Estimate | None:
    if getattr(output, LIMITS[name][0]) is None or output.nonfinite:
        return None
    if output.decisions == "boxes" and name not in ("max_abs", "cosine_min", "agreement"):  # of partners alone
        return None
    if name == "snr":
        columns = _add_powers(reference[output.name], answers[output.name])
        return score_counts(Metric(name=name, share=False, finish=_take_decibels), columns).value
    if name in _MEANS:
        values = [getattr(sample, _MEANS[name]) for sample in samples if sample.output == output.name]
        known = [float(value) for value in values if value is not None]
        return score_counts(Metric(name=name, share=False), average(known)).value if known else None
    extreme = getattr(output, LIMITS[name][0])  # of the worst sample: no draw of samples says how bad another may be
    return Estimate(value=extreme, low=None, high=None, level=0.95, n=len(samples), method="extreme", supported=False)


def _add_powers(reference: Array, answers: Array) -> NDArray[np.float64]:
    """Power of the signal and of the difference, sample by sample."""
    ref, cand = scale_alike(*(np.asarray(a, np.float64).reshape(len(a), -1) for a in (reference, answers)))
    return np.stack([(ref**2).sum(axis=1), ((ref - cand) ** 2).sum(axis=1)], axis=1)


def _take_decibels(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: NDArray[np.float64] = 10 * np.log10(sums[..., 0] / sums[..., 1])
    return ratio
