"""The verb `accuracy`: how good a side's answers to labelled samples are, and the paired difference to a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.analyze.diff import tell_loss
from enginebench.analyze.metrics.scores import find_score, find_value, loses_too_much
from enginebench.core.caveats import make_caveat
from enginebench.core.errors import GateFailed, UsageError
from enginebench.core.records import Caveat, Task
from enginebench.models.precision.calibration_data import explain_unlabelled
from enginebench.models.zoo import BUILTIN, TIMM_PREFIX
from enginebench.report.accuracy import AccuracyDocument, tell_nonfinite
from enginebench.workflow.child.isolate import child_environment, run_child
from enginebench.workflow.child.jobs import AnswerJob, Labelled, LabelledAnswer
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.scoring import choose_metrics, judge_by, score_file
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.targets.sides import MadeSources, OpenSide, SideRequest, check_side, choose_step, open_side

# 50,000 images of ImageNet take hours on a slow engine and are worth waiting for.
ACCURACY_TIMEOUT_S = 6 * 3600.0
# More than any data set holds: without --n all of it is used.
ALL_SAMPLES = 1 << 62
ANSWERS = "answers.npz"


def measure_side_accuracy(
    side: str,
    data: str | None,
    *,
    request: SideRequest,
    reference: str | None = None,
    n: int | None = None,
    model: str | None = None,
    metrics: Sequence[str] = (),
    targets: str | None = None,
    task: Task | None = None,
    max_metric_drop: float | None = None,
    reporter: Reporter,
) -> AccuracyDocument:
    """The scores of a side with intervals, and the differences to a reference on the same samples.

    Args:
        side: SIDE.
        data: `digits` (the held-out ones), a folder of pictures, or prepared arrays; None: the inputs of the request.
        request: what both sides have in common.
        reference: the SIDE to compare with.
        n: number of samples, drawn with the seed; None: all.
        model: the model whose preprocessing to use if TARGET is a file; None: the side's own.
        metrics: names of built-in ones, or package.module:function; those of the task if there are none.
        targets: the file of right answers; None: the data have labels.
        task: what the model is for.
        max_metric_drop: what the side may lose of the first metric against the reference, in its own unit.
        reporter: progress.

    Raises:
        UsageError: there are no labels, they do not fit the model, its preprocessing is not known, or the metric fails.
        ArtifactError: a picture or label cannot be used, or the graph was made for another preprocessing.
    """
    if data is None and request.source.inputs is None:
        raise UsageError("accuracy needs labelled samples: --data DIR or digits, or --inputs F.npz with --targets F")
    if max_metric_drop is not None and reference is None:
        raise UsageError("--max-metric-drop limits what is lost against another side; name it with --ref SIDE")
    check_labelled(data, targets)
    for text in filter(None, (side, reference)):
        check_side(text)
    labelled = Labelled(
        data=data if data in (None, "digits") else str(Path(data).absolute()),
        n=n or ALL_SAMPLES,
        input_size=request.source.input_size,
        metrics=choose_metrics(metrics, task),
        targets=targets,
        task=task,
    )
    judged = judge_by(labelled)
    assert judged is not None  # there are labelled samples
    with open_scratch() as place:
        made: MadeSources = {}
        own = open_side(side, request, place / "side", reporter, made)
        other = open_side(reference, request, place / "reference", reporter, made) if reference is not None else None
        model = model or _find_model(own, other, labelled)
        answer = _answer(own, labelled, model, request, place / "side", reporter)
        before = place / "reference" / ANSWERS if other is not None else None
        asked = _answer(other, labelled, model, request, place / "reference", reporter) if other is not None else None
        scores = score_file(judged.metrics, place / "side" / ANSWERS, before)
        reference_scores = score_file(judged.metrics, before, None) if before is not None else ()
    lost = reference_scores and loses_too_much(reference_scores[0], scores[0], max_metric_drop)
    failures = [tell_loss(reference_scores[0], scores[0], max_metric_drop)] if lost else []
    if answer.nonfinite:
        failures.append(tell_nonfinite(side, answer.nonfinite, answer.n))
    top1 = find_score(scores, "top1")
    return AccuracyDocument(
        n=answer.n,
        top1=find_value(scores, "top1"),
        top5=find_value(scores, "top5"),
        delta=top1.delta if top1 else None,
        mcnemar_p=top1.mcnemar_p if top1 else None,
        scores=scores,
        side=side,
        model=model or own.model,
        engine=own.engine,
        data=data or str(request.source.inputs),
        seed=request.source.seed,
        preprocess_sha256=answer.preprocess_sha256,
        targets=targets,
        task=task,
        reference=reference,
        reference_engine=other.engine if other is not None else None,
        reference_scores=reference_scores,
        max_metric_drop=max_metric_drop,
        nonfinite=answer.nonfinite,
        reference_nonfinite=asked.nonfinite if asked is not None else 0,
        failures=tuple(failures),
        caveats=(
            *dict.fromkeys(c for s in (own, other) if s is not None for c in s.artifact.caveats),
            *answer.caveats,
            *doubt_number(answer.n, n, data or str(request.source.inputs)),
        ),
    )


def gate_accuracy(document: AccuracyDocument) -> None:
    """Fails where more was lost than a limit of the user's own allows, or answers are not finite.

    Raises:
        GateFailed: it was.
    """
    if document.max_metric_drop is not None and document.failures:
        raise GateFailed(f"the gate failed. {'; '.join(document.failures)}")


def doubt_number(found: int, asked: int | None, data: str) -> tuple[Caveat, ...]:
    """The caveat on scores over fewer samples than asked for."""
    if asked is None or found >= asked:
        return ()
    return (make_caveat("partly_compared.data", data=data, n=found, asked=asked),)


def check_labelled(data: str | None, targets: str | None) -> None:
    """Checks that there can be right answers, before a model is built.

    Raises:
        UsageError: the data have no labels, and no targets were given; or they are not there.
    """
    if data is not None and data != "digits" and not Path(data).exists():
        found = "is made up" if data == "fake" else "is not a folder"
        raise UsageError(f"--data {data!r} {found}; expected digits, a folder of pictures, or prepared arrays (.npz)")
    if targets is not None:
        return
    if data is None or Path(data).is_file():
        what = "--inputs" if data is None else f"--data {data!r}"
        raise UsageError(f"{what} has no labels; give the right answers, one for each sample, with --targets F")
    if data != "digits" and (fault := explain_unlabelled(Path(data), None)):
        raise UsageError(f"--data {data!r} has no labels: {fault}. Without labels, drift compares two sides")


def _find_model(own: OpenSide, other: OpenSide | None, labelled: Labelled) -> str:
    """The model whose preprocessing is known: pictures for a file are prepared as for the model on the other side.

    Raises:
        UsageError: neither is known, and the data are not prepared already.
    """
    for side in (own, other):
        if side is not None and (side.model in BUILTIN or side.model.startswith(TIMM_PREFIX)):
            return side.model
    if labelled.data == "digits":
        raise UsageError(f"{own.model} does not say that it takes digits; name the built-in model: --model MODEL")
    return own.model


def _answer(
    side: OpenSide, labelled: Labelled, model: str, request: SideRequest, scratch: Path, reporter: Reporter
) -> LabelledAnswer:
    """What was read, in a child process; what the metrics need of the answers lies in `scratch`."""
    job = AnswerJob(
        artifact=side.artifact,
        engine=replace(side.engine, batch=choose_step((side,), request)),
        out_dir=str(scratch),
        answers_path=str(scratch / ANSWERS),
        model=model,
        labelled=labelled,
        seed=request.source.seed,
        inputs=request.source.inputs,
    )
    with lock_devices((side.engine.device,), on_wait=reporter.say):
        return run_child(
            job,
            timeout_s=ACCURACY_TIMEOUT_S,
            environment=child_environment(side.engine.threads),
            on_note=lambda text: reporter.step(f"{side.describe()}: {text}"),
        )
