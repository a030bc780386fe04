"""The child's part of `load`: the engine that serves a board, and the generator that releases its requests."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from enginebench.core.engine_api import PaddedEngine
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.feeds import choose_buckets, drop_filling, fill_batch, sum_entries
from enginebench.core.protocols import Loadable
from enginebench.core.shapes import find_padding, list_cells, open_artifact, size_artifact
from enginebench.core.streams import (
    Clock,
    Ended,
    Overlapping,
    Streaming,
    Streams,
    StreamsSpec,
    collect_ended,
    fail_request,
)
from enginebench.engines.registry import find_entry
from enginebench.features.load.arrivals import (
    BoardSink,
    BoardSource,
    ClosedLoop,
    SharedBoard,
    open_wakeup,
    release_all,
    set_start,
    wait_until_ready,
)
from enginebench.features.load.jobs import ArriveJob, ArriveResponse, ServeJob, ServeResponse
from enginebench.features.load.ring import Feeders, Ring, create_ring, find_requests
from enginebench.features.load.serving import Batcher, serve
from enginebench.measure.pin import pin_to
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import load_all, open_for
from enginebench.runs.child.watching import list_telemetry_warnings, open_gpu

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Backend, Engine, Feeds

    TimedOutputs = tuple[int, dict[str, Array]]  # when it was computed, and the outputs
    Lane = Callable[[Sequence[Feeds]], TimedOutputs]

CLOCK = time.perf_counter_ns
# Of every batch on every stream, before the first request comes: the first call of a shape may allocate or search.
WARMUP_RUNS = 3


def serve_board(job: ServeJob, note: NoteCall) -> ServeResponse:
    """Open the engine, report that it is ready, and serve until all requests have ended or the time is over."""
    if job.cpus:
        pin_to(job.cpus)
    board, samples = SharedBoard(job.board), read_request_samples(job)
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
        come_by_ring = not job.query and board.offset.any()
        if come_by_ring and not job.share[0]:
            create_ring(job.ring, samples, board.count, job.share[1] * streams.depth * job.max_batch)
        rest_collector()
        note("serving")
        if gpu is not None:
            gpu.begin()
        if job.query:
            work = run(ClosedLoop(board, job.query, kinds, CLOCK, round(1e9 * job.duration_s)))
        else:
            source = BoardSource(board, job.wakeup, kinds, CLOCK, job.share)
            start = source.begin()
            if come_by_ring:
                run = partial(run, find_sample=find_requests(Ring(job.ring), samples, calls))
            work = run(source, deadline_ns=start + int(board.offset[-1]) + round(1e9 * job.grace_s))
        gpu_reading = gpu.end() if gpu else None  # before the energy is read
        energy = gpu.energy_per_image(1) if gpu else None
        return ServeResponse(
            busy_ns=work.busy_ns,
            stages=work.stages,
            depth=streams.depth,
            reasons=sink.reasons,
            energy_mj=energy[0] if energy else None,
            gpu=gpu_reading,
            warnings=list_telemetry_warnings(job.engine, gpu),
        )


def read_request_samples(job: ServeJob) -> list[Feeds]:
    """Read the samples of requests: entries of the user's own inputs, else the usual inputs of the model.

    Of a mix those of each cell, one cell after another. They lie in the memory of the engine's process; those of
    requests that come at a rate are written into a ring.
    """
    from enginebench.models.task import sample_feeds

    cells = list_cells(job.engine)
    sized = [size_artifact(job.artifact, cell).inputs if job.engine.traffic else job.artifact.inputs for cell in cells]
    return [
        sample
        for inputs, cell in zip(sized, cells, strict=True)
        for sample in sample_feeds(inputs, job.model, cell.batch, job.seed, job.samples, samples=job.inputs)
    ]


def find_kind_of(sample: Feeds) -> Hashable:
    """A key that is equal for samples that can be joined: all axes but the first."""
    return tuple((name, array.shape[1:]) for name, array in sorted(sample.items()))


def rest_collector() -> None:
    gc.collect()
    gc.freeze()
    gc.disable()


def open_streams(backend: Backend, job: ServeJob) -> Streams:
    """Open the engine as streams: by its own asynchronous interface, else an engine for each stream and batch.

    This thread loads all of them; a single stream needs no other thread.
    """
    wanted = StreamsSpec(streams=job.streams, max_batch=job.max_batch)
    artifact, engine = job.artifact, job.engine
    padding = find_padding(engine, artifact.inputs)
    if engine.traffic:  # each of its engines takes every shape of the mix
        artifact, engine = open_artifact(artifact, engine), replace(engine, batch=1, shapes={}, traffic=())
    if isinstance(backend, Streaming) and not padding:  # its requests go to the runtime as they come
        streams = backend.open_streams(artifact, engine, wanted, CLOCK)
        if streams is not None:
            return streams
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and cannot be put under load; name another engine")
    described = find_entry(engine.backend).describe_on(engine.device)
    any_batch = described.any_batch
    spec = replace(engine, options={**described.beside_itself, **engine.options})
    buckets = (job.max_batch,) if any_batch else job.compiled_for or choose_buckets(job.max_batch)
    engines = load_all(backend, artifact, [replace(spec, batch=batch) for batch in buckets] * job.streams)
    engines = [PaddedEngine(engine, padding) for engine in engines] if padding else engines

    def close() -> None:
        for engine in engines:
            engine.close()

    engines_by_stream = [engines[i : i + len(buckets)] for i in range(0, len(engines), len(buckets))]
    if all(isinstance(engine, Overlapping) and engine.overlaps for engine in engines):
        overlapping = [
            {size: cast("Overlapping", one) for size, one in zip(buckets, own, strict=True)}
            for own in engines_by_stream
        ]
        return OverlappedStreams(overlapping, close, CLOCK)
    lanes = [make_lane(dict(zip(buckets, own, strict=True)), any_batch, CLOCK) for own in engines_by_stream]
    return InlineStream(lanes[0], close, CLOCK) if job.streams == 1 else ThreadStreams(lanes, close, CLOCK)


def warm_up(streams: Streams, samples: Sequence[Feeds], max_batch: int) -> None:
    shapes = {tuple((name, array.shape) for name, array in sample.items()): sample for sample in samples}
    for sample in shapes.values():
        for size in choose_buckets(max_batch):
            for _ in range(WARMUP_RUNS):
                pending = streams.depth
                for ticket in range(pending):
                    streams.submit(ticket, [sample] * size)
                while pending:
                    ended = streams.collect(wait=True)
                    pending -= len(ended)
                    if failed := next((response.error for response in ended if response.error), None):
                        raise MeasurementError(f"the engine cannot compute {size} requests together: {failed}")


def release_board(job: ArriveJob) -> ArriveResponse:
    if job.cpus:
        pin_to(job.cpus)
    with suppress(OSError):  # have the kernel wake this process when it asked, not up to 50 us later: proc(5)
        Path("/proc/self/timerslack_ns").write_text("1")
    board = SharedBoard(job.board)
    rest_collector()
    wait_until_ready(board, len(job.wakeups))
    feeders = Feeders(board, Ring(job.ring), len(job.cpus)) if board.offset.any() else None
    # A feeder on the same CPU has only what is left of it.
    spin = job.spin and not take_precedence() and len(job.cpus) > (feeders.count if feeders else 0)
    wakeups = [open_wakeup(wakeup) for wakeup in job.wakeups]
    set_start(board)
    released = release_all(board, lambda: all(wake() for wake in wakeups), spin, feeders)
    if feeders:
        feeders.close()
    return ArriveResponse(released=released)


def take_precedence() -> bool:
    """Give this process the highest priority on its cores, if the system allows: it has to be on time.

    In real time nothing has to be waited for busily, and must not be: the kernel halts who takes a core in real time
    for 50 ms of each second (sched(7)).
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError):
        return False
    return True


def make_lane(engines: Mapping[int, Engine], any_batch: bool, clock: Clock) -> Lane:
    """Make one stream: it computes a batch on the smallest engine that fits, padded unless `any_batch`."""
    sizes = sorted(engines)

    def compute(samples: Sequence[Feeds]) -> TimedOutputs:
        entries = sum_entries(samples)
        size = next((size for size in sizes if size >= entries), sizes[-1])
        engine = engines[size]
        engine.bind(fill_batch(samples, None if any_batch else size))
        engine.run()
        computed_ns = clock()
        outputs = engine.fetch()
        return computed_ns, outputs if any_batch else drop_filling(outputs, entries, size)

    return compute


def serve_samples(lane: Lane, ticket: int, samples: Sequence[Feeds], clock: Clock) -> Ended:
    """Compute one submission; an error becomes its result."""
    started_ns = clock()
    try:
        computed_ns, outputs = lane(samples)
    except Exception as error:  # each runtime has its own
        return fail_request(ticket, started_ns, clock(), error)
    return Ended(ticket, started_ns, computed_ns, clock(), outputs)


class InlineStream:
    """One stream in the caller's own thread: nothing is handed over, and `submit` returns when it has ended."""

    depth = 1
    polled = False

    def __init__(self, lane: Lane, close: Callable[[], None], clock: Clock) -> None:
        self._lane, self.close, self._clock = lane, close, clock
        self._ended: list[Ended] = []

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        self._ended.append(serve_samples(self._lane, ticket, samples, self._clock))

    def collect(self, wait: bool) -> list[Ended]:
        ended, self._ended = self._ended, []
        return ended


class OverlappedStreams:
    """Streams in the caller's own thread, of engines that work while it does something else: one batch on each."""

    polled = True

    def __init__(self, lanes: Sequence[Mapping[int, Overlapping]], close: Callable[[], None], clock: Clock) -> None:
        self.close, self._clock = close, clock
        self.depth = len(lanes)
        self._free = [*lanes]
        self._flying: list[Flight] = []
        self._failed: list[Ended] = []

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        started_ns, lane = self._clock(), self._free.pop()
        entries = sum_entries(samples)
        size = min((size for size in lane if size >= entries), default=max(lane))
        try:
            lane[size].begin(samples)
        except Exception as error:  # each runtime has its own
            self._free.append(lane)
            self._failed.append(fail_request(ticket, started_ns, self._clock(), error))
        else:
            self._flying.append(Flight(ticket, started_ns, entries, size, lane))

    def collect(self, wait: bool) -> list[Ended]:
        while True:
            ended, self._failed = self._failed, []
            for flight in tuple(self._flying):
                if (response := self._look(flight)) is not None:
                    self._flying.remove(flight)
                    self._free.append(flight.lane)
                    ended.append(response)
            if ended or not wait:
                return ended

    def _look(self, flight: Flight) -> Ended | None:
        """The result of a submission; None while it runs."""
        ticket, started_ns, entries, size, lane = flight
        try:
            if not lane[size].is_done():
                return None
            on_device_ns = self._clock()
            outputs, times = lane[size].finish()
        except Exception as error:
            return fail_request(ticket, started_ns, self._clock(), error)
        outputs = drop_filling(outputs, entries, size)
        return Ended(ticket, started_ns, on_device_ns - times.copy_out, self._clock(), outputs, None, times)


class Flight(NamedTuple):
    ticket: int
    started_ns: int
    entries: int
    size: int
    lane: Mapping[int, Overlapping]  # batch -> engine of the stream


class ThreadStreams:
    """Several streams, each a thread that takes the next submission when it is free."""

    polled = False

    def __init__(self, lanes: Sequence[Lane], close: Callable[[], None], clock: Clock) -> None:
        self._close, self._clock = close, clock
        self._work: SimpleQueue[tuple[int, Sequence[Feeds]] | None] = SimpleQueue()
        self._ended: SimpleQueue[Ended | BaseException] = SimpleQueue()
        self.depth = len(lanes)
        self._threads = [threading.Thread(target=self._serve, args=(lane,), daemon=True) for lane in lanes]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        self._work.put((ticket, samples))

    def collect(self, wait: bool) -> list[Ended]:
        responses = collect_ended(self._ended, wait)
        for response in responses:
            if isinstance(response, BaseException):
                raise response
        return [response for response in responses if isinstance(response, Ended)]

    def close(self) -> None:
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._close()

    def _serve(self, lane: Lane) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._ended.put(serve_samples(lane, *work, self._clock))
        except BaseException as error:  # the caller's to raise: it would be lost with this thread
            self._ended.put(error)
