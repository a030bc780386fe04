"""The verb `profile`: where one engine spends its time, layer by layer, in one vocabulary for every engine.

Timing and profiling run in one child process, timing first, since a profiler slows the engine down.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.effective import judge_precision
from enginebench.analyze.limits.layers import EngineProfileDocument, describe_profile
from enginebench.backends.registry import find_entry
from enginebench.core.errors import ChildFailed
from enginebench.core.records import LayerProfile
from enginebench.models.samples import find_samples
from enginebench.workflow.child.isolate import child_environment, run_child
from enginebench.workflow.child.jobs import ProbeJob, ProfileJob
from enginebench.workflow.folder import ARTIFACTS, RunRequest
from enginebench.workflow.limits import limit_layers
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.plan import list_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.targets.sources import plan_one

# Importing the slowest runtimes one after the other took 10 s; ten times that is a hang.
PROBE_TIMEOUT_S = 100.0
# Time for the runs without the profiler: enough for a median to compare the layers with, not for a verdict.
TIMED_S = 1.0


class MadeProfile(Struct, frozen=True, kw_only=True):
    """The document, and the layers that it is made of."""

    document: EngineProfileDocument
    profile: LayerProfile


def _check_profiler(name: str) -> None:
    """Checks that an engine can time its layers, as far as is known before anything is made for it.

    Raises:
        BackendUnavailable: it cannot.
    """
    with suppress(ChildFailed):  # an engine that cannot be imported is refused with the reason when it is planned
        run_child(ProbeJob(engine=find_entry(name).name, to_profile=True), timeout_s=PROBE_TIMEOUT_S)


def profile_target(request: RunRequest, *, reporter: Reporter, wait: bool = True) -> MadeProfile:
    """Where one engine spends its time, layer by layer.

    Args:
        request: one model, engine, precision and batch; its time limit applies to the runs without the profiler.
        reporter: progress.
        wait: if another run holds the device, wait for it or refuse.

    Raises:
        DependencyError: the engine is not available, or cannot time its layers.
        DeviceBusy: another run holds the device and `wait` is false.
    """
    _check_profiler(request.engines[0][0])
    with (
        open_scratch() as scratch,
        lock_devices(list_devices(request), wait=wait, on_wait=reporter.say),
    ):
        place = scratch / ARTIFACTS
        row, source = plan_one(request, place, reporter)
        answer = run_child(
            ProfileJob(
                model=row.model,
                artifact=source,
                engine=row.engine,
                measure=row.measure,
                out_dir=str((scratch / ARTIFACTS).absolute()),
                inputs=find_samples(scratch / ARTIFACTS),
            ),
            timeout_s=request.timeout_s,
            environment=child_environment(request.threads),
            on_note=lambda text: reporter.step(f"{request.model}: {text}"),
        )
        limited = limit_layers(request, place, (row.engine, source, answer.shapes), answer.profile.layers, reporter)
    profile = replace(answer.profile, layers=limited.layers)
    ran, doubts = judge_precision(row.engine.precision, answer.effective_precision, row.engine.device)
    document = describe_profile(
        model=row.model,
        engine=replace(row.engine, precision=ran),
        profile=profile,
        end_to_end_ns=answer.end_to_end_ns,
        clock=answer.clock,
        effective_precision=answer.effective_precision,
        engine_version=answer.engine_version,
        caveats=tuple(dict.fromkeys((*source.caveats, *answer.caveats, *doubts))),
        bound=limited.bound,
        notes=limited.notes,
    )
    return MadeProfile(document=document, profile=profile)
