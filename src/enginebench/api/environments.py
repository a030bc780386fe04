"""Other versions of a runtime: environments for `env=NAME` of an engine, and `bisect`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.api import given
from enginebench.api.given import Model, PathLike, Shapes
from enginebench.api.progress import open_progress
from enginebench.backends.registry import read_engine
from enginebench.core.limits import REGRESSION_MARGIN
from enginebench.core.names import parse_precision
from enginebench.core.records import Cache, Scope, Task
from enginebench.workflow.folder import default_folder
from enginebench.workflow.request import choose_drop
from enginebench.workflow.verbs import environments
from enginebench.workflow.verbs.bisect import BisectDocument, bisect_package, choose_judge, find_engine_of
from enginebench.workflow.verbs.environments import EnvironmentLine


def make_environment(name: str, requirements: str | Iterable[str], *, progress: bool | None = None) -> EnvironmentLine:
    """A new environment with these packages, for `env=NAME` of an engine.

    Args:
        name: letters, digits, dots, hyphens and underscores.
        requirements: PACKAGE==VERSION, one or several.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the name is taken, or a requirement is malformed.
        BackendUnavailable: a package cannot be had; says why in the installer's words.
    """
    with open_progress(progress) as reporter:
        return environments.make_environment(name, given.list_texts(requirements), reporter=reporter)


def list_environments() -> tuple[EnvironmentLine, ...]:
    """The environments that were made, each with what is installed in it, or what is wrong with it."""
    return environments.list_all().environments


def remove_environment(name: str) -> Path:
    """Deletes an environment that `make_environment` made; its former folder.

    Args:
        name: of the environment.

    Raises:
        UsageError: there is none of this name.
    """
    return environments.remove_environment(name)


def bisect(
    model: Model,
    package: str,
    good: str,
    bad: str,
    *,
    engine: str | None = None,
    example_inputs: object = None,
    margin: float = REGRESSION_MARGIN,
    drift: bool = False,
    data: PathLike | None = None,
    metric: str | Iterable[str] = (),
    targets: PathLike | None = None,
    task: Task | None = None,
    max_metric_drop: float | None = None,
    max_top1_drop: float | None = None,
    precision: str = "fp32",
    batch: int | None = None,
    timeout: float = 900.0,
    out: PathLike | None = None,
    warmup: int | None = None,
    iters: int | None = None,
    time_limit: float = 3.0,
    processes: int | None = None,
    scope: Scope = "compute",
    cache: Cache = "hot",
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> BisectDocument:
    """The first version of a package with which an engine is slower, or answers otherwise.

    Args:
        model: as `run` takes it.
        package: on the package index.
        good: a version that is good; "1.24" is the newest 1.24.
        bad: a later version that is bad.
        engine: ENGINE[:key=value,...]; by default the one that the package is for.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        margin: how much slower is bad, as a share.
        drift: bad means other answers, not longer times.
        data: labelled data for `metric`, a folder or "digits", and for the ranges of 8-bit graphs.
        metric: bad means worse by this metric: a built-in one, or package.module:function; of several the first.
        targets: the file of right answers to `inputs` or `data`, one for each sample.
        task: what the model is for: how its answers are read, and what drift means.
        max_metric_drop: what a version may lose of the metric, in its own unit; by default 0.01 of a share, 1 % of
            anything else.
        max_top1_drop: the same of top-1 accuracy, in points.
        precision: fp32, tf32, fp16, bf16, int8 or fp8, with a recipe as in int8@cpu.
        batch: by default that of the example inputs or of `input_shape`, else 1.
        timeout: seconds that one process may take.
        out: folder of the measurements; by default `results/bisect-MODEL-PACKAGE-TIME`.
        warmup: exact number of warm-up calls; by default until they have settled.
        iters: exact number of timed calls; by default until they have settled.
        time_limit: seconds of timed calls in one process.
        processes: fresh processes of the first try at a version; a verdict needs 6, by default 10.
        scope: compute, or io: with the inputs' way in and the outputs' way out.
        cache: hot, or cold: a GPU's L2 is flushed before every call.
        device: cpu or cuda:N.
        threads: of every engine; by default the physical cores.
        seed: of inputs, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a version does not exist, or they are not in this order.
        BackendUnavailable: the package index cannot be reached, or a version cannot be installed.
        MeasurementError: two versions cannot be compared.
    """
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    timing = given.read_timing(warmup, iters, time_limit, processes, scope, cache)
    given.check(margin=margin, batch=batch, timeout=timeout, task=task)
    given.check(max_metric_drop=max_metric_drop, max_top1_drop=max_top1_drop)
    metrics = given.read_metrics(metric)
    with given.take_model(model, example_inputs) as taken, open_progress(progress) as reporter:
        request = shared.make_request(
            taken.text,
            engines=[read_engine(engine or find_engine_of(package))],
            precisions=[parse_precision(precision)],
            batches=given.read_batches(batch, None if input_shape else taken.batch),
            measure=timing.make_measure(shared.seed, margin=None),
            input_size=None,
        )
        return bisect_package(
            replace(
                request,
                timeout_s=timeout,
                data=None if data is None else str(data),
                metrics=metrics,
                targets=None if targets is None else str(targets),
                task=task,
                max_metric_drop=choose_drop(max_metric_drop, max_top1_drop, metrics),
            ),
            package,
            good,
            bad,
            Path(out) if out is not None else default_folder(f"bisect-{Path(taken.name).stem}-{package}"),
            by=choose_judge(drift, metrics),
            margin=margin,
            reporter=reporter,
        )
