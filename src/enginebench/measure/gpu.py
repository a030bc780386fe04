"""GPUs as NVML describes them, and a Jetson as its device tree does. Nothing here raises: no answer means no GPU."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from enginebench.core.records import Gpu
from enginebench.measure.topology import ROOT, read_text

T = TypeVar("T")


def describe_gpus() -> tuple[Gpu, ...]:
    """Every GPU that NVML names; empty without nvidia-ml-py, without a driver, or where it answers with an error."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a missing module, library, driver or device: each means that there is no GPU to describe
        return ()
    try:
        return tuple(_describe_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except Exception:
        return ()
    finally:
        _ask(pynvml.nvmlShutdown)


def describe_jetson(root: Path = ROOT) -> dict[str, str] | None:
    """Model, L4T release and power mode of a Jetson; None on any other machine."""
    model = read_text(root / "proc/device-tree/model") or ""
    if "jetson" not in model.lower():
        return None
    release = (read_text(root / "etc/nv_tegra_release") or "").split(", GCID")[0].lstrip("# ")
    found = {"model": model, "l4t": release, "power_mode": _read_power_mode(root)}
    return {name: value for name, value in found.items() if value}


def _describe_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    limit_mw = _ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    return Gpu(
        index=index,
        name=_decode(nvml.nvmlDeviceGetName(handle)),
        driver=_decode(nvml.nvmlSystemGetDriverVersion()),
        memory_bytes=_ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)) or 0,
        sm_clock_max_mhz=_ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        memory_clock_max_mhz=_ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))),
        power_limit_w=None if limit_mw is None else limit_mw / 1000,
    )


def _ask(question: Callable[[], T]) -> T | None:
    try:
        return question()
    except Exception:  # integrated and virtual GPUs support only some of the questions
        return None


def _decode(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _read_power_mode(root: Path) -> str:
    """`NAME (id)` from nvpmodel's status (`pmode:0002`) and the names in its configuration; "" where unknown."""
    status = re.search(r"pmode:0*(\d+)", read_text(root / "var/lib/nvpmodel/status") or "")
    if status is None:
        return ""
    names = dict(re.findall(r"POWER_MODEL ID=(\d+) NAME=(\S+)", read_text(root / "etc/nvpmodel.conf") or ""))
    name = names.get(status[1])
    return f"{name} ({status[1]})" if name else status[1]
