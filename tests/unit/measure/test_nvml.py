"""The watch on a GPU, through an NVML that the test plays."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from enginebench.core.records import BlockReading
from enginebench.engines.fake import FakeClock
from enginebench.measure.nvml import ENERGY_PERIOD_NS, GpuWatch, find_marks, open_gpu_watch, read_gpu_index
from enginebench.measure.watch import JointWatch

OWN = 4711


FIELDS = {
    "nvmlDeviceGetDefaultApplicationsClock": "default_clock",
    "nvmlDeviceGetCurrentClocksEventReasons": "reasons",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPowerUsage": "power_mw",
    "nvmlDeviceGetTotalEnergyConsumption": "energy",
}


class FakeNvml(SimpleNamespace):
    """One GPU whose readings are fields; a field set to None is a query that it does not support."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    default_clock: int | None = 1980
    sm_clock: int | None = 1980
    memory_clock: int | None = 3201
    reasons: int | None = 0
    temperature: int | None = 45
    power_mw: int | None = 400_500
    used: int | None = 1000
    energy: int | None = 5_000
    pids: list[int] | None = None

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return 2000

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return self._read(self.sm_clock if clock == 1 else self.memory_clock)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=self._read(self.used))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self._read(self.pids)]

    def __getattr__(self, function: str) -> Any:
        if function not in FIELDS:
            raise AttributeError(function)
        return lambda *_: self._read(getattr(self, FIELDS[function]))

    @staticmethod
    def _read(value: Any) -> Any:
        if value is None:
            raise RuntimeError("not supported")
        return value


def watch(nvml: FakeNvml, clock: FakeClock | None = None) -> GpuWatch:
    return GpuWatch(0, nvml, clock=clock or FakeClock(), pid=OWN, locate=lambda index: None)


def test_a_block_has_everything_that_the_card_reports() -> None:
    nvml = FakeNvml(pids=[])
    gpu = watch(nvml)
    nvml.pids = [OWN]
    gpu.begin()
    expected = BlockReading(sm_clock_mhz=1980, memory_clock_mhz=3201, temperature_c=45, power_w=400.5)
    assert gpu.end() == expected
    assert gpu.default_clock_mhz == 1980
    assert watch(FakeNvml(default_clock=None)).default_clock_mhz == 2000, "where none is named, the highest"


def test_a_card_that_reads_nothing_gives_an_empty_reading() -> None:
    silent = dict.fromkeys(("sm_clock", "memory_clock", "reasons", "temperature", "power_mw", "used", "energy", "pids"))
    gpu = watch(FakeNvml(**silent))
    gpu.begin()
    assert gpu.end() == BlockReading()
    assert gpu.peak_memory_bytes() is None
    assert gpu.energy_per_image(10) is None


@pytest.mark.parametrize(
    ("clock", "reasons", "foreign", "default", "marks"),
    [
        (1485, (), None, 1980, ()),
        (1484, (), 0, 1980, ("low_clock",)),
        (10, (), 0, None, ()),  # without a default nothing is low
        (None, ("hw_thermal_slowdown",), 0, 1980, ("throttled",)),
        (1980, ("hw_slowdown",), 0, 1980, ("throttled",)),
        (1965, ("sw_power_cap",), 0, 1980, ()),
        (1935, ("sw_power_cap",), 0, 1980, ("throttled",)),
        (None, (), 1, 1980, ("foreign_gpu",)),
        (None, (), None, 1980, ()),
        (345, ("hw_slowdown",), 0, 1980, ("low_clock", "throttled")),
    ],
)
def test_marks(clock: Any, reasons: Any, foreign: Any, default: Any, marks: tuple[str, ...]) -> None:
    assert find_marks(clock, reasons, foreign, default) == marks


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1, ()),
        (0x2, ()),
        (0x100, ()),
        (0x4, ("sw_power_cap",)),
        (0x60, ("sw_thermal_slowdown", "hw_thermal_slowdown")),
    ],
)
def test_throttle_reasons_are_those_that_are_a_warning(bits: int, reasons: tuple[str, ...]) -> None:
    assert watch(FakeNvml(reasons=bits)).end().throttle_reasons == reasons


def test_the_older_name_of_the_reasons_is_read_too() -> None:
    nvml = FakeNvml(reasons=None, nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4)
    assert watch(nvml).end().throttle_reasons == ("sw_power_cap",)


@pytest.mark.parametrize(
    ("before", "after", "foreign"),
    [
        ([], [OWN], False),
        ([], [OWN, 9], True),
        ([9], [9, 10], True),  # a container shows the host's ids: one more than before is this process
        ([9], [9], True),
        ([], [], None),  # not even this process is shown: nothing can be said of others
        (None, None, None),
        ([], [12], False),
    ],
)
def test_foreign_processes(before: list[int] | None, after: list[int] | None, foreign: bool | None) -> None:
    nvml = FakeNvml(pids=before)
    gpu = watch(nvml)
    nvml.pids = after
    gpu.begin()
    assert gpu.end().marks == (("foreign_gpu",) if foreign else ())
    assert gpu.hides_processes is (foreign is None)


def test_peak_memory_is_counted_from_before_the_engine() -> None:
    nvml = FakeNvml(used=1000)
    gpu = watch(nvml)
    for used in (5000, 9000, 4000):
        nvml.used = used
        gpu.begin()
        gpu.end()
    assert gpu.peak_memory_bytes() == 8000


def test_energy_is_that_between_the_first_block_and_the_last() -> None:
    clock, nvml = FakeClock(), FakeNvml(energy=5_000)
    gpu = watch(nvml, clock)
    for energy in (5_000, 5_500):
        nvml.energy = energy
        gpu.begin()
        clock.advance(500_000_000)
        nvml.energy = energy + 400
        gpu.end()
    assert gpu.energy_per_image(90) == (10.0, 10.0 * ENERGY_PERIOD_NS / 1_000_000_000)
    clock, nvml = FakeClock(), FakeNvml()
    gpu = watch(nvml, clock)  # less than a step of the counter: the uncertainty is as large as the figure
    gpu.begin()
    clock.advance(1_000)
    nvml.energy = 5_001
    gpu.end()
    assert gpu.energy_per_image(1) == (1.0, 1.0)


def test_the_step_of_the_energy_counter_is_measured() -> None:
    clock, nvml = FakeClock(), FakeNvml()

    def count(handle: int) -> int:
        clock.advance(1_000_000)
        return clock.now_ns // 20_000_000

    nvml.nvmlDeviceGetTotalEnergyConsumption = count
    gpu = watch(nvml, clock)
    gpu.watch_energy_counter()
    assert gpu.energy_period_ns == 20_000_000
    clock, nvml = FakeClock(), FakeNvml()  # whose counter stands still
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: clock.advance(10_000_000) or 7
    gpu = watch(nvml, clock)
    gpu.watch_energy_counter()
    assert gpu.energy_period_ns == ENERGY_PERIOD_NS


@pytest.mark.parametrize(
    ("known", "visible", "handles"),
    [
        (False, ("", "3,1", "GPU-ab,GPU-cd"), [1, 1, "GPU-cd"]),  # CUDA may count others than NVML
        (True, ("", "3,1", "GPU-a,GPU-c", "MIG-a,MIG-c"), ["0000:01:00.0"] * 3 + ["MIG-c"]),  # the driver knows best
    ],
)
def test_which_gpu_cuda_counts(monkeypatch, known, visible, handles) -> None:
    asked: list[object] = []
    names = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId")
    nvml = FakeNvml(**dict.fromkeys(names, asked.append))
    for text in visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        GpuWatch(1, nvml, locate=lambda index: f"0000:0{index}:00.0" if known else None)
    assert asked == handles


def test_nvml_is_initialised_for_the_watch_and_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu_watch("cuda:0") is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    by_place = FakeNvml(pids=[], nvmlDeviceGetHandleByPciBusId=str)
    monkeypatch.setitem(sys.modules, "pynvml", by_place)
    assert isinstance(open_gpu_watch("cuda:0"), GpuWatch)
    assert [read_gpu_index(text) for text in ("cuda", "cuda:0", "cuda:7")] == [0, 0, 7]


def test_two_watches_are_one() -> None:
    calls: list[str] = []

    class Fake:
        def __init__(self, name: str, reading: BlockReading) -> None:
            self.name, self.reading = name, reading

        def begin(self) -> None:
            calls.append(f"{self.name} begin")

        def end(self) -> BlockReading:
            calls.append(f"{self.name} end")
            return self.reading

    cpu = Fake("cpu", BlockReading(foreign_cpu_cores=0.5, marks=("foreign_cpu",)))
    gpu = Fake("gpu", BlockReading(sm_clock_mhz=345, marks=("low_clock",)))
    joint = JointWatch(cpu, gpu)
    joint.begin()
    found = joint.end()
    assert found == BlockReading(foreign_cpu_cores=0.5, sm_clock_mhz=345, marks=("foreign_cpu", "low_clock"))
    assert calls == ["gpu begin", "cpu begin", "gpu end", "cpu end"]
