"""The graph inside of a node, as a graph of its own: a branch that is taken, the first turn of a loop, a function."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, inliner

from enginebench.core.protocols import Array
from enginebench.features.locate.graphs import Graph, describe_value
from enginebench.features.locate.program import Arrays
from enginebench.models.onnx.source import load_external_data, read_tensor_values


def cut_body(graph: Graph, index: int, values: Arrays) -> tuple[str, ModelProto, dict[str, Array]] | None:
    """Return the name of the attribute that holds the graph, or the word function, the graph, and its inputs; None if a
    node has none, or if what it reads is not known.

    Args:
        values: of the tensors of the graph around it.
    """
    node = graph.model.graph.node[index]
    if any((node.domain, node.op_type) == (one.domain, one.name) for one in graph.model.functions):
        called = graph.cut([index], graph.steps[index].outputs, values)
        return "function", inliner.inline_local_functions(called), {v.name: values[v.name] for v in called.graph.input}
    read = {name: array for name in graph.steps[index].inputs if (array := _read(graph, name, values)) is not None}
    if (taken := _choose(node, read)) is None:
        return None
    name, arrays = taken
    body = GraphProto()
    body.CopyFrom(next(attribute.g for attribute in node.attribute if attribute.name == name))
    if len(body.input) != len(arrays):
        return None
    feeds = {value.name: array for value, array in zip(body.input, arrays, strict=True)}
    made = {*feeds, *(t.name for t in body.initializer), *(t for n in body.node for t in n.output)}
    outer = [name for name in graph.steps[index].inputs if name not in made]
    feeds |= {name: values[name] for name in outer if name in values}
    _add_constants(body, graph, [name for name in outer if name not in values], values)
    del body.input[:]
    body.input.extend(describe_value(outer, array) for outer, array in feeds.items())
    model = ModelProto(ir_version=graph.model.ir_version, graph=body)
    model.opset_import.extend(graph.model.opset_import)
    model.functions.extend(graph.model.functions)
    load_external_data(model, graph.path)
    return name, model, feeds


def _add_constants(body: GraphProto, graph: Graph, names: Sequence[str], values: Arrays) -> None:
    """Add what a body reads of constants around it as constants: an engine takes no input for one, and fuses less."""
    computed = graph.cut([], [name for name in names if name in graph.producers], values).graph
    nodes = [*computed.node, *body.node]
    del body.node[:]
    body.node.extend(nodes)
    body.initializer.extend(computed.initializer)
    added = {tensor.name for tensor in body.initializer}
    body.initializer.extend(graph.constants[name] for name in names if name in graph.constants and name not in added)
    body.sparse_initializer.extend(t for t in graph.model.graph.sparse_initializer if t.values.name in names)


def _read(graph: Graph, name: str, values: Arrays) -> "Array | None":
    if name in values:
        return values[name]
    return read_tensor_values(graph.constants[name], graph.path) if name in graph.constants else None


def _choose(node: NodeProto, read: Mapping[str, Array]) -> tuple[str, list[Array]] | None:
    """Choose the graph that a node runs first, and what it reads by its own inputs."""
    inputs = list(node.input)
    if node.op_type == "If" and inputs[0] in read:
        return ("then_branch" if np.asarray(read[inputs[0]]).item() else "else_branch"), []
    carried = inputs[2:] if node.op_type == "Loop" else inputs
    if node.op_type not in ("Loop", "Scan") or not set(carried) <= set(read):
        return None
    if node.op_type == "Loop":
        return "body", [np.array(0, np.int64), np.array(True), *(read[name] for name in carried)]
    return "body", list(_take_first(node, [read[name] for name in carried]))


def _take_first(node: NodeProto, arrays: list[Array]) -> Iterator[Array]:
    """Yield what the first turn of a Scan reads: its state as it is, and a slice of what is scanned."""
    settings = {a.name: [a.i] if a.type == AttributeProto.INT else list(a.ints) for a in node.attribute}
    count = settings["num_scan_inputs"][0]
    states = len(arrays) - count
    yield from arrays[:states]
    axes = settings.get("scan_input_axes") or [0] * count
    backwards = settings.get("scan_input_directions") or [0] * count
    for array, axis, backward in zip(arrays[states:], axes, backwards, strict=True):
        yield np.take(array, -1 if backward else 0, axis)
