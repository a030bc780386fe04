"""The verb `profile`: where the time of one engine goes, layer by layer, in one vocabulary for every engine.

Timing and profiling run in one child process, the timing first: a profiler slows what it watches.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from enginebench.analyze.layers import EngineProfileDocument, describe_profile
from enginebench.analyze.quantiles import median
from enginebench.backends.registry import check_profiler
from enginebench.core.errors import BackendUnavailable
from enginebench.core.protocols import LayerProfiler, Loadable, PlanProfiler, PrecisionProof, SelfTimed
from enginebench.core.records import LayerProfile, Measurement
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import NoteCall, ProfileAnswer, ProfileJob
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import list_devices
from enginebench.workflow.scratch import open_scratch
from enginebench.workflow.sources import plan_one

if TYPE_CHECKING:
    from enginebench.core.protocols import Engine


# Of runs without the profiler: enough for a median that layers are held against, not for a verdict.
TIMED_S = 1.0


class MadeProfile(Struct, frozen=True, kw_only=True):
    """The document, and the layers that it is made of."""

    document: EngineProfileDocument
    profile: LayerProfile


def profile_target(request: RunRequest, *, reporter: Reporter, wait: bool = True) -> MadeProfile:
    """Where the time of one engine goes, layer by layer.

    Args:
        request: one model, engine, precision and batch; its time limit holds for the runs without the profiler.
        reporter: progress.
        wait: wait for another run on the device, or refuse.

    Raises:
        DependencyError: the engine cannot be had, or cannot time its layers.
        DeviceBusy: another run holds the device, and `wait` is false.
    """
    check_profiler(request.engines[0][0])
    with (
        open_scratch() as scratch,
        lock_devices(list_devices(request), wait=wait, on_wait=reporter.say),
    ):
        row, source = plan_one(request, scratch / "artefacts", reporter)
        answer = run_child(
            ProfileJob(
                model=row.model,
                artifact=source,
                engine=row.engine,
                measure=row.measure,
                out_dir=str((scratch / "artefacts").absolute()),
            ),
            timeout_s=request.timeout_s,
            environment=child_environment(request.threads),
            on_note=lambda text: reporter.step(f"{request.model}: {text}"),
        )
    assert isinstance(answer, ProfileAnswer)
    document = describe_profile(
        model=row.model,
        engine=row.engine,
        profile=answer.profile,
        end_to_end_ns=answer.end_to_end_ns,
        clock=answer.clock,
        effective_precision=answer.effective_precision,
        engine_version=answer.engine_version,
        caveats=tuple(dict.fromkeys((*source.caveats, *answer.caveats))),
    )
    return MadeProfile(document=document, profile=answer.profile)


def perform_profile(job: ProfileJob, note: NoteCall) -> ProfileAnswer:
    """Times the engine, then profiles it, in this process.

    Raises:
        BackendUnavailable: the engine cannot time its layers.
    """
    from enginebench.measure.pin import pin_process
    from enginebench.workflow.opening import open_for, pass_notes

    pinned = pin_process(job.engine.threads)
    backend = open_for(job.engine, job.out_dir)
    note("building")
    pass_notes(backend, note)
    artifact = backend.build(job.artifact, job.engine, Path(job.out_dir))
    if isinstance(backend, Loadable):
        with backend.load(artifact, job.engine) as engine:
            measured, profile, proof = _profile_loaded(engine, job, pinned, note)
    elif isinstance(backend, PlanProfiler) and isinstance(backend, SelfTimed):
        note("timing")
        measured = backend.measure(artifact, job.engine, job.measure)
        note("profiling")
        profile, proof = backend.profile_plan(artifact, job.engine), None
    else:
        raise _refuse(job)
    return ProfileAnswer(
        profile=profile,
        end_to_end_ns=median(measured.device_ns or measured.latency_ns),
        clock="device" if measured.device_ns else measured.clock,
        effective_precision=proof or None,
        engine_version=backend.probe().version,
        caveats=measured.caveats,
    )


def _profile_loaded(
    engine: Engine, job: ProfileJob, pinned: tuple[int, ...] | None, note: NoteCall
) -> tuple[Measurement, LayerProfile, dict[str, float] | None]:
    """(times without the profiler, layers, shares by precision) of a loaded engine, on one set of inputs."""
    from enginebench.measure.loop import measure_engine
    from enginebench.measure.topology import whole_cores
    from enginebench.measure.watch import BlockWatch
    from enginebench.models.task import sample_feeds

    if not isinstance(engine, LayerProfiler):
        raise _refuse(job)
    feeds = sample_feeds(engine.inputs, job.model, job.engine.batch, job.measure.seed, 1)
    note("timing")
    measured = measure_engine(engine, feeds, job.measure, watch=BlockWatch(whole_cores(pinned) if pinned else None))
    note("profiling")
    profile = engine.profile_layers()
    return measured, profile, engine.effective_precision() if isinstance(engine, PrecisionProof) else None


def _refuse(job: ProfileJob) -> BackendUnavailable:
    return BackendUnavailable(f"engine {job.engine.backend} cannot time its layers")
