"""An INT8 network as the gateware runs it: integer weights, biases, multipliers; and its integer reference.

Everything is signed here. An unsigned byte u with zero point z is the signed byte u - 128 with zero point z - 128:
the same real number, so that one kind of hardware runs every quantized file. The arithmetic is on int64, which no
operation can overflow for the widths that its docstring allows; the gateware equals it bit for bit.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import FeedError, ModelError, UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Integers: TypeAlias = NDArray[np.int64]

LOW, HIGH = -128, 127
# Channels of one network may differ in their shifts by this much: three bits of a shifter. A channel whose scale is
# more than 2**7 times below the largest keeps fewer bits of its multiplier instead.
SHIFT_SPREAD = 7


def shift_right(values: ArrayLike, shift: ArrayLike) -> Integers:
    """`values`, any int64, / 2**shift (0 to 62, one or as many as values), rounded to the nearest, ties to even."""
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
    return np.clip(shift_right(product, shift) + zero_point, low, high)


def split_scale(scale: float, bits: int = 32) -> tuple[int, int]:
    """(multiplier, shift) with multiplier / 2**shift nearest to `scale`; the multiplier fills a signed word of `bits`.

    Args:
        scale: positive; below 2**(bits - 2), since the shift is not negative, and at least 2**(bits - 64).
        bits: 4 to 32; the multiplier lies in [2**(bits-2), 2**(bits-1)).

    Source: B. Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
        Inference", CVPR 2018, section 2.2.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(f"the scale {scale} of a requantizer must be positive and finite")
    fraction, exponent = math.frexp(scale)  # scale = fraction * 2**exponent, fraction in [0.5, 1)
    multiplier, shift = round(fraction * (1 << (bits - 1))), bits - 1 - exponent
    if multiplier == 1 << (bits - 1):
        multiplier, shift = multiplier >> 1, shift - 1
    if not 0 <= shift <= 62:
        raise UsageError(f"the scale {scale:g} needs a shift of {shift}; expected 0 to 62")
    return multiplier, shift


class Quantization(Struct, frozen=True, kw_only=True):
    """The mapping of numbers to bytes: real = (byte - zero_point) * scale. `offset` was taken off an unsigned byte."""

    scale: float
    zero_point: int
    offset: int = 0

    def encode(self, values: NDArray[np.float32]) -> NDArray[np.int8]:
        """The signed bytes of real numbers, as ONNX's QuantizeLinear makes them: ties to even, saturated."""
        steps = np.rint(np.asarray(values, np.float32) / np.float32(self.scale))
        if np.isnan(steps).any():
            raise FeedError("an input is not a number; the network takes finite ones")
        encoded: NDArray[np.int8] = np.clip(steps + self.zero_point, LOW, HIGH).astype(np.int8)
        return encoded

    def decode(self, integers: NDArray[np.int8]) -> NDArray[np.float32]:
        decoded: NDArray[np.float32] = (integers.astype(np.float32) - np.float32(self.zero_point)) * np.float32(
            self.scale
        )
        return decoded


class Layer(Struct, frozen=True, kw_only=True, eq=False):
    """One linear layer: y = clamp(round((W x + bias) * multiplier / 2**shift) + zero_point).

    The zero point of the input is folded into `bias`. `quantization` of None: the layer answers W x + bias itself, a
    32-bit number that is worth `accumulator_scale`.
    """

    weights: NDArray[np.int8]  # [outputs, inputs]
    bias: NDArray[np.int64]  # [outputs], fits in 32 bits
    accumulator_scale: NDArray[np.float64]  # [outputs], real value of one step of the accumulator
    relu: bool
    quantization: Quantization | None
    multiplier: NDArray[np.int64]  # [outputs]
    shift: NDArray[np.int64]  # [outputs]

    @property
    def outputs(self) -> int:
        return int(self.weights.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.weights.shape[1])

    @property
    def zero_point(self) -> int:
        return self.quantization.zero_point if self.quantization else 0

    @property
    def low(self) -> int:
        """The smallest answer: the zero point behind a ReLU."""
        return max(LOW, self.zero_point) if self.relu else LOW

    def accumulate(self, inputs: NDArray[np.integer]) -> NDArray[np.int64]:
        """W x + bias of int8 [n, inputs], as integers [n, outputs]."""
        sums: NDArray[np.int64] = inputs.astype(np.int64) @ self.weights.astype(np.int64).T + self.bias
        return sums

    def infer(self, inputs: NDArray[np.integer]) -> NDArray[np.int64]:
        """Answers [n, outputs] of int8 [n, inputs]."""
        accumulators = self.accumulate(inputs)
        if self.quantization is None:
            return np.maximum(accumulators, 0) if self.relu else accumulators
        return requantize(accumulators, self.multiplier, self.shift, self.zero_point, self.low, HIGH)

    def bound_sums(self) -> tuple[int, int]:
        """(lowest, highest) value that any partial sum of products can take, in any order, for any input."""
        lowest, highest = self.bound_accumulators()  # of which no product lies on the other side of zero
        return int((lowest - self.bias).min(initial=0)), int((highest - self.bias).max(initial=0))

    def bound_accumulators(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(lowest, highest) accumulator of each output, bias included, for any input."""
        weights = self.weights.astype(np.int64)
        lowest = np.minimum(weights * LOW, weights * HIGH).sum(axis=1) + self.bias
        highest = np.maximum(weights * LOW, weights * HIGH).sum(axis=1) + self.bias
        return lowest, highest


class Network(Struct, frozen=True, kw_only=True, eq=False):
    layers: tuple[Layer, ...]
    input_quantization: Quantization
    input_name: str = "input"
    output_name: str = "output"
    input_shape: tuple[int | str, ...] = ()
    output_shape: tuple[int | str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> int:
        return self.layers[0].inputs

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs

    @property
    def answer_bytes(self) -> int:
        """Bytes of each number of an answer: 1, or 4 where the last layer is not quantized."""
        return 1 if self.layers[-1].quantization else 4

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        return [(layer.inputs, layer.outputs) for layer in self.layers]

    @property
    def checksum(self) -> int:
        """CRC-32 of everything that decides the answers: the device tells it, so that a driver knows the network."""
        crc = 0
        for layer in self.layers:
            shape = np.array([*layer.weights.shape, layer.relu, layer.zero_point, layer.quantization is None])
            for array in (shape, layer.weights, layer.bias, layer.multiplier, layer.shift):
                crc = zlib.crc32(np.ascontiguousarray(array).astype("<i8").tobytes(), crc)
        return crc

    def infer_bytes(self, inputs: NDArray[np.int8]) -> NDArray[np.int64]:
        """Answers [n, outputs] of int8 [n, inputs], by the integer reference."""
        values: NDArray[np.integer] = inputs
        for layer in self.layers:
            values = layer.infer(values)
        return values.astype(np.int64)

    def encode(self, inputs: NDArray[np.float32]) -> NDArray[np.int8]:
        """The bytes [n, inputs] of real inputs [n, ...]."""
        array = np.asarray(inputs, np.float32)
        if array.ndim < 1 or array.size != len(array) * self.inputs:
            raise FeedError(f"inputs of shape {array.shape}; expected [n, {self.inputs}]")
        return self.input_quantization.encode(array.reshape(len(array), self.inputs))

    def decode(self, answers: NDArray[np.integer]) -> NDArray[np.float32]:
        """The real numbers [n, outputs] of answers."""
        last = self.layers[-1]
        if last.quantization is None:
            return (answers * last.accumulator_scale).astype(np.float32)
        return last.quantization.decode(answers.astype(np.int8))

    def infer(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """Real answers [n, outputs] of real inputs [n, ...], by the integer reference."""
        return self.decode(self.infer_bytes(self.encode(inputs)))


def make_layer(
    weights: NDArray[np.integer],
    bias: NDArray[np.floating],
    weight_scale: NDArray[np.floating],
    source: Quantization,
    target: Quantization | None,
    *,
    relu: bool,
) -> Layer:
    """A layer from what a quantized file holds; multipliers come with `fit_multipliers`.

    Args:
        weights: signed bytes [outputs, inputs].
        bias: real numbers [outputs]; rounded to steps of the accumulator.
        weight_scale: [outputs].
    """
    scale = np.asarray(weight_scale, np.float64) * np.float64(source.scale)
    if not (np.isfinite(scale).all() and (scale > 0).all() and np.isfinite(bias).all()):
        raise ModelError("a scale or a bias of the network is not a positive, finite number; quantize the model again")
    folded = np.rint(np.asarray(bias, np.float64) / scale) - source.zero_point * weights.astype(np.int64).sum(axis=1)
    if np.abs(folded).max(initial=0) >= 1 << 31:
        raise ModelError("a bias does not fit into 32 bits; its weights are nearly zero: quantize per tensor")
    outputs = len(weights)
    layer = Layer(
        weights=weights.astype(np.int8),
        bias=folded.astype(np.int64),
        accumulator_scale=scale,
        relu=relu,
        quantization=target,
        multiplier=np.ones(outputs, np.int64),
        shift=np.zeros(outputs, np.int64),
    )
    lowest, highest = layer.bound_accumulators()
    if max(-int(lowest.min()), int(highest.max()) + 1) > 1 << 31:
        raise ModelError("an accumulator can leave 32 bits; the layer has too many inputs")
    return layer


def fit_multipliers(network: Network, bits: int) -> Network:
    """The network with multipliers of another width, that of a signed word of 4 to 32 bits."""
    if not 4 <= bits <= 32:
        raise UsageError(f"a multiplier of {bits} bits; expected 4 to 32")
    scales = {i: x.accumulator_scale / x.quantization.scale for i, x in enumerate(network.layers) if x.quantization}
    try:
        fitted = {i: np.array([split_scale(float(s), bits) for s in each], np.int64).T for i, each in scales.items()}
    except UsageError as error:
        raise ModelError(f"a layer cannot be requantized: {error}") from error
    most = min((int(shift.min()) for _, shift in fitted.values()), default=0) + SHIFT_SPREAD
    layers = list(network.layers)
    for i, (multiplier, shift) in fitted.items():
        kept = np.minimum(shift, most)
        multiplier = np.where(shift > most, np.rint(scales[i] * 2.0**kept), multiplier).astype(np.int64)
        layers[i] = replace(layers[i], multiplier=multiplier, shift=kept)
    return replace(network, layers=tuple(layers))


def count_ideal_cycles(sizes: Sequence[tuple[int, int]], lanes: int) -> int:
    """Cycles in which `lanes` multipliers do all products: over layers the sum of ceil(outputs / lanes) * inputs."""
    return sum(-(-outputs // lanes) * inputs for inputs, outputs in sizes)
