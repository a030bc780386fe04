"""`calibrate`: the ranges of tensors over data, through the model's own preprocessing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, TypeAlias

import click
from msgspec import Struct, field
from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import ResultWarning
from enginebench.core.store import open_partial
from enginebench.core.warnings import format_warning
from enginebench.models.precision.calibration import Calibration, Method, write_calibration, write_calibration_cache
from enginebench.options import InputSize, Model, Modules, Opt, PathLike, Printed, Shared, Unpack, verb
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.targets.scratch import scratch_for
from enginebench.verbs.common import begin, check_cpu, to_path, to_text
from enginebench.verbs.export import EXPORT_TIMEOUT_S
from enginebench.verbs.requests import count_threads, make_source

CACHE_SUFFIX = ".cache"


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
    warnings: tuple[ResultWarning, ...] = field(name="caveats")


class CalibrateOptions(Modules, Shared, total=False):
    n: Annotated[int, Opt("Number of entries to use, at most.", 256, ge=1)]
    batch: Annotated[int, Opt("Entries per call, at most.", 16, ge=1)]
    input_size: InputSize
    method: Annotated[Method, Opt("How a range is derived from the values.", "minmax")]
    percentile: Annotated[float | None, Opt("The percentile of --method percentile. [99.99]", gt=50, le=100)]
    keep_batches: Annotated[
        PathLike | None, Opt("Also write the entries themselves to this file.", metavar="F.npz", path="new file")
    ]


Data: TypeAlias = Annotated[
    PathLike | None,
    Opt(
        "A folder of images, digits, sample-photos, fake, or prepared arrays; --inputs replaces it.",
        metavar="DIR|digits|sample-photos|fake|F.npy|F.npz",
    ),
]
Out: TypeAlias = Annotated[
    PathLike,
    Opt("File for the ranges: JSON, or TensorRT's text cache if it ends in .cache.", "calib.json", path="new file"),
]


@verb(CalibrateOptions)
def calibrate(model: Model, data: Data, out: Out, **options: Unpack[CalibrateOptions]) -> CalibrateDocument:
    """Calibrate MODEL: find the range of every tensor over real inputs.

    Example: enginebench calibrate digits-cnn --data digits --out calib.json

    `quantize` and `build` read the ranges.

    Args:
        model: as `run` takes it.

    Raises:
        UsageError: the data do not fit the model.
        ArtifactError: a picture or an array cannot be used.
    """
    from enginebench.models.precision.calibrate import calibrate as find_ranges
    from enginebench.models.precision.calibration_data import check_source, keep_batches, open_data, open_input_data
    from enginebench.runs.targets.ahead import check_source_ahead
    from enginebench.runs.targets.sources import make_sources

    check_cpu(options["device"], "ranges are calibrated on the CPU and apply to every device")
    n, batch, method, percentile = options["n"], options["batch"], options["method"], options["percentile"]
    batches_out, path = to_path(options["keep_batches"]), Path(out)
    size, threads = options["input_size"], count_threads(options["threads"])
    with begin(model, options) as (taken, reporter), open_partial(scratch_for("calibrate")) as scratch:
        source, text = make_source(taken.text, options, size), to_text(data)
        if text is not None:
            check_source(text)
        elif source.inputs is None:
            raise UsageError("ranges need entries: give --data or --inputs")
        check_source_ahead(source)
        start = time.perf_counter()
        job = SourceJob(source=source, out_dir=str(scratch), batch=batch, dynamic_batch=source.input_shapes is None)
        sources = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
        artifact = next((source for source in sources if source.kind == "onnx"), None)
        if artifact is None:
            raise ArtifactError(f"{source.model} has no ONNX graph; export it first")
        # The child knows only the name of a user's file; messages say what the user wrote.
        artifact = replace(artifact, model=source.model)
        specs = artifact.inputs
        if text is None and source.inputs is not None:
            entries = open_input_data(source.inputs, specs, n)
        else:
            entries = open_data(text or "", model=source.model, inputs=specs, n=n, seed=source.seed, input_size=size)
        reporter.step(f"{source.model}: {method} over {entries.n} entries of {entries.source}")
        ranges = find_ranges(artifact, entries, method=method, percentile=percentile, batch=batch, threads=threads)
    if batches_out is not None:
        keep_batches(entries, batches_out)
    if path.suffix == CACHE_SUFFIX:
        write_calibration_cache(ranges, path)
    else:
        write_calibration(ranges, path)
    seconds = time.perf_counter() - start
    same = {*CalibrateDocument.__struct_fields__} & {*Calibration.__struct_fields__} - {"schema"}
    return CalibrateDocument(
        path=str(path),
        tensors=len(ranges.ranges),
        batches=str(batches_out) if batches_out else None,
        seconds=seconds,
        **{name: getattr(ranges, name) for name in same},
    )


@door.command(calibrate, "MODEL")
def command(model: str, data: str | None, out: str, shown: Printed, **options: Unpack[CalibrateOptions]) -> None:
    door.show(calibrate(model, data, out, **options), shown, print_calibration)


def print_calibration(document: CalibrateDocument, _: object) -> None:
    method = f"{document.method} {document.percentile:g}" if document.percentile else document.method
    click.echo(f"{document.path}: {method}, ranges of {document.tensors} tensors over {document.n} entries")
    if document.batches:
        click.echo(f"{document.batches}: the entries themselves")
    for warning in document.warnings:
        click.echo(format_warning(warning))
