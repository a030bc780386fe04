"""The verb `stages`: the time from JPEG file to label, first one stage after another and then overlapped.

The timing runs in a child process (`child/perform/stages`); the parent makes the pictures, the graph and the document.
"""

from __future__ import annotations

from pathlib import Path

from enginebench.analyze.stages import StagesDocument, describe_stages
from enginebench.core.errors import UsageError
from enginebench.workflow.child.isolate import child_environment, run_child
from enginebench.workflow.child.jobs import StagesJob
from enginebench.workflow.folder import ARTIFACTS, RunRequest, hide_home
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import list_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.targets.sources import plan_one

# Two batches in flight: while one is computed, the other is copied.
GPU_LANES = 2
# Making the engine may take many minutes (max-autotune); the measurements themselves take seconds.
STAGES_TIMEOUT_S = 1800.0


def measure_stages(
    request: RunRequest,
    *,
    images: Path | None,
    n: int,
    decoders: int,
    save_images: Path | None = None,
    reporter: Reporter,
    wait: bool = True,
) -> StagesDocument:
    """Measures where the time goes from JPEG file to label.

    Args:
        request: one model, engine, precision and batch; its time limit applies to each of the two measurements.
        images: folder of JPEG files; None: photographs generated from the request's seed.
        n: number of pictures, at most as many as the folder holds.
        decoders: threads that decode and preprocess when stages overlap.
        save_images: folder that keeps the generated pictures.
        reporter: progress.
        wait: if another run holds the engine's device, wait for it or refuse.

    Raises:
        UsageError: the model's preprocessing is not known, or `n` is less than a batch.
        DependencyError: the engine is not available.
        ArtifactError: the pictures cannot be read.
    """
    from enginebench.models.sample_images import write_photos
    from enginebench.models.task import choose_preprocess
    from enginebench.models.zoo import resolve_model

    resolve_model(request.model)
    choose_preprocess(request.model, request.input_size)  # refused before pictures and graphs are made
    (batch,) = request.batches
    if n < batch:
        raise UsageError(f"--n {n} is less than a batch of {batch}; use a larger --n or a smaller --batch")
    photos = gather_photos(images, n, request.measure.seed, reporter)
    if save_images is not None:
        write_photos(save_images, photos)
    with (
        open_scratch() as scratch,
        lock_devices(list_devices(request), wait=wait, on_wait=reporter.say),
    ):
        folder = scratch / "photos"
        write_photos(folder, photos)
        job = plan_stages(request, scratch, folder, len(photos), decoders, reporter)
        answer = run_child(
            job,
            timeout_s=STAGES_TIMEOUT_S,
            environment=child_environment(request.threads),
            on_note=lambda text: reporter.step(f"{request.model}: {text}"),
        )
    return describe_stages(
        model=job.model,
        engine=job.engine,
        stages_ns=answer.stages_ns,
        device_ns=answer.device_ns,
        overlapped_per_s=answer.overlapped_per_s,
        decoders=job.decoders,
        lanes=job.lanes,
        images="generated" if images is None else hide_home(str(images)),
        image_bytes=[len(photo) for photo in photos],
        top_classes=answer.top_classes,
        engine_version=answer.engine_version,
        caveats=job.artifact.caveats,
    )


def gather_photos(images: Path | None, n: int, seed: int, reporter: Reporter) -> list[bytes]:
    """JPEG files, from a folder or generated."""
    from enginebench.models.sample_images import make_photos, read_photos

    if images is not None:
        return read_photos(images, n)
    reporter.step(f"generating {n} photographs")
    return make_photos(n, seed)


def plan_stages(
    request: RunRequest, scratch: Path, photos: Path, n: int, decoders: int, reporter: Reporter
) -> StagesJob:
    """The child's job: the one row of the request, on its own graph.

    Raises:
        BackendUnavailable: the row cannot run; the message says why.
    """
    row, source = plan_one(request, scratch / ARTIFACTS, reporter)
    return StagesJob(
        model=row.model,
        artifact=source,
        engine=row.engine,
        out_dir=str((scratch / ARTIFACTS).absolute()),
        images_dir=str(photos.absolute()),
        n=n,
        decoders=decoders,
        lanes=GPU_LANES if row.engine.device != "cpu" else 1,
        time_limit_s=request.measure.time_limit_s,
        input_size=request.input_size,
    )
