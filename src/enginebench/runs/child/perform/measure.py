"""The child's part of a measurement: one trial of one row, pinned, watched and timed."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Engine, Feeds, Loadable, SelfTimed
from enginebench.core.records import EngineSpec, Measurement, MeasureSpec, ResultWarning
from enginebench.core.text import stamp_utc
from enginebench.core.warnings import make_warning
from enginebench.engines.abilities import ImportsLate
from enginebench.runs.child.jobs import KeepCall, MeasureJob, MeasureResponse, NoteCall
from enginebench.runs.child.opening import load_all, open_for, pass_notes
from enginebench.runs.child.proving import prove_timed_engine
from enginebench.runs.child.watching import add_least, open_gpu, time_watched

NOT_PINNED = make_warning("environment.not_pinned")
# Before and after each trial; the median of twenty shrugs off single interruptions.
REFERENCE_REPEATS = 10
# More than half of the work: the measured times would be those of the smaller part.
LEFT_SHARE = 0.5


def measure_trial(job: MeasureJob, note: NoteCall, keep: KeepCall[MeasureResponse]) -> MeasureResponse:
    """One trial: pin, load, warm up, time; the reference kernel before and after; then the record, if wanted."""
    from enginebench.measure.memory import MemoryWatch
    from enginebench.measure.pin import pin_process

    started = stamp_utc()
    pinned = pin_process(job.engine.threads) if job.pin else None
    memory = MemoryWatch()
    if not job.imported_ahead:
        memory.end("before")
    begin = time.perf_counter()
    backend = open_for(job.engine, job.out_dir)
    if isinstance(backend, ImportsLate):
        backend.import_ahead()  # as where others took turns with it: no part of the load
    import_s = None if job.imported_ahead else round(time.perf_counter() - begin, 9)
    memory.end("import")
    # What EngineBench imports for itself, after the engine: NumPy belongs to the engine.
    from enginebench.measure.caches import rotate_feeds, rotating_count
    from enginebench.measure.reference import time_reference
    from enginebench.runs.child.perform.recheck import sample_rechecked

    before = time_reference(REFERENCE_REPEATS)

    def complete(measured: Measurement, shapes: Mapping[str, tuple[int, ...]]) -> MeasureResponse:
        measurement = replace(
            measured,
            trial=job.trial,
            order=job.order,
            started_utc=started,
            reference_ns=[*before, *time_reference(REFERENCE_REPEATS)],
            pinned_cpus=pinned,
            warnings=(*measured.warnings, *([NOT_PINNED] if job.pin and pinned is None else [])),
        )
        return MeasureResponse(measurement=measurement, shapes=dict(shapes))

    if isinstance(backend, SelfTimed):
        pass_notes(backend, note)
        check_cache(job.engine, job.measure)
        return complete(backend.measure(job.artifact, job.engine, job.measure), {})
    assert isinstance(backend, Loadable)
    gpu = open_gpu(job.engine)
    start = time.perf_counter()
    count = job.measure.depth if job.measure.scope == "pipelined" else 1
    with ExitStack() as stack:
        engine, *others = map(stack.enter_context, load_all(backend, job.artifact, [job.engine] * count))
        loaded = time.perf_counter()
        memory.end("load")
        samples = sample_rechecked(job.artifact, job.model, job.engine, job.measure.seed, job.inputs)
        feeds: Sequence[Feeds] = samples[:1]
        if job.measure.scope != "compute":
            size = sum(array.nbytes for array in samples[0].values())
            feeds = rotate_feeds(samples[0], rotating_count(size, job.last_level_cache_bytes))
        engine.bind(feeds[0])
        bound = time.perf_counter()
        engine.run()
        first_run = time.perf_counter()
        memory.end("first_run")
        note("timing")
        measured = time_watched(engine, feeds, job.measure, job.engine, pinned=pinned, gpu=gpu, others=others)
        memory.end("steady")
        phases = memory.describe()
        warnings = _find_missing_work(engine, samples, measured, job)
        measured = replace(
            measured,
            warnings=(*measured.warnings, *warnings),
            import_s=import_s,
            load_s=round(loaded - start, 9),  # the resolution of the clock
            first_run_s=round(first_run - bound, 9),
            peak_memory_bytes=memory.peak_bytes,
            memory=phases,
        )
        measured = add_least(measured, job.engine, engine)
        shapes = {name: array.shape for name, array in feeds[0].items()}
        if job.prove:  # while the engine is still there; else the reference kernel runs once it is gone
            sure = complete(measured, shapes)
            keep(sure)
            note("verifying the precision")
            return replace(sure, proof=prove_timed_engine(engine))
    return complete(measured, shapes)


def _find_missing_work(
    engine: Engine, samples: Sequence[Feeds], measured: Measurement, job: MeasureJob
) -> list[ResultWarning]:
    """Return warnings on an engine that does not do the work of the model in the calls that were timed."""
    from enginebench.measure.honesty import find_short_ns, find_skipped_work
    from enginebench.measure.loop import measure_left
    from enginebench.runs.child.perform import recheck

    precision, warnings = job.engine.precision, list[ResultWarning]()
    expected = recheck.load_expected(Path(job.recheck_path)) if job.recheck_path else None
    if expected is not None:  # first: an engine that skips its work after some calls must not be woken
        warnings += recheck.recheck_outputs(engine, samples, expected, precision)
    if job.measure.scope != "compute":
        return warnings  # scope io times binding new inputs, and the fetch, in each call
    if expected is not None and not warnings:
        warnings += recheck.find_early_outputs(engine, samples, expected, precision)
    engine.bind(samples[0])
    engine.run()
    left = measure_left(engine)
    warnings += [make_warning("work_outside_run", share=left)] if left > LEFT_SHARE else []
    timed_ns = find_short_ns(measured.latency_ns)
    return [*warnings, *find_skipped_work(engine, samples[0], timed_ns, waits=job.engine.device != "cpu")]


def check_cache(engine: EngineSpec, measure: MeasureSpec) -> None:
    if measure.cache == "cold":
        raise UsageError(f"{engine.backend} times itself and cannot empty a cache before each call. Use a hot cache")
