"""Multiply-accumulates of one node of an ONNX graph, by the shapes of its tensors."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from onnx import NodeProto

Shape = tuple[int, ...]

# Operators with multiply-accumulates, and the ceiling that theirs are held against.
UNITS: dict[str, Literal["conv", "gemm"]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"), "conv"),
    **dict.fromkeys(("Gemm", "MatMul", "Einsum", "MatMulInteger", "QLinearMatMul", "QGemm", "FusedGemm"), "gemm"),
    **dict.fromkeys(("Attention", "LSTM", "GRU", "RNN"), "gemm"),
}
# Of what such an operator takes, the two that are multiplied.
FACTORS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3)}
# Gates of a recurrent cell: each is a product with the input and one with the state.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def count_macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Multiply-accumulates of a node; 0 where it has none, or a shape is not known."""
    first, second = FACTORS.get(node.op_type, (0, 1))
    if node.op_type not in UNITS or len(node.input) <= second or not node.output:
        return 0
    data, weights, output = (shapes.get(n) for n in (node.input[first], node.input[second], node.output[0]))
    if node.op_type == "Einsum":
        return _count_einsum(node, [shapes.get(name) for name in node.input])
    if data is None or weights is None or output is None:
        return 0
    match node.op_type:
        case "Conv" | "ConvInteger" | "QLinearConv" | "DeformConv":  # [out, in / group, kernel...]
            return math.prod(output) * math.prod(weights[1:])
        case "ConvTranspose":  # [in, out / group, kernel...]: each value that goes in goes into so many
            return math.prod(data) * math.prod(weights[1:])
        case "Gemm" | "QGemm" | "FusedGemm":
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            return math.prod(output) * data[0 if transposed else -1]
        case "MatMul" | "MatMulInteger" | "QLinearMatMul":
            return math.prod(output) * (data[-1] if data else 1)
        case "Attention":
            # Queries by keys, and their weights by values: of the standard operator with [batch, heads, length, depth].
            alike = len(data) == len(weights) in (3, 4)
            return (math.prod(data) + math.prod(output)) * weights[-2] if alike else 0
        case _:  # recurrent: input [steps, batch, in], weights [directions, gates * hidden, in]
            steps = math.prod(data[:-1])
            hidden = weights[1] // _GATES[node.op_type]
            return steps * weights[0] * weights[1] * (data[-1] + hidden)


def _count_einsum(node: NodeProto, shapes: Sequence[Shape | None]) -> int:
    """The product of the lengths of all letters, for two operands; 0 of others, which may be done in several orders."""
    equation = next((a.s.decode() for a in node.attribute if a.name == "equation"), "")
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != 2 or "." in equation or None in shapes:
        return 0
    sizes = {
        letter: size
        for term, shape in zip(terms, shapes, strict=False)
        for letter, size in zip(term, shape or (), strict=False)
    }
    return math.prod(sizes.values())
