"""The precision of GPU kernels, read from the names that NVIDIA's libraries give them."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from enginebench.backends.layers import summarize_layers
from enginebench.backends.precision import REORDER, Operator, count_watched_runs

if TYPE_CHECKING:
    from enginebench.core.protocols import RunCall
    from enginebench.core.records import LayerProfile

# The first that matches decides. The names are those of cuDNN 9, cuBLAS 13, CUTLASS and PyTorch 2.11 on Hopper and
# Ampere, as their profilers show them: matrix units say in what they multiply (tf32f32, s1688gemm, h16816, f16f16,
# bf16bf16; nvjet's three letters are input, compute and output type), plain FP32 ones are called sgemm, scudnn, simt
# or f32f32; templates name their element type. The shape s1688 alone means TF32; half types have it too and say so.
PATTERNS: tuple[tuple[str, str], ...] = (
    (r"memcpy|memset|nchwtonhwc|nhwctonchw|nchw_?to_?nhwc|nhwc_?to_?nchw|convert_?tensor|cublaslt::split", REORDER),
    (r"direct_copy_kernel|copy_device_to_device|unrolled_elementwise_kernel.*copy|bfloat16_copy|float16_copy", REORDER),
    (r"tf32|^(?!.*(f16|fp16)).*s1688", "tf32"),
    (r"e4m3|e5m2|fp8|_q[a-z]{2}_|nvjet_q", "fp8"),
    (r"i8816|i16832|imma|int8|s8s8|u8s8|_i8i8|dp4a", "int8"),
    (r"bf16|bfloat16|nvjet_(sm\d+_)?t[a-z]{2}_", "bf16"),
    (r"f16f16|f16_s16816|fp16|h16816|h884|h1688|hcudnn|hgemm|hmma|half|nvjet_(sm\d+_)?h[a-z]{2}_", "fp16"),
    (r"f32f32|sgemm|scudnn|simt|sconv|ffma|winograd.*float|nvjet_(sm\d+_)?s[a-z]{2}_", "fp32"),
    (r"<float|float,|float>|float const|\bfloat\b", "fp32"),
)
_COMPILED = tuple((re.compile(pattern), dtype) for pattern, dtype in PATTERNS)

# The span around each run that is watched.
WATCHED_RUN = "enginebench run"
PROFILER = "CUPTI, through PyTorch's profiler"
KERNELS = "layers are GPU kernels: all launches of one kernel are one layer"


def classify_kernel(name: str) -> str:
    """The precision in which a kernel computes, "reorder" for a copy, or "other" where its name does not say.

    Code that a compiler generated (Triton, cuDNN's run-time fusion) is named after its operators, not its types.
    """
    lower = name.lower()
    if lower.startswith("triton_"):
        return "other"
    return next((dtype for pattern, dtype in _COMPILED if pattern.search(lower)), "other")


def watch_kernels(run: RunCall) -> list[list[Operator]]:
    """The kernels of a few runs, as CUPTI recorded them; needs PyTorch, whoever launches the kernels."""
    return [read_kernel_times(events) for events in record_kernels(run)]


def summarize_kernels(runs: Sequence[Sequence[Operator]]) -> LayerProfile:
    """The kernels as layers: launches of one kernel are one layer, since a GPU knows no others."""
    return summarize_layers(runs, PROFILER, (KERNELS,))


def record_kernels(run: RunCall) -> list[list[Any]]:
    """The kernels of each of a few runs, after one that is not counted."""
    import torch

    start = time.perf_counter()
    run()
    count = count_watched_runs(time.perf_counter() - start)
    # What torch.profiler wraps; the wrapper imports the whole of torch.compile, which takes seconds.
    with torch.autograd.profiler.profile(use_kineto=True, use_device="cuda") as profiler:
        for _ in range(count):
            with torch.profiler.record_function(WATCHED_RUN):
                run()
    return split_kernels(list(profiler.kineto_results.events()))


def split_kernels(events: Sequence[Any]) -> list[list[Any]]:
    """The device's events of each watched run. A run waits for its kernels, so that they start within its span."""
    spans = [e for e in events if e.name() == WATCHED_RUN and not is_device_event(e)]
    starts = sorted(e.start_ns() for e in spans)
    runs: list[list[Any]] = [[] for _ in starts]
    for event in events:
        run = bisect_right(starts, event.start_ns()) - 1
        if run >= 0 and is_device_event(event) and event.name() != WATCHED_RUN:
            runs[run].append(event)
    return runs


def is_device_event(event: Any) -> bool:
    """Whether an event of the profiler ran on the GPU."""
    return str(event.device_type()).endswith("CUDA")


def read_kernel_times(events: Sequence[Any]) -> list[Operator]:
    """Every kernel, named as it was launched."""
    return [Operator(classify_kernel(e.name()), float(e.duration_ns()), e.name(), "kernel") for e in events]
