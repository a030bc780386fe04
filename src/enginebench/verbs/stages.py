"""`stages`: the time from JPEG file to label, first one stage after another and then overlapped.

A child process takes the times (`runs/child/perform/stages`); the parent makes pictures, graph and document.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from enginebench import door
from enginebench.core.entry import EAGER
from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.names import format_options, parse_precision
from enginebench.core.records import MeasureSpec
from enginebench.core.store import encode, write_atomic
from enginebench.core.text import TIME
from enginebench.engines.registry import read_engines
from enginebench.measure.pin import default_threads
from enginebench.options import InputSize, Model, Native, Opt, PathLike, Precision, Shared, Texts, Unpack, Wait, verb
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.other_jobs import StagesJob
from enginebench.runs.folder import ARTIFACTS, RunRequest, hide_home
from enginebench.runs.lock import lock_devices
from enginebench.runs.plan import list_devices
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.targets.scratch import open_scratch
from enginebench.verbs.common import open_progress, take_model, to_path
from enginebench.verbs.requests import make_request

if TYPE_CHECKING:
    from enginebench.stats.stages import StagesDocument

# Two batches in flight: while one is computed, the other is copied.
GPU_LANES = 2
# Making the engine may take many minutes (max-autotune); the measurements themselves take seconds.
STAGES_TIMEOUT_S = 1800.0


class StagesOptions(Shared, total=False):
    engine: Annotated[str, Opt("ENGINE[:key=value,...]", EAGER)]
    engines: Annotated[Texts | None, Opt("Several, separated by commas, one after another; in place of --engine.")]
    precision: Precision
    batch: Annotated[int, Opt("Images per call.", 1, ge=1)]
    images: Annotated[PathLike | None, Opt("Folder of JPEG files. [generated photographs]", path="folder")]
    n: Annotated[int, Opt("Number of images.", 256, ge=1)]
    decoders: Annotated[int | None, Opt("Threads that decode and preprocess ahead. [physical cores]", ge=1, le=256)]
    save_images: Annotated[
        PathLike | None, Opt("Keep the images in this folder, for `calibrate --data`.", path="new folder")
    ]
    time_limit: Annotated[float, Opt("Seconds of each of the two measurements.", 3.0, gt=0, metavar=TIME)]
    input_size: InputSize
    wait: Wait


class StagesPrinted(Native, total=False):
    out: Annotated[str | None, Opt("Also write the JSON document to this file.", path="new file")]


@verb(StagesOptions)
def stages(target: Model, **options: Unpack[StagesOptions]) -> "StagesDocument":
    """Time TARGET from JPEG file to label: decode, resize, copy in, compute, copy out, top 5.

    Example: enginebench stages resnet18 --engine ort --n 64

    The stages run one after another first, which shows where the time goes; then with decoding threads and overlapped
    copies, which shows what a pipeline gains. Several engines stand side by side; one that fails is left out.

    Args:
        target: a model of images, as `run` takes it; for one of your own they are prepared as ImageNet's are.

    Raises:
        UsageError: the model takes no images, or there are fewer pictures than a batch.
        DependencyError: the engine cannot be had here.
        ArtifactError: the pictures cannot be read.
        DeviceBusy: another run holds the device, and `wait` is false.
    """
    from enginebench.stats.stages import StagesDocument

    documents, failures = list[StagesDocument](), list[EngineBenchError]()
    engines = read_engines(options["engines"] or [options["engine"]])
    measure = MeasureSpec(seed=options["seed"], time_limit_s=options["time_limit"], processes=1)
    with take_model(target) as taken, open_progress(options["progress"]) as reporter:
        for engine in engines:
            try:
                request = make_request(
                    taken.text,
                    options,
                    engines=[engine],
                    precisions=[parse_precision(options["precision"])],
                    batches=(options["batch"],),
                    measure=measure,
                )
                documents.append(measure_stages(request, options, reporter))
            except EngineBenchError as error:
                failures.append(error)
                if len(engines) > 1:
                    reporter.say(f"{format_options(*engine)} is left out: {error}")
    if not documents:
        raise failures[0]
    return replace(documents[0], others=tuple(documents[1:]))


@door.command(stages, "TARGET", shown=StagesPrinted)
def command(target: str, shown: StagesPrinted, **options: Unpack[StagesOptions]) -> None:
    from enginebench.report.stages import list_stages

    document = stages(target, **options)
    if shown["out"] is not None:
        write_atomic(Path(shown["out"]), encode(document, indent=2))
    door.show(document, shown, door.tables(list_stages))


def measure_stages(request: RunRequest, options: StagesOptions, reporter: Reporter) -> "StagesDocument":
    """Measure the stages of one configuration; the time limit of `request` applies to each of the two measurements."""
    from enginebench.models.photos import make_photos, read_photos, write_photos
    from enginebench.models.task import choose_preprocess, list_preprocess_warnings
    from enginebench.models.zoo import resolve_model
    from enginebench.runs.targets.ahead import check_pictures_ahead, run_quietly
    from enginebench.runs.targets.sources import plan_one
    from enginebench.stats.stages import describe_stages

    resolve_model(request.model)
    (batch,), n, images = request.batches, options["n"], to_path(options["images"])
    if n < batch:
        raise UsageError(f"--n {n} is less than a batch of {batch}; use a larger --n or a smaller --batch")
    photos = None if images is None else run_quietly(lambda: read_photos(images, n))
    check_pictures_ahead(request)
    with open_scratch() as scratch, lock_devices(list_devices(request), wait=options["wait"], on_wait=reporter.say):
        row, source = plan_one(request, scratch / ARTIFACTS, reporter)
        choose_preprocess(row.model, request.input_size, source.inputs)  # refused before pictures are made
        if photos is None:
            reporter.step(f"generating {n} photographs")
            photos = make_photos(n, request.measure.seed)
        folder = scratch / "photos"
        for folder_out in filter(None, (folder, to_path(options["save_images"]))):
            write_photos(folder_out, photos)
        job = StagesJob(
            model=row.model,
            artifact=source,
            engine=row.engine,
            out_dir=str((scratch / ARTIFACTS).absolute()),
            images_dir=str(folder.absolute()),
            n=len(photos),
            decoders=options["decoders"] or default_threads(),
            lanes=GPU_LANES if row.engine.device != "cpu" else 1,
            time_limit_s=request.measure.time_limit_s,
            input_size=request.input_size,
        )
        response = run_child(job, timeout_s=STAGES_TIMEOUT_S, on_note=report_steps(reporter, request.model))
    document = describe_stages(
        model=job.model,
        engine=job.engine,
        stages_ns=response.stages_ns,
        device_ns=response.device_ns,
        overlapped_per_s=response.overlapped_per_s,
        decoders=job.decoders,
        lanes=job.lanes,
        images="generated" if images is None else hide_home(str(images)),
        image_bytes=[len(photo) for photo in photos],
        top_classes=response.top_classes,
        engine_version=response.engine_version,
        warnings=(*job.artifact.warnings, *list_preprocess_warnings(request.model, request.input_size)),
    )
    return replace(document, takes_bytes=job.artifact.normalize is not None)
