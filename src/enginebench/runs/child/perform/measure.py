"""The child's part of a measurement: one trial of one configuration, pinned, watched and timed."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Array, Engine, Feeds, Loadable, SelfTimed
from enginebench.core.records import EngineSpec, Measurement, MeasureSpec, ResultWarning
from enginebench.core.shapes import list_cells, size_artifact
from enginebench.core.text import stamp_utc
from enginebench.core.warnings import make_warning
from enginebench.engines.abilities import ImportsLate
from enginebench.runs.child.jobs import KeepCall, MeasureJob, MeasureResponse, NoteCall
from enginebench.runs.child.opening import load_all, open_cells, open_for, pass_notes
from enginebench.runs.child.proving import prove_timed_engine
from enginebench.runs.child.watching import add_least, open_gpu, time_watched

if TYPE_CHECKING:
    from enginebench.core.protocols import Backend
    from enginebench.measure.memory import MemoryWatch
    from enginebench.measure.mix import MixPart
    from enginebench.measure.watch import DeviceWatch

NOT_PINNED = make_warning("environment.not_pinned")
# Before and after each trial; the median of twenty shrugs off single interruptions.
REFERENCE_REPEATS = 10
# More than half of the work: the measured times would be those of the smaller part.
LEFT_SHARE = 0.5
# What it may take to fetch the outputs of the last timed call: they are complete, so that a copy is enough.
DRAIN_S = 10.0


class Begun(NamedTuple):
    """A trial whose engine is imported, and not loaded yet."""

    job: MeasureJob
    started_utc: str
    pinned: tuple[int, ...] | None
    import_s: float | None
    before_ns: list[int]  # of the reference kernel

    def complete(self, measured: Measurement, shapes: Mapping[str, tuple[int, ...]]) -> MeasureResponse:
        """Return the response of the trial, after the reference kernel has run once more."""
        from enginebench.measure.reference import time_reference

        measurement = replace(
            measured,
            trial=self.job.trial,
            order=self.job.order,
            started_utc=self.started_utc,
            reference_ns=[*self.before_ns, *time_reference(REFERENCE_REPEATS)],
            pinned_cpus=self.pinned,
            warnings=(*measured.warnings, *([NOT_PINNED] if self.job.pin and self.pinned is None else [])),
        )
        return MeasureResponse(measurement=measurement, shapes=dict(shapes))


def measure_trial(job: MeasureJob, note: NoteCall, keep: KeepCall[MeasureResponse]) -> MeasureResponse:
    """One trial: pin, load, warm up, time; the reference kernel before and after; then the record, if wanted."""
    begun, backend, memory = _begin(job)
    if isinstance(backend, SelfTimed):
        pass_notes(backend, note)
        _check_self_timed(job)
        return begun.complete(backend.measure(job.artifact, job.engine, job.measure), {})
    assert isinstance(backend, Loadable)
    gpu = open_gpu(job.engine)
    with ExitStack() as stack:
        started = _start(backend, job, stack, memory)
        note("timing")
        measured = _time(started, begun, gpu, memory)
        shapes = {name: array.shape for name, array in started.feeds[0][0].items()}
        if job.measure.scope == "compute":
            _fetch_in_time(started, lambda endless: keep(begun.complete(_warn(measured, endless), shapes)))
        measured = _warn(measured, *_find_missing_in_cells(started.engines, started.samples, measured, job))
        if job.prove:  # while the engine is still there; else the reference kernel runs once it is gone
            sure = begun.complete(measured, shapes)
            keep(sure)
            note("verifying the precision")
            return replace(sure, proof=prove_timed_engine(started.engines[0]))
    return begun.complete(measured, shapes)


def _begin(job: MeasureJob) -> "tuple[Begun, Backend, MemoryWatch]":
    """Pin the process, import the engine, and time the reference kernel."""
    from enginebench.measure.memory import MemoryWatch
    from enginebench.measure.pin import pin_process

    started_utc = stamp_utc()
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
    from enginebench.measure.reference import time_reference

    return Begun(job, started_utc, pinned, import_s, time_reference(REFERENCE_REPEATS)), backend, memory


def _time(started: "Started", begun: Begun, gpu: "DeviceWatch | None", memory: "MemoryWatch") -> Measurement:
    """Time the engine, or the mix of its cells, and add what was measured on the way there."""
    job = begun.job
    with _keep_busy(job):
        measured = time_watched(
            started.engines[0],
            started.feeds[0],
            job.measure,
            job.engine,
            pinned=begun.pinned,
            gpu=gpu,
            others=started.others,
            mix=started.mix,
        )
    memory.end("steady")
    measured = replace(
        measured,
        import_s=begun.import_s,
        load_s=round(started.load_s, 9),  # the resolution of the clock
        first_run_s=round(started.first_run_s, 9),
        peak_memory_bytes=memory.peak_bytes,
        memory=memory.describe(),
    )
    return add_least(measured, job.engine, started.engines[0])


def _warn(measured: Measurement, *warnings: ResultWarning) -> Measurement:
    return replace(measured, warnings=(*measured.warnings, *warnings))


def _fetch_in_time(started: "Started", keep: Callable[[ResultWarning], None]) -> None:
    """Fetch the outputs of the last timed calls; if that has no end, keep the trial with a warning and exit."""

    def give_up() -> None:
        evidence = f"after the timed calls, {DRAIN_S:g} s are not enough to fetch the outputs"
        keep(make_warning("implausible_time.outside_run", evidence=evidence))
        os._exit(0)  # the engine would be waited for

    with calling_after(DRAIN_S, give_up):
        for engine, own in zip(started.engines, started.feeds, strict=True):
            engine.fetch()
            engine.bind(own[0])


def _check_self_timed(job: MeasureJob) -> None:
    if job.beside is not None:
        raise UsageError(f"{job.engine.backend} times itself: it cannot be timed beside another engine")
    check_cache(job.engine, job.measure)


def _keep_busy(job: MeasureJob) -> AbstractContextManager[None]:
    """Call the other engine meanwhile, if there is one."""
    if job.beside is None:
        return nullcontext()
    from enginebench.runs.child.perform.beside import keep_busy

    return keep_busy(job.beside)


class Started(NamedTuple):
    """An engine that has had its first output; of a mix one for each cell, with the samples and inputs of each."""

    engines: Sequence[Engine]
    others: Sequence[Engine]  # for further batches in flight
    samples: Sequence[Sequence[Feeds]]
    feeds: Sequence[Sequence[Feeds]]
    mix: "Sequence[MixPart]"  # () of one shape
    load_s: float
    first_run_s: float


def _start(backend: Loadable, job: MeasureJob, stack: ExitStack, memory: "MemoryWatch") -> Started:
    """Load the engine and run it once, for each shape that it serves."""
    # First: what EngineBench imports for itself is no part of the load.
    from enginebench.measure.caches import rotate_feeds, rotating_count
    from enginebench.measure.mix import MixPart
    from enginebench.runs.child.perform.recheck import sample_rechecked

    start = time.perf_counter()
    others: list[Engine] = []
    if job.engine.traffic:
        engines = stack.enter_context(open_cells(backend, job.artifact, job.engine))
    else:
        count = job.measure.depth if job.measure.scope == "pipelined" else 1
        first, *others = map(stack.enter_context, load_all(backend, job.artifact, [job.engine] * count))
        engines = [first]
    load_s = time.perf_counter() - start
    memory.end("load")
    samples = [
        sample_rechecked(size_artifact(job.artifact, cell), job.model, cell, job.measure.seed, job.inputs)
        for cell in list_cells(job.engine)
    ]
    feeds: list[Sequence[Feeds]] = [own[:1] for own in samples]
    if job.measure.scope != "compute":
        sizes = (sum(array.nbytes for array in own[0].values()) for own in samples)
        counts = (rotating_count(size, job.last_level_cache_bytes) for size in sizes)
        feeds = [rotate_feeds(own[0], count) for own, count in zip(samples, counts, strict=True)]
    first_run_s = 0.0
    for engine, own in zip(engines, feeds, strict=True):  # the first request of each shape
        engine.bind(own[0])
        bound = time.perf_counter()
        engine.run()
        first_run_s += time.perf_counter() - bound
    memory.end("first_run")
    weights = [cell.weight for cell in job.engine.traffic]
    mix = [MixPart(*part) for part in zip(engines, feeds, weights, strict=True)] if weights else []
    return Started(engines, others, samples, feeds, mix, load_s, first_run_s)


def _find_missing_in_cells(
    engines: Sequence[Engine], samples: Sequence[Sequence[Feeds]], measured: Measurement, job: MeasureJob
) -> list[ResultWarning]:
    """Return warnings on the engine, or on that of any cell of a mix, each held against its own times."""
    from enginebench.runs.child.perform.recheck import load_expected

    expected = load_expected(Path(job.recheck_path)) if job.recheck_path else []
    times = measured.cells_ns or [measured.latency_ns]
    warnings: list[ResultWarning] = []
    for i, (engine, own) in enumerate(zip(engines, samples, strict=True)):
        outputs = expected[len(own) * i : len(own) * (i + 1)] or None
        warnings += _find_missing_work(engine, own, replace(measured, latency_ns=times[i]), job, outputs)
    return list(dict.fromkeys(warnings))


@contextmanager
def calling_after(limit_s: float, give_up: Callable[[], None]) -> Iterator[None]:
    """Call `give_up` in a thread if the block takes longer, as where a queue of a million calls is worked off in it."""
    timer = Timer(limit_s, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _find_missing_work(
    engine: Engine,
    samples: Sequence[Feeds],
    measured: Measurement,
    job: MeasureJob,
    expected: Sequence[Mapping[str, Array]] | None,
) -> list[ResultWarning]:
    """Return warnings on an engine that does not do the work of the model in the calls that were timed."""
    from enginebench.measure.honesty import find_short_ns, find_skipped_work, run_longer
    from enginebench.measure.loop import measure_left
    from enginebench.runs.child.perform import recheck

    precision, warnings = job.engine.precision, list[ResultWarning]()
    if expected is not None:  # first: an engine that skips its work after some calls must not be woken
        warnings += recheck.recheck_outputs(engine, samples, expected, precision)
        if job.trial == 0 and not warnings:
            run_longer(engine, measured.latency_ns, max(1, len(job.engine.traffic)))
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
