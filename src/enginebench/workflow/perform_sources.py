"""The child's part of `sources`: what a run starts from, exported, taken from a file, or quantized."""

from __future__ import annotations

import os
import shutil
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, MissingDependency
from enginebench.core.records import Artifact
from enginebench.core.store import hash_files
from enginebench.workflow.dry_run import PLAN_SUFFIXES, take_head
from enginebench.workflow.jobs import NoteCall, QuantizeAnswer, QuantizeJob, SourceAnswer, SourceJob

if TYPE_CHECKING:
    from enginebench.models.precision.calibration import Calibration
    from enginebench.models.precision.calibration_data import CalibrationData


def make_source(job: SourceJob, note: NoteCall) -> SourceAnswer:
    """The artefacts that a run starts from: the torch one and its checked ONNX export, or an ONNX file as it is."""
    from enginebench.models.zoo import resolve_model

    start = time.perf_counter()
    if Path(job.model).suffix.lower() in PLAN_SUFFIXES:
        artifacts: tuple[Artifact, ...] = (_take_plan(Path(job.model), Path(job.out_dir)),)
    elif resolve_model(job.model).kind == "onnx":
        artifacts = take_file(Path(job.model), Path(job.out_dir))
        if job.input_shapes:
            from enginebench.models.onnx_shapes import fix_axes

            artifacts = tuple(fix_axes(artifact, job.input_shapes) for artifact in artifacts)
    elif find_spec("torch") is not None:
        artifacts = _export_model(job, note)
    else:
        artifacts = _take_shipped(job)
    return SourceAnswer(artifacts=artifacts, seconds=time.perf_counter() - start)


def _export_model(job: SourceJob, note: NoteCall) -> tuple[Artifact, ...]:
    from enginebench.models.export import export_onnx
    from enginebench.models.torch_source import make_torch_artifact

    note("loading the model")
    out_dir = Path(job.out_dir)
    source = make_torch_artifact(
        job.model,
        out_dir,
        weights=job.weights,
        seed=job.seed,
        input_size=job.input_size,
        batch=job.batch,
        input_shapes=job.input_shapes,
    )
    if not job.onnx:
        return (source,)
    note("exporting to ONNX")
    out = Path(job.onnx_out) if job.onnx_out else out_dir / "model.onnx"
    graph = export_onnx(source, out, batch=job.batch, dynamic_batch=job.dynamic_batch, opset=job.opset, seed=job.seed)
    return (source, graph)


def _take_onnx(path: Path, out_dir: Path) -> tuple[Artifact, ...]:
    """The user's graph, brought into the run's folder so that the run can be continued and read anywhere."""
    from enginebench.models.onnx_source import read_onnx

    found = read_onnx(path)
    home = out_dir / "source"
    for file in found.files:
        _bring(path.parent / file.path, home / file.path)
    return (replace(found, path=str(home / path.name), model=path.name),)


def _bring(source: Path, target: Path) -> None:
    """`target` holds the file's content: linked where the file system can, else copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _take_shipped(job: SourceJob) -> tuple[Artifact, ...]:
    """The trained graph that the package ships, for use without PyTorch."""
    from enginebench.models.task import hash_preprocess
    from enginebench.models.zoo import packaged_onnx

    path = packaged_onnx(job.model)
    if path is None:
        raise MissingDependency(f"PyTorch (needed to build {job.model})", 'pip install "enginebench[torch]"')
    (artifact,) = _take_onnx(path, Path(job.out_dir))
    return (replace(artifact, model=job.model, weights="trained", preprocess_sha256=hash_preprocess(job.model)),)


def take_file(path: Path, out_dir: Path) -> tuple[Artifact, ...]:
    """The artefact of an engine file or a graph as it is; without the onnx package, by the graph's head."""
    if path.suffix.lower() in PLAN_SUFFIXES:
        return (_take_plan(path, out_dir),)
    if find_spec("onnx") is not None:
        return _take_onnx(path, out_dir)
    sha256, files = hash_files([path], path.parent)
    return (replace(take_head(path), path=str(path), sha256=sha256, files=files),)


def _take_plan(path: Path, out_dir: Path) -> Artifact:
    """A finished plan, brought into the run's folder; the engine that loads it says what goes in and comes out."""
    if not path.is_file() or path.stat().st_size == 0:
        raise ArtifactError(f"{path} is no plan: it is missing or empty. Build it again")
    home = out_dir.absolute() / "source" / path.name
    _bring(path, home)
    sha256, files = hash_files([home], home.parent)
    return Artifact(kind="plan", model=path.name, path=str(home), sha256=sha256, files=files, inputs=(), outputs=())


def quantize_graph(job: QuantizeJob, note: NoteCall) -> QuantizeAnswer:
    """The graph in another precision. Ranges are read back from the run's folder, or taken and kept there."""
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize

    start = time.perf_counter()
    # A graph that holds Q/DQ nodes brings its ranges along, and goes through as it is.
    needs_data = job.precision in ("int8", "fp8") and job.artifact.precision not in ("int8", "fp8")
    data = None
    if needs_data:
        data = open_data(
            job.data,
            model=job.model,
            inputs=job.artifact.inputs,
            n=job.n,
            seed=job.seed,
            input_size=job.input_size,
        )
    calibration = _find_ranges(job, data, note) if data is not None and job.recipe != "nncf" else None
    note(f"to {job.precision}")
    artifact = quantize(
        job.artifact,
        job.precision,
        job.recipe,
        Path(job.out),
        calibration=calibration,
        data=data,
        threads=job.threads,
    )
    return QuantizeAnswer(artifact=artifact, seconds=time.perf_counter() - start)


def _find_ranges(job: QuantizeJob, data: CalibrationData, note: NoteCall) -> Calibration:
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration import read_calibration, write_calibration

    path = Path(job.calibration_path)
    if path.exists():
        return read_calibration(path)
    note(f"ranges over {data.n} entries of {data.source}")
    calibration = calibrate(job.artifact, data, method=job.method, threads=job.threads)  # type: ignore[arg-type]
    write_calibration(calibration, path)
    return calibration
