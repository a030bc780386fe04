"""The kernels that a GPU ran, as CUPTI recorded them, each in the precision that its name tells."""

import time
from bisect import bisect_right
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from enginebench.core.precisions import classify_kernel
from enginebench.core.protocols import RunCall
from enginebench.core.records import LayerProfile
from enginebench.engines.proof.layer_records import summarize_layers
from enginebench.engines.proof.precision import Operator, count_watched_runs

# The span around each run that is watched.
WATCHED_RUN = "enginebench run"
PROFILER = "CUPTI, through PyTorch's profiler"
KERNELS = "layers are GPU kernels: all launches of one kernel are one layer"


def can_watch() -> bool:
    """Whether kernels can be recorded here: PyTorch is installed and finds the GPU."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def watch_kernels(run: RunCall) -> list[list[Operator]]:
    """The kernels of a few runs, as CUPTI recorded them; needs PyTorch, whoever launches the kernels."""
    return [read_kernel_times(events) for events in record_kernels(run)]


def summarize_kernels(runs: Sequence[Sequence[Operator]]) -> LayerProfile:
    """The kernels as layers: launches of one kernel are one layer."""
    return summarize_layers(runs, PROFILER, (f"{KERNELS}, since a GPU knows no others",))


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
    """The device's events of each watched run. A run waits for its kernels, so they start within its span."""
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
