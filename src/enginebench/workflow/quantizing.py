"""The verbs `calibrate` and `quantize`: ranges from data, and graphs in another precision."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, Caveat, Precision, Recipe
from enginebench.models.precision.calibration import (
    Calibration,
    Method,
    read_calibration,
    read_calibration_cache,
    write_calibration,
    write_calibration_cache,
)
from enginebench.models.precision.calibration_data import CalibrationData, keep_batches, open_arrays, open_data
from enginebench.models.zoo import resolve_model
from enginebench.workflow.campaign import Reporter
from enginebench.workflow.exporting import EXPORT_TIMEOUT_S
from enginebench.workflow.jobs import SourceJob
from enginebench.workflow.sources import make_sources

if TYPE_CHECKING:
    from enginebench.models.precision.quantize import IoTypes

CACHE_SUFFIX = ".cache"
# More than any set of kept batches holds: an array file is read to its end.
ALL_ENTRIES = 1 << 62


class CalibrateDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `calibrate`: what was seen, without the ranges themselves, which are in `path`."""

    schema: str = "enginebench.calibrate/1"
    path: str
    model: str
    model_sha256: str | None
    weights_sha256: str | None
    method: Method
    percentile: float | None
    n: int | None
    source: str
    data_sha256: str | None
    preprocess_sha256: str | None
    tensors: int
    batches: str | None
    seconds: float
    caveats: tuple[Caveat, ...]


class TensorRtRefusal(Struct, frozen=True, kw_only=True):
    """A node that TensorRT does not take, and why."""

    node: str
    reason: str


class QuantizeDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `quantize`. `coverage` is the share of multiply-accumulates in 8 bits, null for casts."""

    schema: str = "enginebench.quantize/1"
    artifact: Artifact
    parent_bytes: int
    size_bytes: int
    quantizers: int
    dequantizers: int
    coverage: float | None
    tensorrt_refusals: tuple[TensorRtRefusal, ...]
    seconds: float


def calibrate_model(
    model: str,
    data: str,
    out: Path,
    *,
    n: int = 256,
    batch: int = 16,
    input_size: int | None = None,
    method: Method = "minmax",
    percentile: float | None = None,
    batches_out: Path | None = None,
    weights: str = "default",
    seed: int = 0,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    threads: int,
    reporter: Reporter,
) -> CalibrateDocument:
    """Ranges of the model's graph over the data, written to `out`.

    Args:
        model: MODEL.
        data: `digits`, `fake`, a folder of images, an .npy or an .npz file.
        out: JSON, or TensorRT's text cache where the name ends in `.cache`.
        n: entries of data, at most.
        batch: entries at a time, at most.
        input_size: height and width of the model's images.
        method: minmax, entropy or percentile.
        percentile: per cent of the values that method percentile keeps.
        batches_out: an .npz that gets the prepared entries themselves; recipe nncf needs them.
        weights: "default", "random", or a file.
        seed: of random weights, and of the choice among the data.
        input_shapes: input name to shape, where the model brings none.
        threads: of ONNX Runtime.
        reporter: progress.

    Raises:
        UsageError, ModelError, ArtifactError: as `open_data` and `calibrate` say.
    """
    from enginebench.models.precision.calibrate import calibrate

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        job = SourceJob(
            model=model,
            out_dir=scratch,
            weights=weights,
            seed=seed,
            input_size=input_size,
            input_shapes=input_shapes,
            batch=batch,
            dynamic_batch=input_shapes is None,
        )
        artifact = _make_graph(job, threads, reporter)
        entries = open_data(data, model=model, inputs=artifact.inputs, n=n, seed=seed, input_size=input_size)
        reporter.step(f"{model}: {method} over {entries.n} entries of {data}")
        calibration = calibrate(artifact, entries, method=method, percentile=percentile, batch=batch, threads=threads)
    if batches_out is not None:
        keep_batches(entries, batches_out)
    if out.suffix == CACHE_SUFFIX:
        write_calibration_cache(calibration, out)
    else:
        write_calibration(calibration, out)
    return _describe_calibration(calibration, out, batches_out, time.perf_counter() - start)


def _make_graph(job: SourceJob, threads: int, reporter: Reporter) -> Artifact:
    sources = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
    found = next((artifact for artifact in sources if artifact.kind == "onnx"), None)
    if found is None:
        raise ArtifactError(f"{job.model} gave no ONNX graph; export it first")
    # The child names a user's file by its last part; messages say what the user wrote.
    return replace(found, model=job.model)


def _describe_calibration(
    calibration: Calibration, out: Path, batches_out: Path | None, seconds: float
) -> CalibrateDocument:
    return CalibrateDocument(
        path=str(out),
        model=calibration.model,
        model_sha256=calibration.model_sha256,
        weights_sha256=calibration.weights_sha256,
        method=calibration.method,
        percentile=calibration.percentile,
        n=calibration.n,
        source=calibration.source,
        data_sha256=calibration.data_sha256,
        preprocess_sha256=calibration.preprocess_sha256,
        tensors=len(calibration.ranges),
        batches=str(batches_out) if batches_out else None,
        seconds=seconds,
        caveats=calibration.caveats,
    )


def quantize_file(
    path: Path,
    out: Path,
    *,
    to: Precision,
    recipe: Recipe | None,
    calib: Path | None = None,
    calib_cache: Path | None = None,
    io_types: IoTypes = "keep",
    threads: int,
    reporter: Reporter,
) -> QuantizeDocument:
    """The ONNX file in another precision, written to `out`, with what came of it.

    Args:
        path: an FP32 ONNX file, or one that holds Q/DQ nodes already.
        out: the ONNX file to write.
        to: precision.
        recipe: of int8 and fp8, or None for the default.
        calib: ranges (.json), or arrays to take them from (.npy, .npz).
        calib_cache: TensorRT's text cache, in place of `calib`.
        io_types: types of inputs and outputs, for fp16 and bf16.
        threads: of ONNX Runtime.
        reporter: progress.

    Raises:
        UsageError, ArtifactError, MissingDependency: as `quantize` says.
    """
    from enginebench.models.onnx_source import read_onnx
    from enginebench.models.precision.quantize import quantize

    start = time.perf_counter()
    if calib is not None and calib_cache is not None:
        raise UsageError("--calib and --calib-cache are two sources of the same ranges; give one")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out {out} is the file to be quantized; give another")
    artifact = read_onnx(path)
    calibration, data = _find_ranges(artifact, recipe, calib, calib_cache, threads, reporter)
    reporter.step(f"{path.name}: to {to}")
    made = quantize(artifact, to, recipe, out, calibration=calibration, data=data, io_types=io_types, threads=threads)
    return _describe_quantized(artifact, made, out, time.perf_counter() - start)


def _find_ranges(
    artifact: Artifact,
    recipe: Recipe | None,
    calib: Path | None,
    calib_cache: Path | None,
    threads: int,
    reporter: Reporter,
) -> tuple[Calibration | None, CalibrationData | None]:
    """(ranges, data), as far as they are given and the recipe needs them."""
    from enginebench.models.precision.calibrate import calibrate

    if calib_cache is not None:
        return read_calibration_cache(calib_cache), None
    if calib is None:
        return None, None
    if calib.suffix.lower() in (".npy", ".npz"):
        data = open_arrays(calib, artifact.inputs, ALL_ENTRIES)
        if recipe == "nncf" or artifact.precision != "fp32":
            return None, data
        reporter.step(f"{artifact.path}: minmax over {data.n} entries of {calib}")
        return calibrate(artifact, data, threads=threads), data
    calibration = read_calibration(calib)
    takes_data = recipe == "nncf" and artifact.precision == "fp32"
    return calibration, reopen_data(calibration, artifact) if takes_data else None


def reopen_data(calibration: Calibration, artifact: Artifact) -> CalibrationData:
    """The data that a calibration was made from, found again by its name.

    Raises:
        UsageError: the calibration does not say where its data lies, or it is no longer there.
        ArtifactError: it prepares its images in another way.
    """
    if calibration.n is None:
        raise UsageError(f"{calibration.source} holds ranges without their data; give --calib F.npz")
    inputs = artifact.inputs
    side = inputs[0].shape[-1] if inputs and len(inputs[0].shape) == 4 else None
    size = side if isinstance(side, int) and resolve_model(calibration.model).kind == "builtin" else None
    data = open_data(
        calibration.source,
        model=calibration.model,
        inputs=inputs,
        n=calibration.n,
        seed=calibration.seed,
        input_size=size,
    )
    if data.preprocess_sha256 != calibration.preprocess_sha256:
        raise ArtifactError(
            f"{calibration.source} is prepared in another way than for the calibration. Keep the prepared entries with "
            "enginebench calibrate --keep-batches F.npz, and give --calib F.npz"
        )
    return data


def _describe_quantized(parent: Artifact, made: Artifact, out: Path, seconds: float) -> QuantizeDocument:
    from enginebench.models.precision.graph import count_quantizers, load_whole_graph
    from enginebench.models.precision.macs import measure_coverage
    from enginebench.models.precision.tensorrt_check import find_refusals

    model = load_whole_graph(out)
    quantizers, dequantizers = count_quantizers(model)
    in_eight_bits = made.precision in ("int8", "fp8")
    return QuantizeDocument(
        artifact=replace(made, path=str(out)),
        parent_bytes=sum(file.size_bytes for file in parent.files),
        size_bytes=sum(file.size_bytes for file in made.files),
        quantizers=quantizers,
        dequantizers=dequantizers,
        coverage=measure_coverage(model) if in_eight_bits else None,
        tensorrt_refusals=tuple(TensorRtRefusal(node=r.node, reason=r.reason) for r in find_refusals(model)),
        seconds=seconds,
    )
