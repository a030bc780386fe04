"""Measure the part of its input that a convolution reads, and the part of its products without padding."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from onnx import NodeProto

from enginebench.models.precision.macs import FACTORS, Shape

# Winograd's algorithm halves the products of each axis of a short kernel; `stats/least_time.py: WINOGRAD` is that of
# two axes.
WINOGRAD_AXES = 2
# The longest kernel for which Winograd is used. Longer ones may be done by a Fourier transform, which needs about one
# product for each output and channel. Source: Mathieu, Henaff, LeCun, "Fast training of convolutional networks through
# FFTs", ICLR 2014.
WINOGRAD_KERNEL = 3


class Window(Struct, frozen=True):
    """One axis of a convolution."""

    data: int  # length of the axis
    positions: int  # number of positions of the kernel
    kernel: int
    stride: int
    dilation: int
    before: int  # padding

    def find_inside(self) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
        """Return the positions that are read, once for each product; padding is left out."""
        starts = np.arange(self.positions) * self.stride - self.before
        positions = (starts[:, None] + np.arange(self.kernel) * self.dilation).ravel()
        return positions[(positions >= 0) & (positions < self.data)]


def measure_products(node: NodeProto, shapes: Mapping[str, Shape]) -> float:
    """Return the fraction of a convolution's products that must be computed, with what Winograd saves in two axes."""
    windows = _list_windows(node, shapes)
    if windows is None:
        return 0.0
    inside: float = math.prod(
        len(window.find_inside()) / (window.positions * window.kernel) for window in windows if window.positions
    )
    if any(window.kernel > WINOGRAD_KERNEL for window in windows):
        # For each output and channel at least the products that do not overlap with those of the next output.
        apart: float = math.prod(min(window.kernel, window.stride) / window.kernel for window in windows)
        return min(inside, 2.0**WINOGRAD_AXES * apart)
    long = sum(window.kernel > 1 for window in windows)
    return inside / 2.0 ** max(0, long - WINOGRAD_AXES)


def measure_reading(node: NodeProto, shapes: Mapping[str, Shape]) -> float:
    """Return the fraction of its input that a convolution reads."""
    windows = _list_windows(node, shapes)
    if windows is None:
        return 0.0
    read: float = math.prod(len(np.unique(window.find_inside())) / window.data for window in windows if window.data)
    return read


def _list_windows(node: NodeProto, shapes: Mapping[str, Shape]) -> list[Window] | None:
    """Return the axes behind batch and channel; None where a shape is not known, or offsets are computed."""
    weights_at = FACTORS.get(node.op_type, (0, 1))[1]
    data, weights, output = (shapes.get(name) for name in (node.input[0], node.input[weights_at], node.output[0]))
    if data is None or weights is None or output is None or node.op_type == "DeformConv":
        return None
    if node.op_type == "ConvTranspose":  # each value of the input is spread over the output
        data, output = output, data
    axes = range(len(data) - 2)
    ints = {attribute.name: list(attribute.ints) for attribute in node.attribute}
    auto = next((a.s.decode() for a in node.attribute if a.name == "auto_pad"), "NOTSET")
    pads = ints.get("pads", []) if auto == "NOTSET" and "output_shape" not in ints else None
    windows = []
    for axis in axes:
        kernel, positions = weights[axis + 2], output[axis + 2]
        stride, dilation = _pick(ints.get("strides", []), axis, 1), _pick(ints.get("dilations", []), axis, 1)
        reach = (positions - 1) * stride + (kernel - 1) * dilation + 1
        total = max(0, reach - data[axis + 2])
        before = total // 2 + (total % 2 if auto == "SAME_LOWER" else 0) if pads is None else _pick(pads, axis, 0)
        windows.append(Window(data[axis + 2], positions, kernel, stride, dilation, 0 if auto == "VALID" else before))
    return windows


def _pick(values: Sequence[int], axis: int, usual: int) -> int:
    return values[axis] if axis < len(values) else usual
