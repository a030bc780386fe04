"""Warnings and sums from the times of layers and their bounds, for any engine."""

import math
from collections.abc import Iterable, Sequence

from enginebench.core.records import Bound, LayerTime, ResultWarning
from enginebench.core.warnings import make_warning

# What kernels that one stream runs one after the other may take longer under the profiler than without it. Seen on an
# H200 with CUPTI: 1.04 times at most for rows that had the GPU to themselves, 1.09 to 2.35 for some that had not.
DISTURBED_FACTOR = 1.1


def list_kernel_warnings(layers: Sequence[LayerTime], device_ns: float | None) -> tuple[ResultWarning, ...]:
    """Warn if something slowed a GPU's kernels while they were recorded; no warning where that cannot be seen."""
    if not layers or not device_ns or any(layer.kind != "kernel" and not layer.kernels for layer in layers):
        return ()
    factor = sum_layers_ns(layers) / device_ns
    return (make_warning("disturbed_profile", factor=factor),) if factor > DISTURBED_FACTOR else ()


def sort_layers(layers: Iterable[LayerTime]) -> list[LayerTime]:
    """Sort layers, slowest first; equal ones keep their order."""
    return sorted(layers, key=lambda layer: -layer.mean_ns)


def sum_layers_ns(layers: Iterable[LayerTime]) -> float:
    """Return the nanoseconds of one run in all layers."""
    return math.fsum(layer.mean_ns for layer in layers)


def share_of_limit(bound: Bound | None, time_ms: float | None) -> float | None:
    """Return bound over time, 0 to 1; above 1 one of the two is wrong. None where either is not known."""
    return bound.bound_ms / time_ms if bound and time_ms and time_ms > 0 else None


def list_bound_warnings(bound: Bound | None, time_ms: float | None) -> tuple[ResultWarning, ...]:
    """Warn of a median that is shorter than its bound."""
    share = share_of_limit(bound, time_ms)
    if share is None or share <= 1:
        return ()
    return (make_warning("beats_bound", what="the median", limit="the machine's best rates", share=share),)
