"""Multiply-accumulates by node, and the share of them that a quantized graph takes in low precision."""

from collections.abc import Mapping

import onnx
from onnx import ModelProto, NodeProto

from enginebench.models.onnx import macs as node_macs
from enginebench.models.onnx.macs import Shape
from enginebench.models.precision.graph import make_producers

# Operators that only move, select or cut values: what goes in as one of 256 levels comes out as one of them. `Resize`
# only where it takes the nearest; `Cast` to a shorter format moves levels, and makes no more of them.
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
    """Multiply-accumulates of every convolution and matrix product, by node name, at batch 1; unknown axes count as 1.

    Nodes whose shapes cannot be inferred are left out.
    """
    shapes = infer_shapes(model)
    counted = [node for node in model.graph.node if node.op_type in PRODUCTS | _INTEGER_OPS]
    return {node.name: macs for node in counted if (macs := node_macs.count_macs(node, shapes))}


def infer_shapes(model: ModelProto) -> dict[str, Shape]:
    """Shape of every tensor that has one, unknown axes as 1."""
    inferred = onnx.shape_inference.infer_shapes(model)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in inferred.graph.initializer}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = tuple(axis.dim_value or 1 for axis in value.type.tensor_type.shape.dim)
    return shapes


def measure_coverage(model: ModelProto, weights_only: bool = False) -> float:
    """Share of multiply-accumulates whose both operands come from 8-bit values; 0 for a graph without any.

    Args:
        weights_only: it is enough that the second one does.
    """
    shapes, producers = infer_shapes(model), make_producers(model)
    total = covered = integer = 0
    for node in model.graph.node:
        if node.op_type in PRODUCTS | _INTEGER_OPS:
            macs, whole = node_macs.count_macs(node, shapes), node.op_type in _INTEGER_OPS
            total, integer = total + macs, integer + whole
            covered += macs if _is_quantized(node, producers, weights_only) else 0
    return covered / total if total else float(integer > 0)


def list_quantized_products(model: ModelProto) -> list[str]:
    """Names of the convolutions and matrix products whose both operands come from 8-bit values."""
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
