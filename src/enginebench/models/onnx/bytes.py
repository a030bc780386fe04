"""Change a graph that takes a picture as floats to take it as bytes."""

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

# A graph that normalizes its pictures itself begins with one of these, or has one after a transpose to NCHW.
NORMALIZING = frozenset({"Sub", "Div", "Mul", "BatchNormalization"})


def prepend_normalize(artifact: Artifact, normalize_requested: Normalize) -> Artifact:
    """Write the graph with a picture of bytes, which it normalizes first, beside the original; return its artifact.

    It normalizes by Sub and Div, like a graph after an export: no recipe puts Q/DQ nodes on these, where they would
    round levels away.
    """
    byte_artifact, path = take_bytes(artifact, normalize_requested), Path(artifact.path)
    model, normalize = load_graph(path), byte_artifact.normalize or normalize_requested
    name = normalize.input
    cast, less, last = (f"bytes_of_{name}_{step}" for step in ("cast", "less_mean", "normalized"))
    for node in walk_nested_nodes(model.graph.node):
        node.input[:] = [last if source == name else source for source in node.input]
    next(v for v in model.graph.input if v.name == name).type.tensor_type.elem_type = TensorProto.UINT8
    nodes = [helper.make_node("Cast", [name], [cast], to=TensorProto.FLOAT)]
    for operator, source, end, numbers in (("Sub", cast, less, normalize.mean), ("Div", less, last, normalize.std)):
        tensor = numpy_helper.from_array(np.array(numbers, np.float32).reshape(normalize.shape))
        nodes.append(helper.make_node("Constant", [], [f"{end}_by"], value=tensor))
        nodes.append(helper.make_node(operator, [source, f"{end}_by"], [end], name=end))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    helper.set_model_props(model, {k: text for k, text in read_metadata(model).items() if k != PREPROCESS_KEY})
    out = path.with_name(f"{path.stem}.uint8.onnx")
    write_atomic(out, model.SerializeToString())
    written = read_onnx(out)
    return replace(byte_artifact, path=str(out), sha256=written.sha256, files=written.files)


def warn_of_two_normalizations(artifacts: Sequence[Artifact], requested: Normalize) -> tuple[Artifact, ...]:
    """Return the artifacts, with a warning if the graph itself normalizes its inputs a second time."""
    graph = next((artifact for artifact in artifacts if artifact.kind == "onnx"), None)
    if graph is None or not any(requested.mean):  # a mean of 0: the user only scales
        return tuple(artifacts)
    nodes, name = load_graph(Path(graph.path)).graph.node, (graph.normalize or requested).input
    for _ in ("Cast", "Sub", "Div"):
        name = next((node.output[0] for node in nodes if name in node.input), "")
    name = next((node.output[0] for node in nodes if name in node.input and node.op_type == "Transpose"), name)
    operators = [node.op_type for node in nodes if name in node.input and node.op_type in NORMALIZING]
    warnings = (make_warning("external_preprocess.twice", operator=operators[0]),) if operators else ()
    return tuple(replace(artifact, warnings=(*artifact.warnings, *warnings)) for artifact in artifacts)
