"""The verb `accuracy`: right answers on labelled data, and the paired difference to a reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.analyze.accuracy import measure_accuracy
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.models.zoo import BUILTIN, TIMM_PREFIX
from enginebench.report.accuracy import AccuracyDocument
from enginebench.workflow.arrays import load_arrays
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import AnswerJob, LabelledAnswer
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.scratch import open_scratch
from enginebench.workflow.sides import OpenSide, SideRequest, check_side, choose_step, open_side

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

# 50,000 images of ImageNet on a slow engine take hours, and are worth waiting for.
ACCURACY_TIMEOUT_S = 6 * 3600.0
# More than any data set holds: without --n all of it is used.
ALL_SAMPLES = 1 << 62


def measure_side_accuracy(
    side: str,
    data: str,
    *,
    request: SideRequest,
    reference: str | None = None,
    n: int | None = None,
    model: str | None = None,
    reporter: Reporter,
) -> AccuracyDocument:
    """Top-1 and top-5 of a side on labelled data, with intervals, and against a reference on the same samples.

    Args:
        side: SIDE.
        data: `digits` (the held-out ones), or a folder with one folder for each class.
        request: what both sides have in common.
        reference: SIDE that the answers are paired with.
        n: samples, a seeded choice; None: all.
        model: whose preprocessing the data go through, where TARGET is a file; None: the side's own.
        reporter: progress.

    Raises:
        UsageError: the data have no labels or do not fit the model, its preprocessing is not known, or it has no
            output of classes.
        ArtifactError: a picture or label that cannot be used, or a graph made for another preprocessing.
    """
    check_labelled(data)
    for text in filter(None, (side, reference)):
        check_side(text)
    with open_scratch() as place:
        own = open_side(side, request, place / "side", reporter)
        other = open_side(reference, request, place / "reference", reporter) if reference is not None else None
        model = model or _find_model(own, other)
        answer, logits, labels = _answer(own, data, n, model, request, place / "side", reporter)
        reference_logits = None
        if other is not None:
            _, reference_logits, known = _answer(other, data, n, model, request, place / "reference", reporter)
            _check_paired(labels, known)
    found = measure_accuracy(logits, labels, reference_logits)
    return AccuracyDocument(
        n=found.n,
        top1=found.top1,
        top5=found.top5,
        delta=found.delta,
        mcnemar_p=found.mcnemar_p,
        side=side,
        model=model,
        engine=own.engine,
        data=data,
        seed=request.seed,
        preprocess_sha256=answer.preprocess_sha256,
        reference=reference,
        reference_engine=other.engine if other is not None else None,
        reference_top1=measure_accuracy(reference_logits, labels).top1 if reference_logits is not None else None,
        caveats=tuple(dict.fromkeys(c for s in (own, other) if s is not None for c in s.artifact.caveats)),
    )


def check_labelled(data: str) -> None:
    """Returns if `data` may hold labels, found out before a model is built.

    Raises:
        UsageError: it is neither the digits nor a folder.
    """
    if data != "digits" and not Path(data).is_dir():
        found = "has no labels" if data == "fake" or Path(data).is_file() else "is no such folder"
        raise UsageError(f"--data {data!r} {found}; expected digits, or a folder with one folder for each class")


def _find_model(own: OpenSide, other: OpenSide | None) -> str:
    """The side whose preprocessing is known: a file is prepared like the model that it is compared with."""
    for side in (own, other):
        if side is not None and (side.model in BUILTIN or side.model.startswith(TIMM_PREFIX)):
            return side.model
    raise UsageError(
        f"nobody but its owner knows how data are prepared for {own.model}. Name the model that it was made from: "
        "--model MODEL"
    )


def _answer(
    side: OpenSide, data: str, n: int | None, model: str, request: SideRequest, scratch: Path, reporter: Reporter
) -> tuple[LabelledAnswer, Array, Array]:
    """(what was read, logits, labels) of a side, worked out in a child process."""
    job = AnswerJob(
        artifact=side.artifact,
        engine=replace(side.engine, batch=choose_step((side,), request)),
        out_dir=str(scratch),
        logits_path=str(scratch / "answers.npz"),
        model=model,
        data=data if data == "digits" else str(Path(data).absolute()),
        data_n=n or ALL_SAMPLES,
        seed=request.seed,
        input_size=request.input_size,
    )
    with lock_devices((side.engine.device,), on_wait=reporter.say):
        answer = run_child(
            job,
            timeout_s=ACCURACY_TIMEOUT_S,
            environment=child_environment(side.engine.threads),
            on_note=lambda text: reporter.step(f"{side.describe()}: {text}"),
        )
    assert isinstance(answer, LabelledAnswer)
    stored = load_arrays(scratch / "answers.npz")
    return answer, stored["logits"], stored["labels"]


def _check_paired(labels: Array, known: Array) -> None:
    if labels.shape != known.shape or (labels != known).any():
        raise ArtifactError("the data changed between the two sides; run accuracy again")
