"""The child's part of `profile`: an engine timed, then its layers: a profiler slows what it watches."""

from contextlib import suppress
from typing import get_args, get_type_hints

from enginebench.core.errors import BackendUnavailable
from enginebench.core.protocols import Engine, LayerProfiler, Loadable, PrecisionProof, SelfTimed
from enginebench.core.records import Availability
from enginebench.engines.abilities import PlanProfiler, PlanProof
from enginebench.engines.registry import find_installed, list_names, open_backend, probe
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.other_jobs import ProbeLayersJob, ProfileJob, ProfileResponse
from enginebench.stats.quantiles import median
from enginebench.stats.validity import list_enqueue_warnings, list_mark_warnings


def perform_profile(job: ProfileJob, note: NoteCall) -> ProfileResponse:
    from enginebench.measure.pin import pin_process
    from enginebench.models.task import sample_feeds
    from enginebench.runs.child.opening import build_configuration, open_for
    from enginebench.runs.child.watching import open_gpu, time_watched

    pinned = pin_process(job.engine.threads)
    backend = open_for(job.engine, job.out_dir)
    artifact = build_configuration(backend, job.artifact, job.engine, job.out_dir, note)
    shapes: dict[str, tuple[int, ...]] = {}
    if isinstance(backend, Loadable):
        gpu = open_gpu(job.engine)
        with backend.load(artifact, job.engine) as engine:
            if not isinstance(engine, LayerProfiler):
                raise _refuse(job.engine.backend)
            feeds = sample_feeds(engine.inputs, job.model, job.engine.batch, job.measure.seed, 1, job.inputs)
            note("timing")
            measured = time_watched(engine, feeds, job.measure, job.engine, pinned=pinned, gpu=gpu)
            note("profiling")
            profile = engine.profile_layers()
            proof = engine.effective_precision() if isinstance(engine, PrecisionProof) else None
            shapes = {name: tuple(array.shape) for name, array in feeds[0].items()}
    elif isinstance(backend, PlanProfiler) and isinstance(backend, SelfTimed):
        note("timing")
        measured = backend.measure(artifact, job.engine, job.measure)
        note("profiling")
        proof = backend.prove_precision(artifact, job.engine) if isinstance(backend, PlanProof) else None
        profile = backend.profile_plan(artifact, job.engine)  # of the run that proved it
    else:
        raise _refuse(job.engine.backend)
    return ProfileResponse(
        profile=profile,
        shapes=shapes,
        end_to_end_ns=median(measured.device_ns or measured.latency_ns),
        clock="device" if measured.device_ns else measured.clock,
        effective_precision=proof or None,
        engine_version=backend.probe().version,
        warnings=(*measured.warnings, *list_mark_warnings([measured]), *list_enqueue_warnings([measured])),
    )


def probe_layers(job: ProbeLayersJob) -> Availability:
    check_profiler(job.engine)
    return probe(job.engine)


def check_profiler(name: str) -> None:
    if _ask_for_layers(name) is False:
        raise _refuse(name)


def times_layers(backend: object) -> bool | None:
    """Whether engines of this backend can time their layers; None where nothing says so before one is loaded."""
    if isinstance(backend, PlanProfiler):
        return True
    if not isinstance(backend, Loadable):
        return False
    try:
        made = get_type_hints(backend.load).get("return")
    except NameError:  # an annotation that only a type checker can read
        return None
    classes = [kind for kind in get_args(made) or (made,) if isinstance(kind, type)]
    if not classes or Engine in classes:
        return None
    return all(hasattr(kind, "profile_layers") for kind in classes)


def _ask_for_layers(name: str) -> bool | None:
    """As `times_layers`, of an engine by name; None for one that cannot be imported here."""
    with suppress(Exception):
        return times_layers(open_backend(name))
    return None


def _refuse(name: str) -> BackendUnavailable:
    able = ", ".join(other for other in list_names() if find_installed(other).available and _ask_for_layers(other))
    return BackendUnavailable(f"engine {name} cannot time its layers; these can: {able} (of those installed here)")
