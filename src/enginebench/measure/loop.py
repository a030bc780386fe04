"""The timed loop, which turns an engine into a Measurement. Its hot path is at the end; all else is between blocks."""

from __future__ import annotations

import gc
import itertools
import math
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.protocols import Array, CacheFlusher, CopyClock, DeviceClock, EmptyCall, Engine, Feeds, RunCall
from enginebench.core.records import Block, BlockReading, Measurement, MeasureSpec, Scope, StopRule
from enginebench.core.streams import Overlapping
from enginebench.core.text import stamp_utc
from enginebench.measure.mix import MixPart, join_cells, join_io, plan_round, shuffle_round
from enginebench.measure.stopping import BLOCK_NS, WINDOW_CALLS, WINDOW_NS, StoppingRule, WarmupRule, make_stopping_rule
from enginebench.measure.watch import Watch, list_block_warnings, make_block

Clock = Callable[[], int]
Reader = tuple[Callable[[], int], "array[int]"]
Readings: TypeAlias = dict[str, "array[int]"]

# The calls of a chunk are planned from the calls before it. They grow by at most this factor, so that a wrong guess
# costs at most ten times the time spent so far, not the whole time limit.
MAX_GROWTH = 10

# Blocks are planned this much longer than they must be, so that few of them need a second chunk to fill up.
PLAN_MARGIN = 1.05

# The work between blocks evicts the engine's data from the caches: on a model of 1.3 ms the first three calls of a
# block were measured 12, 5 and 2 % slower, and with 75 calls a block they would be its p99. So they are run untimed, as
# long as that takes 10 ms at most; in a call that is longer than that, the 0.2 ms that the caches need do not show.
RESUME_CALLS = 3
RESUME_NS = 10_000_000

# Rounds of a run and the two fetches after it: enough that one of them is undisturbed. Of long calls fewer do, because
# a disturbance is small beside them.
LEFT_CALLS = 7
LEFT_NS = 50_000_000

# Enough for a median that no interrupt moves, and 1 ms or less in all.
OVERHEAD_CALLS = 2001


def measure_engine(
    engine: Engine,
    feeds: Sequence[Feeds],
    spec: MeasureSpec,
    *,
    others: Sequence[Engine] = (),
    mix: Sequence[MixPart] = (),
    clock: Clock = time.perf_counter_ns,
    watch: Watch | None = None,
    read_clock_mhz: Callable[[], int | None] = lambda: None,
    trial: int = 0,
    order: int = 0,
) -> Measurement:
    """Measure the raw latencies of `engine`, in blocks, until the stopping rule of `spec` ends it.

    Scope `compute` times `run` on the first of `feeds`, bound before; scope `io` times `bind + run + fetch`, each
    call on the next of `feeds`, starting over at the end. Scope `pipelined` keeps a batch in flight in each engine,
    each made of the next of `feeds`: a sample lasts from the start of the copy in until the outputs are on the host, a
    block from one completion to another, and the batches at both ends of a chunk leave no sample. With cache `cold` the
    engine flushes its device's cache before each call, untimed. Garbage collection is off meanwhile. Blocks of short
    calls begin with up to three that leave no sample (`untimed_calls`), because the bookkeeping before them has evicted
    their data from the caches.

    Args:
        engine: a loaded engine; the times of a `DeviceClock`, and for scope `io` of a `CopyClock`, are read after each
            timed call.
        feeds: at least one; for scope `io` more than the last-level cache holds (`rotating_count`).
        others: further engines of the same kind for scope `pipelined`, one for each further batch in flight.
        mix: every cell of a mix, the first of which is `engine`. A sample is then a round of calls, of each cell as
            many as `plan_round` says, in random order, so that one follows another about as often as among the
            requests; its time is that of `join_cells`.
        read_clock_mhz: reads the device's clock; warm-up also waits for it to become steady.
    """
    engines = (engine, *others)
    _check_request(engines, feeds, spec)
    if mix and (spec.scope == "pipelined" or spec.cache == "cold"):
        raise UsageError("a mix of requests is timed with scope compute or io, and cache hot")
    warmup, stopping = WarmupRule(spec.warmup, spec.time_limit_s), make_stopping_rule(spec)
    for one in engines:
        one.bind(feeds[0])  # an engine may refuse to hand out `run` before it has inputs
    for part in mix[1:]:
        part.engine.bind(part.feeds[0])
    flying = cast("tuple[Overlapping, ...]", engines) if spec.scope == "pipelined" else ()
    flush = engine.flush_cache if spec.cache == "cold" and isinstance(engine, CacheFlusher) else None
    started = stamp_utc()
    check_slots(flying, feeds[0], engine)
    with paused_gc():
        caller = _Caller(engine, feeds, spec.scope, clock, flush, flying, mix)
        overhead_ns = measure_call_overhead(spec.scope, clock, engine)
        while not warmup.is_over():
            window = caller.fill(WINDOW_NS, WINDOW_CALLS, warmup.calls_left())
            median_ns = _median(window.latency_ns)
            warmup.add_window(len(window.latency_ns), median_ns, window.duration_ns, read_clock_mhz())
        caller.untimed_calls = 0
        samples, blocks, stop_rule = _time_blocks(caller, stopping, watch)
    measured = Measurement(
        clock="host",
        latency_ns=samples.latency_ns.tolist(),
        blocks=tuple(blocks),
        stop_rule=stop_rule,
        trial=trial,
        started_utc=started,
        order=order,
        warmup_dropped=warmup.dropped,
        warmup_settled=warmup.settled,
        untimed_calls=caller.untimed_calls,
        call_overhead_ns=overhead_ns,
        warnings=tuple(list_block_warnings(blocks)),
    )
    if mix:
        cells_ns = [samples.readings[name].tolist() for name in caller.cell_names]
        latency_ns = join_cells(cells_ns, [part.weight for part in mix], measured.latency_ns)
        return replace(measured, cells_ns=cells_ns, latency_ns=latency_ns)
    return replace(measured, **{name: values.tolist() for name, values in samples.readings.items()})


@contextmanager
def paused_gc() -> Iterator[None]:
    """Switch garbage collection off and freeze all objects that exist; restore the state before at the end."""
    was_enabled, had_frozen = gc.isenabled(), holds_frozen()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not had_frozen:  # objects that the caller froze could not be kept apart from those frozen here
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def holds_frozen() -> bool:
    """Return whether objects are frozen. Python counts them one by one: 10 ms for a million."""
    return gc.get_freeze_count() > 0


def measure_left(engine: Engine, clock: Clock = time.perf_counter_ns) -> float:
    """Return the fraction (0 to 1) of an engine's work that `run` leaves to the fetch after it.

    A second fetch has none of that work left, so the difference of the two is its time. The engine's inputs are bound.
    The shortest times of a few calls are compared, so that a disturbance hides nothing.
    """
    rounds: list[list[int]] = []
    while len(rounds) < LEFT_CALLS and sum(map(sum, rounds)) < LEFT_NS:
        marks = [clock()]
        for call in (engine.run, engine.fetch, engine.fetch):
            call()
            marks.append(clock())
        rounds.append([end - begin for begin, end in itertools.pairwise(marks)])
    least: list[int] = [min(column) for column in zip(*rounds, strict=True)]
    run_ns, first_ns, second_ns = least
    left_ns = first_ns - second_ns if first_ns > 2 * second_ns else 0  # less may be the caches
    return left_ns / max(1, run_ns + left_ns)


def measure_call_overhead(
    scope: Scope = "compute", clock: Clock = time.perf_counter_ns, engine: object = None
) -> float:
    """Return the median time, in ns, that the loop reports for an engine whose methods do nothing.

    With an `engine` that is an `EmptyCall`, `run` goes into that engine's extension and comes back.
    """
    nothing = _Nothing()
    if isinstance(engine, EmptyCall):
        nothing.run = engine.call_nothing  # type: ignore[method-assign,assignment]
    caller = _Caller(nothing, ({},), scope, clock, flying=(nothing,) if scope == "pipelined" else ())
    return _median(caller.time_calls(OVERHEAD_CALLS).latency_ns)


class _Chunk(Struct, frozen=True):
    """Samples in order, and the time that the host took for all of them."""

    latency_ns: array[int]
    readings: Readings  # field of Measurement -> one value a call
    duration_ns: int


class _Caller:
    """Times a number of calls in an engine's scope, and plans how many calls fit into a duration."""

    def __init__(
        self,
        engine: Engine | _Nothing,
        feeds: Sequence[Feeds],
        scope: Scope,
        clock: Clock,
        flush: Callable[[], None] | None = None,
        flying: Sequence[Overlapping | _Nothing] = (),
        mix: Sequence[MixPart] = (),
    ) -> None:
        self._engine, self._scope, self._clock, self._flush = engine, scope, clock, flush
        self._flying = flying
        self._run = engine.run
        # What the engine can measure of the latest call, by the field of Measurement that keeps it.
        self._meters: dict[str, Callable[[], int]] = {}
        self.cell_names = tuple(f"cell {i}" for i in range(len(mix)))
        self._cells = tuple(part.engine.run if scope == "compute" else join_io(part) for part in mix)
        self._counts = plan_round([part.weight for part in mix])
        self._factors = tuple(part.weight / count for part, count in zip(mix, self._counts, strict=True))
        self._orders = itertools.cycle(shuffle_round(self._counts))
        if scope != "pipelined" and isinstance(engine, DeviceClock) and not mix:
            self._meters |= {"device_ns": engine.last_device_ns, "enqueue_ns": engine.last_enqueue_ns}
        if scope == "io" and isinstance(engine, CopyClock) and not mix:
            copies = {"h2d_ns": engine.last_h2d_ns, "d2h_ns": engine.last_d2h_ns}
            self._meters |= {**copies, "staging_ns": engine.last_staging_ns}
        self._feeds = itertools.cycle(feeds)
        self._calls_seen = 0
        self._ns_per_call = 1.0
        self.untimed_calls = 0

    def resume(self) -> None:
        """Warm the caches again with a few calls that leave no sample; with none before the very first call."""
        calls = min(RESUME_CALLS, int(RESUME_NS / self._ns_per_call)) if self._calls_seen and not self._flying else 0
        self._time(calls, _make_array(calls), (), tuple(_make_array(calls * count) for count in self._counts))
        self.untimed_calls += calls

    def fill(self, min_ns: int, min_calls: int = 1, calls_left: int | None = None) -> _Chunk:
        """Return samples for at least `min_ns`, never more than `calls_left`.

        There are at least `min_calls` of them, unless these take longer than a block.
        """
        filled = self.time_calls(self._plan(min_ns, calls_left))
        while filled.duration_ns < min_ns or (len(filled.latency_ns) < min_calls and filled.duration_ns < BLOCK_NS):
            remaining_calls = None if calls_left is None else calls_left - len(filled.latency_ns)
            if remaining_calls == 0:
                break
            calls = self._plan(min_ns - filled.duration_ns, remaining_calls)
            filled = _join_chunks(filled, self.time_calls(calls))
        return filled

    def time_calls(self, calls: int) -> _Chunk:
        """Return the samples of exactly `calls` calls; every array is made, and touched, before the first of them."""
        latency_ns = _make_array(calls)
        readings = {name: _make_array(calls) for name in self._meters}
        readings |= {n: _make_array(calls * count) for n, count in zip(self.cell_names, self._counts, strict=True)}
        readers = tuple((read, readings[name]) for name, read in self._meters.items())
        if self._flying:
            duration_ns = _time_pipelined(calls, self._feeds, self._flying, self._clock, latency_ns)
            self.untimed_calls += 2 * len(self._flying)
        else:
            begin = self._clock()
            self._time(calls, latency_ns, readers, tuple(readings[name] for name in self.cell_names))
            duration_ns = self._clock() - begin
        self._calls_seen += calls
        self._ns_per_call = max(1.0, duration_ns / calls)
        return _Chunk(latency_ns, readings, duration_ns)

    def _plan(self, remaining_ns: int, calls_left: int | None) -> int:
        calls = math.ceil(remaining_ns * PLAN_MARGIN / self._ns_per_call)
        calls = max(1, min(calls, MAX_GROWTH * self._calls_seen))
        return calls if calls_left is None else min(calls, calls_left)

    def _time(
        self, calls: int, latency_ns: array[int], readers: tuple[Reader, ...], cells_ns: tuple[array[int], ...]
    ) -> None:
        engine = self._engine
        if self._cells:
            rounds = itertools.islice(self._orders, calls)
            _time_mix(rounds, self._cells, self._counts, self._factors, self._clock, latency_ns, cells_ns)
        elif self._flush is not None:
            call = self._run if self._scope == "compute" else self._call_io
            _time_cold(calls, self._flush, call, self._clock, latency_ns, readers)
        elif self._scope == "compute":
            _time_compute(calls, self._run, self._clock, latency_ns, readers)
        else:
            _time_io(calls, self._feeds, engine.bind, self._run, engine.fetch, self._clock, latency_ns, readers)

    def _call_io(self) -> None:
        self._engine.bind(next(self._feeds))
        self._run()
        self._engine.fetch()


class _Nothing:
    """An engine that does nothing, so that its times are those of the loop."""

    def bind(self, feeds: Feeds) -> None: ...
    def run(self) -> None: ...
    def begin(self, samples: Sequence[Feeds]) -> None: ...
    def fetch(self) -> dict[str, Array]:
        return _NO_OUTPUTS

    finish = fetch


_NO_OUTPUTS: dict[str, Array] = {}


def _time_blocks(caller: _Caller, rule: StoppingRule, watch: Watch | None) -> tuple[_Chunk, list[Block], StopRule]:
    samples, blocks = _Chunk(_make_array(0), {}, 0), list[Block]()
    while (stop_rule := rule.decide()) is None:
        if watch is not None:
            watch.begin()
        caller.resume()
        chunk = caller.fill(BLOCK_NS, calls_left=rule.calls_left())
        reading = BlockReading() if watch is None else watch.end()
        start = len(samples.latency_ns)
        rule.add_block(len(chunk.latency_ns), _median(chunk.latency_ns), chunk.duration_ns)
        samples = _join_chunks(samples, chunk) if blocks else chunk
        blocks.append(make_block(start, len(samples.latency_ns), chunk.duration_ns, reading))
    return samples, blocks, stop_rule


def _join_chunks(first: _Chunk, second: _Chunk) -> _Chunk:
    first.latency_ns.extend(second.latency_ns)
    for name, values in first.readings.items():
        values.extend(second.readings[name])
    return _Chunk(first.latency_ns, first.readings, first.duration_ns + second.duration_ns)


def _check_request(engines: Sequence[Engine], feeds: Sequence[Feeds], spec: MeasureSpec) -> None:
    if not feeds:
        raise MeasurementError("no feeds were given; the engine needs at least one set of input arrays to run on")
    overlapping = all(isinstance(one, Overlapping) and one.overlaps for one in engines)
    if spec.scope == "pipelined" and (spec.cache == "cold" or not overlapping):
        raise UsageError("scope pipelined needs an engine that overlaps (no mode=reduce-overhead), and cache hot")
    if spec.cache == "cold" and not isinstance(engines[0], CacheFlusher):
        raise UsageError("cache 'cold' needs an engine that can flush its device's cache; this one cannot. Use 'hot'")


def _median(values: array[int]) -> float:
    return float(np.median(np.frombuffer(values, dtype=np.int64)))


def _make_array(calls: int) -> array[int]:
    return array("q", bytes(8 * calls))


def check_slots(engines: Sequence[Overlapping], feeds: Feeds, alone: Engine) -> None:
    """Check that `engines`, each with a batch in flight, give the outputs of `alone`, to 1% of the largest value."""
    depth = len(engines)
    inputs = [{name: np.roll(array, turn) for name, array in feeds.items()} for turn in range(2 * depth)]
    outputs: list[Mapping[str, Array]] = []
    for turn, feeds_of_turn in enumerate(inputs):
        engine = engines[turn % depth]
        if turn >= depth:
            outputs.append(engine.finish()[0])
        engine.begin((feeds_of_turn,))
    outputs += [engine.finish()[0] for engine in engines]
    for turn, (feeds_of_turn, slot_outputs) in enumerate(zip(inputs, outputs, strict=True)):
        alone.bind(feeds_of_turn)
        alone.run()
        for name, expected in alone.fetch().items():
            if not _is_alike(slot_outputs[name], expected):
                raise MeasurementError(
                    f"scope pipelined: output {name!r} of batch {turn} in slot {turn % depth} is not what the "
                    "engine computes for the same input alone. Time it with --scope compute or io, and report this"
                )


def _is_alike(actual: Array, expected: Array) -> bool:
    if actual.shape != expected.shape:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    magnitudes = np.abs(expected[np.isfinite(expected)], dtype=np.float64)
    return bool(np.allclose(actual, expected, rtol=0, atol=0.01 * float(magnitudes.max(initial=0.0)), equal_nan=True))


# The hot path. It allocates nothing but Python ints, which live for one turn and come from the interpreter's free list.


def _time_compute(calls: int, run: RunCall, clock: Clock, latency_ns: array[int], readers: tuple[Reader, ...]) -> None:
    for i in range(calls):
        begin = clock()
        run()
        latency_ns[i] = clock() - begin
        if readers:
            for read, values in readers:
                values[i] = read()


def _time_io(
    calls: int,
    feeds: Iterator[Feeds],
    bind: Callable[[Feeds], None],
    run: RunCall,
    fetch: Callable[[], object],
    clock: Clock,
    latency_ns: array[int],
    readers: tuple[Reader, ...],
) -> None:
    for i, feed in zip(range(calls), feeds, strict=False):  # range first: an exhausted range takes no feed
        begin = clock()
        bind(feed)
        run()
        fetch()
        latency_ns[i] = clock() - begin
        if readers:
            for read, values in readers:
                values[i] = read()


def _time_mix(
    rounds: Iterator[tuple[int, ...]],
    cells: tuple[Callable[[], object], ...],
    counts: tuple[int, ...],
    factors: tuple[float, ...],
    clock: Clock,
    latency_ns: array[int],
    cells_ns: tuple[array[int], ...],
) -> None:
    for i, order in enumerate(rounds):
        mean, positions = 0.0, [i * count for count in counts]
        for cell in order:
            begin = clock()
            cells[cell]()
            duration = clock() - begin
            cells_ns[cell][positions[cell]] = duration
            positions[cell] += 1
            mean += factors[cell] * duration
        latency_ns[i] = round(mean)


def _time_pipelined(
    calls: int, feeds: Iterator[Feeds], engines: Sequence[Overlapping | _Nothing], clock: Clock, latency_ns: array[int]
) -> int:
    """Return the ns from the completion before the first sample to that of the last; every engine is always busy."""
    begins, finishes = [one.begin for one in engines], [one.finish for one in engines]
    depth = len(engines)
    begun = _make_array(depth)
    for slot, begin in enumerate(begins):
        begun[slot] = clock()
        begin((next(feeds),))
    first = now = 0
    for i in range(-depth, calls):
        slot = i % depth
        finishes[slot]()
        now = clock()
        if i >= 0:
            latency_ns[i] = now - begun[slot]
        else:
            first = now
        begun[slot] = clock()
        begins[slot]((next(feeds),))
    for finish in finishes:
        finish()
    return now - first


def _time_cold(
    calls: int,
    flush: Callable[[], None],
    call: Callable[[], object],
    clock: Clock,
    latency_ns: array[int],
    readers: tuple[Reader, ...],
) -> None:
    for i in range(calls):
        flush()
        begin = clock()
        call()
        latency_ns[i] = clock() - begin
        for read, values in readers:
            values[i] = read()
