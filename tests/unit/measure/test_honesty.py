"""Engines that skip their work, under a clock that they alone move; and honest ones that only look like it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from enginebench.engines.fake import FakeClock
from enginebench.measure.honesty import find_short_ns, find_skipped_work, run_longer

MS = 1_000_000
FEEDS: Mapping[str, np.ndarray[Any, Any]] = {"x": np.arange(16, dtype=np.float32)}
Cost = Callable[["Engine"], int]


class Engine:
    """Each call takes what `cost` makes of the calls so far, of the inputs, and of what was seen before."""

    inputs = outputs = ()

    def __init__(self, cost: Cost, bind_ns: int = 10_000) -> None:
        self.clock = FakeClock(tick_ns=100)
        self._cost, self._bind_ns = cost, bind_ns
        self.calls = self.calls_bound = 0
        self.content = b""
        self.seen: set[bytes] = set()
        self.disturbed = True  # by a bind, or by a copy of the inputs
        self.in_a_row = 0  # calls without a bind or a fetch between
        self.gap_ns = 0  # between a call and the one before
        self._ended_ns = 0

    def bind(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.content, self.calls_bound, self.disturbed = feeds["x"].tobytes(), 0, True
        self.in_a_row = 0
        self.clock.advance(self._bind_ns)

    def run(self) -> None:
        self.calls += 1
        self.calls_bound += 1
        self.in_a_row += 1
        self.gap_ns = self.clock() - self._ended_ns
        self.clock.advance(self._cost(self))
        self.seen.add(self.content)
        self.disturbed = False
        self._ended_ns = self.clock()

    def fetch(self) -> dict[str, np.ndarray[Any, Any]]:
        self.in_a_row = 0
        return {}

    def close(self) -> None: ...

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None: ...


class Copied(np.ndarray[Any, Any]):
    """An array that drives others out of the caches when it is copied."""

    engine: Engine

    def copy(self, order: Any = "C") -> np.ndarray[Any, Any]:
        self.engine.disturbed = True
        self.engine.clock.advance(10_000)
        return np.array(self)


def find(cost: Cost, bind_ns: int = 10_000, kind: type[Engine] = Engine) -> list[str]:
    """The warnings on an engine that was timed on FEEDS before."""
    engine = Copied.engine = kind(cost, bind_ns)
    feeds = {"x": FEEDS["x"].view(Copied)}
    engine.bind(feeds)
    times, run = [], engine.run
    for _ in range(300):
        begin = engine.clock()
        run()
        times.append(engine.clock() - begin)
    warnings = find_skipped_work(engine, feeds, find_short_ns(times), clock=engine.clock)
    assert engine.content == FEEDS["x"].tobytes(), "the inputs that were timed are bound again"
    return [warning.template for warning in warnings]


@pytest.mark.parametrize(
    ("timed", "calls"),
    [
        (5 * [MS], 25),
        (98 * [MS], 490),
        (400 * [MS], 500),
        ([MS] * 3 + [900 * MS], 20),
        (3 * [2_000 * MS], 0),
        (9 * [0], 45),
    ],
)
def test_more_calls_than_were_timed_follow_if_they_are_short(timed: list[int], calls: int) -> None:
    """An engine that stops computing after 500 calls of a millisecond, of which few are timed, comes to that call."""
    engine = Engine(lambda e: MS)
    engine.bind(FEEDS)
    run_longer(engine, timed)
    assert engine.calls_bound == calls


def test_calls_that_mostly_take_no_time_are_not_followed_by_minutes() -> None:
    engine = Engine(lambda e: MS if e.calls % 8 == 1 else 100)
    engine.bind(FEEDS)
    run_longer(engine, 10_000 * [MS, *7 * [100]], clock=engine.clock)
    assert engine.clock() == pytest.approx(1_000 * MS, rel=0.01)


def test_the_cells_of_a_mix_share_the_time_of_more_calls() -> None:
    engine = Engine(lambda e: MS)
    engine.bind(FEEDS)
    run_longer(engine, 400 * [MS], cells=10)
    assert engine.calls_bound == 50


class InMemory(np.ndarray[Any, Any]):
    """An array that takes long to copy, because it lies in no cache."""

    clock: FakeClock

    def copy(self, order: Any = "C") -> np.ndarray[Any, Any]:
        self.clock.advance(MS)
        return np.array(self)


@pytest.mark.parametrize(("first_ns", "expected"), [(MS, []), (3 * MS, ["implausible_time.repeated"])])
def test_a_first_call_may_take_a_copy_of_its_inputs_longer(first_ns: int, expected: list[str]) -> None:
    engine = Engine(lambda e: first_ns if e.calls_bound == 1 else MS // 10)
    large = FEEDS["x"].view(InMemory)
    InMemory.clock = engine.clock
    warnings = find_skipped_work(engine, {"x": large}, MS // 10, clock=engine.clock)
    assert [warning.template for warning in warnings] == expected


@pytest.mark.parametrize(
    "cost",
    [
        lambda e: MS if e.calls_bound == 1 else 1000,
        lambda e: MS if e.calls_bound <= 5 else 1000,
        lambda e: MS if e.calls_bound <= 200 else 1000,
        lambda e: 1000 if e.content in e.seen else MS,
        lambda e: MS if e.calls_bound % 2 else 1000,
        lambda e: 1000 if e.in_a_row > 5 else MS,
        lambda e: MS if e.calls_bound == 1 or e.gap_ns > 20_000 else 1000,
        lambda e: MS if e.in_a_row < 5 or e.gap_ns > 20_000 else 1000,
        lambda e: MS * 3 // 4 if e.calls_bound == 1 or e.gap_ns > 5_000 else MS * 3 // 20,
    ],
    ids=[
        *("first of a bind", "first five", "first two hundred", "cached by content", "every second"),
        *("unless outputs are fetched", "if it follows at once", "in a row, at once"),
        "at once, and waits for a fifth of the work",
    ],
)
def test_work_that_is_not_done_in_each_call_is_found(cost: Cost) -> None:
    assert find(cost) == ["implausible_time.repeated"]


class InThreadOfBind(Engine):
    """Computes from the bind on: what the scheduler has done of it when `bind` returns is no part of the call."""

    def bind(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().bind(feeds)
        self.done_ns = 0 if len(self.seen) % 2 else MS
        self.clock.advance(self.done_ns)
        self.seen.add(self.content)

    def run(self) -> None:
        self.clock.advance(MS // 4 + (0 if self.calls_bound else MS - self.done_ns))
        self.calls_bound += 1


def test_what_a_thread_does_from_the_bind_on_belongs_to_the_call() -> None:
    assert find(lambda e: 0, kind=InThreadOfBind) == ["implausible_time.repeated"]


class NewCallables(Engine):
    """Computes in the first call of each callable that it hands out."""

    @property
    def run(self) -> Callable[[], None]:
        costs = iter([MS])

        def call() -> None:
            self.clock.advance(next(costs, 1000))

        return call


def test_a_call_is_one_of_the_callable_that_is_timed() -> None:
    assert find(lambda e: MS, kind=NewCallables) == ["implausible_time.repeated"]


def test_an_engine_that_keeps_outputs_for_other_processes_is_found_in_each() -> None:
    stored: set[bytes] = {FEEDS["x"].tobytes()}

    def cost(engine: Engine) -> int:
        known = engine.content in stored
        stored.add(engine.content)
        return 1000 if known else MS

    for _ in range(3):
        assert find(cost) == ["implausible_time.repeated"]


@pytest.mark.parametrize(
    "cost",
    [
        lambda e: MS,
        lambda e: 3 * MS if e.disturbed else MS,  # cold caches
        # Threads that have gone to sleep, or wait actively.
        lambda e: MS // 2 if e.gap_ns > 100_000 else 60_000 if e.calls_bound == 1 or e.gap_ns > 5_000 else 20_000,
        lambda e: MS if e.content == FEEDS["x"].tobytes() else 5 * MS,  # other inputs are more work
        lambda e: 5 * MS if e.calls % 97 == 0 else MS,  # somebody disturbs some calls
        lambda e: 100,  # next to nothing to do
    ],
    ids=["plain", "cold caches", "sleeping threads", "depends on the inputs", "disturbed", "tiny"],
)
def test_an_honest_engine_is_not_suspected(cost: Cost) -> None:
    assert find(cost) == []


@pytest.mark.parametrize("seed", range(40))
def test_a_machine_that_is_slow_for_some_calls_at_a_time_raises_no_suspicion(seed: int) -> None:
    """Other programs make calls three times as long, for some in a row: five rounds agreed by chance in 1 of 60."""
    random = np.random.default_rng(seed)
    state = {"slow": False}

    def cost(engine: Engine) -> int:
        if random.random() < 0.2:
            state["slow"] = not state["slow"]
        return 100 * MS * (3 if state["slow"] else 1)

    assert find(cost) == []


@pytest.mark.parametrize(("bind_ns", "found"), [(10_000, []), (MS, ["implausible_time.outside_run"])])
def test_a_bind_that_takes_far_longer_than_copying_is_the_work(bind_ns: int, found: list[str]) -> None:
    assert find(lambda e: MS // 10, bind_ns) == found
