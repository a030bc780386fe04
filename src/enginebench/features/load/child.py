"""The child's part of `load`: the engine that serves a board, and the generator that releases its requests."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Hashable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from enginebench.core.entry import find_kind
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.feeds import choose_buckets
from enginebench.core.protocols import Loadable
from enginebench.core.streams import Overlapping, Streaming, Streams, StreamsSpec
from enginebench.engines.registry import find_entry
from enginebench.features.load.arrivals import (
    Board,
    BoardSink,
    BoardSource,
    ClosedLoop,
    open_bell,
    release_all,
    wait_until_ready,
)
from enginebench.features.load.batching import Batcher
from enginebench.features.load.jobs import ArriveAnswer, ArriveJob, ServeAnswer, ServeJob
from enginebench.features.load.serving import serve
from enginebench.features.load.thread_streams import InlineStream, OverlappedStreams, ThreadStreams, make_lane
from enginebench.measure.machine import peak_memory_bytes
from enginebench.measure.pin import pin_to
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import load_all, open_for
from enginebench.runs.child.watching import doubt_telemetry, open_gpu

if TYPE_CHECKING:
    from enginebench.core.protocols import Backend, Feeds

CLOCK = time.perf_counter_ns
# Of every batch on every stream, before the first request comes: the first call of a shape may allocate or search.
WARMUP_RUNS = 3


def serve_board(job: ServeJob, note: NoteCall) -> ServeAnswer:
    """Opens the engine, says that it is ready, and serves until all requests have ended or the time is over."""
    if job.cpus:
        pin_to(job.cpus)
    board, samples = Board(job.board), read_samples(job)
    kinds = [find_kind_of(sample) for sample in samples]
    gpu = open_gpu(job.engine)
    with ExitStack() as stack:
        backend = open_for(job.engine, job.out_dir)
        streams = open_streams(backend, job)
        stack.callback(streams.close)
        warm_up(streams, samples, job.max_batch)
        sink, calls = BoardSink(board), board.sample.tolist()
        batcher = Batcher(job.max_batch, round(1e6 * job.max_wait_ms), job.queue_limit)
        run = partial(
            serve, sink=sink, streams=streams, batcher=batcher, find_sample=lambda n: samples[calls[n]], clock=CLOCK
        )
        rest_collector()
        note("serving")
        if gpu is not None:
            gpu.begin()
        if job.query:
            work = run(ClosedLoop(board, job.query, kinds, CLOCK, round(1e9 * job.duration_s)))
        else:
            source = BoardSource(board, job.bell, kinds, CLOCK, job.share)
            start = source.begin()
            work = run(source, deadline_ns=start + int(board.offset[-1]) + round(1e9 * job.grace_s))
        seen = gpu.end() if gpu else None
        energy = gpu.energy_per_image(1) if gpu else None
        return ServeAnswer(
            busy_ns=work.busy_ns,
            stages=work.stages,
            depth=streams.depth,
            engine_version=backend.probe().version,
            reasons=sink.reasons,
            energy_mj=energy[0] if energy else None,
            peak_memory_bytes=peak_memory_bytes(),
            gpu=seen,
            caveats=doubt_telemetry(job.engine, gpu),
        )


def read_samples(job: ServeJob) -> list[Feeds]:
    """What requests ask: entries of the user's own inputs, else what every verb feeds this model.

    They lie in the memory of the engine's process; a request is the number of its sample, so that no input is copied on
    its way to the engine but into the engine's own buffer.
    """
    from enginebench.models.task import sample_feeds

    job_inputs = job.artifact.inputs
    return [*sample_feeds(job_inputs, job.model, job.engine.batch, job.seed, job.samples, samples=job.inputs)]


def find_kind_of(sample: Feeds) -> Hashable:
    """Equal for samples that can be joined: all axes but the first."""
    return tuple((name, array.shape[1:]) for name, array in sorted(sample.items()))


def rest_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def open_streams(backend: Backend, job: ServeJob) -> Streams:
    """The engine as streams: by its own asynchronous interface, else one engine a stream."""
    wanted = StreamsSpec(streams=job.streams, max_batch=job.max_batch)
    if isinstance(backend, Streaming):
        streams = backend.open_streams(job.artifact, job.engine, wanted, CLOCK)
        if streams is not None:
            return streams
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and cannot be put under load; name another engine")
    return open_threads(backend, job)


def open_threads(backend: Loadable, job: ServeJob) -> Streams:
    """One engine for each stream and batch, all loaded by this thread; a single stream needs no other."""
    entry, kind = find_entry(job.engine.backend), find_kind(job.engine.device)
    any_batch = kind in entry.any_batch
    spec = replace(job.engine, options={**entry.beside_itself.get(kind, {}), **job.engine.options})
    buckets = (job.max_batch,) if any_batch else job.compiled_for or choose_buckets(job.max_batch)
    engines = load_all(backend, job.artifact, [replace(spec, batch=batch) for batch in buckets] * job.streams)

    def close() -> None:
        for engine in engines:
            engine.close()

    rows = [engines[i : i + len(buckets)] for i in range(0, len(engines), len(buckets))]
    if all(isinstance(engine, Overlapping) and engine.overlaps for engine in engines):
        overlapping = [{size: cast("Overlapping", one) for size, one in zip(buckets, row, strict=True)} for row in rows]
        return OverlappedStreams(overlapping, close, CLOCK)
    lanes = [make_lane(dict(zip(buckets, row, strict=True)), any_batch, CLOCK) for row in rows]
    return InlineStream(lanes[0], close, CLOCK) if job.streams == 1 else ThreadStreams(lanes, close, CLOCK)


def warm_up(streams: Streams, samples: Sequence[Feeds], max_batch: int) -> None:
    for sample in {find_kind_of(sample): sample for sample in samples}.values():
        for size in choose_buckets(max_batch):
            for _ in range(WARMUP_RUNS):
                _fill_once(streams, [sample] * size)


def _fill_once(streams: Streams, batch: Sequence[Feeds]) -> None:
    for ticket in range(streams.depth):
        streams.submit(ticket, batch)
    left = streams.depth
    while left:
        ended = streams.collect(wait=True)
        left -= len(ended)
        if failed := next((one.error for one in ended if one.error), None):
            raise MeasurementError(f"the engine cannot compute {len(batch)} requests together: {failed}")


def release_board(job: ArriveJob) -> ArriveAnswer:
    if job.cpus:
        pin_to(job.cpus)
    sharpen_timers()
    spin = job.spin and not take_precedence()
    board = Board(job.board)
    rest_collector()
    wait_until_ready(board, len(job.bells))
    rings = [open_bell(bell) for bell in job.bells]
    released = release_all(board, lambda: all(ring() for ring in rings), clock=CLOCK, spin=spin)
    return ArriveAnswer(released=released)


def sharpen_timers() -> None:
    """Has the kernel wake this process when it asked to be woken, not up to 50 us later (proc(5), timerslack_ns)."""
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1")


def take_precedence() -> bool:
    """Puts this process before all others of its cores, where the system grants it: it has to be on time, not fair.

    In real time nothing has to be waited for busily, and must not be: the kernel halts who takes a core in real time
    for 50 ms of each second (sched(7)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        return False
    return True
