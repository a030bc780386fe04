"""Ceilings from trials whose times are known, and the caches that Linux lists."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from enginebench.features.roofline.ceilings import MOST_CALLS, Trial, count_calls, find_value, join_best, observe
from enginebench.measure.caches import DataCache, read_caches, read_size


def simulate(times_s: dict[str, Iterator[float]]) -> Callable[[Callable[[], object], int], float]:
    """A timer that asks the call for its name, and takes its next time."""

    def timer(call: Callable[[], object], calls: int) -> float:
        return calls * next(times_s[str(call())])

    return timer


def tick() -> Callable[[], float]:
    ticks = count()
    return lambda: float(next(ticks))


def test_the_best_of_all_trials_counts_and_noise_only_takes_away() -> None:
    trials = [
        Trial(kind="gemm", precision="fp32", work=1e9, call=lambda: "slow", how="slow"),
        Trial(kind="gemm", precision="fp32", work=1e9, call=lambda: "noisy", how="noisy"),
    ]
    noisy = iter([1, 1, 9, 0.5, *[8.0] * 50])
    timer = simulate({"slow": iter([0.7] * 50), "noisy": noisy})
    (found,) = observe(trials, device="cpu", threads=2, budget_s=4, timer=timer, clock=tick())
    assert (found.value, found.how) == (2.0, "noisy")  # 1 GMAC in half a second


def test_a_cost_is_the_shortest_and_a_rate_the_highest_of_the_repetitions() -> None:
    trials = [
        Trial(kind="call", work=1, call=lambda: "call"),
        Trial(kind="memory", work=1e9, call=lambda: "memory", capacity_bytes=None),
    ]
    times = {"call": iter([2e-3, 2e-3, 3e-3, 1e-3, 4e-3]), "memory": iter([1, 1, 0.5, 0.25, 0.5])}
    clock, timer = tick(), simulate(times)
    found = observe(trials, device="cpu", threads=2, budget_s=0.5, timer=timer, clock=clock, repetitions=2)
    call, memory = join_best(found)
    assert (call.value, call.low, call.high, call.unit) == (1000.0, 1000.0, 3000.0, "us")
    assert (memory.value, memory.low, memory.high, memory.unit) == (4.0, 2.0, 4.0, "GB/s")
    assert (memory.n, memory.threads) == (2, 2)


def test_calls_too_short_for_a_clock_are_timed_together() -> None:
    trial = Trial(kind="call", work=1, call=lambda: None)
    assert count_calls(trial, lambda call, calls: calls * 1e-6) == 32  # 32 us are the first beyond 20
    assert count_calls(trial, lambda call, calls: 1.0) == 1
    assert count_calls(trial, lambda call, calls: 0.0) == MOST_CALLS
    assert find_value(Trial(kind="kernel", work=1000, call=lambda: None), 2e-3) == pytest.approx(2.0)


def test_caches_are_read_innermost_first(tmp_path: Path) -> None:
    listed = [("3", "Unified", "32M", "0-7"), ("1", "Data", "32K", "0"), ("1", "Instruction", "64K", "0")]
    for index, values in enumerate(listed):
        folder = tmp_path / f"sys/devices/system/cpu/cpu0/cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in zip(("level", "type", "size", "shared_cpu_list"), values, strict=True):
            (folder / name).write_text(value + "\n")
    first, last = read_caches(0, tmp_path)
    assert (first, last) == (DataCache(1, 32 << 10, 1), DataCache(3, 32 << 20, 8))
    assert (first.count_bytes(4), last.count_bytes(4), last.count_bytes(9)) == (128 << 10, 32 << 20, 64 << 20)
    assert read_caches(1, tmp_path) == ()
    assert (read_size("1M"), read_size("7"), read_size("many")) == (1 << 20, 7, None)
