"""Peaks from trials whose times are known, and the caches that Linux lists."""

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ChildFailed, UsageError
from enginebench.core.peaks import UNITS, Peak, PeakKind, Peaks
from enginebench.core.records import Gpu, Machine, Precision
from enginebench.features.roofline import verb as roofline
from enginebench.features.roofline.jobs import PeaksJob, PeaksResponse
from enginebench.features.roofline.peaks import MOST_CALLS, PeakProbe, count_calls, join_best, observe, scale_to_unit
from enginebench.features.roofline.sections import list_peaks
from enginebench.features.roofline.stored_peaks import find_peaks, name_file, store_peaks
from enginebench.features.roofline.verb import choose_threads, measure_peaks, plan_jobs, read_request
from enginebench.measure.caches import DataCache, read_caches, read_size
from enginebench.measure.machine import describe_machine
from reporters import Silent
from reports import draw


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
        PeakProbe(kind="gemm", precision="fp32", work=1e9, call=lambda: "slow", method="slow"),
        PeakProbe(kind="gemm", precision="fp32", work=1e9, call=lambda: "noisy", method="noisy"),
    ]
    noisy = iter([1, 1, 9, 0.5, *[8.0] * 50])
    timer = simulate({"slow": iter([0.7] * 50), "noisy": noisy})
    (found,) = observe(trials, device="cpu", threads=2, budget_s=4, timer=timer, clock=tick())
    assert (found.value, found.method) == (2.0, "noisy")  # 1 GMAC in half a second


def test_a_cost_is_the_shortest_and_a_rate_the_highest_of_the_trials() -> None:
    trials = [
        PeakProbe(kind="call", work=1, call=lambda: "call"),
        PeakProbe(kind="memory", work=1e9, call=lambda: "memory", capacity_bytes=None),
    ]
    times = {"call": iter([2e-3, 2e-3, 3e-3, 1e-3, 4e-3]), "memory": iter([1, 1, 0.5, 0.25, 0.5])}
    clock, timer = tick(), simulate(times)
    found = observe(trials, device="cpu", threads=2, budget_s=0.5, timer=timer, clock=clock, trials=2)
    call, memory = join_best(found)
    assert (call.value, call.low, call.high, call.unit) == (1000.0, 1000.0, 3000.0, "us")
    assert (memory.value, memory.low, memory.high, memory.unit) == (4.0, 2.0, 4.0, "GB/s")
    assert (memory.n, memory.threads) == (2, 2)


def test_calls_too_short_for_a_clock_are_timed_together() -> None:
    trial = PeakProbe(kind="call", work=1, call=lambda: None)
    assert count_calls(trial, lambda call, calls: calls * 1e-6) == 32  # 32 us are the first beyond 20
    assert count_calls(trial, lambda call, calls: 1.0) == 1
    assert count_calls(trial, lambda call, calls: 0.0) == MOST_CALLS
    assert scale_to_unit(PeakProbe(kind="kernel", work=1000, call=lambda: None), 2e-3) == pytest.approx(2.0)


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


HERE = describe_machine()


def peak(kind: PeakKind, value: float, precision: Precision | None = None, threads: int | None = 1) -> Peak:
    return Peak(kind=kind, precision=precision, threads=threads, value=value, unit=UNITS[kind], low=value, high=value)


def peaks_of(machine: Machine) -> Peaks:
    return Peaks(machine=machine, peaks=(peak("gemm", 40.0, "fp32"),), measured_utc="2026-11-22T10:00:00")


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEBENCH_CEILINGS", str(tmp_path / "store"))


def test_what_was_stored_is_found(tmp_path: Path) -> None:
    kept = peaks_of(HERE)
    assert find_peaks(HERE).peaks is None
    assert "enginebench roofline" in find_peaks(HERE).reason
    paths = store_peaks(kept, tmp_path / "out")
    assert paths == [tmp_path / "store" / name_file(HERE), tmp_path / "out" / "roofline.json"]
    assert find_peaks(HERE).peaks == kept


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cpu_model": "Another 9000"}, "processor was Another 9000"),
        ({"cpus_allowed": tuple(range(99))}, "allowed CPUs was 99"),
        ({"cpu_quota_cores": 0.5}, "CPU quota was 0.5"),
        ({"versions": {"torch": "1.0"}}, "torch was 1.0"),
        ({"gpus": (Gpu(index=0, name="H999", driver="1", memory_bytes=1),)}, "GPUs was H999"),
    ],
)
def test_those_of_another_machine_are_refused_with_words(tmp_path: Path, changes: Any, word: str) -> None:
    *_, given = store_peaks(peaks_of(replace(HERE, **changes)), tmp_path / "given")
    (tmp_path / "store" / name_file(HERE)).write_bytes(given.read_bytes())
    found = find_peaks(HERE)
    assert found.peaks is None and word in found.reason and "`enginebench roofline` measures it" in found.reason


@pytest.mark.parametrize("text", ["", "{", '{"schema": "enginebench.roofline/9"}'])
def test_a_damaged_file_costs_the_column_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store" / name_file(HERE)
    path.parent.mkdir()
    path.write_text(text)
    found = find_peaks(HERE)
    assert found.peaks is None and str(path) in found.reason and "roofline" in found.reason


def test_a_place_that_takes_no_peaks_is_found_before_they_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENGINEBENCH_CEILINGS", str(tmp_path / "file"))
    monkeypatch.setattr(roofline, "run_child", lambda job, **_: pytest.fail("measured"))
    with pytest.raises(ArtifactError, match=f"{tmp_path / 'file'}.*choose another path"):
        measure_peaks(read_request(threads="1", device="cpu"), reporter=Silent())


def test_every_device_and_number_of_threads_has_children_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (PeaksResponse(peaks=(peak("gemm", v, "fp32"), peak("call", 0.1))) for v in (40.0, 44.0, 42.0))
    monkeypatch.setattr(roofline, "run_child", lambda job, **_: next(answers))
    found = measure_peaks(read_request(threads="1", device="cpu"), reporter=Silent())
    gemm, call = found.peaks
    assert (gemm.value, gemm.low, gemm.high, gemm.n) == (44.0, 40.0, 44.0, 3)
    assert call.value == 0.1 and found.processes == 3 and not found.quick


def test_a_child_that_dies_costs_what_it_did_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([PeaksResponse(peaks=(peak("gemm", 40.0, "fp32"),))])

    def answer(job: PeaksJob, **_: Any) -> PeaksResponse:
        for found in answers:
            return found
        raise ChildFailed("the process was killed by SIGKILL")

    monkeypatch.setattr(roofline, "run_child", answer)
    found = measure_peaks(read_request(threads="1", device="cpu"), reporter=Silent())
    assert [one.value for one in found.peaks] == [40.0]
    assert "SIGKILL" in found.notes[0]
    with pytest.raises(UsageError, match="SIGKILL"):
        measure_peaks(read_request(threads="1", device="cpu"), reporter=Silent())


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"precisions": "fp33"}, "fp33"),
        ({"precisions": "int8@cpu"}, "no recipe"),
        ({"threads": "0"}, "'0'"),
        ({"threads": "two"}, "'two'"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        read_request(**given)


def test_threads_are_doubled_up_to_the_cores() -> None:
    machine = replace(HERE, default_threads=12, cpus_allowed=tuple(range(24)))
    assert choose_threads(read_request(), machine) == (1, 2, 4, 8, 12)
    assert choose_threads(read_request(quick=True), machine) == (1, 12)
    assert choose_threads(read_request(threads="3,20"), machine) == (3, 20)
    with pytest.raises(UsageError, match="may use 24"):
        choose_threads(read_request(threads="25"), machine)
    with pytest.raises(UsageError, match="cuda:7"):
        list(plan_jobs(read_request(device="cuda:7"), machine))


def test_a_rate_of_five_digits_is_in_a_larger_unit() -> None:
    fast = replace(peak("gemm", 412_345.0, "fp16", None), low=9_000.0, n=3, device="cuda:0")
    text = draw(list_peaks(replace(peaks_of(HERE), peaks=(fast, peak("l1", 12_345.0), peak("memory", 9_876.0)))), 100)
    assert "412  9.00 to 412  TMAC/s" in text and "12.3" in text and "TB/s" in text and "9876" in text
    assert not [line for line in text.splitlines()[2:] if re.search(r"\d{5}", line)]
