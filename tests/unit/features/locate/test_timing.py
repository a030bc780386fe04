"""The price of a way around, on a quiet machine and beside other programs."""

from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest

from enginebench.core.records import BlockReading
from enginebench.features.locate import timing
from enginebench.features.locate.sections import format_way
from enginebench.features.locate.timing import compare_times
from enginebench.report.located import WayAround


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Timed:
    """An engine whose every call takes so many milliseconds, but for those that are interrupted for a hundred."""

    def __init__(self, clock: Clock, ms: float, *, interrupted: int = 0) -> None:
        self.inputs: tuple[()] = ()
        self._clock, self._ms, self._interrupted, self._calls = clock, ms, interrupted, 0

    def bind(self, feeds: object) -> None: ...

    def run(self) -> None:
        self._calls += 1
        disturbed = self._interrupted and self._calls % self._interrupted == 0
        self._clock.now += (100 if disturbed else self._ms) / 1e3


@pytest.fixture
def clock(monkeypatch: Any) -> Clock:
    monkeypatch.setattr(timing, "time", Clock())
    return timing.time  # type: ignore[return-value]


def compare(first: Timed, second: Timed, cores: float | None) -> Any:
    watch = MagicMock()
    watch.end.return_value = BlockReading(foreign_cpu_cores=cores)
    loads: Any = [lambda: nullcontext(first), lambda: nullcontext(second)]
    return compare_times(loads, {}, lambda: watch)


@pytest.mark.parametrize(("cores", "certain"), [(None, True), (0.3, True), (0.9, False)])
def test_a_price_beside_other_programs_has_no_interval_and_says_so(
    clock: Clock, cores: float | None, certain: bool
) -> None:
    price = compare(Timed(clock, 4), Timed(clock, 6), cores)
    assert price.value == pytest.approx(1.5) and (price.low is not None) == certain
    text = format_way(WayAround(engine="ort:opt=none", slowdown=price))[1]
    assert ("other programs used the CPU" in text) != certain


def test_calls_that_were_interrupted_are_not_in_the_price(clock: Clock) -> None:
    assert compare(Timed(clock, 4), Timed(clock, 6, interrupted=5), 0.0).value == pytest.approx(1.5)
