"""Count the work of an ONNX graph: multiply-accumulates and tensors of every node, with shapes of real inputs."""

import ast
import math
from collections.abc import Iterator, Mapping

from onnx import ModelProto, NodeProto

from enginebench.core.shapes import TensorWork
from enginebench.features.roofline.jobs import GraphWork, NodeWork
from enginebench.models.onnx.tensors import MOVES, fix_inputs, infer_tensors
from enginebench.models.precision.macs import FACTORS, UNITS, Shape, count_node_macs

# Quantizing and its inverse are fused into the node that makes the values, or into the one that reads them.
QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
_SCOPES = "pkg.torch.onnx.name_scopes"


def describe_work(model: ModelProto, shapes: Mapping[str, Shape], batch: int = 1) -> GraphWork:
    """Count the work of a graph, without nodes inside of branches and loops.

    An input that is not among `shapes` has `batch` on its first axis if that is dynamic.

    Source of the counts: the operators' definitions in the ONNX specification; one multiply-accumulate for each product
    in the sums of the definition, even if an algorithm (Winograd, FFT) needs fewer.
    """
    tensors = infer_tensors(fix_inputs(model, shapes, batch))
    nodes = [_describe_node(node, tensors) for node in model.graph.node]
    counted = [node for node in model.graph.node if node.op_type not in MOVES]
    unknown = sum(any(name and name not in tensors for name in node.output) for node in counted)
    return GraphWork(
        nodes=tuple(nodes),
        tensors={name: tensor for name, (tensor, _) in tensors.items()},
        outputs=tuple(value.name for value in model.graph.output),
        unknown=unknown,
    )


def _describe_node(node: NodeProto, tensors: Mapping[str, tuple[TensorWork, Shape]]) -> NodeWork:
    shapes = {tensor: shape for tensor, (_, shape) in tensors.items()}
    macs = count_node_macs(node, shapes)
    scopes = _read_scopes(node)
    return NodeWork(
        name=node.name or (node.output[0] if node.output else node.op_type),  # as runtimes call it
        op=node.op_type,
        inputs=tuple(filter(None, node.input)),
        outputs=tuple(filter(None, node.output)),
        macs=macs,
        unit=UNITS.get(node.op_type) if macs else None,
        moves=node.op_type in MOVES or node.op_type in QUANTIZERS,
        read_shares=dict(_list_read_shares(node, shapes)),
        scopes=tuple(scope for scope in scopes[:-1] if scope),
        operator=scopes[-1] if scopes else "",
    )


def _list_read_shares(node: NodeProto, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, float]]:
    """Yield (input, fraction) of inputs of which only a part is read: strides skip rows, a Gather picks some."""
    output = shapes.get(node.output[0]) if node.output else None
    data = shapes.get(node.input[0]) if node.input else None
    if not data or output is None:
        return
    if node.op_type in ("Gather", "GatherElements", "GatherND", "TopK", "EmbeddingBag"):
        yield node.input[0], min(1.0, math.prod(output) / max(1, math.prod(data)))
    strides = _read_ints(node, "strides")
    if strides and node.op_type in ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"):
        weights = shapes.get(node.input[FACTORS.get(node.op_type, (0, 1))[1]]) if len(node.input) > 1 else None
        kernel = _read_ints(node, "kernel_shape") or (list(weights[2:]) if weights else [])
        share = math.prod(min(1.0, k / s) for k, s in zip(kernel, strides, strict=False))
        if kernel and share < 1:
            yield node.input[0], share


def _read_scopes(node: NodeProto) -> tuple[str, ...]:
    """Return the paths of the modules around the operator from which a node was exported, outermost first.

    Source: `metadata_props` of PyTorch's exporter (2.5 and newer); the last scope is the operator itself.
    """
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()


def _read_ints(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [])
