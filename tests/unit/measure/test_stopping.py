"""The rules that end a measurement, fed by hand, and the reference kernel by a clock of the test."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from enginebench.measure import reference, stopping
from enginebench.measure.reference import time_reference
from enginebench.measure.stopping import SettledRule, WarmupRule

MS = 1_000_000


def feed_blocks(rule: stopping.StoppingRule, medians: list[float]) -> list[str | None]:
    decisions: list[str | None] = []
    for median in medians:
        rule.add_block(100, median, 100 * MS)
        decisions.append(rule.decide())
    return decisions


@pytest.mark.parametrize(
    ("limit_s", "medians", "decisions"),
    [
        (10.0, [5.0] * 10, [None] * 9 + ["settled"]),
        (1.5, [1.0, 2.0] * 7 + [1.0], [None] * 14 + ["time_limit"]),
        (1.0, [1.0] * 10, [None] * 9 + ["settled"]),  # where both hold
    ],
)
def test_settled_needs_ten_blocks_and_time(limit_s: float, medians: list[float], decisions: list[str | None]) -> None:
    assert feed_blocks(SettledRule(limit_s), medians) == decisions


def test_settled_when_the_interval_is_two_percent_wide() -> None:
    """Ten blocks, half at 1 - d and half at 1 + d: the width is 2 t d sqrt(10 / 9) / sqrt(10)."""
    edge = 0.02 / (2 * stats.t.ppf(0.975, 9) / 3)
    inside, outside = edge * 0.999, edge * 1.001
    assert feed_blocks(SettledRule(10.0), [1 - inside, 1 + inside] * 5)[-1] == "settled"
    assert feed_blocks(SettledRule(10.0), [1 - outside, 1 + outside] * 5)[-1] is None


def warm_up(medians: list[float]) -> WarmupRule:
    """Feeds windows of 4 calls and 10 ms until the rule is over or the medians are."""
    rule = WarmupRule(None, 10.0)
    for median in medians:
        if rule.is_over():
            break
        rule.add_window(4, median, 10 * MS)
    return rule


def test_falling_latencies_settle_when_they_have_fallen() -> None:
    rule = warm_up([100, 50, 20, 12, 11, 10.5, *([10.0] * 100)])
    assert rule.settled is True
    assert rule.dropped == 4 * 11  # the middle of windows 5 to 7 is 10.5, that of 6 to 8 is the first 10


def test_one_disturbed_window_decides_nothing() -> None:
    assert warm_up([3.0, 9.0, 3.0, 3.0, 8.0, 3.0]).settled is True


def test_long_calls_settle_by_as_many_as_fit() -> None:
    for calls_ms, settled in ((300, 200, 200, 200, 200), True), ((500, 300, 200), False), ((900, 900), True):
        rule = WarmupRule(None, 1.0)
        for ms in calls_ms:
            assert not rule.is_over()
            rule.add_window(1, ms * MS, ms * MS)
        assert rule.is_over() and rule.settled is settled


@pytest.mark.parametrize("degrees", [4, 9, 10, 20, 60, 1000])
def test_student_t_agrees_with_scipy(degrees: int) -> None:
    assert stopping.student_t_975(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=2e-3)


@given(st.lists(st.floats(1.0, 1e9), min_size=5, max_size=50))
def test_relative_width_agrees_with_scipy(values: list[float]) -> None:
    mean, error = sum(values) / len(values), float(stats.sem(values))
    expected = 2 * float(stats.t.ppf(0.975, len(values) - 1)) * error / mean
    assert stopping.relative_width(values) == pytest.approx(expected, rel=3e-3, abs=1e-12)


def test_each_repeat_is_timed_and_the_first_run_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    costs = iter([1000, 10, 20, 30])

    def kernel() -> None:
        now[0] += next(costs)

    monkeypatch.setattr(reference, "_make_kernel", lambda: kernel)
    assert time_reference(3, clock=lambda: now[0]) == [10, 20, 30]


def test_the_real_kernel_takes_time_and_starts_no_threads() -> None:
    threads = threading.active_count()
    assert all(ns > 0 for ns in time_reference(2)) and time_reference(0) == []
    assert threading.active_count() == threads
