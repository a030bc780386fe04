"""The verbs `calibrate` and `quantize`: ranges from data, and graphs converted to another precision."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, Caveat, ModelSource, Precision, Recipe
from enginebench.models.precision.calibration import (
    Calibration,
    Method,
    read_calibration,
    read_calibration_cache,
    write_calibration,
    write_calibration_cache,
)
from enginebench.models.precision.calibration_data import (
    CalibrationData,
    keep_batches,
    open_arrays,
    open_data,
    open_given,
)
from enginebench.models.zoo import resolve_model
from enginebench.workflow.child.jobs import SourceJob
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.sources import make_sources
from enginebench.workflow.verbs.export import EXPORT_TIMEOUT_S

if TYPE_CHECKING:
    from enginebench.models.precision.quantize import IoTypes

CACHE_SUFFIX = ".cache"
# More than any file of batches holds: an array file is read to its end.
ALL_ENTRIES = 1 << 62


class CalibrateDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `calibrate`: what was calibrated on. The ranges themselves are in `path`."""

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
    """A node that TensorRT does not accept, and why."""

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
    source: ModelSource,
    data: str | None,
    out: Path,
    *,
    n: int = 256,
    batch: int = 16,
    method: Method = "minmax",
    percentile: float | None = None,
    batches_out: Path | None = None,
    threads: int,
    reporter: Reporter,
) -> CalibrateDocument:
    """Writes the ranges of the model's graph over the data to `out`.

    Args:
        source: the model; its seed also chooses among the data.
        data: `digits`, `fake`, a folder of images, an .npy or an .npz file; None: the source's inputs.
        out: the file to write: JSON, or TensorRT's text cache if the name ends in `.cache`.
        n: number of entries to use, at most.
        batch: entries per call, at most.
        method: minmax, entropy or percentile.
        percentile: the per cent of values that the method `percentile` keeps.
        batches_out: an .npz for the prepared entries themselves; the recipe nncf needs them.
        threads: of ONNX Runtime.
        reporter: progress.

    Raises:
        UsageError, ModelError, ArtifactError: as `open_data` and `calibrate` say.
    """
    from enginebench.models.precision.calibrate import calibrate

    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        job = SourceJob(
            source=source,
            out_dir=scratch,
            batch=batch,
            dynamic_batch=source.input_shapes is None,
        )
        artifact = _make_graph(job, threads, reporter)
        entries = _open_entries(source, data, artifact, n)
        reporter.step(f"{source.model}: {method} over {entries.n} entries of {entries.source}")
        calibration = calibrate(artifact, entries, method=method, percentile=percentile, batch=batch, threads=threads)
    if batches_out is not None:
        keep_batches(entries, batches_out)
    if out.suffix == CACHE_SUFFIX:
        write_calibration_cache(calibration, out)
    else:
        write_calibration(calibration, out)
    return _describe_calibration(calibration, out, batches_out, time.perf_counter() - start)


def _open_entries(source: ModelSource, data: str | None, artifact: Artifact, n: int) -> CalibrationData:
    """The entries of --data, else those of --inputs.

    Raises:
        UsageError: neither was given.
    """
    if data is None and source.inputs is None:
        raise UsageError("ranges need entries: give --data or --inputs")
    if data is None and source.inputs is not None:
        return open_given(source.inputs, artifact.inputs, n)
    return open_data(
        data or "", model=source.model, inputs=artifact.inputs, n=n, seed=source.seed, input_size=source.input_size
    )


def _make_graph(job: SourceJob, threads: int, reporter: Reporter) -> Artifact:
    sources = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
    found = next((artifact for artifact in sources if artifact.kind == "onnx"), None)
    if found is None:
        raise ArtifactError(f"{job.source.model} has no ONNX graph; export it first")
    # The child knows only the name of a user's file; messages say what the user wrote.
    return replace(found, model=job.source.model)


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
    inputs: str | None = None,
    libraries: tuple[str, ...] = (),
    calib_cache: Path | None = None,
    io_types: IoTypes = "keep",
    exclude: Path | None = None,
    threads: int,
    reporter: Reporter,
) -> QuantizeDocument:
    """Converts the ONNX file to another precision, writes it to `out` and describes the result.

    Args:
        path: an FP32 ONNX file, or one that holds Q/DQ nodes already.
        out: the ONNX file to write.
        to: precision.
        recipe: of int8 and fp8, or None for the default.
        calib: ranges (.json), or arrays to take them from (.npy, .npz).
        inputs: the user's inputs to take ranges from, instead of `calib`.
        libraries: of the graph's custom operators.
        calib_cache: TensorRT's text cache, instead of `calib`.
        io_types: types of inputs and outputs, for fp16 and bf16.
        exclude: list of nodes that stay in FP32.
        threads: of ONNX Runtime.
        reporter: progress.

    Raises:
        UsageError, ArtifactError, MissingDependency: as `quantize` says.
    """
    from enginebench.models.onnx.source import read_onnx
    from enginebench.models.precision.exclusion import read_exclusion
    from enginebench.models.precision.quantize import quantize

    start = time.perf_counter()
    names = read_exclusion(exclude) if exclude is not None else ()
    if sum(given is not None for given in (calib, inputs, calib_cache)) > 1:
        raise UsageError("--calib, --inputs and --calib-cache each give the ranges; keep one")
    if to == "bf16" and (calib or inputs or calib_cache):  # FP16 looks among them for what it cannot hold
        raise UsageError("--to bf16 takes no ranges: leave out --calib, --inputs and --calib-cache")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out {out} is the file to be quantized; choose another --out")
    artifact = replace(read_onnx(path), operator_libraries=libraries)
    if recipe == "nncf" or (to == "fp16" and calib is None and calib_cache is None):
        artifact = _settle(artifact)
    if inputs is None:
        calibration, data = _find_ranges(artifact, recipe, calib, calib_cache, threads, reporter)
    else:
        calibration, data = _take_ranges(artifact, recipe, open_given(inputs, artifact.inputs), threads, reporter)
    reporter.step(f"{path.name}: to {to}")
    made = quantize(
        artifact,
        to,
        recipe,
        out,
        calibration=calibration,
        data=data,
        io_types=io_types,
        exclude=names,
        threads=threads,
    )
    return _describe_quantized(artifact, made, out, time.perf_counter() - start)


def _settle(artifact: Artifact) -> Artifact:
    """The graph with what its inputs are like where nobody gives one, as `calibrate` makes them up."""
    from enginebench.models.onnx.inputs import settle_inputs

    return replace(artifact, inputs=settle_inputs(artifact).inputs)


def _find_ranges(
    artifact: Artifact,
    recipe: Recipe | None,
    calib: Path | None,
    calib_cache: Path | None,
    threads: int,
    reporter: Reporter,
) -> tuple[Calibration | None, CalibrationData | None]:
    """(ranges, data), each only if it is given and the recipe needs it."""
    if calib_cache is not None:
        return read_calibration_cache(calib_cache), None
    if calib is None:
        return None, None
    if calib.suffix.lower() in (".npy", ".npz"):
        return _take_ranges(artifact, recipe, open_arrays(calib, artifact.inputs, ALL_ENTRIES), threads, reporter)
    calibration = read_calibration(calib)
    takes_data = recipe == "nncf" and artifact.precision == "fp32"
    return calibration, reopen_data(calibration, artifact) if takes_data else None


def _take_ranges(
    artifact: Artifact, recipe: Recipe | None, data: CalibrationData, threads: int, reporter: Reporter
) -> tuple[Calibration | None, CalibrationData]:
    """(ranges over the data, the data); no ranges where the recipe takes its own."""
    from enginebench.models.precision.calibrate import calibrate

    if recipe == "nncf" or artifact.precision != "fp32":
        return None, data
    reporter.step(f"{artifact.path}: minmax over {data.n} entries of {data.source}")
    return calibrate(artifact, data, threads=threads), data


def reopen_data(calibration: Calibration, artifact: Artifact) -> CalibrationData:
    """The data that a calibration was made from, found again by its name.

    Raises:
        UsageError: the calibration does not name its data, or the data are gone.
        ArtifactError: their images are prepared differently now.
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
            f"{calibration.source} is prepared differently from the calibration. Keep the prepared entries with "
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
