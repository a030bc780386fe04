"""Prints which PyTorch build fits this machine: `cuda` if NVIDIA's management library answers, else `cpu`.

Needs nothing but Python: it runs before anything is installed.
"""

import ctypes


def nvml_answers() -> bool:
    """Whether the driver's NVML library loads and counts at least one GPU. Source: NVML API, nvmlInit_v2."""
    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        try:
            nvml = ctypes.CDLL(name)
        except OSError:
            continue
        count = ctypes.c_uint(0)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            return count.value > 0
    return False


if __name__ == "__main__":
    print("cuda" if nvml_answers() else "cpu")
