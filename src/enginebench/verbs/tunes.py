"""`tune`: the fastest settings that still give the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from enginebench.api import checks as given
from enginebench.api.checks import Model, PathLike, Shapes
from enginebench.api.progress import open_progress
from enginebench.bundle.writing import check_free
from enginebench.core.records import Task
from enginebench.report.tune.document import TuneDocument
from enginebench.verbs.drift import read_limits
from enginebench.workflow.folder import default_folder
from enginebench.workflow.request import choose_drop, name_default_engines
from enginebench.workflow.search.sitting import tune_model
from enginebench.workflow.search.space import Goal
from enginebench.workflow.verbs.tune import deliver_winner, make_request, parse_budget


def tune(
    model: Model,
    *,
    example_inputs: object = None,
    engines: str | Iterable[str] | None = None,
    precisions: str | Iterable[str] = "fp32",
    goal: Goal = "latency",
    time_budget: str | float | None = None,
    limit: Mapping[str, float] | None = None,
    data: PathLike | None = None,
    p99_limit_ms: float | None = None,
    batch: int | None = None,
    processes: int = 10,
    input_size: int | None = None,
    timeout: float = 900.0,
    env: Mapping[str, PathLike] | None = None,
    resume: bool = False,
    deliver: PathLike | None = None,
    wait: bool = True,
    out: PathLike | None = None,
    metric: str | Iterable[str] = (),
    targets: PathLike | None = None,
    task: Task | None = None,
    max_metric_drop: float | None = None,
    max_top1_drop: float | None = None,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> TuneDocument:
    """The winner of a search over the settings of every engine, measured anew against their defaults.

    The document, its page and the rows of the final lie in `out`, which `read`, `deliver` and `diff` take as a run.

    Args:
        model: as `run` takes it.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        engines: ENGINE[:key=value,...], separated by commas or in a list; options that are named stay as they are.
        precisions: fp32, tf32, fp16, bf16, int8, fp8, with a recipe as in int8@cpu.
        goal: latency, throughput or capacity.
        time_budget: seconds, or a text such as "20m"; by default 20 minutes, with `resume` what is left.
        limit: of drift by name, {"cosine": 0.99}; by default those of each precision.
        data: labelled data, a folder or "digits": accuracy, and ranges for int8.
        p99_limit_ms: the limit of the goal `capacity`.
        batch: of the goal `latency`; by default that of the example inputs or of `input_shape`, else 1.
        processes: of each row of the final, at least.
        input_size: height and width of the model's images.
        timeout: seconds that one process may take.
        env: {name: virtual environment or python} for `env=NAME` of an engine, beside those that were made.
        resume: continue the search that `out` holds.
        deliver: a folder for the winner as a bundle.
        wait: if another run holds the device, wait for it; else raise DeviceBusy.
        out: a folder; by default `results/tune-MODEL-TIME`.
        metric: names of built-in metrics, or package.module:function; the first one decides. By default that of `task`.
        targets: the file of right answers to `inputs` or `data`, one for each sample.
        task: what the model is for: how its answers are read, its metric, and what drift means.
        max_metric_drop: what a setting may lose of the metric, in its own unit; by default 0.01 of a share, 1 % of
            anything else.
        max_top1_drop: the same of top-1 accuracy, in points.
        device: cpu or cuda:N.
        threads: of every setting; by default the search chooses.
        seed: of inputs, random weights and proposals.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a value or a combination that cannot be.
        DependencyError: no engine can run here.
        MeasurementError: no setting could race, or nothing was measured within the budget.
        KeyboardInterrupt: what was found is kept in `out`; continue it with `resume`.
    """
    given.check(goal=goal, p99_limit_ms=p99_limit_ms, batch=batch, processes=processes, input_size=input_size)
    given.check(timeout=timeout, max_metric_drop=max_metric_drop, max_top1_drop=max_top1_drop)
    if deliver is not None:
        check_free(Path(deliver))
    given.name_environments(env)
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    named = given.read_engines(engines if engines is not None else name_default_engines(shared.device))
    metrics = tuple(given.list_texts(metric)) if metric else ()
    with given.take_model(model, example_inputs) as taken, open_progress(progress) as reporter:
        request = make_request(
            shared,
            taken.text,
            named,
            given.read_precisions(precisions),
            goal=goal,
            limits=read_limits(limit),
            data=None if data is None else str(data),
            p99_limit_ms=p99_limit_ms,
            batch=batch if batch is not None else taken.batch,
            processes=processes,
            input_size=input_size,
            timeout_s=timeout,
            metrics=metrics,
            targets=None if targets is None else str(targets),
            task=task,
            max_drop=choose_drop(max_metric_drop, max_top1_drop, metrics),
            resume=resume and out is None,
        )
        root = Path(out) if out is not None else default_folder(f"tune-{taken.name}")
        document, _ = tune_model(
            request,
            root,
            reporter=reporter,
            resume=resume,
            budget_s=None if time_budget is None else parse_budget(str(time_budget)),
            wait=wait,
        )
        if deliver is not None:
            deliver_winner(root, document, Path(deliver), reporter=reporter)
    return document
