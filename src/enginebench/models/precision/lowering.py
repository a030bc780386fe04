"""Rewrite a graph in an older operator set, if that can express it, and compare the outputs in ONNX Runtime.

ONNX's own converter cannot convert down most operators that came after 17 (`Gelu`, `Split`, `Pad`,
`GroupNormalization`). Their definitions help: an operator that is a function is replaced by its body, and every other
node is adapted to the older schema of its operator.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import ModelProto, NodeProto, TensorProto, defs, helper, inliner, numpy_helper

from enginebench.core.errors import UnsupportedOperator, explaining
from enginebench.core.feeds import random_feeds
from enginebench.core.operators import register_operators
from enginebench.core.records import Artifact
from enginebench.core.shapes import carry_specs
from enginebench.models.onnx.source import PARENT_KEY, read_metadata, read_onnx, read_opset
from enginebench.models.precision.graph import load_whole_graph, name_nodes, read_graphs, walk_nodes, write_graph

OWN = ("", "ai.onnx")
# The allowed difference of the two forms, relative to the largest value: a function's body rounds at other places than
# the operator's kernel, and in short types every rounding shows. A wrong form differs by far more.
TOLERANCE = 1e-5
TOLERANCE_SHORT = 2e-2
# The length of a dynamic batch: a sum that wrongly runs over the batch shows only with more than one entry.
BATCH = 2
# Constants from which shapes and axes are computed have at most so many elements.
FOLDED_ELEMENTS = 1 << 10
# TensorRT 8.6, which reads up to here, takes Shape for all axes and ignores its `start` and `end` (from 15 on):
# "tensor volume exceeds (2^31)-1, dimensions are [32,3,224,224,1,768]" where a ViT expands its token.
LAST_WITH_WHOLE_SHAPES = 17
# GridSample's modes got other names.
RENAMED = {b"linear": b"bilinear", b"cubic": b"bicubic"}

Shapes = Mapping[str, Sequence[int | None]]
Constants = Mapping[str, Any]


class NewerTypes(UnsupportedOperator):
    """The older operator set has the same operators, but one of them did not take its type yet."""


def lower_graph(artifact: Artifact, newest: int, out: Path) -> Artifact:
    """Write the graph of `artifact` in opset `newest` to `out`, after checking that it gives the same outputs."""
    model = load_whole_graph(Path(artifact.path))
    lowered = lower_model(model, newest)
    helper.set_model_props(lowered, read_metadata(model) | {PARENT_KEY: artifact.sha256})
    compare_forms(model, lowered, artifact)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_graph(lowered, out)
    made = read_onnx(out)
    return replace(
        artifact,
        path=made.path,
        sha256=made.sha256,
        files=made.files,
        opset=newest,
        inputs=carry_specs(artifact.inputs, made.inputs),
        parent_sha256=artifact.sha256,
    )


def lower_model(model: ModelProto, newest: int) -> ModelProto:
    """Return the graph in opset `newest`, not compared yet.

    Raises:
        NewerTypes: only its types are too new.
        UnsupportedOperator: an operator has no older form.
    """
    opset = read_opset(model) or newest
    try:
        lowered = _inline_newer(model, opset, newest)
    except RuntimeError as error:  # the inliner's own, of an optional input that is left out, for one
        newer = sorted({n.op_type for n in walk_nodes(model) if not defs.has(n.op_type, newest, "")})
        raise UnsupportedOperator(f"the definition of {', '.join(newer)} cannot be inlined: {error}") from error
    if newest <= LAST_WITH_WHOLE_SHAPES:
        _cut_shapes(lowered)
    shapes = _read_shapes(lowered)
    # What is constant and small, in whichever graph it lies.
    constants = {n.output[0]: _read_constant(n) for n in walk_nodes(lowered) if n.op_type == "Constant"}
    for graph in (lowered.graph, *(graph for node in walk_nodes(lowered) for graph in read_graphs(node))):
        small = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= FOLDED_ELEMENTS]
        constants |= {tensor.name: numpy_helper.to_array(tensor) for tensor in small}
    for node in walk_nodes(lowered):
        if node.domain in OWN:
            newer, older = (defs.get_schema(node.op_type, version, "") for version in (opset, newest))
            if newer.since_version != older.since_version:
                lowered.graph.initializer.extend(_lower_node(node, newer, older, shapes, constants))
    for entry in lowered.opset_import:
        if entry.domain in OWN:
            entry.version = newest
    same = [n.SerializeToString() for n in walk_nodes(lowered)] == [n.SerializeToString() for n in walk_nodes(model)]
    name_nodes(lowered)
    lowered.ir_version = min(
        lowered.ir_version, helper.find_min_ir_version_for(lowered.opset_import, ignore_unknown=True)
    )
    try:
        onnx.checker.check_model(lowered, full_check=True)
    except Exception as error:  # the checker and shape inference each have their own
        kind = NewerTypes if same else UnsupportedOperator
        raise kind(f"in opset {newest} the graph is not valid: {error}") from error
    return lowered


def _inline_newer(model: ModelProto, opset: int, newest: int) -> ModelProto:
    """Return the graph with every operator that is not in `newest` replaced by its definition, constants folded."""
    made = ModelProto()
    made.CopyFrom(inliner.inline_local_functions(model) if model.functions else model)
    inlined = False
    while newer := [n for n in walk_nodes(made) if n.domain in OWN and not defs.has(n.op_type, newest, "")]:
        for node in newer:
            schema = defs.get_schema(node.op_type, opset, "")
            if not (schema.has_function or schema.has_context_dependent_function):
                raise _explain(node, f"it came with opset {schema.since_version}, and has no definition in others")
        made = _inline(made, {node.op_type for node in newer})
        inlined = True
    return _fold_constants(_inline(made, {"CastLike"})) if inlined else made  # CastLike is in definitions alone


def _inline(model: ModelProto, operators: set[str]) -> ModelProto:
    """Return the graph with these operators replaced by their definitions, which may depend on the input types."""
    typed = onnx.shape_inference.infer_shapes(model)
    typed_names = {value.name for value in (*typed.graph.value_info, *typed.graph.input)}
    fresh = [t for t in typed.graph.initializer if t.name not in typed_names]
    typed.graph.value_info.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in fresh)
    return inliner.inline_selected_functions(
        typed, [("", name) for name in sorted(operators)], inline_schema_functions=True
    )


def _fold_constants(model: ModelProto) -> ModelProto:
    """Return the graph with all values computed that depend on constants and known shapes alone; they are small."""
    from onnx.reference import ReferenceEvaluator

    shapes, nodes = _read_shapes(model), list(model.graph.node)
    constants = {n.output[0]: _read_constant(n) for n in nodes if n.op_type == "Constant"}
    for node in nodes:
        operands = {name: constants[name] for name in node.input if name in constants}
        if node.op_type in ("Shape", "Size") and None not in shapes.get(node.input[0], (None,)):
            operands = {node.input[0]: np.broadcast_to(np.float32(0), [n or 0 for n in shapes[node.input[0]]])}
        if node.input and len(node.output) == 1 and set(node.input) <= operands.keys():
            constants[node.output[0]] = ReferenceEvaluator(node).run(None, operands)[0]
    used = {name for node in walk_nodes(model) for name in node.input if node.output[0] not in constants}
    used |= {value.name for value in model.graph.output}
    del model.graph.node[:]
    for node in nodes:
        name = node.output[0]
        if name not in constants:
            model.graph.node.append(node)
        elif name in used:
            tensor = numpy_helper.from_array(np.asarray(constants[name]), name)
            model.graph.node.append(helper.make_node("Constant", [], [name], node.name, value=tensor))
    return model


def _read_constant(node: NodeProto) -> Any:
    value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value, np.float32 if "float" in node.attribute[0].name else np.int64)


def _read_shapes(model: ModelProto) -> Shapes:
    """Return {name: shape} of a graph's tensors, as far as they are known; a dynamic axis is None."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = {value.name: value.type.tensor_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return {
        name: [axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim]
        for name, tensor in values.items()
        if tensor.HasField("shape")
    }


def _lower_node(node: NodeProto, newer: Any, older: Any, shapes: Shapes, constants: Constants) -> list[TensorProto]:
    """Change one node to the older form of its operator; return the constants that this form needs."""
    names = dict(zip((value.name for value in newer.inputs), node.input, strict=False))
    kept = {attribute.name: attribute for attribute in node.attribute}
    made = []
    if (axes := names.get("axes")) and all(value.name != "axes" for value in older.inputs):
        if axes not in constants:
            raise _explain(node, f"its axes {axes!r} are computed")
        if "axes" in older.attributes and (numbers := constants[axes].tolist()):
            kept.pop("noop_with_empty_axes", None)
            kept["axes"] = helper.make_attribute("axes", numbers)
            node.input.pop()
        elif node.op_type == "Pad":
            made = [_widen_pads(node, names, shapes, constants)]
    elif node.op_type == "Split" and "num_outputs" in kept:
        # Checks that a Split by number cuts into equal parts: it always did before there were such numbers.
        axis = kept["axis"].i if "axis" in kept else 0
        length = (shapes.get(node.input[0]) or [None])[axis]
        if not length or length % len(node.output):
            raise _explain(node, f"it cuts {length or 'a dynamic axis'} into {len(node.output)} parts, not all equal")
        del kept["num_outputs"]
    elif node.op_type == "GridSample" and "mode" in kept:
        kept["mode"].s = RENAMED.get(kept["mode"].s, kept["mode"].s)
    while node.input and not node.input[-1]:
        node.input.pop()
    if len(node.input) > older.max_input:
        raise _explain(node, f"its input {newer.inputs[older.max_input].name} has no equal there")
    for name in kept.keys() - older.attributes.keys():  # a newer attribute must have the value that was implied before
        default, value = newer.attributes[name].default_value, helper.get_attribute_value(kept.pop(name))
        if not (set(value) == {1} if name == "dilations" else helper.get_attribute_value(default) == value):
            raise _explain(node, f"its attribute {name}={value} has no equal there")
    del node.attribute[:]
    node.attribute.extend(kept.values())
    return made


def _cut_shapes(model: ModelProto) -> None:
    """Put a Slice behind every Shape of some axes, also in branches and loops."""
    graphs = [model.graph, *(graph for node in walk_nodes(model) for graph in read_graphs(node))]
    values = [value.name for graph in graphs for value in (*graph.input, *graph.initializer)]
    taken = {*values, *(name for node in walk_nodes(model) for name in (*node.input, *node.output))}
    for graph in graphs:
        for i, node in reversed(list(enumerate(graph.node))):
            if node.op_type == "Shape" and node.domain in OWN and node.attribute:
                requested = {attribute.name: attribute.i for attribute in node.attribute}
                name = whole = node.output[0]
                while not taken.isdisjoint(made := [f"{whole}_{part}" for part in ("all", "start", "end", "axis")]):
                    whole += "_"
                taken |= set(made)
                node.output[0] = made[0]
                del node.attribute[:]
                ends = (requested.get("start", 0), requested.get("end", np.iinfo(np.int64).max), 0)
                pairs = zip(made[1:], ends, strict=True)
                graph.initializer.extend(numpy_helper.from_array(np.array([n]), part) for part, n in pairs)
                graph.node.insert(i + 1, helper.make_node("Slice", made, [name], name=f"{name}_cut"))


def _widen_pads(node: NodeProto, names: Mapping[str, str], shapes: Shapes, constants: Constants) -> TensorProto:
    """Return the pads of a node for all axes in place of those for some; the node reads them."""
    pads, axes, rank = constants.get(names["pads"]), constants[names["axes"]], len(shapes.get(names["data"], ()))
    if pads is None or not rank:
        raise _explain(node, "its pads are computed, or nobody knows how many axes it pads")
    wide = np.zeros((2, rank), np.int64)
    wide[:, axes] = pads.reshape(2, -1)
    node.input[1] = f"{node.output[0]}_pads"
    node.input.pop()
    return numpy_helper.from_array(wide.ravel(), node.input[1])


def _explain(node: NodeProto, why: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"{node.op_type} (node {node.name or node.output[0]!r}): {why}")


def compare_forms(model: ModelProto, lowered: ModelProto, artifact: Artifact) -> None:
    """Check that both forms of a graph give the same outputs in ONNX Runtime, without graph optimizations."""
    feeds = random_feeds(artifact.inputs, BATCH, seed=0)
    with explaining(UnsupportedOperator, "the two forms cannot be compared in ONNX Runtime"):
        original_outputs, lowered_outputs = (
            _run(_pass_pairs(form), artifact.operator_libraries, feeds) for form in (model, lowered)
        )
    kinds = {tensor.data_type for tensor in model.graph.initializer}
    short = artifact.precision in ("fp16", "bf16") or not kinds.isdisjoint((TensorProto.FLOAT16, TensorProto.BFLOAT16))
    limit = TOLERANCE_SHORT if short else TOLERANCE
    for value, expected, actual in zip(model.graph.output, original_outputs, lowered_outputs, strict=True):
        expected, actual = (np.asarray(array, np.float64) for array in (expected, actual))
        difference = math.inf  # relative to the largest value; infinite if shapes or finiteness differ
        if expected.shape == actual.shape and np.array_equal(np.isfinite(expected), np.isfinite(actual)):
            expected, actual = (np.where(np.isfinite(array), array, 0) for array in (expected, actual))
            difference = float(
                np.max(np.abs(expected - actual), initial=0) / (np.max(np.abs(expected), initial=0) or 1)
            )
        if difference > limit:
            lead = f"output {value.name!r} of the lowered graph is {difference:.2g} of its largest value off"
            raise UnsupportedOperator(f"{lead}; expected at most {limit:g}")


def _pass_pairs(model: ModelProto) -> ModelProto:
    """Return the graph without its Q/DQ pairs: with them a difference of rounding becomes a whole step of 8 bits."""
    made = ModelProto()
    made.CopyFrom(model)
    quantized = {node.output[0]: node.input[0] for node in walk_nodes(made) if node.op_type == "QuantizeLinear"}
    for node in walk_nodes(made):
        if node.op_type == "DequantizeLinear" and node.input[0] in quantized:
            node.CopyFrom(helper.make_node("Identity", [quantized[node.input[0]]], node.output[:]))
    return made


def _run(model: ModelProto, libraries: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    register_operators(options, libraries)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))
