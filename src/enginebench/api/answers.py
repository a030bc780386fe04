"""`infer`, `drift` and `accuracy`: what engines answer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from enginebench.api import given
from enginebench.api.given import Model, PathLike, Shapes, Side
from enginebench.backends.registry import read_engine
from enginebench.core.errors import FeedError
from enginebench.core.records import Task
from enginebench.report.accuracy import AccuracyDocument
from enginebench.verbs.progress import open_progress
from enginebench.workflow.child.arrays import load_arrays, save_arrays
from enginebench.workflow.request import choose_drop
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.verbs.accuracy import gate_accuracy, measure_side_accuracy
from enginebench.workflow.verbs.infer import infer_file

if TYPE_CHECKING:
    from enginebench.core.protocols import Array


def infer(
    target: Model,
    inputs: Mapping[str, Any] | PathLike,
    *,
    example_inputs: object = None,
    engine: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> dict[str, Array]:
    """The outputs of one engine for your arrays, by name.

    Args:
        target: a model as `run` takes it, or an engine file.
        inputs: {input: NumPy array}, the batch as first axis; or the path of an .npz file.
        example_inputs: of a module; by default `inputs` in their order.
        engine: ENGINE[:key=value,...]; by default ort, on a GPU ort-cuda.
        device: cpu or cuda:N.
        threads: of the engine; by default the physical cores.
        seed: of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        FeedError: the arrays do not fit the inputs of the model; names each difference.
        ModelError: the model cannot be found, built or exported.
        DependencyError: the engine cannot be had here.
    """
    import numpy as np

    shared = given.read_shared(device, threads, seed, input_shape, weights, ort_extension=ort_extension)
    arrays = load_arrays(Path(inputs)) if isinstance(inputs, str | os.PathLike) else {}
    if isinstance(inputs, Mapping):
        arrays = {str(name): np.asarray(value) for name, value in inputs.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise FeedError(
                f"input {name!r} holds Python objects; expected an array of numbers, or of text as NumPy's str"
            )
    if example_inputs is None and not isinstance(target, str | os.PathLike):
        example_inputs = tuple(arrays.values())
    with (
        given.take_model(target, example_inputs) as taken,
        open_progress(progress) as reporter,
        open_scratch() as scratch,
    ):
        save_arrays(scratch / "inputs.npz", arrays)
        infer_file(
            replace(shared.make_source(taken.text), inputs=str(scratch / "inputs.npz")),
            scratch / "outputs.npz",
            engine=read_engine(shared.name_engine(engine)),
            device=shared.device,
            threads=shared.count_threads(),
            reporter=reporter,
        )
        return load_arrays(scratch / "outputs.npz")


def accuracy(
    side: Side,
    data: PathLike | None = None,
    *,
    example_inputs: object = None,
    n: int | None = None,
    ref: Side | None = None,
    model: str | None = None,
    metric: str | Iterable[str] = (),
    targets: PathLike | None = None,
    task: Task | None = None,
    max_metric_drop: float | None = None,
    max_top1_drop: float | None = None,
    gate: bool = True,
    input_size: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> AccuracyDocument:
    """How good the answers of a side are, by top-1 and top-5 or by any metric, with intervals.

    Args:
        side: ENGINE@TARGET, the file of a stored row, or (ENGINE, model).
        data: "digits" (those held out), a folder with one folder for each class, or prepared arrays (.npz).
        example_inputs: of modules: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        n: samples, a seeded choice; by default all.
        ref: pair the answers with those of this side: the difference gets an interval and McNemar's test.
        model: the built-in or timm model whose preprocessing the data go through, where the target does not say it.
        metric: names of built-in metrics, or package.module:function; the first one decides. By default that of `task`.
        targets: the file of right answers to `inputs` or `data`, one for each sample.
        task: what the model is for: how its answers are read, and its metric.
        max_metric_drop: what the side may lose of the first metric against `ref`, in its own unit.
        max_top1_drop: the same of top-1 accuracy, in points.
        gate: with max_metric_drop: raise GateFailed where it is not kept.
        input_size: height and width of the model's images.
        device: cpu or cuda:N.
        threads: of the engines; by default the physical cores.
        seed: of the choice, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the data have no labels, or the model's preprocessing is not known.
        ArtifactError: a picture or label cannot be used.
        GateFailed: more was lost than max_metric_drop.
    """
    shared = given.read_shared(device, threads, seed, input_shape, weights, inputs, ort_extension)
    given.check(n=n, input_size=input_size, task=task, max_metric_drop=max_metric_drop, max_top1_drop=max_top1_drop)
    with (
        given.take_side(side, example_inputs) as own,
        given.take_side(ref if ref is not None else "", example_inputs) as other,
        open_progress(progress) as reporter,
    ):
        document = measure_side_accuracy(
            own,
            None if data is None else os.fspath(data),
            request=shared.make_side_request(input_size),
            reference=other or None,
            n=n,
            model=model,
            metrics=given.read_metrics(metric),
            targets=None if targets is None else os.fspath(targets),
            task=task,
            max_metric_drop=choose_drop(max_metric_drop, max_top1_drop, given.read_metrics(metric)),
            reporter=reporter,
        )
    if gate:
        gate_accuracy(document)
    return document
