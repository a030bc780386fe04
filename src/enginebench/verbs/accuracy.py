"""`accuracy`: the scores of a side's outputs for labelled samples, and the paired difference to a reference."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import GateFailed, UsageError
from enginebench.core.records import Score
from enginebench.core.warnings import make_warning
from enginebench.models.zoo import BUILTIN, TIMM_PREFIX
from enginebench.options import (
    InputSize,
    Judging,
    Modules,
    Opt,
    PathLike,
    Printed,
    Shared,
    Side,
    Trusting,
    Unpack,
    Wait,
    verb,
)
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import Labelled, LabelledJob, LabelledResponse
from enginebench.runs.lock import lock_devices
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.request import choose_drop
from enginebench.runs.targets.scratch import open_scratch
from enginebench.verbs.common import open_progress, read_metrics, take_side, to_text
from enginebench.verbs.requests import make_side_request

if TYPE_CHECKING:
    from enginebench.report.scores import AccuracyDocument
    from enginebench.runs.targets import sides

# 50,000 images of ImageNet take hours on a slow engine and are worth waiting for.
ACCURACY_TIMEOUT_S = 6 * 3600.0
# More than any data set holds: without --n all of it is used.
ALL_SAMPLES = 1 << 62
LABELLED_OUTPUTS = "answers.npz"


class AccuracyOptions(Modules, Judging, Shared, total=False):
    n: Annotated[int | None, Opt("Number of samples, drawn with --seed. [all]", ge=1)]
    ref: Annotated[Side | None, Opt("Compare with this side on the same samples.", metavar="SIDE")]
    model: Annotated[
        str | None, Opt("Model whose preprocessing to use when TARGET is a file. [that of a SIDE]", metavar="MODEL")
    ]
    max_metric_drop: Annotated[
        float | None,
        Opt(
            "What SIDE may lose of the metric against --ref, in its own unit.",
            ge=0,
            metavar="X",
            more="Makes it a gate with exit code 4",
        ),
    ]
    input_size: InputSize
    wait: Wait
    gate: Annotated[bool, Opt("Raise GateFailed where more was lost than max_metric_drop.", True, program=True)]


@verb(AccuracyOptions)
def accuracy(
    side: Side,
    data: Annotated[
        PathLike | None,
        Opt(
            "A folder with one folder per class, prepared arrays, or the held-out digits.",
            metavar="DIR|F.npz|digits",
            more="Prepared arrays need `--targets`",
        ),
    ] = None,
    **options: Unpack[AccuracyOptions],
) -> "AccuracyDocument":
    """Measure the accuracy of SIDE on labelled samples, with confidence intervals.

    Example: enginebench accuracy ort@digits-cnn --data digits

    SIDE is ENGINE@TARGET (ort@digits-cnn, openvino@int8.onnx) or the file of a stored result. Images go through the
    model's own preprocessing; give your own samples with --inputs and their labels with --targets. The metric
    is top-1 and top-5 accuracy, that of --task, or your own. --ref adds a second side on the same samples and an
    interval of the difference: does a lower precision cost accuracy?

    Args:
        side: also (ENGINE, model).

    Raises:
        UsageError: there are no labels, they do not fit the model, its preprocessing is not known, or the metric fails.
        ArtifactError: a picture or label cannot be used, or the graph was made for another preprocessing.
        GateFailed: more was lost than max_metric_drop.
    """
    request, ref = make_side_request(options, options["input_size"]), options["ref"]
    drop = choose_drop(options["max_metric_drop"], options["max_top1_drop"], read_metrics(options["metric"]))
    with (
        take_side(side, options["example_inputs"]) as own,
        take_side(ref if ref is not None else "", options["example_inputs"]) as other,
        open_progress(options["progress"]) as reporter,
    ):
        document = measure_side_accuracy(own, other or None, to_text(data), request, options, drop, reporter)
    return require_accuracy(document) if options["gate"] else document


@door.command(accuracy, "SIDE", shown=Trusting)
def command(side: str, data: str | None, shown: Printed, **options: Unpack[AccuracyOptions]) -> None:
    from enginebench.report.scores import list_accuracy

    options["gate"] = False
    document = accuracy(side, data, **options)
    door.show(document, shown, door.tables(list_accuracy))
    require_accuracy(document)


def measure_side_accuracy(
    side: str,
    reference: str | None,
    data: str | None,
    request: "sides.SideRequest",
    options: AccuracyOptions,
    max_metric_drop: float | None,
    reporter: Reporter,
) -> "AccuracyDocument":
    """Measure the scores of a side, with intervals, and the differences to a reference on the same samples.

    Args:
        data: `digits` (the held-out ones), a folder of pictures, or prepared arrays; None: the inputs of the request.
        max_metric_drop: what the side may lose of the first metric against the reference, in its own unit.
    """
    from enginebench.report.scores import AccuracyDocument
    from enginebench.runs.scoring import open_metrics, score_file
    from enginebench.runs.targets import sides
    from enginebench.stats.metrics.scores import find_score, find_value

    if max_metric_drop is not None and reference is None:
        raise UsageError("--max-metric-drop limits what is lost against another side; name it with --ref SIDE")
    labelled, named = _read_labelled(side, reference, data, request, options)
    devices = [one.find_device(request.device) for one in named]
    with open_scratch() as scratch, lock_devices(devices, wait=options["wait"], on_wait=reporter.say):
        opened = open_metrics(labelled)
        made: sides.MadeSources = {}
        own = sides.open_side(named[0], request, scratch / "side", reporter, made)
        other = sides.open_side(named[1], request, scratch / "reference", reporter, made) if reference else None
        model = options["model"] or _find_model(own, other, labelled)
        response = _compute_labelled(own, labelled, model, request, scratch / "side", reporter)
        reference_response, before = None, None
        if other is not None:
            reference_response = _compute_labelled(other, labelled, model, request, scratch / "reference", reporter)
            before = scratch / "reference" / LABELLED_OUTPUTS
        scores = score_file(opened, scratch / "side" / LABELLED_OUTPUTS, before)
        reference_scores = score_file(opened, before, None) if before is not None else ()
    top1 = find_score(scores, "top1")
    warnings = [*dict.fromkeys(w for one in (own, other) if one is not None for w in one.artifact.warnings)]
    warnings += response.warnings
    if (n := options["n"]) is not None and response.n < n:
        what = f"accuracy was measured, with what {data or request.source.inputs} holds,"
        warnings.append(make_warning("partly_compared", what=what, n=response.n, asked=n))
    return AccuracyDocument(
        n=response.n,
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
        preprocess_sha256=response.preprocess_sha256,
        targets=labelled.targets,
        task=labelled.task,
        reference=reference,
        reference_engine=other.engine if other is not None else None,
        reference_scores=reference_scores,
        max_metric_drop=max_metric_drop,
        nonfinite=response.nonfinite,
        reference_nonfinite=reference_response.nonfinite if reference_response is not None else 0,
        failures=tuple(_list_failures(side, response, scores, reference_scores, max_metric_drop)),
        warnings=tuple(warnings),
    )


def _list_failures(
    side: str,
    response: LabelledResponse,
    scores: Sequence[Score],
    reference_scores: Sequence[Score],
    max_metric_drop: float | None,
) -> Iterator[str]:
    """Yield why the side does not pass: it loses too much of the first metric, or its outputs are not finite."""
    from enginebench.report.scores import format_nonfinite
    from enginebench.stats.diff import format_loss
    from enginebench.stats.metrics.scores import loses_too_much

    if reference_scores and loses_too_much(reference_scores[0], scores[0], max_metric_drop):
        yield format_loss(reference_scores[0], scores[0], max_metric_drop)
    if response.nonfinite:
        yield format_nonfinite(side, response.nonfinite, response.n)


def _read_labelled(
    side: str, reference: str | None, data: str | None, request: "sides.SideRequest", options: AccuracyOptions
) -> "tuple[Labelled, list[sides.Side]]":
    """Return the labelled samples with their metrics, and the sides; nothing is built yet."""
    from enginebench.runs.scoring import choose_metrics
    from enginebench.runs.targets.ahead import check_labels_ahead, parse_sides_ahead

    targets, task = to_text(options["targets"]), options["task"]
    if data is None and request.source.inputs is None:
        raise UsageError("accuracy needs labelled samples: --data DIR or digits, or --inputs F.npz with --targets F")
    check_labelled(data, targets)
    n = options["n"] or ALL_SAMPLES
    of_inputs = targets if data is None else None
    named = parse_sides_ahead([text for text in (side, reference) if text], request, of_inputs, n)
    labelled = Labelled(
        data=data if data in (None, "digits") else str(Path(data).absolute()),
        n=n,
        input_size=request.source.input_size,
        metrics=choose_metrics(read_metrics(options["metric"]), task),
        targets=targets,
        task=task,
    )
    check_labels_ahead(labelled.data, targets, labelled.metrics, labelled.n, request.source.seed)
    return labelled, named


def require_accuracy(document: "AccuracyDocument") -> "AccuracyDocument":
    """Return the document.

    Raises:
        GateFailed: with a limit of the user's own, if more was lost than that or outputs are not finite.
    """
    if document.max_metric_drop is not None and document.failures:
        raise GateFailed(f"the gate failed. {'; '.join(document.failures)}")
    return document


def check_labelled(data: str | None, targets: str | None) -> None:
    """Check that there are labels, before a model is built."""
    from enginebench.models.precision.calibration_data import MADE_UP, find_label_fault

    if data is not None and data != "digits" and not Path(data).exists():
        state = "is made up" if data == MADE_UP else "is not a folder"
        raise UsageError(f"--data {data!r} {state}; expected digits, a folder of images, or prepared arrays (.npz)")
    if targets is not None:
        return
    if data is None or Path(data).is_file():
        what = "--inputs" if data is None else f"--data {data!r}"
        raise UsageError(f"{what} has no labels; give them, one for each sample, with --targets F")
    if data != "digits" and (fault := find_label_fault(Path(data), None)):
        raise UsageError(f"--data {data!r} has no labels: {fault}. Without labels, drift compares two sides")


def _find_model(own: "sides.OpenSide", other: "sides.OpenSide | None", labelled: Labelled) -> str:
    """Return the model whose preprocessing is known: pictures for a file are prepared as for the other side's model."""
    for model in (side.model for side in (own, other) if side is not None):
        if model in BUILTIN or model.startswith(TIMM_PREFIX):
            return model
    if labelled.data == "digits":
        raise UsageError(f"{own.model} is not known to take digits; name the built-in model: --model MODEL")
    return own.model


def _compute_labelled(
    side: "sides.OpenSide",
    labelled: Labelled,
    model: str,
    request: "sides.SideRequest",
    scratch: Path,
    reporter: Reporter,
) -> LabelledResponse:
    from enginebench.runs.targets import sides

    job = LabelledJob(
        artifact=side.artifact,
        engine=replace(side.engine, batch=sides.choose_step((side,), request)),
        out_dir=str(scratch),
        labelled_path=str(scratch / LABELLED_OUTPUTS),
        model=model,
        labelled=labelled,
        seed=request.source.seed,
        inputs=request.source.inputs,
    )
    return run_child(job, timeout_s=ACCURACY_TIMEOUT_S, on_note=report_steps(reporter, side.describe()))
