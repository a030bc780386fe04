"""The child's part of a measurement: one repetition of one row, pinned, watched and timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Loadable, SelfTimed
from enginebench.core.records import Caveat, EngineSpec, Measurement, MeasureSpec
from enginebench.workflow.jobs import KeepCall, MeasureAnswer, MeasureJob, NoteCall
from enginebench.workflow.opening import open_for
from enginebench.workflow.proving import prove_timed_engine

if TYPE_CHECKING:
    from enginebench.core.protocols import Engine, Feeds
    from enginebench.measure.nvml import GpuWatch

NOT_PINNED = Caveat(
    code="environment",
    message="the process could not be pinned to its CPUs",
    advice="on Linux, allow sched_setaffinity; elsewhere expect more spread",
)
# Before and after each repetition; the median of twenty shrugs off single interruptions.
REFERENCE_REPEATS = 10


def measure_repetition(job: MeasureJob, note: NoteCall, keep: KeepCall) -> MeasureAnswer:
    """One repetition: pin, load, warm up, time; the reference kernel before and after; then the record, if wanted."""
    from enginebench.measure.pin import pin_process
    from enginebench.measure.reference import time_reference

    started = datetime.now(UTC).isoformat(timespec="seconds")
    pinned = pin_process(job.engine.threads) if job.pin else None
    before = time_reference(REFERENCE_REPEATS)

    def complete(measured: Measurement) -> MeasureAnswer:
        measurement = replace(
            measured,
            repetition=job.repetition,
            order=job.order,
            started_utc=started,
            reference_ns=[*before, *time_reference(REFERENCE_REPEATS)],
            pinned_cpus=pinned,
            caveats=(*measured.caveats, *([NOT_PINNED] if job.pin and pinned is None else [])),
        )
        return MeasureAnswer(measurement=measurement)

    def complete_and_prove(measured: Measurement, engine: Engine) -> MeasureAnswer:
        sure = complete(measured)
        keep(sure)
        note("asking which precisions ran")
        return replace(sure, proof=prove_timed_engine(engine))

    backend = open_for(job.engine, job.out_dir)
    if isinstance(backend, SelfTimed):
        check_cache(job.engine, job.measure)
        return complete(backend.measure(job.artifact, job.engine, job.measure))
    assert isinstance(backend, Loadable)
    return _time_engine(backend, job, pinned, note, complete, complete_and_prove if job.prove else None)


def check_cache(engine: EngineSpec, measure: MeasureSpec) -> None:
    """Returns if an engine that times itself measures what its row is called by.

    Raises:
        UsageError: the row would be called cold, and be measured with a cache as the call before left it.
    """
    if measure.cache == "cold":
        raise UsageError(f"{engine.backend} times itself and cannot empty a cache before each call. Use --cache hot")


def _rotate(feeds: Feeds, job: MeasureJob) -> list[Feeds]:
    """Copies of the feeds, together larger than the last-level cache."""
    from enginebench.measure.rotation import rotate_feeds, rotating_count

    size = sum(array.nbytes for array in feeds.values())
    return rotate_feeds(feeds, rotating_count(size, job.last_level_cache_bytes))


def _time_engine(
    backend: Loadable,
    job: MeasureJob,
    pinned: tuple[int, ...] | None,
    note: NoteCall,
    complete: Callable[[Measurement], MeasureAnswer],
    complete_and_prove: Callable[[Measurement, Engine], MeasureAnswer] | None,
) -> MeasureAnswer:
    """The answer, completed once the engine is gone; or while it is still there, if its record is wanted."""
    from enginebench.measure.loop import measure_engine
    from enginebench.measure.machine import peak_memory_bytes
    from enginebench.measure.topology import whole_cores
    from enginebench.measure.watch import BlockWatch, JointWatch
    from enginebench.models.task import sample_feeds

    inputs = job.artifact.inputs
    gpu = _open_gpu(job)
    start = time.perf_counter()
    with backend.load(job.artifact, job.engine) as engine:
        loaded = time.perf_counter()
        first = sample_feeds(inputs, job.model, job.engine.batch, job.measure.seed, 1)
        feeds: Sequence[Feeds] = first if job.measure.scope == "compute" else _rotate(first[0], job)
        engine.bind(feeds[0])
        bound = time.perf_counter()
        engine.run()
        first_run = time.perf_counter()
        note("timing")
        # Elsewhere others may work as they like; on these cores they take time away.
        cpu = BlockWatch(whole_cores(pinned) if pinned else None)
        measured = measure_engine(
            engine,
            feeds,
            job.measure,
            watch=JointWatch(cpu, gpu) if gpu else cpu,
            read_clock_mhz=gpu.read_clock_mhz if gpu else lambda: None,
        )
        measured = replace(
            _add_telemetry(measured, job, gpu),
            load_s=loaded - start,
            first_run_s=first_run - bound,
            peak_memory_bytes=peak_memory_bytes(),
        )
        if complete_and_prove is not None:
            return complete_and_prove(measured, engine)
    return complete(measured)


def _open_gpu(job: MeasureJob) -> GpuWatch | None:
    """The watch on the job's GPU, opened before anything lies in its memory."""
    if job.engine.device == "cpu":
        return None
    from enginebench.measure.nvml import open_gpu_watch

    gpu = open_gpu_watch(job.engine.device)
    if gpu is not None:
        gpu.watch_energy_counter()
    return gpu


def _add_telemetry(measured: Measurement, job: MeasureJob, gpu: GpuWatch | None) -> Measurement:
    """The measurement with memory and energy of the GPU, or with the doubt that nothing was watched."""
    from enginebench.measure.nvml import HIDDEN_PROCESSES, NO_TELEMETRY

    if job.engine.device == "cpu":
        return measured
    if gpu is None:
        return replace(measured, caveats=(*measured.caveats, NO_TELEMETRY))
    images = (len(measured.latency_ns) + measured.untimed_calls) * job.engine.batch
    # A cold call also pays for the flush before it, which belongs to no image.
    energy = gpu.energy_per_image(images) if job.measure.cache == "hot" else None
    return replace(
        measured,
        caveats=(*measured.caveats, *([HIDDEN_PROCESSES] if gpu.hides_processes else [])),
        peak_device_memory_bytes=gpu.peak_memory_bytes(),
        energy_mj=energy[0] if energy else None,
        energy_resolution_mj=energy[1] if energy else None,
    )
