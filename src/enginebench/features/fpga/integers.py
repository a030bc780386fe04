"""Fixed-point arithmetic on NumPy integers: the reference that the gateware equals bit for bit.

Everything is int64 inside; results are as wide as their names say. No operation here can overflow int64 for the
widths that its docstring allows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from enginebench.core.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers: TypeAlias = NDArray[np.int64]


def saturate(values: ArrayLike, low: int, high: int) -> Integers:
    """`values` held between `low` and `high`."""
    return np.clip(np.asarray(values, dtype=np.int64), low, high)


def shift_right(values: ArrayLike, shift: ArrayLike) -> Integers:
    """`values` / 2**shift as integers, rounded once: to the nearest, ties to even.

    Args:
        values: any int64.
        shift: 0 to 62, one or as many as values.
    """
    numbers, shifts = np.asarray(values, dtype=np.int64), np.asarray(shift, dtype=np.int64)
    floor = numbers >> shifts
    rest = numbers - (floor << shifts)
    # Compared as rest against what is missing to the next integer, so that nothing is doubled and overflows.
    missing = (np.int64(1) << shifts) - rest
    up: NDArray[np.bool_] = (rest > missing) | ((rest == missing) & (shifts > 0) & ((floor & 1) == 1))
    return floor + up


def requantize(
    accumulators: ArrayLike, multiplier: ArrayLike, shift: ArrayLike, zero_point: int, low: int = -128, high: int = 127
) -> Integers:
    """clamp(round(accumulator * multiplier / 2**shift) + zero_point): the INT8 answer of a layer.

    Args:
        accumulators: int32.
        multiplier: positive, below 2**31; one or as many as accumulators.
        shift: 0 to 62.
        low: smallest answer; the zero point where a ReLU belongs to the layer.

    What a multiplier costs, out of 640,000 sums of 64 products (benchmarks/fpga.py): 32 bits never
    differ from the exact answer; 24 bits do in 1.1e-5 of them and 16 bits in 7.6e-4, by one step.

    Source: ONNX operator QLinearMatMul (opset 21): round to nearest, ties to even, then the zero point, then saturate.
    """
    product = np.asarray(accumulators, dtype=np.int64) * np.asarray(multiplier, dtype=np.int64)
    return saturate(shift_right(product, shift) + zero_point, low, high)


def split_scale(scale: float, bits: int = 32) -> tuple[int, int]:
    """(multiplier, shift) with multiplier / 2**shift nearest to `scale`; the multiplier fills a signed word of `bits`.

    Args:
        scale: positive; below 2**(bits - 2), since the shift is not negative, and at least 2**(bits - 64).
        bits: 4 to 32; the multiplier lies in [2**(bits-2), 2**(bits-1)).

    Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference", CVPR 2018, section 2.2.
    """
    if not 4 <= bits <= 32:
        raise UsageError(f"a multiplier of {bits} bits; expected 4 to 32")
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"the scale {scale} of a requantizer must be positive and finite")
    fraction, exponent = math.frexp(scale)  # scale = fraction * 2**exponent, fraction in [0.5, 1)
    multiplier, shift = round(fraction * (1 << (bits - 1))), bits - 1 - exponent
    if multiplier == 1 << (bits - 1):
        multiplier, shift = multiplier >> 1, shift - 1
    if not 0 <= shift <= 62:
        raise UsageError(f"the scale {scale:g} needs a shift of {shift}; expected 0 to 62")
    return multiplier, shift
