"""Layer times of any engine: their order, their sum, and whether something slowed them."""

import math
from collections.abc import Iterable, Sequence

from enginebench.core.caveats import make_caveat
from enginebench.core.records import Caveat, LayerTime

# What kernels that one stream runs one after the other may take longer under the profiler than without it. Seen on an
# H200 with CUPTI: 1.04 times at most for rows that had the GPU to themselves, 1.09 to 2.35 for some that had not.
DISTURBED_FACTOR = 1.1


def doubt_kernel_times(layers: Sequence[LayerTime], device_ns: float | None) -> tuple[Caveat, ...]:
    """The doubt that a GPU's kernels were recorded while something slowed them; none where that cannot be seen."""
    if not layers or not device_ns or any(layer.kind != "kernel" and not layer.kernels for layer in layers):
        return ()
    factor = sum_times(layers) / device_ns
    if factor <= DISTURBED_FACTOR:
        return ()
    return (make_caveat("disturbed_profile", factor=factor),)


def sort_layers(layers: Iterable[LayerTime]) -> list[LayerTime]:
    """Slowest first; equals in their order."""
    return sorted(layers, key=lambda layer: -layer.mean_ns)


def sum_times(layers: Iterable[LayerTime]) -> float:
    """Nanoseconds of one run in all layers."""
    return math.fsum(layer.mean_ns for layer in layers)
