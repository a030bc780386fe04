"""The verb `diff` by a metric that the runs did not store: the rows of both answer the same samples now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.diff import pair_results
from enginebench.core.errors import UsageError
from enginebench.core.records import ModelSource, Result, Task
from enginebench.models.samples import find_samples
from enginebench.workflow.folder import RunFolder, read_rows
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.sides import SideRequest
from enginebench.workflow.verbs.accuracy import check_labelled, measure_side_accuracy


class Question(Struct, frozen=True, kw_only=True):
    """What both runs are asked now: labelled samples, and by what the answers to them are judged."""

    metrics: tuple[str, ...] = ()
    targets: str | None = None
    data: str | None = None
    inputs: str | None = None
    task: Task | None = None

    @property
    def asked(self) -> bool:
        """Whether there is anything to ask; else the scores that the runs stored count."""
        return any((self.targets, self.data, self.inputs, self.task))


def ask_again(
    base: Path, cand: Path, question: Question, reporter: Reporter
) -> tuple[Sequence[Result], Sequence[Result]]:
    """The rows of both, with their scores by the answers that the engines of both give now, instead of stored ones.

    Only scores change: times and drift are as they were stored. A row without a partner, or that did not run, has no
    score.

    Args:
        base: the folder of a run, or the file of a stored row.
        cand: the same.
        question: without inputs and data, those that the candidate was measured on.
        reporter: progress.

    Raises:
        UsageError: there are no labelled samples, or the metric fails.
        ArtifactError: the artifacts of a row are gone, or have changed since.
    """
    if question.data is None and question.inputs is None:
        question = replace(question, inputs=_find_inputs(cand))
    check_labelled(question.data, question.targets)
    found = read_rows(base), read_rows(cand)
    scored = [{result.id: replace(result, scores=()) for result in side} for side in found]
    for before, now in pair_results(*found):
        if before is None or now is None or before.status != "ok" or now.status != "ok":
            continue
        document = measure_side_accuracy(
            str(_find_file(cand, now)),
            question.data,
            request=SideRequest(source=ModelSource(model="", inputs=question.inputs)),
            reference=str(_find_file(base, before)),
            metrics=question.metrics,
            targets=question.targets,
            task=question.task,
            reporter=reporter,
        )
        scored[0][before.id] = replace(before, scores=document.reference_scores)
        scored[1][now.id] = replace(now, scores=document.scores)
    return tuple(scored[0].values()), tuple(scored[1].values())


def _find_file(side: Path, result: Result) -> Path:
    return RunFolder(side).row_path(result.id) if side.is_dir() else side


def _find_inputs(side: Path) -> str:
    """The inputs that were given to a run.

    Raises:
        UsageError: none were.
    """
    folder = RunFolder(side if side.is_dir() else side.parent.parent)
    if (given := find_samples(folder.artifacts)) is None:
        raise UsageError(
            f"{side} was measured on inputs that were made up; name labelled samples with --inputs and --targets, or "
            "with --data"
        )
    return given
