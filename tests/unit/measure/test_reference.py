"""The reference kernel: how often it runs and what is counted, by a clock of the test."""

import threading

import pytest

from enginebench.measure import reference
from enginebench.measure.reference import time_reference


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
