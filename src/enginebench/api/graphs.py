"""`export`, `calibrate`, `quantize` and `build`: from a model to graphs and engine files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from enginebench.api import checks as given
from enginebench.api.checks import Axes, Model, PathLike, Shapes
from enginebench.api.progress import open_progress
from enginebench.core.names import parse_precision
from enginebench.measure.pin import default_threads
from enginebench.workflow.request import parse_device
from enginebench.workflow.verbs.build import BuildDocument, BuildSettings, build_engine, plan_engine
from enginebench.workflow.verbs.export import ExportDocument, export_model
from enginebench.workflow.verbs.quantize import CalibrateDocument, QuantizeDocument, calibrate_model, quantize_file


def export(
    model: Model,
    out: PathLike,
    *,
    example_inputs: object = None,
    input_size: int | None = None,
    batch: int | None = None,
    dynamic_batch: bool = False,
    dynamic_axes: Axes = (),
    opset: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> ExportDocument:
    """The model as an ONNX file, compared with PyTorch on seeded inputs.

    Args:
        model: a name, `timm:NAME`, `package.module:factory`, or a module.
        out: the ONNX file to write.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        input_size: height and width of the model's images.
        batch: by default that of the example inputs or the only one that the model takes, else 1.
        dynamic_batch: leave the batch open.
        dynamic_axes: {input: axes} that stay open, too, or texts as on the command line.
        opset: ONNX operator set; by default the exporter's own.
        threads: by default the physical cores.
        seed: of the inputs that are compared, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the model is an ONNX file already.
        ModelError: it cannot be built, or an operator cannot be exported; names it.
    """
    shared = given.read_shared("cpu", threads, seed, input_shape, weights, inputs, ort_extension)
    given.check(input_size=input_size, batch=batch, opset=opset)
    with given.take_model(model, example_inputs) as taken, open_progress(progress) as reporter:
        return export_model(
            shared.make_source(taken.text, input_size),
            Path(out),
            batch=batch or taken.batch,
            dynamic_batch=dynamic_batch,
            dynamic_axes=given.read_axes(dynamic_axes),
            opset=opset,
            threads=shared.count_threads(),
            reporter=reporter,
        )


def calibrate(
    model: Model,
    data: PathLike | None,
    out: PathLike,
    *,
    example_inputs: object = None,
    n: int = 256,
    batch: int = 16,
    input_size: int | None = None,
    method: Literal["minmax", "entropy", "percentile"] = "minmax",
    percentile: float | None = None,
    keep_batches: PathLike | None = None,
    threads: int | None = None,
    seed: int = 0,
    input_shape: Shapes | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    weights: PathLike = "default",
    progress: bool | None = None,
) -> CalibrateDocument:
    """The range of every tensor of a model over real inputs, for `quantize` and `build`.

    Args:
        model: as `run` takes it.
        data: a folder of images, "digits", "fake", or an .npy or .npz file of prepared arrays; None: `inputs`.
        out: JSON; TensorRT's text cache if its name ends in .cache.
        example_inputs: of a module: a tensor as `forward` takes it, a tuple of them, or {parameter: tensor}.
        n: number of entries to use, at most.
        batch: entries per call, at most.
        input_size: height and width of the model's images.
        method: minmax, entropy or percentile.
        percentile: of method percentile; by default 99.99.
        keep_batches: an .npz file that gets the entries themselves.
        threads: by default the physical cores.
        seed: of the choice among the data, and of random weights.
        input_shape: {input: shape}, or texts as on the command line.
        inputs: your own: an .npz file, a folder of them, or package.module:function; by default made up.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        weights: default, random, or the file of a state dict.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: the data do not fit the model.
        ArtifactError: a picture or an array cannot be used.
    """
    shared = given.read_shared("cpu", threads, seed, input_shape, weights, inputs, ort_extension)
    given.check(n=n, batch=batch, input_size=input_size, method=method, percentile=percentile)
    with given.take_model(model, example_inputs) as taken, open_progress(progress) as reporter:
        return calibrate_model(
            shared.make_source(taken.text, input_size),
            None if data is None else os.fspath(data),
            Path(out),
            n=n,
            batch=batch,
            method=method,
            percentile=percentile,
            batches_out=given.to_path(keep_batches),
            threads=shared.count_threads(),
            reporter=reporter,
        )


def quantize(
    path: PathLike,
    to: str,
    out: PathLike,
    *,
    calib: PathLike | None = None,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
    calib_cache: PathLike | None = None,
    io_types: Literal["keep", "cast"] = "keep",
    exclude: PathLike | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> QuantizeDocument:
    """An ONNX file in another precision: cast, or with explicit Q/DQ nodes that every engine reads.

    Args:
        path: the ONNX file.
        to: fp16, bf16, int8[@tensorrt|cpu|nncf] or fp8.
        out: the ONNX file to write.
        calib: ranges (.json), or prepared arrays to take them from (.npy, .npz).
        inputs: your own inputs to take them from: an .npz file, a folder of them, or package.module:function.
        ort_extension: libraries of custom operators for ONNX Runtime, or the module onnxruntime_extensions.
        calib_cache: ranges in TensorRT's text cache.
        io_types: types of inputs and outputs, for fp16 and bf16: keep or cast.
        exclude: a list of nodes of the file that stay in FP32: one name a line, # before a remark.
        threads: of ONNX Runtime; by default the physical cores.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: a precision that is unknown, or ranges that are missing.
        ArtifactError: the graph or the ranges cannot be used.
    """
    given.check(threads=threads, io_types=io_types)
    precision, recipe = parse_precision(to)
    with open_progress(progress) as reporter:
        return quantize_file(
            Path(path),
            Path(out),
            to=precision,
            recipe=recipe,
            calib=given.to_path(calib),
            inputs=None if inputs is None else os.fspath(inputs),
            libraries=given.read_libraries(ort_extension),
            calib_cache=given.to_path(calib_cache),
            io_types=io_types,
            exclude=given.to_path(exclude),
            threads=threads or default_threads(),
            reporter=reporter,
        )


def build(
    onnx: PathLike,
    out: PathLike,
    *,
    engine: str = "trtexec",
    precision: str | None = None,
    batch: int | None = None,
    workspace_mb: int | None = None,
    min_shapes: str | None = None,
    opt_shapes: str | None = None,
    max_shapes: str | None = None,
    profile: Sequence[str] = (),
    timing_cache: PathLike | None = None,
    optimization_level: int | None = None,
    version_compatible: bool = False,
    hardware_compatibility: Literal["none", "ampere+", "sameComputeCapability"] = "none",
    compute_capability: str | None = None,
    plugins: Sequence[PathLike] = (),
    refit: bool = False,
    strip: bool = False,
    weak_typing: bool = False,
    calib: PathLike | None = None,
    calib_cache: PathLike | None = None,
    trtexec: str | None = None,
    extra: Sequence[str] = (),
    device: str = "cuda:0",
    timeout: float = 7200.0,
    progress: bool | None = None,
) -> BuildDocument:
    """An engine file built from an ONNX file. The log, the layers and the timing cache stay beside it.

    Args:
        onnx: the graph.
        out: the engine file to write.
        engine: trtexec, tensorrt or tensorrt-rtx, with key=value options.
        precision: of the engine; by default that of the graph.
        batch: for which a dynamic axis is built, without shapes; by default 1.
        workspace_mb: scratch space of a layer; by default the GPU's memory.
        min_shapes: smallest shapes, NAME:1x3x224x224; several separated by commas.
        opt_shapes: shapes to tune for.
        max_shapes: largest shapes.
        profile: further profiles, NAME:MIN/OPT/MAX each.
        timing_cache: keeps timings between builds.
        optimization_level: 0 to 5, how long the builder searches; by default 3.
        version_compatible: a plan for later versions of the same major, too.
        hardware_compatibility: none, ampere+ or sameComputeCapability: a plan for other GPUs, too.
        compute_capability: the GPUs that a plan of tensorrt-rtx is for, such as "8.6,8.9".
        plugins: libraries.
        refit: weights can be replaced later.
        strip: leave the weights out, to be refitted.
        weak_typing: precision by builder flags: TensorRT 10 and older.
        calib: ranges or arrays, where it is quantized first.
        calib_cache: the same as TensorRT's text cache.
        trtexec: the executable.
        extra: further arguments for trtexec.
        device: the GPU, as cuda:N.
        timeout: seconds that the build may take.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: options that contradict each other, or that the engine does not have.
        DependencyError: the engine cannot be had here.
        ArtifactError: the graph cannot be built; names the first error and the log.
    """
    given.check(batch=batch, workspace_mb=workspace_mb, optimization_level=optimization_level, timeout=timeout)
    given.check(hardware_compatibility=hardware_compatibility)
    settings = BuildSettings(
        workspace_mb=workspace_mb,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        profile=tuple(profile),
        timing_cache=given.to_path(timing_cache),
        optimization_level=optimization_level,
        version_compatible=version_compatible,
        hardware_compatibility=hardware_compatibility,
        compute_capability=compute_capability,
        plugins=tuple(Path(path) for path in plugins),
        refit=refit,
        strip=strip,
        weak_typing=weak_typing,
        calib=given.to_path(calib),
        calib_cache=given.to_path(calib_cache),
        trtexec=trtexec,
        extra=tuple(extra),
    )
    spec = plan_engine(Path(onnx), engine, precision, batch, given.check_gpu(parse_device(device)), settings)
    with open_progress(progress) as reporter:
        return build_engine(
            Path(onnx),
            Path(out),
            spec,
            calib=settings.calib,
            calib_cache=settings.calib_cache,
            timeout_s=timeout,
            reporter=reporter,
        )
