"""FP16 and BF16 by casting the graph; what cannot be cast stays in FP32, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.models.precision.calibration import TensorRange
from enginebench.models.precision.graph import raise_opset, sort_nodes

FP16_MAX = float(np.finfo(np.float16).max)
# Unseen inputs may give twice what was seen before anything overflows: one bit of the exponent.
HEADROOM = 2.0
# Convolution, pooling and resizing take bfloat16 from here on. Source: ONNX operator changelog, opset 22.
BF16_OPSET = 22
BF16 = TensorProto.BFLOAT16
FP32 = TensorProto.FLOAT


def find_overflowing(model: ModelProto, ranges: Mapping[str, TensorRange]) -> list[str]:
    """Names of the nodes that read or make a value which FP16 cannot hold with room for unseen inputs.

    Readers are among them: a cast between maker and reader would overflow, too.

    Args:
        model: an FP32 graph.
        ranges: of its tensors, as far as they are known; constants are looked at in the graph.
    """
    limit = FP16_MAX / HEADROOM
    large = {name for name, found in ranges.items() if found.largest > limit}
    large |= {tensor.name for tensor in model.graph.initializer if _exceeds(tensor)}
    return [node.name for node in model.graph.node if large.intersection((*node.input, *node.output))]


def _exceeds(tensor: TensorProto) -> bool:
    """Constants are exact: they need no headroom."""
    if tensor.data_type != FP32:
        return False
    values = numpy_helper.to_array(tensor)
    return bool(np.any(np.isfinite(values) & (np.abs(values) > FP16_MAX)))


def cast_to_fp16(model: ModelProto, blocked: Iterable[str], keep_io: bool) -> tuple[ModelProto, list[str]]:
    """(the graph in FP16, names of the nodes that stay in FP32).

    Args:
        model: an FP32 graph whose nodes have names.
        blocked: names of nodes to leave in FP32; those whose operator is too delicate or unknown in FP16 join them.
        keep_io: leave inputs and outputs in FP32, with casts behind and before them.
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    names = list(blocked)
    kept = [n.name for n in model.graph.node if n.name in set(names) or n.op_type in DEFAULT_OP_BLOCK_LIST]
    try:
        cast = convert_float_to_float16(model, keep_io_types=keep_io, node_block_list=names)
    except Exception as error:  # asserts, ValueError and protobuf's own
        raise ArtifactError(f"the graph cannot be cast to FP16: {error}") from error
    sort_nodes(cast)  # its casts of inputs and outputs stand at the end
    _join_fp32_neighbours(cast)
    return cast, kept


def _join_fp32_neighbours(model: ModelProto) -> None:
    """Hands values from one FP32 node to the next as they are.

    The converter puts a cast to FP16 behind every node that it leaves, and a cast back before the next: what stays in
    FP32 because it overflows would overflow between the two.
    """
    outputs = {value.name for value in model.graph.output}
    to_fp16 = {n.output[0]: n for n in model.graph.node if n.name.endswith("_cast_to_fp16_node")}
    source: dict[str, str] = {}
    for node in list(model.graph.node):
        if node.op_type == "Cast" and node.input[0] in to_fp16 and node.output[0] not in outputs:
            source[node.output[0]] = to_fp16[node.input[0]].input[0]
            model.graph.node.remove(node)
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = source.get(name, name)
        if node.op_type == "Cast" and node.output[0] in outputs and node.input[0] in to_fp16:
            node.op_type, node.input[0] = "Identity", to_fp16[node.input[0]].input[0]
            del node.attribute[:]
    used = {name for node in model.graph.node for name in node.input} | outputs
    for name, node in to_fp16.items():
        if name not in used:
            model.graph.node.remove(node)


def cast_to_bf16(model: ModelProto, keep_io: bool) -> tuple[ModelProto, list[str]]:
    """(the graph in BF16, names of the nodes that stay in FP32).

    Every value becomes BF16. A node whose operator does not take BF16 by its schema, or that holds a branch or loop,
    works in FP32 between casts. BF16 has the range of FP32: nothing overflows.

    Args:
        model: an FP32 graph whose nodes have names, types inferred.
        keep_io: leave inputs and outputs in FP32, with casts behind and before them.

    Raises:
        ArtifactError: the operator set cannot be raised to 22.
    """
    cast = ModelProto()
    cast.CopyFrom(raise_opset(model, BF16_OPSET))
    graph = cast.graph
    floats = _find_floats(graph)
    opset = next(o.version for o in cast.opset_import if o.domain in ("", "ai.onnx"))
    kept = [n.name for n in graph.node if floats.intersection((*n.input, *n.output)) and not _takes_bf16(n, opset)]
    nodes = list(graph.node)
    del graph.node[:]
    _cast_ends(graph, nodes, floats, keep_io)
    for node in nodes:
        if node.name in set(kept):
            graph.node.extend(_wrap_in_casts(node, floats))
        else:
            _retype_attributes(node)
            graph.node.append(node)
    _retype_initializers(graph)
    del graph.value_info[:]
    sort_nodes(cast)
    return onnx.shape_inference.infer_shapes(cast), kept


def _find_floats(graph: GraphProto) -> set[str]:
    names = {t.name for t in graph.initializer if t.data_type == FP32}
    values = (*graph.input, *graph.value_info, *graph.output)
    return names | {v.name for v in values if v.type.tensor_type.elem_type == FP32}


def _takes_bf16(node: NodeProto, opset: int) -> bool:
    """Whether every float operand of the operator may be BF16.

    Resize and the like have operands that are always float32, and Q/DQ scales belong to the precision of their file.
    """
    if node.domain not in ("", "ai.onnx") or any(a.g.node or a.graphs for a in node.attribute):
        return False
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for operand in (*schema.inputs, *schema.outputs):
        types = allowed.get(operand.type_str, {operand.type_str})
        if "tensor(float)" in types and "tensor(bfloat16)" not in types:
            return False
    return True


def _cast_ends(graph: GraphProto, nodes: list[NodeProto], floats: set[str], keep_io: bool) -> None:
    """Gives inputs and outputs their types, and, where these stay FP32, casts between them and the graph."""
    constants = {t.name for t in graph.initializer}
    for i, value in enumerate((*graph.input, *graph.output)):
        if value.name not in floats or value.name in constants:
            continue
        if not keep_io:
            value.type.tensor_type.elem_type = BF16
            continue
        inner = f"{value.name}_bf16"
        is_input = i < len(graph.input)
        _rename(nodes, value.name, inner)
        floats.add(inner)
        source, target, to = (value.name, inner, BF16) if is_input else (inner, value.name, FP32)
        graph.node.append(helper.make_node("Cast", [source], [target], f"cast_{target}", to=to))
    if keep_io:  # an output that is an input as it stands needs no inner value of its own; its cast reads the first
        made = {name for node in (*nodes, *graph.node) for name in node.output}
        for node in graph.node:
            if node.input[0] not in made and node.input[0].endswith("_bf16"):
                raise ArtifactError(f"output {node.output[0]!r} is made by no node; such a graph cannot be cast")


def _rename(nodes: Iterable[NodeProto], old: str, new: str) -> None:
    for node in nodes:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == old:
                    names[i] = new
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _rename(graph.node, old, new)


def _wrap_in_casts(node: NodeProto, floats: set[str]) -> list[NodeProto]:
    """Casts to FP32, the node, casts back to BF16; also for what its branches read from outside."""
    before, after = [], []
    for name in _reads_of(node) & floats:
        inner = f"{name}_fp32_{node.name}"
        before.append(helper.make_node("Cast", [name], [inner], f"cast_{inner}", to=FP32))
        _rename_reads(node, name, inner)
    for i, name in enumerate(node.output):
        if name in floats:
            node.output[i] = f"{name}_fp32"
            after.append(helper.make_node("Cast", [node.output[i]], [name], f"cast_{name}", to=BF16))
    return [*before, node, *after]


def _reads_of(node: NodeProto) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _reads_of(inner)
            names |= {value.name for value in graph.output}
    return names


def _rename_reads(node: NodeProto, old: str, new: str) -> None:
    for i, name in enumerate(node.input):
        if name == old:
            node.input[i] = new
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _rename_reads(inner, old, new)
            for value in graph.output:
                if value.name == old:
                    value.name = new


def _retype_attributes(node: NodeProto) -> None:
    """Constants inside the node, and the types that it is told to make."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == FP32:
            attribute.t.CopyFrom(_to_bf16(attribute.t))
        if attribute.name in ("to", "dtype") and attribute.i == FP32:
            attribute.i = BF16


def _retype_initializers(graph: GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.data_type == FP32:
            tensor.CopyFrom(_to_bf16(tensor))
    constants = {t.name for t in graph.initializer if t.data_type == BF16}
    for value in graph.input:
        if value.name in constants:
            value.type.tensor_type.elem_type = BF16


def _to_bf16(tensor: TensorProto) -> TensorProto:
    """Rounded to nearest, ties to even: the upper half of the bits, after adding half of the lower half's range.

    Source: IEEE 754 roundTiesToEven; BFloat16 is float32 without the lower 16 bits of the significand.
    """
    values = np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # Rounding would carry a NaN of low payload into infinity.
    halves = np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    return helper.make_tensor(tensor.name, BF16, list(tensor.dims), halves.tobytes(), raw=True)
