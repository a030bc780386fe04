"""Shares of time by precision, from what a runtime recorded about its own operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

# What ONNX Runtime, OpenVINO and PyTorch call the element types, in lower case. Everything else is "other": work on
# indices and shapes, and what the record gives no type to (code that a compiler generated).
NAMES = {
    **dict.fromkeys(("float", "float32", "f32", "fp32"), "fp32"),
    **dict.fromkeys(("float16", "f16", "fp16", "half", "c10::half"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16", "c10::bfloat16"), "bf16"),
    **dict.fromkeys(("int8", "uint8", "i8", "u8", "qint8", "quint8"), "int8"),
    **dict.fromkeys(("float8e4m3fn", "float8e5m2", "f8e4m3", "f8e5m2"), "fp8"),
    "tf32": "tf32",
    # From one type or layout to another: quantize, dequantize, cast, reorder. It computes nothing in either type.
    "reorder": "reorder",
}
REORDER = "reorder"
OTHER = "other"

# Runs watched for a proof, after one that is not counted: as many as fit into a second. The counters tick in whole
# microseconds, so that operators of a small network need many; five show a large one well enough.
WATCH_BUDGET_S = 1.0
FEWEST_RUNS, MOST_RUNS = 5, 50


def count_watched_runs(first_run_s: float) -> int:
    """How many runs to watch, by how long the first one took."""
    return max(FEWEST_RUNS, min(MOST_RUNS, int(WATCH_BUDGET_S / max(first_run_s, 1e-9))))


def keep_calm_runs(runs: Sequence[Sequence[tuple[str, float]]]) -> list[tuple[str, float]]:
    """The operator times of the faster half of the runs, joined.

    An interruption falls into one operator and can be a hundred times as long: shares over all runs would be its.
    """
    ranked = sorted(runs, key=lambda times: sum(time for _, time in times))
    return [entry for times in ranked[: (len(ranked) + 1) // 2] for entry in times]


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
