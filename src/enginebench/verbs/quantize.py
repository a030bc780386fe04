"""`quantize`: an ONNX graph in another precision."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import RegionEngineCheck, SlowRegions
from enginebench.core.names import escape_precision, format_precision, name_mix, parse_precision
from enginebench.core.recipes import FEW_BITS, Needs, find_needs, list_recipes
from enginebench.core.records import Artifact, Precision, Recipe
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.measure.pin import default_threads
from enginebench.models.precision.calibration import (
    Calibration,
    read_calibration,
    read_calibration_cache,
    write_calibration_cache,
)
from enginebench.models.zoo import resolve_model
from enginebench.options import CalibCache, Libraries, Opt, PathLike, Printed, Progress, Unpack, verb
from enginebench.report.numbers import format_significant
from enginebench.runs.progress import Reporter
from enginebench.verbs.common import list_libraries, open_progress, to_path, to_text

if TYPE_CHECKING:
    from enginebench.models.precision.calibration_data import CalibrationData

# More than any file of batches holds: an array file is read to its end.
ALL_ENTRIES = 1 << 62
SOME_ENTRIES = 256  # of images, as calibrate takes them


_KEEP = [("--data", "DIR"), ("--keep-batches", "F.npz"), ("--out", "calib.json")]


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


class QuantizeOptions(Progress, total=False):
    calib: Annotated[
        PathLike | None,
        Opt(
            "Ranges from calibrate, or what to take them from: arrays, images.",
            metavar="calib.json|F.npy|F.npz|DIR",
            path="any",
        ),
    ]
    inputs: Annotated[
        PathLike | None,
        Opt(
            "Your own inputs to take the ranges from, as calibrate takes them.",
            metavar="F.npz|DIR|package.module:function",
        ),
    ]
    ort_extension: Libraries
    calib_cache: CalibCache
    io_types: Annotated[
        Literal["keep", "cast"], Opt("For fp16 and bf16: keep the types of inputs and outputs, or cast them.", "keep")
    ]
    exclude: Annotated[
        PathLike | None,
        Opt(
            "Nodes of F.onnx that stay in FP32: one name a line, # before a remark.",
            metavar="FILE",
            path="file",
            more="See [which nodes](quantization.md#which-nodes-stay-in-fp32)",
        ),
    ]
    by_time: Annotated[
        str | None,
        Opt(
            "Leave regions in FP32 that 8 bits do not make faster on this engine.",
            metavar="ENGINE",
            feature="tune",
            more="See [8 bits by region](tune.md#8-bits-by-region)",
        ),
    ]
    threads: Annotated[int | None, Opt("Threads of ONNX Runtime. [physical cores]", ge=1, le=4096)]


To: TypeAlias = Annotated[
    str, Opt(f"fp16, bf16, int8[@{'|'.join(list_recipes('int8'))}], fp8 or int4.", metavar="PRECISION", required=True)
]
Out: TypeAlias = Annotated[PathLike, Opt("The ONNX file. [F.PRECISION.onnx]", path="new file")]


@verb(QuantizeOptions)
def quantize(path: PathLike, to: To, out: Out, **options: Unpack[QuantizeOptions]) -> QuantizeDocument:
    """Convert F.onnx to another precision.

    Example: enginebench quantize model.onnx --to int8 --calib calib.json

    fp16 and bf16 graphs are cast; int8, fp8 and int4 graphs get explicit Q/DQ nodes that every engine can read.

    Args:
        path: an FP32 ONNX file, or one that holds Q/DQ nodes already.

    Raises:
        UsageError: a precision that is unknown, or ranges that are missing or given twice.
        ArtifactError: the graph or the ranges cannot be used.
    """
    with open_progress(options["progress"]) as reporter:
        return quantize_file(Path(path), Path(out), parse_precision(to), options, reporter)


@door.command(quantize, "F.onnx")
def command(path: str, to: str, out: str | None, shown: Printed, **options: Unpack[QuantizeOptions]) -> None:
    suffix = escape_precision(format_precision(*parse_precision(to))).replace("@", "-")
    document = quantize(path, to, out or Path(path).with_suffix(f".{suffix}.onnx"), **options)
    door.show(document, shown, print_quantized)


def print_quantized(document: QuantizeDocument, _: object) -> None:
    artifact = document.artifact
    label = format_precision(artifact.precision, artifact.recipe, name_mix(artifact.excluded))
    click.echo(
        f"{artifact.path}: {label}, {format_significant(document.size_bytes / 1e6)} MB "
        f"(before {format_significant(document.parent_bytes / 1e6)} MB), sha256 {artifact.sha256[:12]}"
    )
    if document.coverage is not None:
        click.echo(
            f"{document.quantizers} QuantizeLinear and {document.dequantizers} DequantizeLinear nodes, "
            f"{document.coverage:.0%} of the multiply-accumulates"
        )
    if document.tensorrt_refusals:
        first = document.tensorrt_refusals[0]
        click.echo(
            f"TensorRT would refuse {count_of(len(document.tensorrt_refusals), 'nodes')}, "
            f"the first {first.node}: {first.reason}"
        )
    for warning in artifact.warnings:
        click.echo(format_warning(warning))


def quantize_file(
    path: Path, out: Path, precision: tuple[Precision, Recipe | None], options: QuantizeOptions, reporter: Reporter
) -> QuantizeDocument:
    """Convert the ONNX file to another precision, write it to `out` and describe the result."""
    from enginebench.models.onnx.inputs import complete_inputs
    from enginebench.models.onnx.source import read_onnx
    from enginebench.models.precision.calibration_data import open_input_data
    from enginebench.models.precision.exclusion import read_exclusion
    from enginebench.models.precision.graph import count_quantizers, load_whole_graph
    from enginebench.models.precision.quantize import find_coverage
    from enginebench.models.precision.quantize import quantize as convert
    from enginebench.models.precision.tensorrt_check import find_left_refusals

    start, (to, recipe) = time.perf_counter(), precision
    exclude, calib, calib_cache = (to_path(options[name]) for name in ("exclude", "calib", "calib_cache"))
    inputs, threads = to_text(options["inputs"]), options["threads"] or default_threads()
    names = read_exclusion(exclude) if exclude is not None else ()
    _check_options(path, out, precision, options)
    needs = find_needs(to, recipe)
    artifact = replace(read_onnx(path), operator_libraries=list_libraries(options["ort_extension"]))
    if artifact.precision in FEW_BITS and (calib or inputs or calib_cache):
        own = f"{path} is {artifact.precision} with ranges of its own"
        raise UsageError(f"{own}: leave out --calib, --inputs and --calib-cache, or quantize the FP32 graph")
    if needs == "data" or (to == "fp16" and calib is None and calib_cache is None):
        # The default inputs, as `calibrate` makes them up.
        artifact = replace(artifact, inputs=complete_inputs(artifact).inputs)
    if inputs is None:
        ranges, data = _find_ranges(artifact, needs, calib, calib_cache, threads, reporter)
    else:
        ranges, data = _take_ranges(artifact, needs, open_input_data(inputs, artifact.inputs), threads, reporter)
    reporter.step(f"{path.name}: to {to}")
    io_types = options["io_types"]
    made = convert(
        artifact, to, recipe, out, calibration=ranges, data=data, io_types=io_types, exclude=names, threads=threads
    )
    if options["by_time"] is not None:
        try:
            excluded = require_hook(SlowRegions)(artifact, made, options["by_time"], reporter)
        except BaseException:
            out.unlink(missing_ok=True)  # 8 bits throughout were not requested
            raise
        if excluded:
            names = (*names, *excluded)
            reporter.step(f"{path.name}: to {to}, by region")
            made = convert(artifact, to, recipe, out, calibration=ranges, data=data, exclude=names, threads=threads)
    seconds, model = time.perf_counter() - start, load_whole_graph(out)
    quantizers, dequantizers = count_quantizers(model)
    return QuantizeDocument(
        artifact=replace(made, path=str(out)),
        parent_bytes=sum(file.size_bytes for file in artifact.files),
        size_bytes=sum(file.size_bytes for file in made.files),
        quantizers=quantizers,
        dequantizers=dequantizers,
        coverage=find_coverage(made, model) if made.precision in FEW_BITS else None,
        tensorrt_refusals=tuple(
            TensorRtRefusal(node=r.node, reason=r.reason) for r in find_left_refusals(artifact, made, model)
        ),
        seconds=seconds,
    )


def _check_options(path: Path, out: Path, precision: tuple[Precision, Recipe | None], options: QuantizeOptions) -> None:
    """Check which options go together and with the precision."""
    label, needs = format_precision(*precision), find_needs(*precision)
    calibrated = options["calib"] is not None or options["calib_cache"] is not None
    if options["inputs"] is not None and calibrated:
        raise UsageError("--inputs gives the ranges, as --calib and --calib-cache do; keep one")
    if options["by_time"] is not None:
        if precision[0] != "int8" or needs == "nothing":
            raise UsageError(f"--by-time is for int8 with ranges (int8@cpu, int8@tensorrt, int8@nncf), not for {label}")
        require_hook(RegionEngineCheck)(options["by_time"])
    # FP16 looks for what it cannot hold.
    if needs == "nothing" and precision[0] != "fp16" and (calibrated or options["inputs"] is not None):
        raise UsageError(f"--to {label} takes no ranges: leave out --calib, --inputs and --calib-cache")
    if out.resolve() == path.resolve():
        raise UsageError(f"--out {out} is the file to be quantized; choose another --out")


def _find_ranges(
    artifact: Artifact, needs: Needs, calib: Path | None, calib_cache: Path | None, threads: int, reporter: Reporter
) -> tuple[Calibration | None, CalibrationData | None]:
    """(ranges, data), each only if it is given and the recipe needs it."""
    if calib_cache is not None and (calib is None or calib_cache.exists()):
        if calib is not None:
            reporter.say(f"ranges are read from {calib_cache}, not from {calib}")
        return read_calibration_cache(calib_cache), None
    if calib is None:
        return None, None
    data = open_calibration(calib, artifact)
    if data is not None:
        calibration, data = _take_ranges(artifact, needs, data, threads, reporter)
    else:
        calibration = read_calibration(calib)
        data = reopen_data(calibration, artifact) if needs == "data" and artifact.precision == "fp32" else None
    if calib_cache is not None:
        if calibration is None:
            why = "this recipe takes its own ranges, so that there are none to write"
            raise UsageError(f"{why}; leave out --calib-cache")
        write_calibration_cache(calibration, calib_cache)
        reporter.say(f"ranges written to {calib_cache}")
    return calibration, data


def open_calibration(calib: Path, artifact: Artifact) -> CalibrationData | None:
    """The entries that --calib names: arrays, or a folder of images; None for a file of ranges."""
    from enginebench.models.precision.calibration_data import open_arrays, open_data

    if calib.suffix.lower() in (".npy", ".npz"):
        return open_arrays(calib, artifact.inputs, ALL_ENTRIES)
    if not calib.exists():
        make = format_command("calibrate", "digits-cnn", options=[("--data", "digits"), ("--out", "calib.json")])
        raise UsageError(
            f"--calib {calib}: no such file; expected calib.json, F.npy, F.npz, or a folder of arrays or images. For "
            f"the digits: {make}, then --calib calib.json"
        )
    n = SOME_ENTRIES
    return open_data(str(calib), model=artifact.model, inputs=artifact.inputs, n=n) if calib.is_dir() else None


def _take_ranges(
    artifact: Artifact, needs: Needs, data: CalibrationData, threads: int, reporter: Reporter
) -> tuple[Calibration | None, CalibrationData]:
    """(ranges over the data, the data); no ranges where the recipe takes its own."""
    from enginebench.models.precision.calibrate import calibrate

    if needs == "data" or artifact.precision != "fp32":
        return None, data
    reporter.step(f"{artifact.path}: minmax over {data.n} entries of {data.source}")
    return calibrate(artifact, data, threads=threads), data


def reopen_data(calibration: Calibration, artifact: Artifact) -> CalibrationData:
    """The data that a calibration was made from, found again by its name."""
    from enginebench.models.precision.calibration_data import open_data

    if calibration.n is None:
        raise UsageError(f"{calibration.source} holds ranges without their data; give --calib F.npz")
    inputs = artifact.inputs
    side = inputs[0].shape[-1] if inputs and len(inputs[0].shape) == 4 else None
    size = side if isinstance(side, int) and resolve_model(calibration.model).kind == "builtin" else None
    model, n, seed = calibration.model, calibration.n, calibration.seed
    data = open_data(calibration.source, model=model, inputs=inputs, n=n, seed=seed, input_size=size)
    if data.preprocess_sha256 != calibration.preprocess_sha256:
        raise ArtifactError(
            f"{calibration.source} is prepared differently from the calibration. Keep the prepared entries with "
            f"{format_command('calibrate', 'MODEL', options=_KEEP)}, and give --calib F.npz"
        )
    return data
