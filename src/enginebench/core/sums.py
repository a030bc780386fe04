"""8-bit sums that do not saturate: ONNX Runtime's setting for them, on the processors that need it."""

import mmap
import platform
from pathlib import Path
from typing import Any

from .judging import read_flags

# Without the instructions below, x86-64 kernels add pairs of 8-bit products in 16 bits, which overflow; with this
# setting ONNX Runtime takes slower kernels that do not. It takes them with those instructions, too, and then loses what
# they gain: INT8 ResNet-18 was 2.7 times slower on a Xeon with AMX. Source: kOrtSessionOptionsAvx2PrecisionMode and
# MlasPlatformU8S8Overflow of ONNX Runtime.
EXACT_SUMS = "session.x64quantprecision"
# They add four products in 32 bits. Source: the flags of Linux's /proc/cpuinfo.
WIDE_SUMS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
# The attribute of DequantizeLinear. Source: ONNX operator changelog, version 21.
BLOCKS = b"block_size"


def sums_saturate() -> bool:
    """Return whether this processor adds 8-bit products in 16 bits; true for an x86-64 of unknown instructions."""
    return platform.machine().lower() in ("x86_64", "amd64") and WIDE_SUMS.isdisjoint(read_flags())


def keep_sums_exact(settings: Any) -> None:
    """Ask for exact sums in a session's options where this processor's would saturate."""
    if sums_saturate():
        settings.add_session_config_entry(EXACT_SUMS, "1")


def open_cpu_session(model: str | bytes, settings: Any) -> Any:
    """Open a session on ONNX Runtime's CPU provider, with exact sums if they are requested and it has kernels for them.

    The setting makes weights unsigned, also those of a `QLinearMatMul` whose activations are signed, and for these ONNX
    Runtime 1.31 has no kernel: "implemented only for tensor(int8)"; other graphs end in "Attempt to
    replace the existing tensor". They are loaded without it, and their drift shows whether sums saturate. So are graphs
    with weights in blocks, which the setting gives a zero point of a wrong shape: they load, and no run succeeds.
    """
    import onnxruntime

    if _asks_for_exact_sums(settings) and _has_blocks(model):
        settings.add_session_config_entry(EXACT_SUMS, "0")
    try:
        return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    except Exception as refusal:
        if not _asks_for_exact_sums(settings):
            raise
        settings.add_session_config_entry(EXACT_SUMS, "0")
        try:
            return onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        except Exception:
            raise refusal from None


def _asks_for_exact_sums(settings: Any) -> bool:
    try:
        return bool(settings.get_session_config_entry(EXACT_SUMS) == "1")
    except RuntimeError:  # its way of saying that the entry is not there
        return False


def _has_blocks(model: str | bytes) -> bool:
    """Whether a graph says anywhere how long its blocks of weights are."""
    if isinstance(model, bytes):
        return BLOCKS in model
    try:
        with Path(model).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as stored:
            return stored.find(BLOCKS) >= 0
    except (OSError, ValueError):  # ONNX Runtime says what is wrong with it
        return False
