"""The state of a GPU between timed regions, by NVML: clocks, temperature, power, throttling, other processes, energy.

Nothing here changes a card's settings, and nothing raises for a query that a card does not support.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from enginebench.core.cuda_devices import find_bus_id, find_handle
from enginebench.core.records import BlockReading, Mark
from enginebench.core.warnings import make_warning

# A block below this share of the default SM clock is marked. NVBench, which set the value, throws such samples away;
# here they are kept and marked. Source: NVBench, `--throttle-threshold`.
LOW_CLOCK_SHARE = 0.75

# NVML's bits for a clock that is lower than it could be, by the cause. Left out are those that need no warning: idle,
# and clocks that the owner set (applications clocks, display). Source: nvml.h, nvmlClocksEventReasons.
REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}

# A card at its power limit lowers the clock in small steps and keeps it there: an H200 was seen to go from 1980 to
# 1965 MHz. That is normal under load, and is marked only where it costs more than a verdict would notice (2 %).
CAPS = ("sw_power_cap", "sync_boost")
CAPPED_CLOCK_SHARE = 0.98

# The period of the energy counter where it could not be measured: data-centre cards refresh it every 20 to 100 ms.
# Source: the slowest measured one; Yang, Adamek, Armour, "Part-time power measurements", SC 2024, reports 20 to
# 100 ms for cards since Volta.
ENERGY_PERIOD_NS = 100_000_000
# Long enough to see two changes of a counter that moves every 100 ms.
ENERGY_WATCH_NS = 250_000_000


class GpuWatch:
    """Reads one GPU before and after each block. Open it before the engine is loaded: memory is counted from then on.

    Args:
        locate: returns the PCI bus id of CUDA's GPU of that index; None where CUDA does not report it.

    Attributes:
        default_clock_mhz: the SM clock that the card runs at by default, or the highest where it has no default.
        hides_processes: after some block the list of processes was empty, without even this one, or could not be read.
    """

    energy_period_ns: int = ENERGY_PERIOD_NS

    def __init__(
        self,
        index: int,
        nvml: Any,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        pid: int | None = None,
        locate: Callable[[int], str | None] = find_bus_id,
    ) -> None:
        self._nvml, self._clock = nvml, clock
        self._pid = os.getpid() if pid is None else pid
        self._handle = find_handle(nvml, index, locate)
        clocks = ("nvmlDeviceGetDefaultApplicationsClock", "nvmlDeviceGetMaxClockInfo")
        default, highest = (self._query(function, nvml.NVML_CLOCK_SM) for function in clocks)
        self.default_clock_mhz: int | None = default or highest
        self.hides_processes = False
        self._used_before = self._read_used()
        self._strangers = self._count_processes(own=False)
        self._peak_used: int | None = None
        self._first: tuple[int, int] | None = None  # (ns, mJ) at the first begin
        self._last: tuple[int, int] | None = None  # at the last end

    def begin(self) -> None:
        self._note_memory()
        energy = self._read_energy()
        if self._first is None and energy is not None:
            self._first = (self._clock(), energy)

    def end(self) -> BlockReading:
        """Return the reading right after a block. The clock is read first, because it falls once the load is gone."""
        sm_clock = self.read_clock_mhz()
        memory_clock = self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_MEM)
        reasons = self._read_reasons()
        power_mw = self._query("nvmlDeviceGetPowerUsage")
        temperature = self._query("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU)
        foreign, energy = self._count_processes(own=True), self._read_energy()
        self.hides_processes |= foreign is None
        if energy is not None:
            self._last = (self._clock(), energy)
        self._note_memory()
        return BlockReading(
            sm_clock_mhz=sm_clock,
            memory_clock_mhz=memory_clock,
            temperature_c=temperature,
            power_w=None if power_mw is None else power_mw / 1000,
            throttle_reasons=reasons,
            marks=find_marks(sm_clock, reasons, foreign, self.default_clock_mhz),
        )

    def read_clock_mhz(self) -> int | None:
        clock: int | None = self._query("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM)
        return clock

    def peak_memory_bytes(self) -> int | None:
        """Return the peak of device memory in use, less the memory in use before.

        That is context, weights, workspaces and buffers.
        """
        if self._peak_used is None or self._used_before is None:
            return None
        return max(0, self._peak_used - self._used_before)

    def energy_per_image(self, images: int) -> tuple[float, float] | None:
        """Return (mJ per image, half-width of its uncertainty), from the first `begin` to the last `end`.

        The counter moves in steps: at either end up to one step is missing or too much, which is the half-width.
        None without a counter, or if it did not move.
        """
        if self._first is None or self._last is None or images < 1:
            return None
        duration_ns, energy_mj = self._last[0] - self._first[0], self._last[1] - self._first[1]
        if duration_ns <= 0 or energy_mj <= 0:
            return None
        return energy_mj / images, energy_mj * min(1.0, self.energy_period_ns / duration_ns) / images

    def watch_energy_counter(self) -> None:
        """Measure the period of the energy counter; takes a quarter of a second at most."""
        changes: list[int] = []
        energy, deadline = self._read_energy(), self._clock() + ENERGY_WATCH_NS
        while energy is not None and len(changes) < 2 and self._clock() < deadline:
            if (now := self._read_energy()) != energy:
                changes.append(self._clock())
                energy = now
        if len(changes) == 2:
            self.energy_period_ns = changes[1] - changes[0]

    def _note_memory(self) -> None:
        used = self._read_used()
        if used is not None:
            self._peak_used = max(used, self._peak_used or 0)

    def _read_reasons(self) -> tuple[str, ...]:
        """Return the causes of a low clock; NVML has had two names for this call."""
        bits = self._query("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:
            bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(name for bit, name in REASONS.items() if (bits or 0) & bit)

    def _read_used(self) -> int | None:
        info = self._query("nvmlDeviceGetMemoryInfo")
        return None if info is None else int(info.used)

    def _read_energy(self) -> int | None:
        energy: int | None = self._query("nvmlDeviceGetTotalEnergyConsumption")
        return energy

    def _count_processes(self, own: bool) -> int | None:
        """Return the number of processes that compute on the GPU, without this one; None where NVML hides processes.

        In a container NVML lists process ids of the host, so that ours is not among them: then one of the new ones
        is taken to be ours, if this process has a context at all (`own`). An empty list, where ours must be on it,
        would not contain another's process either: None.
        """
        processes = self._query("nvmlDeviceGetComputeRunningProcesses")
        if processes is None or (own and not processes):
            return None
        pids = {int(p.pid) for p in processes}
        if self._pid in pids:
            return len(pids) - 1
        if own and self._strangers is not None and len(pids) > self._strangers:
            return len(pids) - 1
        return len(pids)

    def _query(self, function: str, *arguments: object) -> Any:
        try:
            return getattr(self._nvml, function)(self._handle, *arguments)
        except Exception:  # integrated, virtual and partitioned GPUs support only some of the queries
            return None


def find_marks(
    clock_mhz: int | None, reasons: Sequence[str], foreign: int | None, default_mhz: int | None
) -> tuple[Mark, ...]:
    """Return the marks of a block: a low clock, throttling, another process on the GPU."""
    share = clock_mhz / default_mhz if clock_mhz is not None and default_mhz else 1.0
    signs: dict[Mark, bool] = {
        "low_clock": share < LOW_CLOCK_SHARE,
        "throttled": any(share < CAPPED_CLOCK_SHARE or reason not in CAPS for reason in reasons),
        "foreign_gpu": bool(foreign),
    }
    return tuple(mark for mark, present in signs.items() if present)


def open_gpu_watch(device: str) -> GpuWatch | None:
    """Open a watch on the GPU of `cuda:N`; None where NVML is not available: not installed, no driver, Jetson, WSL."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return GpuWatch(read_gpu_index(device), pynvml)
    except Exception:  # a missing module, library, driver or device each have their own
        return None


def read_gpu_index(device: str) -> int:
    """Return the N of `cuda:N`; 0 for `cuda`."""
    return int(device.partition(":")[2] or 0)


NO_TELEMETRY = make_warning(
    "not_watched", unseen="clocks, throttling and other programs on the GPU", why="NVML does not respond"
)
HIDDEN_PROCESSES = make_warning(
    "not_watched", unseen="other programs on the GPU", why="the driver lists none, not even this one"
)
