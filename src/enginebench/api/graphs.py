"""`export`, `calibrate`, `quantize` and `build`: from a model to graphs and engine files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from enginebench.api import checks as given
from enginebench.api.checks import PathLike
from enginebench.api.progress import open_progress
from enginebench.workflow.request import parse_device
from enginebench.workflow.verbs.build import BuildDocument, BuildSettings, build_engine, plan_engine


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
