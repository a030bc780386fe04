"""Settings of OpenVINO's CPU plugin, in its own package or in ONNX Runtime. Bundles hold a copy of this file."""

from collections.abc import Collection
from typing import Any

# OpenVINO's inference precision for each of ours. Without it the plugin takes the shortest that the CPU knows (bfloat16
# with AMX or AVX512-BF16, half on Arm), and FP32 would be a label only. INT8 lies in the graph; the hint is for the
# rest.
# In an FP16 graph "dynamic" leaves every node in its own type: with "f16" the plugin would also shorten those that stay
# in FP32 because their values overflow (Magika then names another type for every file).
HINTS: dict[str, str] = {"fp32": "f32", "fp16": "dynamic", "bf16": "bf16", "int8": "f32", "int4": "f32"}
# Capability that the plugin must report before a hint is set. Without "FP16" it would compute f16 in BF16, silently.
CAPABILITIES: dict[str, str] = {"fp16": "FP16", "bf16": "BF16"}


def find_hint(precision: str, capabilities: Collection[str]) -> str:
    """The inference precision to ask for: FP32 where the plugin cannot compute in the other, which the proof shows."""
    needs = CAPABILITIES.get(precision)
    return HINTS[precision] if needs is None or needs in capabilities else HINTS["fp32"]


def list_settings(threads: int, hint: str) -> dict[str, Any]:
    """Return the plugin's settings for one request at a time, with so many threads and in one precision.

    Threads run on the CPUs that the process may use: the harness pins, not the plugin. Hyper-threads and small cores
    count as threads, so that the requested number is possible.
    """
    return {
        "INFERENCE_PRECISION_HINT": hint,
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,
        "SCHEDULING_CORE_TYPE": "ANY_CORE",
    }
