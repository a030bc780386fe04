"""Graphs that are changed to go around a fault: a tensor as a further output, nodes in FP32."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, helper

from enginebench.features.locate.graphs import Graph
from enginebench.features.locate.program import Arrays
from enginebench.models.onnx.source import LARGEST_PROTOBUF_BYTES, load_external_data

# Types whose nodes can compute in FP32 instead.
SHORT = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Ends of the names that are added to a graph.
LONG, CAST = "_fp32", "_cast"


def mark_outputs(graph: Graph, names: Sequence[str], values: Arrays) -> ModelProto:
    """Return the whole graph with tensors as further outputs: nothing that has one inside can be one kernel."""
    model = _copy(graph)
    for name in names:
        array = values[name]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        # Its lengths may follow from those of the inputs: they stay open.
        shape = [f"{name}_{axis}" for axis in range(array.ndim)]
        model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))
    return model


def keep_long(graph: Graph, indices: Collection[int]) -> ModelProto:
    """Return the whole graph with these nodes in FP32; what passes between two of them is not made shorter.

    Of a graph with Q/DQ nodes they read what was quantized.
    """
    model = _copy(graph)
    types = _list_types(model)
    made = {name for i in indices for name in graph.steps[i].outputs if types.get(name) in SHORT}
    outside = {name for i, step in enumerate(graph.steps) if i not in indices for name in step.inputs}
    outside |= set(graph.outputs)
    nodes, casts = [], set[str]()
    for i, node in enumerate(model.graph.node):
        if i not in indices:
            nodes.append(node)
            continue
        for at, name in enumerate(node.input):
            source = _skip_quantizers(graph, name)
            if source in made:
                node.input[at] = source + LONG
            elif types.get(source) in SHORT:
                if source not in casts:
                    casts.add(source)
                    nodes.append(helper.make_node("Cast", [source], [source + CAST], source + CAST, to=1))
                node.input[at] = source + CAST
            else:
                node.input[at] = source
        if node.op_type == "Cast" and helper.get_node_attr_value(node, "to") in SHORT:
            next(a for a in node.attribute if a.name == "to").i = TensorProto.FLOAT
        nodes.append(node)
        for at, name in enumerate(node.output):
            if name in made:
                node.output[at] = name + LONG
                if name in outside:
                    nodes.append(helper.make_node("Cast", [name + LONG], [name], name + CAST, to=types[name]))
    kept = [node.SerializeToString() for node in nodes]
    del model.graph.node[:]
    for text in kept:
        model.graph.node.add().ParseFromString(text)
    del model.graph.value_info[:]
    return model


def save_changed(model: ModelProto, path: Path) -> Path:
    """Write a changed graph, with its weights in a file beside it where they are too large for one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = path.with_suffix(".data")
    weights.unlink(missing_ok=True)
    big = model.ByteSize() > LARGEST_PROTOBUF_BYTES
    onnx.save_model(model, str(path), save_as_external_data=big, location=weights.name)
    return path


def _copy(graph: Graph) -> ModelProto:
    model = ModelProto()
    model.CopyFrom(graph.model)
    load_external_data(model, graph.path)
    return model


def _list_types(model: ModelProto) -> Mapping[str, int]:
    inferred = model if model.ByteSize() > LARGEST_PROTOBUF_BYTES else onnx.shape_inference.infer_shapes(model)
    graph = inferred.graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _skip_quantizers(graph: Graph, name: str) -> str:
    """Return the tensor that a pair of QuantizeLinear and DequantizeLinear makes this one of, or the tensor itself."""
    nodes = graph.model.graph.node
    last = nodes[graph.producers[name]] if name in graph.producers else None
    if last is None or last.op_type != "DequantizeLinear" or last.input[0] not in graph.producers:
        return name
    first = nodes[graph.producers[last.input[0]]]
    return first.input[0] if first.op_type == "QuantizeLinear" else name
