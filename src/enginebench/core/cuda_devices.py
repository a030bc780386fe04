"""Find the GPU of a CUDA index in NVML: the two libraries number GPUs in different orders."""

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# Enough for "0000:0A:00.0" (cuda.h, cuDeviceGetPCIBusId, advises 13 bytes) and for a name.
_TEXT_BYTES = 256


def find_bus_id(index: int, load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """The place on the PCI bus of the GPU that CUDA calls `index` in this process; None without a driver or such a GPU.

    The driver alone knows the order: the fastest card first unless CUDA_DEVICE_ORDER says otherwise,
    and only those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of a UUID. No context is made.
    """
    return _ask_driver("cuDeviceGetPCIBusId", index, load)


def find_gpu_name(index: int = 0, load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """The name of the GPU that CUDA calls `index`, also where there is no NVML, as on a Jetson."""
    return _ask_driver("cuDeviceGetName", index, load)


def _ask_driver(question: str, index: int, load: Callable[[str], Any]) -> str | None:
    try:
        driver = load(DRIVER)
    except OSError:
        return None
    device, text = ctypes.c_int(), ctypes.create_string_buffer(_TEXT_BYTES)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    return None if getattr(driver, question)(text, _TEXT_BYTES, device) else text.value.decode(errors="replace")


def find_handle(nvml: Any, index: int, locate: Callable[[int], str | None] = find_bus_id) -> Any:
    """The handle of the GPU that CUDA calls `index`: by its place on the bus, or as CUDA_VISIBLE_DEVICES names it."""
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    name = visible[index] if visible else ""
    if name.startswith("MIG-"):  # a part of a card; the card stands in that place on the bus
        return nvml.nvmlDeviceGetHandleByUUID(name)
    bus_id = locate(index)
    if bus_id is not None:
        return nvml.nvmlDeviceGetHandleByPciBusId(bus_id)
    if not name:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() else nvml.nvmlDeviceGetHandleByUUID(name)
