"""The loop, to the nanosecond: a scripted engine under a scripted clock, on a device too."""

import gc
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.records import BlockReading, Measurement, MeasureSpec
from enginebench.engines.fake import FakeClock
from enginebench.measure.loop import measure_engine, measure_left, paused_gc
from enginebench.measure.mix import MixPart, join_cells, plan_round
from enginebench.measure.stopping import WarmupRule
from scripted import ScriptedDevice, ScriptedEngine

MS = 1_000_000
FEEDS = [{"x": np.full(1, i, np.float32)} for i in range(3)]


def measure(engine_kind: type[ScriptedEngine] = ScriptedEngine, **settings: Any) -> tuple[Measurement, ScriptedEngine]:
    """Measures a scripted engine; `script` and engine settings apart from those of the MeasureSpec."""
    clock = FakeClock()
    engine_settings = {k: settings.pop(k) for k in ("bind_ns", "fetch_ns", "on_run") if k in settings}
    engine = engine_kind(clock, settings.pop("script"), **engine_settings)
    watch = settings.pop("watch", None)
    return measure_engine(engine, FEEDS, MeasureSpec(**settings), clock=clock, watch=watch), engine


def test_samples_are_the_latencies_of_the_script_after_exactly_the_warmup() -> None:
    script = [(i % 7 + 1) * 1000 + i for i in range(63)]
    measurement, engine = measure(script=script, warmup=20, iters=40)
    assert measurement.latency_ns == script[23:]  # three calls untimed, to bring the caches back
    assert (measurement.untimed_calls, measurement.warmup_dropped, engine.calls) == (3, 20, 63)
    assert (measurement.warmup_settled, measurement.stop_rule) == (None, "iterations")
    measurement, engine = measure(script=[500, 100], warmup=0, iters=9)  # without one the very first call is a sample
    assert measurement.latency_ns == [500] + [100] * 8
    assert (measurement.untimed_calls, engine.calls) == (0, 9)


def test_every_further_block_begins_with_untimed_calls_unless_they_are_long() -> None:
    measurement, engine = measure(script=[MS], warmup=0, iters=300)
    assert (len(measurement.blocks), measurement.untimed_calls, engine.calls) == (3, 2 * 3, 306)
    assert measure(script=[40 * MS], warmup=0, iters=30)[0].untimed_calls == 0


def test_run_is_looked_up_once_and_compute_binds_the_first_feed_once() -> None:
    _, engine = measure(script=[MS], warmup=5, iters=400, bind_ns=50, fetch_ns=50)
    assert (engine.run_lookups, engine.bound, engine.fetched) == (1, [FEEDS[0]], 0)


class Overlapped(ScriptedEngine):
    """Takes 1 ms to copy in and out, and a run's time between; one run begins when the one before it has ended."""

    overlaps = True
    free_ns = 0  # when the one device has done all runs

    def begin(self, samples: Any) -> None:
        assert self.fetched == len(self.begun)
        self.begun.append(float(samples[0]["x"][0]))
        Overlapped.free_ns = max(self._clock.now_ns + MS, Overlapped.free_ns) + next(self._script)
        self.end_ns = Overlapped.free_ns + MS

    def is_done(self) -> bool:
        return self._clock.now_ns >= self.end_ns

    def finish(self) -> Any:
        self._clock.advance(max(0, self.end_ns - self._clock.now_ns))
        return self.fetch(), None

    @cached_property
    def begun(self) -> list[float]:
        return []


def test_pipelined_always_has_as_many_on_their_way_and_leaves_out_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("enginebench.measure.loop.check_slots", lambda *given: None)
    monkeypatch.setattr(Overlapped, "free_ns", 0)
    clock = FakeClock()
    engines = [Overlapped(clock, [4 * MS]) for _ in range(3)]
    spec = MeasureSpec(scope="pipelined", warmup=5, iters=50)
    measurement = measure_engine(engines[0], FEEDS, spec, others=engines[1:], clock=clock)
    assert measurement.latency_ns == [12 * MS] * 50  # three runs of 4 ms: what is on its way, whenever one ends
    assert sum(block.duration_ns for block in measurement.blocks) == 50 * 4 * MS
    assert all(engine.fetched == len(engine.begun) for engine in engines)
    assert [engine.begun[:2] for engine in engines] == [[0, 0], [1, 1], [2, 2]]
    assert measurement.device_ns is None


def test_pipelined_needs_engines_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Overlapped, "overlaps", False)
    for kind in (ScriptedEngine, Overlapped):
        with pytest.raises(UsageError, match="scope pipelined needs an engine that overlaps"):
            measure(kind, script=[MS], scope="pipelined", iters=3)


def test_blocks_cover_all_samples_and_last_at_least_100_ms() -> None:
    measurement, _ = measure(script=[3 * MS] * 10 + [7 * MS] * 20 + [3 * MS], warmup=0, iters=200)
    blocks = measurement.blocks
    assert [b.start for b in blocks] == [0, *(b.stop for b in blocks[:-1])]
    assert blocks[-1].stop == 200
    assert [b.duration_ns for b in blocks] == [sum(measurement.latency_ns[b.start : b.stop]) for b in blocks]
    assert all(b.duration_ns >= 100 * MS for b in blocks[:-1])


def test_settles_after_ten_blocks_when_latencies_are_steady() -> None:
    measurement, engine = measure(script=[2 * MS])
    assert [b.stop - b.start for b in measurement.blocks] == [53] * 10  # 105 ms, as planned
    assert (measurement.stop_rule, measurement.warmup_settled) == ("settled", True)
    assert engine.calls == measurement.warmup_dropped + 30 + 530


def test_unsteady_latencies_end_at_the_time_limit() -> None:
    measurement, _ = measure(script=[(2 if i // 50 % 2 else 3) * MS for i in range(2000)], warmup=0, time_limit_s=2.0)
    assert measurement.stop_rule == "time_limit"
    assert 2000 * MS <= sum(b.duration_ns for b in measurement.blocks) < 2150 * MS


def test_very_short_calls_end_at_the_sample_limit() -> None:
    script = [(10 if i // 10_000 % 3 else 20) * 1000 for i in range(1_200_000)]
    measurement, _ = measure(script=script, warmup=0, time_limit_s=1000.0)
    assert measurement.stop_rule == "sample_limit"
    assert 1_000_000 <= len(measurement.latency_ns) < 1_030_000


def test_a_call_longer_than_the_limit_gives_one_sample_and_a_sudden_slowness_cannot_run_away() -> None:
    """The plan made from 1 us calls grows tenfold at most, so that calls of 1 s do not last for hours."""
    measurement, _ = measure(script=[30_000 * MS], time_limit_s=10.0)
    assert (measurement.latency_ns, measurement.stop_rule) == ([30_000 * MS], "time_limit")
    assert (measurement.warmup_dropped, measurement.warmup_settled) == (1, False)
    measurement, _ = measure(script=[1000] * 3 + [1000 * MS], warmup=3, time_limit_s=1.0)
    assert len(measurement.latency_ns) <= 30


def test_device_times_are_read_outside_the_timed_call() -> None:
    measurement, _ = measure(ScriptedDevice, script=[300, 600, 900], warmup=0, iters=3)
    assert measurement.latency_ns == [300, 600, 900] and measurement.clock == "host"
    assert (measurement.device_ns, measurement.enqueue_ns) == ([100, 200, 300], [30, 60, 90])
    host, _ = measure(script=[300], warmup=0, iters=3)
    assert (host.device_ns, host.enqueue_ns) == (None, None)


@dataclass
class ScriptedWatch:
    """Foreign cores block by block, and how often it was asked."""

    foreign: Iterator[float]
    calls: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self) -> BlockReading:
        self.calls.append("end")
        cores = next(self.foreign)
        return BlockReading(foreign_cpu_cores=cores, marks=("foreign_cpu",) if cores > 0.15 else ())


def test_each_block_carries_what_the_watch_saw() -> None:
    watch = ScriptedWatch(iter([0.0, 0.5, 0.1]))
    measurement, _ = measure(script=[MS], warmup=0, iters=250, watch=watch)
    assert [b.foreign_cpu_cores for b in measurement.blocks] == [0.0, 0.5, 0.1]
    assert [b.marks for b in measurement.blocks] == [(), ("foreign_cpu",), ()]
    assert watch.calls == ["begin", "end"] * 3
    assert measurement.warnings == ()
    unwatched, _ = measure(script=[MS], warmup=0, iters=100)
    assert [c.code for c in unwatched.warnings] == ["not_watched"]


def test_garbage_collection_is_off_in_the_loop_and_back_afterwards_also_if_the_engine_fails() -> None:
    states: list[bool] = []
    measure(script=[MS], warmup=1, iters=2, on_run=lambda call: states.append(gc.isenabled()))
    assert states == [False] * 6  # 1 of warm-up, 3 untimed, 2 samples
    assert gc.isenabled() and gc.get_freeze_count() == 0

    def fail(call: int) -> None:
        if call == 4:
            raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        measure(script=[MS], warmup=1, iters=20, on_run=fail)
    assert gc.isenabled() and gc.get_freeze_count() == 0


def test_the_loop_keeps_no_memory() -> None:
    """Blocks of memory that Python holds, counted inside each of two thousand calls."""
    counts = array("q", bytes(8 * 2000))

    def count(call: int) -> None:
        counts[call] = sys.getallocatedblocks()

    measure(script=[1000] * 2000, warmup=500, iters=1497, on_run=count)
    timed = counts[600:1990]  # one chunk, and the arrays made before it
    assert max(timed) - min(timed) < 10  # the integers of the turn itself, on 3.10 also frames; not one in each call


@pytest.mark.parametrize(
    ("before", "after", "is_kept"),
    [(gc.disable, gc.enable, lambda: not gc.isenabled()), (gc.freeze, gc.unfreeze, lambda: gc.get_freeze_count() > 0)],
)
def test_paused_gc_leaves_as_it_was_what_the_caller_disabled_or_froze(before: Any, after: Any, is_kept: Any) -> None:
    before()
    try:
        with paused_gc():
            pass
        assert is_kept()
    finally:
        after()


def test_what_cannot_be_measured_is_refused() -> None:
    for spec in ({"cache": "cold"}, {"iters": 0}, {"warmup": -1}, {"time_limit_s": float("nan")}):
        with pytest.raises(UsageError):
            measure(script=[MS], **spec)
    with pytest.raises(MeasurementError, match="no feeds"):
        measure_engine(ScriptedEngine(clock := FakeClock(), [1]), [], MeasureSpec(), clock=clock)


def test_trial_and_order_are_kept() -> None:
    clock = FakeClock()
    spec = MeasureSpec(warmup=0, iters=1)
    measurement = measure_engine(ScriptedEngine(clock, [9]), FEEDS, spec, clock=clock, trial=4, order=13)
    assert (measurement.trial, measurement.order) == (4, 13)
    assert measurement.started_utc.endswith("+00:00")


@pytest.mark.parametrize(
    ("run_ns", "first_ns", "second_ns", "left"),
    [
        (10**9, 1000, 1000, 0.0),
        (400, 36_000, 600, 35_400 / 35_800),  # the work is done in fetch
        (36_000, 1000, 600, 0.0),  # the first copy finds colder caches
        (400, 1000, 600, 0.0),  # ... also where the whole run is as short
        (1_000_000, 3_000_000, 1_000_000, 2 / 3),
        (1000, 40_000, 40_000, 0.0),  # a large output takes long each time
        (0, 0, 0, 0.0),
    ],
)
def test_work_that_a_run_leaves_to_fetch_is_seen(run_ns: int, first_ns: int, second_ns: int, left: float) -> None:
    engine = Leaving(FakeClock(), run_ns, first_ns, second_ns)
    assert measure_left(engine, engine.clock) == pytest.approx(left)  # type: ignore[arg-type]
    assert engine.runs <= (1 if run_ns == 10**9 else 7), "a long run is looked at once"


class Leaving:
    """An engine whose first fetch after a run takes another time than the second."""

    def __init__(self, clock: FakeClock, run_ns: int, first_ns: int, second_ns: int) -> None:
        self.clock, self.run_ns, self.first_ns, self.second_ns = clock, run_ns, first_ns, second_ns
        self.runs, self.fetched = 0, False

    def run(self) -> None:
        self.clock.advance(self.run_ns)
        self.runs, self.fetched = self.runs + 1, False

    def fetch(self) -> None:
        self.clock.advance(self.second_ns if self.fetched else self.first_ns)
        self.fetched = True


class DeviceEngine(ScriptedEngine):
    """A scripted engine with a device's clocks and cache."""

    def __init__(self, clock: FakeClock, *args: Any, **kwargs: Any) -> None:
        super().__init__(clock, *args, **kwargs)
        self.flushes = 0
        self.flush_ns = 5 * MS

    last_device_ns = staticmethod(lambda: 700)
    last_enqueue_ns = staticmethod(lambda: 300)
    last_h2d_ns = staticmethod(lambda: 20)
    last_d2h_ns = staticmethod(lambda: 10)
    last_staging_ns = staticmethod(lambda: 40)

    def flush_cache(self) -> None:
        self.flushes += 1
        self._clock.advance(self.flush_ns)


@pytest.mark.parametrize("cache", ["hot", "cold"])
@pytest.mark.parametrize("scope", ["compute", "io"])
def test_the_device_is_read_its_copies_in_io_alone_and_no_flush_is_timed(scope: Any, cache: Any) -> None:
    clock = FakeClock()
    engine = DeviceEngine(clock, [MS], bind_ns=1000, fetch_ns=2000)
    spec = MeasureSpec(iters=20, warmup=2, scope=scope, cache=cache)
    measured = measure_engine(engine, FEEDS, spec, clock=clock)
    assert measured.latency_ns == [MS + (3000 if scope == "io" else 0)] * 20
    assert (measured.device_ns, measured.enqueue_ns) == ([700] * 20, [300] * 20)
    copies = [[20] * 20, [10] * 20, [40] * 20] if scope == "io" else [None] * 3
    assert [measured.h2d_ns, measured.d2h_ns, measured.staging_ns] == copies
    assert engine.flushes == (engine.calls if cache == "cold" else 0), "before each call"


def test_a_clock_that_never_settles_ends_with_the_limit() -> None:
    rule = WarmupRule(None, 1.0)
    mhz = 300
    while not rule.is_over():
        rule.add_window(10, 1000.0, 10 * MS, mhz := round(mhz * 1.1))
    assert not rule.settled
    assert rule.dropped == 1000


def measure_mix(scripts: list[list[int]], weights: list[float], **settings: Any) -> tuple[Measurement, list[Any]]:
    clock = FakeClock()
    kept = {k: settings.pop(k) for k in ("bind_ns", "fetch_ns") if k in settings}
    engines = [ScriptedEngine(clock, script, **kept) for script in scripts]
    mix = [MixPart(*part) for part in zip(engines, [FEEDS[:1]] * len(engines), weights, strict=True)]
    return measure_engine(engines[0], FEEDS[:1], MeasureSpec(**settings), mix=mix, clock=clock), engines


def test_a_sample_of_a_mix_is_the_weighted_mean_of_a_round_of_calls() -> None:
    measurement, engines = measure_mix([[1000], [8000]], [0.75, 0.25], warmup=4, iters=50, bind_ns=70, fetch_ns=30)
    assert measurement.latency_ns == [2750] * 50
    assert measurement.cells_ns == [[1000] * 150, [8000] * 50]
    assert [engine.calls for engine in engines] == [3 * (4 + 3 + 50), 4 + 3 + 50]
    assert [engine.fetched for engine in engines] == [0, 0]


def test_the_calls_of_a_round_change_their_order_and_keep_their_own_times() -> None:
    order: list[int] = []
    clock = FakeClock()
    engines = [
        ScriptedEngine(clock, [1000 * (cell + 1)], on_run=lambda _, cell=cell: order.append(cell)) for cell in range(3)
    ]
    mix = [MixPart(engine, FEEDS[:1], 1 / 3) for engine in engines]
    measurement = measure_engine(engines[0], FEEDS[:1], MeasureSpec(warmup=0, iters=300), mix=mix, clock=clock)
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(one) == [0, 1, 2] for one in rounds) and len(set(rounds)) == 6
    assert [set(own) for own in measurement.cells_ns] == [{1000}, {2000}, {3000}]


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ([1.0], (1,)),
        ([0.5, 0.5], (1, 1)),
        ([0.7, 0.3], (7, 3)),
        ([0.99, 0.01], (36, 1)),
        ([1 / 12] * 12, (1,) * 12),
        ([0.999, 0.001], (36, 1)),
    ],
)
def test_a_round_has_calls_as_the_requests_have_them(weights: list[float], counts: tuple[int, ...]) -> None:
    assert plan_round(weights) == counts


@pytest.mark.parametrize("seed", range(20))
def test_a_round_is_near_any_weights_and_lacks_none(seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(1 + seed % 12))
    counts = np.array(plan_round(list(map(float, weights))))
    assert counts.min() >= 1 and np.abs(counts / counts.sum() - weights).max() < 0.08


def test_a_shape_follows_another_as_often_as_among_the_requests() -> None:
    order: list[int] = []
    clock = FakeClock()
    engines = [ScriptedEngine(clock, [1000], on_run=lambda _, cell=cell: order.append(cell)) for cell in range(2)]
    mix = [MixPart(engine, FEEDS[:1], weight) for engine, weight in zip(engines, (0.9, 0.1), strict=True)]
    measure_engine(engines[0], FEEDS[:1], MeasureSpec(warmup=0, iters=400), mix=mix, clock=clock)
    changes = float(np.mean(np.diff(order) != 0))
    assert changes == pytest.approx(2 * 0.9 * 0.1, abs=0.03)


def test_scope_io_of_a_mix_times_each_cell_with_its_copies() -> None:
    settings = {"warmup": 0, "iters": 9, "scope": "io", "bind_ns": 70, "fetch_ns": 30}
    measurement, engines = measure_mix([[1000], [8000]], [0.5, 0.5], **settings)
    assert measurement.cells_ns == [[1100] * 9, [8100] * 9] and measurement.latency_ns == [4600] * 9
    assert [engine.fetched for engine in engines] == [9, 9]


def test_a_mix_is_not_pipelined_and_not_cold() -> None:
    for settings in ({"scope": "pipelined"}, {"cache": "cold"}):
        with pytest.raises(UsageError):
            measure_mix([[1000]], [1.0], iters=9, **settings)


def test_every_quantile_of_a_mix_is_the_weighted_mean_of_those_of_its_cells() -> None:
    rng = np.random.default_rng(0)
    cells = [rng.integers(900, 2000, 7 * 101).tolist(), rng.integers(8000, 9000, 3 * 101).tolist()]
    cells[0][5] = 10_000_000  # other programs interrupted a call, and so its round
    rounds = [int(0.1 * (sum(cells[0][7 * i : 7 * i + 7]) + sum(cells[1][3 * i : 3 * i + 3]))) for i in range(101)]
    joined = join_cells(cells, [0.7, 0.3], rounds)
    assert np.median(joined) == pytest.approx(0.7 * np.median(cells[0]) + 0.3 * np.median(cells[1]), rel=0.005)
    assert np.mean(joined) == pytest.approx(0.7 * np.mean(cells[0]) + 0.3 * np.mean(cells[1]), abs=1)
    assert np.argmax(joined) == 0 and np.argsort(joined).tolist() == np.argsort(rounds, kind="stable").tolist()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_one_interrupted_call_does_not_decide_the_median_of_few_rounds(rounds: int) -> None:
    cells = [[100] * 7 * rounds, [500] * 3 * rounds]
    cells[0][1], cells[1][2] = 100_000, 100_000
    joined = join_cells(cells, [0.7, 0.3], [1] * rounds)
    assert len(joined) == rounds and np.median(joined) == 0.7 * 100 + 0.3 * 500


def test_a_mix_of_one_shape_is_timed_as_that_shape() -> None:
    times = [5, 3, 9, 4]
    assert join_cells([times], [1.0], times) == times
