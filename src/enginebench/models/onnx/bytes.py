"""A graph that takes a picture as floats, changed to take it as bytes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.records import Artifact, Normalize
from enginebench.core.store import write_atomic
from enginebench.core.warnings import make_warning
from enginebench.models.onnx.source import PREPROCESS_KEY, load_graph, read_metadata, read_onnx, walk_nested_nodes
from enginebench.models.task import take_bytes

# With one of these a graph that normalizes by itself begins, or goes on where it turns NHWC into NCHW first.
NORMALIZING = frozenset({"Sub", "Div", "Mul", "BatchNormalization"})


def put_first(artifact: Artifact, known: Normalize) -> Artifact:
    """The graph with its picture in bytes, less a mean, divided by a deviation; it is written beside the other.

    Sub and Div, as after an export: no recipe puts Q/DQ nodes on these, where they would round levels away.
    """
    made, path = take_bytes(artifact, known), Path(artifact.path)
    model, normalize = load_graph(path), made.normalize or known
    name = normalize.input
    cast, less, last = (f"bytes_of_{name}_{step}" for step in ("cast", "less_mean", "normalized"))
    for node in walk_nested_nodes(model.graph.node):
        node.input[:] = [last if given == name else given for given in node.input]
    next(v for v in model.graph.input if v.name == name).type.tensor_type.elem_type = TensorProto.UINT8
    nodes = [helper.make_node("Cast", [name], [cast], to=TensorProto.FLOAT)]
    for operator, given, end, numbers in (("Sub", cast, less, normalize.mean), ("Div", less, last, normalize.std)):
        tensor = numpy_helper.from_array(np.array(numbers, np.float32).reshape(normalize.shape))
        nodes.append(helper.make_node("Constant", [], [f"{end}_by"], value=tensor))
        nodes.append(helper.make_node(operator, [given, f"{end}_by"], [end], name=end))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    helper.set_model_props(model, {k: text for k, text in read_metadata(model).items() if k != PREPROCESS_KEY})
    out = path.with_name(f"{path.stem}.uint8.onnx")
    write_atomic(out, model.SerializeToString())
    found = read_onnx(out)
    return replace(made, path=str(out), sha256=found.sha256, files=found.files)


def warn_of_two_normalizations(artifacts: Sequence[Artifact], known: Normalize) -> tuple[Artifact, ...]:
    """The artifacts; with a warning if the graph normalizes what was normalized, which no engine can see."""
    graph = next((artifact for artifact in artifacts if artifact.kind == "onnx"), None)
    if graph is None or not any(known.mean):  # of 0: only scaled, as whoever gave it knows
        return tuple(artifacts)
    nodes, name = load_graph(Path(graph.path)).graph.node, (graph.normalize or known).input
    for _ in ("Cast", "Sub", "Div"):
        name = next((node.output[0] for node in nodes if name in node.input), "")
    name = next((node.output[0] for node in nodes if name in node.input and node.op_type == "Transpose"), name)
    found = [node.op_type for node in nodes if name in node.input and node.op_type in NORMALIZING]
    warnings = (make_warning("external_preprocess.twice", operator=found[0]),) if found else ()
    return tuple(replace(artifact, warnings=(*artifact.warnings, *warnings)) for artifact in artifacts)
