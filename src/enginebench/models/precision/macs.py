"""Count the multiply-accumulates of a graph by node, and the fraction of them in low precision."""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import onnx
from onnx import ModelProto, NodeProto

from enginebench.models.precision.graph import make_producers

Shape = tuple[int, ...]

# Operators with multiply-accumulates, and the peak that these are compared with.
UNITS: dict[str, Literal["conv", "gemm"]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"), "conv"),
    **dict.fromkeys(("Gemm", "MatMul", "Einsum", "MatMulInteger", "QLinearMatMul", "QGemm", "FusedGemm"), "gemm"),
    **dict.fromkeys(("Attention", "LSTM", "GRU", "RNN"), "gemm"),
}
# The two inputs of such an operator that are multiplied, where these are not the first two.
FACTORS = {"QLinearConv": (0, 3), "QLinearMatMul": (0, 3), "QGemm": (0, 3)}
# Gates of a recurrent cell: each is a product with the input and one with the state.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def count_node_macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Return the multiply-accumulates of a node; 0 if it has none or a shape is not known."""
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
        case "ConvTranspose":  # [in, out / group, kernel...]: each input value is multiplied by all of these
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
    """Return the product of the lengths of all letters for two operands; 0 for more, whose order is not fixed."""
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


# Operators that only move, select or clip values: values of 256 levels stay values of these levels. `Resize` only in
# mode "nearest"; `Cast` to a shorter format moves levels but adds none.
LEVEL_KEEPING = frozenset(
    (
        *("Clip", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("GlobalMaxPool", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Resize", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Cast"),
    )
)
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_INTEGER_OPS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger"})


def count_macs(model: ModelProto) -> dict[str, int]:
    """Return the multiply-accumulates of each convolution and matrix product by node name; unknown axes count as 1.

    Nodes whose shapes cannot be inferred are left out.
    """
    shapes = infer_shapes(model)
    counted = [node for node in model.graph.node if node.op_type in PRODUCTS | _INTEGER_OPS]
    return {node.name: macs for node in counted if (macs := count_node_macs(node, shapes))}


def infer_shapes(model: ModelProto) -> dict[str, Shape]:
    """Return the shape of every tensor that has one, with unknown axes as 1."""
    inferred = onnx.shape_inference.infer_shapes(model)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in inferred.graph.initializer}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = tuple(axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim)
    return shapes


def measure_coverage(model: ModelProto, weights_only: bool = False) -> float:
    """Return the fraction of multiply-accumulates whose operands both come from 8-bit values; 0 if there are none.

    Args:
        weights_only: count those whose second operand does, whatever the first.
    """
    shapes, producers = infer_shapes(model), make_producers(model)
    total = covered = integer = 0
    for node in model.graph.node:
        if node.op_type in PRODUCTS | _INTEGER_OPS:
            macs, whole = count_node_macs(node, shapes), node.op_type in _INTEGER_OPS
            total, integer = total + macs, integer + whole
            covered += macs if _is_quantized(node, producers, weights_only) else 0
    return covered / total if total else float(integer > 0)


def list_quantized_products(model: ModelProto) -> list[str]:
    """Return the names of the convolutions and matrix products whose operands both come from 8-bit values."""
    producers = make_producers(model)
    return [n.name for n in model.graph.node if n.op_type in PRODUCTS and _is_quantized(n, producers)]


def _is_quantized(node: NodeProto, producers: Mapping[str, NodeProto], weights_only: bool = False) -> bool:
    return node.op_type in _INTEGER_OPS or all(
        _comes_from_levels(name, producers) for name in node.input[int(weights_only) : 2]
    )


def _comes_from_levels(name: str, producers: Mapping[str, NodeProto]) -> bool:
    pending = [name]
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node.op_type == "DequantizeLinear":
            continue
        if node is None or node.op_type not in LEVEL_KEEPING:
            return False
        if node.op_type == "Resize" and any(a.name == "mode" and a.s != b"nearest" for a in node.attribute):
            return False
        pending.extend(node.input if node.op_type == "Concat" else node.input[:1])
    return True
