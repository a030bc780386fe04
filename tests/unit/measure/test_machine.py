"""Machines as their files show them; GPUs, through an NVML and a driver that the test plays."""

import getpass
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from enginebench.core.cuda_devices import find_bus_id, find_gpu_name
from enginebench.core.records import Gpu, Machine
from enginebench.measure import machine
from enginebench.measure import machine as room
from enginebench.measure.machine import describe_gpus, describe_machine, read_package_versions
from enginebench.measure.memory import peak_memory_bytes
from machines import AMD_V2, INTEL_HYBRID, INTEL_V1, JETSON, LayOut


def test_an_intel_laptop(lay_out: LayOut) -> None:
    machine = describe_machine(lay_out(INTEL_HYBRID), allowed=range(6))
    assert (machine.cpu_model, machine.os) == ("Intel(R) Core(TM) Ultra 5", "Ubuntu 24.04 LTS, kernel 6.8.0-generic")
    assert machine.cpu_flags == ("f16c", "fma", "avx2", "avx_vnni")
    assert (machine.cores_physical, machine.cores_logical, machine.default_threads) == (4, 6, 4)
    assert machine.cpus_allowed == (0, 1, 2, 3, 4, 5)
    assert (machine.cpu_mhz, machine.cpu_max_mhz) == (3500.0, 5000.0)
    assert (machine.memory_bytes, machine.memory_limit_bytes) == (16_384_000_000, None)
    assert (machine.last_level_cache_bytes, machine.load_1m) == (12 * 1024**2, 0.25)
    assert (machine.virtual, machine.governor) == (None, "powersave")
    assert any("powersave" in warning.message for warning in machine.warnings)


def test_an_amd_server_in_a_pod(lay_out: LayOut) -> None:
    machine = describe_machine(lay_out(AMD_V2), allowed=(0, 1, 2))
    assert machine.cpu_flags == ("avx2", "avx512f", "avx512_vnni", "avx512_bf16")
    assert (machine.cpu_quota_cores, machine.memory_limit_bytes) == (1.5, 2 * 1024**3)
    assert (machine.cores_physical, machine.cores_logical, machine.default_threads) == (2, 4, 1)
    assert machine.virtual == "hypervisor (QEMU), container (kubernetes)"
    assert (machine.governor, machine.last_level_cache_bytes) == (None, None)
    messages = " ".join(warning.message for warning in machine.warnings)
    assert "the CPU quota is 1.5 cores" in messages


def test_a_jetson(lay_out: LayOut) -> None:
    machine = describe_machine(lay_out(JETSON), allowed=(0, 1))
    assert machine.cpu_model == "Cortex-A78AE"
    assert machine.cpu_flags == ("asimd", "asimdhp", "asimddp")
    assert machine.governor == "performance, schedutil"
    assert machine.jetson == {
        "model": "NVIDIA Jetson AGX Orin Developer Kit",
        "l4t": "R36 (release), REVISION: 4.0",
        "power_mode": "MODE_30W (2)",
        "memory": "unified: CPU and GPU share it",
    }
    info = "processor\t: 0\nCPU implementer\t: 0x99\nCPU part\t: 0x123\n"
    unknown = describe_machine(lay_out({**JETSON, "proc/cpuinfo": info}), allowed=(0,))
    assert unknown.cpu_model == "implementer 0x99 part 0x123"


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        ({"var/lib/nvpmodel/status": "pmode:0000", "etc/nvpmodel.conf": ""}, "0"),
        ({"var/lib/nvpmodel/status": "broken", "etc/nvpmodel.conf": ""}, None),
    ],
)
def test_a_jetson_whose_power_mode_is_half_known(lay_out: LayOut, files: dict[str, str], mode: str | None) -> None:
    jetson = describe_machine(lay_out({**JETSON, **files}), allowed=(0,)).jetson
    assert jetson is not None
    assert jetson.get("power_mode") == mode


def test_a_slow_clock_source_is_a_warning(lay_out: LayOut) -> None:
    root = lay_out({**INTEL_V1, "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"})
    assert any("hpet" in warning.message for warning in describe_machine(root, allowed=(0, 1)).warnings)


def test_broken_files_cost_their_figure_and_nothing_else(lay_out: LayOut) -> None:
    broken = dict.fromkeys(INTEL_HYBRID, "\ufffd nonsense \n")
    machine = describe_machine(lay_out(broken), allowed=(0,))
    assert (machine.cpu_model, machine.memory_bytes, machine.load_1m) == ("unknown", 0, None)
    assert machine.default_threads == 1


def test_without_proc_the_portable_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS: no /proc, no affinity; sysctl reports the rest."""
    values = {
        "machdep.cpu.brand_string": "Apple M3",
        "hw.optional.arm.FEAT_I8MM": "1",
        "hw.optional.arm.FEAT_SME": "0",
        "hw.perflevel0.l2cachesize": "16777216",
        "hw.l2cachesize": "4194304",
    }
    monkeypatch.setattr(room, "_read_sysctl", lambda names: values)
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    machine = describe_machine(tmp_path, allowed=range(8))
    assert (machine.cpu_model, machine.cpu_flags) == ("Apple M3", ("i8mm",))
    assert (machine.last_level_cache_bytes, machine.cores_logical) == (16777216, 8)
    assert {c.code for c in machine.warnings} == {"not_watched"}


def test_a_missing_sysctl_gives_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(subprocess, "run", fail)
    assert room._read_sysctl(["hw.ncpu"]) == {}


def test_this_machine_can_be_stored_and_names_nobody() -> None:
    machine = describe_machine()
    stored = msgspec.json.encode(machine)
    assert msgspec.json.decode(stored, type=Machine) == machine
    text = stored.decode()
    assert str(Path.home()) not in text.replace('"/"', "")
    for name in {socket.gethostname(), getpass.getuser()}:
        assert f'"{name}"' not in text


def test_versions_are_read_without_importing() -> None:
    code = (
        "import sys; from enginebench.measure.machine import read_package_versions; v = read_package_versions()\n"
        "print(v['numpy'], *sorted({'torch', 'onnx', 'onnxruntime', 'openvino', 'scipy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == [metadata.version("numpy")]
    versions = read_package_versions()
    assert versions["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "enginebench" in versions
    assert "no-such-package" not in versions


def test_peak_memory_grows_with_what_is_used() -> None:
    before = peak_memory_bytes()
    block = bytearray(b"x") * (64 * 1024 * 1024)
    after = peak_memory_bytes()
    assert before is not None and after is not None
    assert after >= before and after >= len(block)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two GPUs; the second, integrated, supports neither clocks nor power limits."""

    def look_up(values: Any) -> Any:
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
        nvmlDeviceGetMemoryInfo=look_up([SimpleNamespace(total=80 * 1024**3)]),
        nvmlDeviceGetMaxClockInfo=look_up({1: 1980, 2: 2619}),
        nvmlDeviceGetEnforcedPowerLimit=look_up([700_000]),
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


class FakeDriver:
    """Two cards, the second on the bus first; `broken` names the call that fails."""

    def __init__(self, broken: str = "") -> None:
        self._broken = broken

    def cuInit(self, flags: int) -> int:
        return self._end("cuInit")

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return self._end("cuDeviceGet") or (101 if index > 1 else 0)

    def cuDeviceGetPCIBusId(self, name: Any, size: int, device: Any) -> int:
        name.value = (b"0000:0B:00.0", b"0000:0A:00.0")[device.value][: size - 1]
        return self._end("cuDeviceGetPCIBusId")

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = (b"Orin", b"NVIDIA H100")[device.value][: size - 1]
        return 0

    def _end(self, call: str) -> int:
        return 100 if call == self._broken else 0


def test_the_card_is_named_by_its_place_on_the_bus() -> None:
    assert [find_bus_id(i, lambda name: FakeDriver()) for i in (0, 1, 2)] == ["0000:0B:00.0", "0000:0A:00.0", None]
    assert [find_gpu_name(i, lambda name: FakeDriver()) for i in (0, 2)] == ["Orin", None]


def test_without_a_driver_there_is_no_card() -> None:
    def load(name: str) -> Any:
        raise OSError(name)

    assert find_bus_id(0, load) is None
