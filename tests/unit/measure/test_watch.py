"""Foreign CPU time, from counters that the test writes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from enginebench.core.records import BlockReading
from enginebench.engines.fake import FakeClock
from enginebench.measure import watch
from enginebench.measure.watch import BlockWatch, measure_own_cpu_ns
from machines import LayOut

MS = 1_000_000
SECOND = os.sysconf("SC_CLK_TCK")  # in ticks


def format_stat(*cpus: tuple[int, int]) -> str:
    """/proc/stat for CPUs of (busy, idle) ticks; a tenth of busy is steal, a tenth of idle is iowait."""
    rows = [f"{b - b // 10} 0 0 {i - i // 10} {i // 10} 0 0 {b // 10} 0 0" for b, i in cpus]
    busy, idle = sum(b for b, _ in cpus), sum(i for _, i in cpus)
    lines = [f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0", *(f"cpu{n} {row}" for n, row in enumerate(rows)), "intr 5 0"]
    return "\n".join(lines) + "\n"


def watch_block(
    lay_out: LayOut,
    before: str,
    after: str,
    *,
    own_ms: int = 0,
    wall_ms: int = 1000,
    cpus: tuple[int, ...] | None = None,
) -> BlockReading:
    """The reading over `wall_ms` between two states of /proc/stat."""
    clock, own = FakeClock(), FakeClock()
    root = lay_out({"proc/stat": before})
    watch = BlockWatch(cpus, root=root, clock=clock, own_cpu_ns=own)
    watch.begin()
    lay_out({"proc/stat": after})
    clock.advance(wall_ms * MS)
    own.advance(own_ms * MS)
    return watch.end()


def test_foreign_is_what_is_neither_idle_nor_ours(lay_out: LayOut) -> None:
    after = format_stat((SECOND, 0), (SECOND * 7 // 10, SECOND * 3 // 10))
    reading = watch_block(lay_out, format_stat((0, 0), (0, 0)), after, own_ms=1000)
    assert reading.foreign_cpu_cores == pytest.approx(0.7)
    assert reading.marks == ("foreign_cpu",)


def test_a_block_too_short_for_the_counters_gives_none(lay_out: LayOut) -> None:
    before, after = format_stat((0, 0)), format_stat((4, 5))
    assert watch_block(lay_out, before, after, wall_ms=79).foreign_cpu_cores is None
    assert watch_block(lay_out, before, after, wall_ms=100).foreign_cpu_cores is not None


def test_without_proc_or_a_beginning_there_is_no_figure(lay_out: LayOut, tmp_path: Path) -> None:
    watch = BlockWatch(root=tmp_path)
    watch.begin()
    assert watch.end() == BlockReading()
    assert BlockWatch(root=lay_out({"proc/stat": format_stat((5, 5))})).end() == BlockReading()


def test_own_time_covers_threads_and_never_runs_back() -> None:
    before = measure_own_cpu_ns()
    assert before >= time.process_time_ns() - 50 * MS
    sum(range(200_000))
    assert measure_own_cpu_ns() > before


def test_sleeping_is_not_a_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand sleeps cost the kernel time that no process is charged for."""
    slept = SimpleNamespace(ru_nvcsw=0)
    monkeypatch.setattr(watch.resource, "getrusage", lambda who: slept)
    before = measure_own_cpu_ns()
    slept.ru_nvcsw = 1000
    assert measure_own_cpu_ns() - before >= 1000 * watch.SLEEP_NS


def test_the_sleeps_of_children_are_own_time() -> None:
    """A child that sleeps a thousand times, and lives on; a timer that fires at once makes no switch."""
    code = "import sys, time; [time.sleep(1e-5) for _ in range(1000)]; print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-S", "-c", code], **pipes) as child:  # type: ignore[call-overload]
        child.stdout.readline()
        assert sum(map(watch._read_sleeps, watch._find_descendants(os.getpid()))) >= 500
        child.communicate()
