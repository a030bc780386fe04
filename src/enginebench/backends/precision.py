"""Shares of time by precision, from what a runtime recorded about its own operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

# What ONNX Runtime, OpenVINO and PyTorch call the element types, in lower case. Everything else (indices, shapes,
# conversions from one type to another) is "other".
NAMES = {
    **dict.fromkeys(("float", "float32", "f32", "fp32"), "fp32"),
    **dict.fromkeys(("float16", "f16", "fp16", "half", "c10::half"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16", "c10::bfloat16"), "bf16"),
    **dict.fromkeys(("int8", "uint8", "i8", "u8", "qint8", "quint8"), "int8"),
    **dict.fromkeys(("float8e4m3fn", "float8e5m2", "f8e4m3", "f8e5m2"), "fp8"),
}
OTHER = "other"

# Runs watched for a proof, after one that is not counted: shares settle at once, only their last digits move.
WATCHED_RUNS = 5


def share_times(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Share of the total time of each precision, largest first; they add up to 1. Empty if no time was recorded.

    Args:
        times: (the runtime's name of the element type, time in any unit), one for each operator that ran.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for dtype, time in times:
        sums[NAMES.get(dtype.lower(), OTHER)] += time
    total = sum(sums.values())
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    return {name: time / total for name, time in ranked if time > 0}
