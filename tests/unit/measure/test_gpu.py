"""GPUs, through an NVML that the test plays."""

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from enginebench.core.records import Gpu
from enginebench.measure import machine
from enginebench.measure.machine import describe_gpus


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two GPUs; the second, integrated, supports neither clocks nor power limits."""

    def answer(values: Any) -> Any:
        return lambda handle, clock=0: [values][handle][clock]  # there is no second GPU in the list

    fake = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlInit=Mock(),
        nvmlShutdown=Mock(),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=int,
        nvmlSystemGetDriverVersion=lambda: b"570.1",
        nvmlDeviceGetName=["NVIDIA H100", b"Orin (nvgpu)"].__getitem__,
        nvmlDeviceGetMemoryInfo=answer([SimpleNamespace(total=80 * 1024**3)]),
        nvmlDeviceGetMaxClockInfo=answer({1: 1980, 2: 2619}),
        nvmlDeviceGetEnforcedPowerLimit=answer([700_000]),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpus_and_what_they_do_not_support(nvml: SimpleNamespace) -> None:
    known = {"sm_clock_max_mhz": 1980, "memory_clock_max_mhz": 2619, "power_limit_w": 700.0}
    first = Gpu(index=0, name="NVIDIA H100", driver="570.1", memory_bytes=80 * 1024**3, **known)  # type: ignore[arg-type]
    assert describe_gpus() == (first, Gpu(index=1, name="Orin (nvgpu)", driver="570.1", memory_bytes=0))
    nvml.nvmlShutdown.assert_called_once_with()


def test_without_nvml_the_driver_names_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert describe_gpus() == ()
    monkeypatch.setattr(machine, "find_gpu_name", lambda: "Orin")
    assert describe_gpus() == (Gpu(index=0, name="Orin", driver="", memory_bytes=0),)


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetName", "nvmlShutdown"])
def test_errors_of_nvml_never_get_out(nvml: SimpleNamespace, broken: str) -> None:
    setattr(nvml, broken, Mock(side_effect=RuntimeError("driver is gone")))
    assert describe_gpus() == () or broken == "nvmlShutdown"
