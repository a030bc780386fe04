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
        self.disturbed = True  # by a bind, or a fetch

    def bind(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.content, self.calls_bound, self.disturbed = feeds["x"].tobytes(), 0, True
        self.clock.advance(self._bind_ns)

    def run(self) -> None:
        self.calls += 1
        self.calls_bound += 1
        self.clock.advance(self._cost(self))
        self.seen.add(self.content)
        self.disturbed = False

    def fetch(self) -> dict[str, np.ndarray[Any, Any]]:
        self.disturbed = True
        return {}

    def close(self) -> None: ...

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *error: object) -> None: ...


def find(cost: Cost, bind_ns: int = 10_000) -> list[str]:
    """The warnings on an engine that was timed on FEEDS before."""
    engine = Engine(cost, bind_ns)
    engine.bind(FEEDS)
    times = []
    for _ in range(300):
        begin = engine.clock()
        engine.run()
        times.append(engine.clock() - begin)
    warnings = find_skipped_work(engine, FEEDS, find_short_ns(times), clock=engine.clock)
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
        return super().copy(order)


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
    ],
    ids=["first of a bind", "first five", "first two hundred", "cached by content", "every second"],
)
def test_work_that_is_not_done_in_each_call_is_found(cost: Cost) -> None:
    assert find(cost) == ["implausible_time.repeated"]


@pytest.mark.parametrize(
    "cost",
    [
        lambda e: MS,
        lambda e: 3 * MS if e.disturbed else MS,  # cold caches, threads that have gone to sleep
        lambda e: MS if e.content == FEEDS["x"].tobytes() else 5 * MS,  # other inputs are more work
        lambda e: 5 * MS if e.calls % 97 == 0 else MS,  # somebody disturbs some calls
        lambda e: 100,  # next to nothing to do
    ],
    ids=["plain", "slow after a disturbance", "depends on the inputs", "disturbed", "tiny"],
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
