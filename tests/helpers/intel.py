"""Whether this processor is Intel's: ONNX Runtime's OpenVINO provider offers no other."""

from pathlib import Path

import pytest

REASON = "ONNX Runtime's OpenVINO provider offers Intel's processors only, and this one is not"


def has_intel_cpu() -> bool:
    """Whether the kernel says so."""
    info = Path("/proc/cpuinfo")
    return info.is_file() and "GenuineIntel" in info.read_text()


def skip_without_provider(engine: str) -> None:
    """Ends a test of `ort-openvino` where its provider has no device."""
    if engine == "ort-openvino" and not has_intel_cpu():
        pytest.skip(REASON)


needs_intel_cpu = pytest.mark.skipif(not has_intel_cpu(), reason=REASON)
