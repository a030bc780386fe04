"""Score a configuration's stored outputs, with the differences from the reference's scores."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Score, Task
from enginebench.runs.child.arrays import COUNTS, FAILURE, OUTPUTS, find_common, load_arrays
from enginebench.runs.child.isolate import child_environment, run_child
from enginebench.runs.child.jobs import Labelled, MetricsJob, ScoreJob
from enginebench.stats.metrics.metric import Facts, Metric, Targets
from enginebench.stats.metrics.scores import score_counts
from enginebench.stats.metrics.tasks import BUILTIN, TASK_METRICS

# A user's metric is called hundreds of times, and may take seconds each time.
SCORE_TIMEOUT_S = 6 * 3600.0


def choose_metrics(named: Sequence[str], task: Task | None) -> tuple[str, ...]:
    """Choose the metrics: the named ones, else those of the task, else those of a classifier."""
    for name in named:
        module, _, attribute = name.partition(":")
        if name not in BUILTIN and not (module and attribute):
            raise UsageError(f"--metric {name!r}: expected package.module:function, or one of {', '.join(BUILTIN)}")
    return tuple(dict.fromkeys(named)) or TASK_METRICS[task or "classification"]


class Scoring(Struct, frozen=True, kw_only=True):
    """Labelled samples, and the facts of the metrics that score the outputs for them."""

    labelled: Labelled
    metrics: tuple[Facts, ...]
    requested: bool = True  # by the user; else a model that the metrics do not fit has no score


def open_metrics(labelled: Labelled) -> tuple[Facts, ...]:
    """Read the facts of the metrics, in a child, since one may be the user's code."""
    if labelled.targets is None and set(labelled.metrics) <= {"top1", "top5"}:
        return tuple(BUILTIN[name](Targets(values=[])).facts for name in labelled.metrics)
    job = MetricsJob(metrics=labelled.metrics, targets=labelled.targets)
    return run_child(job, timeout_s=SCORE_TIMEOUT_S, variables=child_environment(1))


def score_file(metrics: Sequence[Facts], labelled: Path, reference: Path | None) -> tuple[Score, ...]:
    """Score the outputs for labelled samples; with a file of the reference also the differences from its scores.

    A metric has no score where the file holds neither its counts nor the outputs.

    Raises:
        UsageError: a metric could not be computed; says why.
    """
    arrays = load_arrays(labelled)
    reference_arrays = load_arrays(reference) if reference is not None else None
    return tuple(filter(None, (_score(facts, arrays, reference_arrays, labelled, reference) for facts in metrics)))


def _score(
    facts: Facts,
    arrays: Mapping[str, Any],
    reference_arrays: Mapping[str, Any] | None,
    labelled: Path,
    reference: Path | None,
) -> Score | None:
    for side in (arrays, reference_arrays or {}):
        if FAILURE + facts.name in side:
            raise UsageError(str(side[FAILURE + facts.name]))
    if COUNTS + facts.name in arrays:
        return _score_counts(facts, arrays, reference_arrays)
    if not any(name.startswith(OUTPUTS) for name in arrays):
        return None
    job = ScoreJob(
        metric=facts.name,
        labelled_path=str(labelled.absolute()),
        reference_path=None if reference is None else str(reference.absolute()),
    )
    return run_child(job, timeout_s=SCORE_TIMEOUT_S, variables=child_environment(1))


def _score_counts(facts: Facts, arrays: Mapping[str, Any], reference_arrays: Mapping[str, Any] | None) -> Score:
    """Score what a metric counted in each sample; differences are over the samples that both files have."""
    metric = Metric(name=facts.name, higher_is_better=facts.higher_is_better, share=facts.share)
    if facts.name in BUILTIN:  # else it is a user's function: counts are its values, of which the score is the mean
        metric = BUILTIN[facts.name](Targets(values=[]))
    counts = arrays[COUNTS + facts.name]
    if reference_arrays is None:
        return score_counts(metric, counts)
    others, common = reference_arrays[COUNTS + facts.name], find_common(arrays, reference_arrays)
    if common is None:  # both have all samples
        return score_counts(metric, counts, others)
    score = score_counts(metric, counts)
    if not len(common[0]):
        return score
    paired = score_counts(metric, counts[common[0]], others[common[1]])
    return replace(score, delta=paired.delta, mcnemar_p=paired.mcnemar_p)
