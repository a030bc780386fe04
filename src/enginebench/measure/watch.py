"""Measure the cores that other processes kept busy while a block ran; the interface of a watch."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec.structs import asdict, replace

from enginebench.core.records import Block, BlockReading, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.measure.topology import ROOT, read_cpuset, read_system_file

# /proc/stat counts in ticks of 10 ms, so one tick more or less is 0.1 core in a block of 100 ms; the threshold
# stands above that, and low enough to catch a neighbour that takes a sixth of one core.
FOREIGN_CPU_CORES = 0.15

# In less time than this, one tick alone would pass for another process: nothing is measured in so short a block.
SHORTEST_NS = 80_000_000

CPU_NOT_WATCHED = make_warning(
    "not_watched", unseen="other programs' use of the CPU", why="this system keeps no figure of it"
)

_NS = 1_000_000_000

# What the kernel spends when a thread of ours goes to sleep and is woken again: it is charged to no process, so it
# would pass for another one's work. On a virtual machine, where a halt leaves the guest, calls of 12 us on two threads
# that do not spin went to sleep 3,900 times in 100 ms, and 0.25 core was busy that no process used: 6.5 us each. On
# bare metal it is less; there a little of another process's work goes unnoticed, in blocks with many sleeps only.
SLEEP_NS = 6_500


class Watch(Protocol):
    """Looks at the machine around each block, never inside one."""

    def begin(self) -> None: ...
    def end(self) -> BlockReading: ...


class DeviceWatch(Watch, Protocol):
    """Looks at a GPU, too: its clock, its memory, its energy, and whether others on it can be seen."""

    hides_processes: bool

    def read_clock_mhz(self) -> int | None: ...
    def watch_energy_counter(self) -> None: ...
    def peak_memory_bytes(self) -> int | None: ...
    def energy_per_image(self, images: int) -> tuple[float, float] | None: ...


class JointWatch:
    """Joins a watch of the CPU and one of a GPU, which is read first, before its clocks fall."""

    def __init__(self, cpu: Watch, gpu: Watch) -> None:
        self._cpu, self._gpu = cpu, gpu

    def begin(self) -> None:
        self._gpu.begin()
        self._cpu.begin()

    def end(self) -> BlockReading:
        device = self._gpu.end()
        return join_readings(self._cpu.end(), device)


def join_readings(cpu: BlockReading, gpu: BlockReading) -> BlockReading:
    """Return the GPU's reading with the CPU's figure and the marks of both."""
    return replace(gpu, foreign_cpu_cores=cpu.foreign_cpu_cores, marks=(*cpu.marks, *gpu.marks))


def make_block(start: int, stop: int, duration_ns: int, reading: BlockReading) -> Block:
    """Return the record of samples[start:stop] and the reading taken during them."""
    return Block(start=start, stop=stop, duration_ns=duration_ns, **asdict(reading))


def list_block_warnings(blocks: Sequence[Block]) -> Iterator[ResultWarning]:
    """Yield a warning if no block has a figure of foreign CPU. Marks, stop rule and warm-up are assessed later."""
    watched = [block for block in blocks if block.duration_ns >= SHORTEST_NS]  # shorter ones never have a figure
    if watched and all(block.foreign_cpu_cores is None for block in watched):
        yield CPU_NOT_WATCHED


class BlockWatch:
    """Measures the CPU time that other processes took between `begin` and `end`.

    Foreign cores = cores - idle cores - own cores. Idle time (with waiting for I/O) is taken rather than the sum
    of the busy counters because it is one rounded counter, not eight; time stolen by a hypervisor therefore counts
    as foreign, which it is. Own time covers all threads of this process and its children, living or ended, with
    what the kernel spends on their sleeping and waking.

    The limit: inside a container /proc/stat shows the whole host, so other containers count as foreign wherever
    they run. Where the container has a cpuset of its own, only those CPUs are watched; with a quota but no cpuset,
    the container looks like the host. Sandboxes whose counters stand still give None.

    Args:
        cpus: watch only these CPUs; None means the container's cpuset, or else every CPU of the machine.
    """

    def __init__(
        self,
        cpus: Collection[int] | None = None,
        *,
        root: Path = ROOT,
        clock: Callable[[], int] = time.perf_counter_ns,
        own_cpu_ns: Callable[[], int] | None = None,
    ) -> None:
        self._stat = root / "proc" / "stat"
        self._cpus = read_cpuset(root) if cpus is None else frozenset(cpus)
        self._clock = clock
        self._own_cpu_ns = own_cpu_ns or measure_own_cpu_ns
        self._before: _Sample | None = None

    def begin(self) -> None:
        self._before = self._sample()

    def end(self) -> BlockReading:
        before, after = self._before, self._sample()
        if before is None or before.cpus is None or before.cpus != after.cpus:
            return BlockReading()  # nothing can be read, or a CPU came or went
        wall_ns = after.wall_ns - before.wall_ns
        if wall_ns < SHORTEST_NS or after.total_ns <= before.total_ns:
            return BlockReading()  # counters stand still (a sandbox)
        ours_or_idle_ns = after.idle_ns - before.idle_ns + after.own_ns - before.own_ns
        foreign = max(0.0, after.cpus - ours_or_idle_ns / wall_ns)
        return BlockReading(foreign_cpu_cores=foreign, marks=("foreign_cpu",) if foreign > FOREIGN_CPU_CORES else ())

    def _sample(self) -> _Sample:
        return _Sample(self._clock(), self._own_cpu_ns(), *_read_cpu_times(self._stat, self._cpus))


class _Sample(NamedTuple):
    wall_ns: int
    own_ns: int
    cpus: int | None  # None where the machine's counters cannot be read
    total_ns: int
    idle_ns: int


def measure_own_cpu_ns() -> int:
    """Return the CPU time, in ns, used so far by all threads of this process and its children, living or ended."""
    ended = os.times()
    tick_ns = _NS // os.sysconf("SC_CLK_TCK")
    living = [*_find_descendants(os.getpid())]
    sleeps = sum(resource.getrusage(who).ru_nvcsw for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    sleeps += sum(map(_read_sleeps, living))
    ended_ns = int((ended.children_user + ended.children_system) * _NS)
    return time.process_time_ns() + sleeps * SLEEP_NS + ended_ns + sum(map(_read_process_ticks, living)) * tick_ns


def _find_descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in (read_system_file(task) or "").split():
            yield int(child)
            yield from _find_descendants(int(child))


def _read_process_ticks(pid: int) -> int:
    """Return the user and system ticks of a process and its ended children: fields 14 to 17 of proc_pid_stat(5)."""
    stat = read_system_file(Path(f"/proc/{pid}/stat")) or ""
    fields = stat.rpartition(")")[2].split()  # the name in brackets may hold blanks; field 3 comes after it
    return sum(int(field) for field in fields[11:15])


def _read_sleeps(pid: int) -> int:
    """Return the voluntary context switches of all threads of a process. Source: proc_pid_status(5)."""
    texts = [read_system_file(path) or "" for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(count) for text in texts for count in re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.M))


def _read_cpu_times(path: Path, cpus: frozenset[int] | None) -> tuple[int | None, int, int]:
    """Return (number of CPUs, total ns, idle ns) of the machine, or of `cpus`; None CPUs if they cannot be read.

    The columns are user nice system idle iowait irq softirq steal; guest time is part of user. Source: proc_stat(5).
    """
    text = read_system_file(path) or ""
    lines_by_cpu = {int(m[1]): m[2] for m in re.finditer(r"^cpu(\d+) (.*)$", text, re.MULTILINE)}
    counted = {cpu: row for cpu, row in lines_by_cpu.items() if cpus is None or cpu in cpus}
    whole = re.search(r"^cpu  ?(\d.*)$", text, re.MULTILINE)
    # One line of all CPUs is rounded once, a sum of lines once for each.
    lines = [whole[1]] if whole and len(counted) == len(lines_by_cpu) else list(counted.values())
    fields = [[int(value) for value in line.split()] for line in lines]
    if not counted or any(len(f) < 8 for f in fields):
        return None, 0, 0
    tick_ns = _NS // os.sysconf("SC_CLK_TCK")
    total, idle = sum(sum(f[:8]) for f in fields), sum(f[3] + f[4] for f in fields)
    return len(counted), total * tick_ns, idle * tick_ns
