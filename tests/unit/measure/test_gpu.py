"""GPUs, through an NVML that the test plays."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from enginebench.core.records import Gpu
from enginebench.measure import machine
from enginebench.measure.machine import describe_gpus


class FakeNvml(SimpleNamespace):
    """Two GPUs; the second, integrated, supports neither clocks nor power limits."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    shut_down = 0

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None:
        self.shut_down += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"570.1"

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        return "NVIDIA H100" if handle == 0 else b"Orin (nvgpu)"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=self._answer(handle, 80 * 1024**3))

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:
        return self._answer(handle, {1: 1980, 2: 2619}[clock])

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._answer(handle, 700_000)

    @staticmethod
    def _answer(handle: int, value: int) -> int:
        if handle == 1:
            raise RuntimeError("not supported")
        return value


def test_gpus_and_what_they_do_not_support(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    known = {"sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 2619, "power_limit_w": 700.0}
    first = Gpu(index=0, name="NVIDIA H100", driver="570.1", memory_bytes=80 * 1024**3, **known)  # type: ignore[arg-type]
    assert describe_gpus() == (first, Gpu(index=1, name="Orin (nvgpu)", driver="570.1", memory_bytes=0))
    assert nvml.shut_down == 1


def test_without_nvml_the_driver_names_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert describe_gpus() == ()
    monkeypatch.setattr(machine, "find_gpu_name", lambda: "Orin")
    assert describe_gpus() == (Gpu(index=0, name="Orin", driver="", memory_bytes=0),)


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName", "nvmlShutdown"])
def test_errors_of_nvml_never_get_out(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("driver is gone")

    nvml = FakeNvml()
    monkeypatch.setattr(nvml, broken, fail, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert describe_gpus() == () or broken == "nvmlShutdown"
