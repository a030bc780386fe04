"""Which card CUDA means by a number, asked of its driver: NVML counts differently and ignores CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
# "0000:0A:00.0" and its end. Source: cuda.h, cuDeviceGetPCIBusId, which advises 13 bytes; more does no harm.
_BUS_ID_BYTES = 32


def find_bus_id(index: int, load: Callable[[str], Any] = ctypes.CDLL) -> str | None:
    """The place on the PCI bus of the GPU that CUDA calls `index` in this process; None without a driver or such a GPU.

    The driver alone knows the order: the fastest card first unless CUDA_DEVICE_ORDER says otherwise,
    and only those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of a UUID. No context is made.

    Args:
        index: as in `cuda:N`.
        load: opens a library by its name.
    """
    try:
        driver = load(DRIVER)
    except OSError:
        return None
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    if driver.cuDeviceGetPCIBusId(name, _BUS_ID_BYTES, device):
        return None
    return name.value.decode()
