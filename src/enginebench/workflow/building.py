"""The verb `build`: an ONNX file to an engine file."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.effective import judge_precision
from enginebench.backends.registry import accepts, find_device
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, Caveat, EngineSpec, Precision
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.dry_run import check_batch_axis, needs_graph, quantized_path, take_head
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import BuildAnswer, BuildJob
from enginebench.workflow.lock import lock_devices


class BuildDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `build`."""

    schema: str = "enginebench.build/1"
    artifact: Artifact
    build_s: float
    command: tuple[str, ...] | None
    tensorrt_version: str | None
    effective_precision: dict[str, float] | None
    caveats: tuple[Caveat, ...]


def build_engine(
    onnx: Path,
    out: Path,
    spec: EngineSpec,
    *,
    calib: Path | None = None,
    calib_cache: Path | None = None,
    timeout_s: float,
    reporter: Reporter,
) -> BuildDocument:
    """The engine file at `out`; log, layers and cache stay in the folder `<out>.build`, where a repeat finds the plan.

    A graph in another precision than asked for is quantized first, unless typing is weak; `reporter` says so.

    Args:
        onnx: the graph.
        out: where the engine goes.
        spec: the engine and its options.
        calib: ranges or arrays, where it must be quantized.
        calib_cache: ranges in TensorRT's text cache, in place of `calib`.
        timeout_s: after this long the build is killed.
        reporter: progress.

    Raises:
        UsageError: the engine has no file to build, or an option is not known to its version.
        ArtifactError: the graph cannot be quantized or built; names the first error and the log.
        MissingDependency: the engine is not installed.
    """
    if "plan" not in accepts(spec.backend):
        raise UsageError(f"engine {spec.backend} builds while it loads; there is no file to keep. Use bench or run")
    if out.exists() and out.samefile(onnx):
        raise UsageError(f"--out {out} is the graph itself, which the engine file would replace; choose another --out")
    artifact = take_head(onnx)
    check_batch_axis(artifact, spec)
    doubts = judge_ranges(artifact, calib, calib_cache) if spec.options.get("weak_typing") == "1" else ()
    if needs_graph(spec, artifact.precision):
        onnx = quantize_first(onnx, artifact.precision, spec, calib, calib_cache, reporter)
    elif (calib or calib_cache) and spec.options.get("weak_typing") != "1":
        raise UsageError(f"{onnx} is {artifact.precision} already; --calib and --calib-cache have nothing to do")
    folder = make_folder(out.with_name(f"{out.name}.build").absolute())
    spec = replace(spec, device=find_device(spec.backend, spec.device))
    reporter.step(f"{onnx.name}: building with {spec.backend}")
    # A builder times kernels: a run beside it would spoil its choice, and it the run's times.
    with lock_devices((spec.device,), on_wait=reporter.say):
        answer = run_child(
            BuildJob(source=str(onnx.absolute()), engine=spec, out_dir=str(folder)),
            timeout_s=timeout_s,
            environment=child_environment(spec.threads),
            on_note=lambda text: reporter.step(f"{onnx.name}: {text}"),
        )
    assert isinstance(answer, BuildAnswer)
    return describe_build(answer, out, spec.precision, doubts)


def make_folder(folder: Path) -> Path:
    """The folder, made if it was not there.

    Raises:
        ArtifactError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot make {folder}: {error.strerror}. Choose another --out") from error
    return folder


def judge_ranges(artifact: Artifact, calib: Path | None, calib_cache: Path | None) -> tuple[Caveat, ...]:
    """What there is to doubt about the ranges that TensorRT's own calibrator takes under weak typing.

    Raises:
        ArtifactError: the arrays do not fit the graph, or were prepared for another preprocessing.
    """
    from enginebench.models.precision.calibration import explain_external
    from enginebench.models.precision.calibration_data import open_arrays
    from enginebench.workflow.perform_answers import check_prepared_alike

    if calib_cache is not None and (calib is None or calib_cache.exists()):  # else the build writes it
        return (explain_external(f"ranges come from TensorRT's cache {calib_cache.name}"),)
    if calib is None:
        return ()
    data = open_arrays(calib, artifact.inputs, 1)
    check_prepared_alike(artifact, data.preprocess_sha256)
    return data.caveats


def quantize_first(
    onnx: Path, precision: str, spec: EngineSpec, calib: Path | None, calib_cache: Path | None, reporter: Reporter
) -> Path:
    """The graph in the precision of `spec`, made beside the one given."""
    from enginebench.workflow.quantizing import quantize_file

    target = quantized_path(onnx, spec)
    reporter.say(f"{onnx} is {precision}: quantizing it to {target} first")
    quantize_file(
        onnx,
        target,
        to=spec.precision,
        recipe=spec.recipe,
        calib=calib,
        calib_cache=calib_cache,
        threads=spec.threads,
        reporter=reporter,
    )
    return target


def describe_build(
    answer: BuildAnswer, out: Path, requested: Precision, doubts: tuple[Caveat, ...] = ()
) -> BuildDocument:
    """What was built, its file put at `out`; named after the precision that ran where that contradicts `requested`."""
    ran, proof = judge_precision(requested, answer.effective_precision)
    plan = Path(answer.artifact.path)
    put_file(plan, out)
    return BuildDocument(
        artifact=replace(answer.artifact, path=str(out), precision=ran),
        build_s=answer.build_s,
        command=read_command(plan.with_suffix(".build.log")),
        tensorrt_version=answer.engine_version,
        effective_precision=answer.effective_precision,
        caveats=(*answer.artifact.caveats, *doubts, *proof),
    )


def put_file(source: Path, target: Path) -> None:
    """`target` holds the file's content: linked where the file system can, else copied.

    Raises:
        ArtifactError: the folder cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
    except OSError as error:
        raise ArtifactError(f"cannot write {target}: {error.strerror}. Choose another --out") from error


def read_command(log: Path) -> tuple[str, ...] | None:
    """The command line that a log begins with; None if no program was run."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            first = file.readline()
        return tuple(shlex.split(first.removeprefix("$ "))) if first.startswith("$ ") else None
    except (OSError, ValueError):
        return None
