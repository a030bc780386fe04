"""Measure the fraction of a graph's constant tensors that is not zero: an engine may leave out products with zeros."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from enginebench.core.protocols import Array

# Operators with a zero point for each factor: input of the factor -> input of its zero point.
ZERO_POINTS = {
    **{operator: {0: 2, 3: 5} for operator in ("QLinearConv", "QLinearMatMul", "QGemm")},
    **{operator: {0: 2, 1: 3} for operator in ("ConvInteger", "MatMulInteger")},
}
# The output of these has as many zeros as their first input.
_ZEROS_STAY = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Cast", "Div"))
ReadTensor = Callable[[TensorProto], "Array | None"]


class Densities:
    """The constant tensors of a graph. `read_tensor` returns their values, or None if they cannot be read."""

    def __init__(self, graph: GraphProto, read_tensor: ReadTensor) -> None:
        self._read_tensor = read_tensor
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self._sparse: dict[str, float] = {
            sparse.values.name: math.prod(sparse.values.dims) / (math.prod(sparse.dims) or 1)
            for sparse in graph.sparse_initializer
        }
        self._makers = {node.output[0]: node for node in graph.node if node.output}
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._tensors[node.output[0]] = attribute.t

    def measure(self, name: str, zero_point: str = "") -> float:
        """Return the fraction of values that are not zero; 0 where it is not known.

        Args:
            zero_point: the tensor with the value that stands for zero; "": zero itself.
        """
        if name in self._sparse:
            return float(self._sparse[name])
        array, maker = self._read(name), self._makers.get(name)
        if array is not None:
            zero = self._read(zero_point) if zero_point else np.zeros((), array.dtype)
            return 0.0 if zero is None else _count_share(array != _align(zero, array.ndim, 0))
        if maker is None:
            return 0.0
        match maker.op_type:
            case op if op in _ZEROS_STAY:
                return self.measure(maker.input[0], zero_point)
            case "DequantizeLinear":
                return self._measure_dequantized(maker)
            case "QuantizeLinear":
                return self._measure_quantized(maker)
            case "Mul":  # a mask, and the weights
                return min(self.measure(factor) for factor in maker.input)
            case _:
                return 0.0

    def _measure_dequantized(self, node: NodeProto) -> float:
        codes = self._read(node.input[0])
        if codes is None:  # quantized in the graph, which keeps zero at the zero point
            return self.measure(node.input[0])
        named = len(node.input) > 2 and node.input[2]
        zero = self._read(node.input[2]) if named else np.zeros((), codes.dtype)
        spread = None if zero is None else _align(zero, codes.ndim, _find_axis(node))
        return 0.0 if spread is None or not _can_broadcast(spread, codes) else _count_share(codes != spread)

    def _measure_quantized(self, node: NodeProto) -> float:
        """Return the fraction that is not rounded to zero."""
        values, scale = self._read(node.input[0]), self._read(node.input[1])
        if values is None or scale is None:
            return 0.0
        spread = _align(scale, values.ndim, _find_axis(node))
        return _count_share(np.rint(np.divide(values, spread)) != 0) if _can_broadcast(spread, values) else 0.0

    def _read(self, name: str) -> "Array | None":
        tensor = self._tensors.get(name)
        return None if tensor is None else self._read_tensor(tensor)


def _find_axis(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


def _align(parameter: Array, dimensions: int, axis: int) -> Array:
    """Return a scalar, or one value for each entry of an axis, so that it can be compared with the whole tensor."""
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if dimension == axis % max(dimensions, 1) else 1 for dimension in range(dimensions)])


def _can_broadcast(parameter: Array, values: Array) -> bool:
    pairs = zip(parameter.shape, values.shape, strict=False)
    return parameter.ndim in (0, values.ndim) and all(length in (1, other) for length, other in pairs)


def _count_share(mask: Any) -> float:
    return float(np.mean(mask)) if np.size(mask) else 0.0
