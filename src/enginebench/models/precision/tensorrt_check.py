"""Check the three rules for quantized graphs that every TensorRT has, in milliseconds and before a build.

Graphs of other tools often break them, and some breaches end a builder's process without a message. All other checks
are left to NVIDIA's own parser, which each build runs first, and which names the node.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact
from enginebench.core.text import list_some
from enginebench.models.precision.graph import make_producers, read_graphs

# Source: "Working with quantized types" in NVIDIA's TensorRT developer guide, 10.x: INT8, FP8 (E4M3) and INT4.
QUANTIZED_TYPES = frozenset({TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4})
# Zero points and integer products that are computed while the network runs.
DYNAMIC_OPS = frozenset({"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul"})
FUSED_OPS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd"})


class Refusal(NamedTuple):
    """One node that TensorRT does not accept, and the reason."""

    node: str
    reason: str


class _Scope(NamedTuple):
    """The constants and producers that are visible in one graph: its own, and those of the graphs around it."""

    constants: Mapping[str, TensorProto]
    producers: Mapping[str, NodeProto]


def refuse_what_tensorrt_refuses(model: ModelProto, graph_name: str) -> None:
    """Check that no rule of `find_refusals` refuses a graph."""
    if refusals := find_refusals(model):
        listed = list_some([f"{r.node}: {r.reason}" for r in refusals])
        raise ArtifactError(
            f"TensorRT would refuse {len(refusals)} nodes of {graph_name}: {listed}. Make one that it takes with "
            f"{format_command('quantize', 'FP32.onnx', options=[('--to', 'int8@tensorrt')])}"
        )


def find_refusals(model: ModelProto) -> list[Refusal]:
    """Return the nodes of a graph, its branches and functions that break a rule; empty if none does.

    The rules: quantization is by QuantizeLinear and DequantizeLinear; to int8, FP8 or int4 with a zero point of 0; by
    scales that are constant and above zero. Graphs that some TensorRT accepts but misreads (uint8 as int8, a zero point
    of FP8 dropped) break them as well.

    Source: "Working with quantized types" in the TensorRT developer guide; NVIDIA/TensorRT issues 2774 (zero point)
        and 4698 (dynamic quantization); microsoft/onnxruntime issues 14229 and 17738 (int32 bias).
    """
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    return list(_list_graph_refusals(model.graph, _Scope({}, {})))


def find_left_refusals(source: Artifact, made: Artifact, model: ModelProto) -> list[Refusal]:
    """Return `find_refusals` of a graph made of `source`: none of one in FP32 for TensorRT, which has been checked."""
    return [] if source.precision == "fp32" and made.recipe == "tensorrt" else find_refusals(model)


def _list_graph_refusals(graph: GraphProto, outside: _Scope) -> Iterator[Refusal]:
    constants = {
        n.output[0]: a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.name == "value"
    }
    constants |= {tensor.name: tensor for tensor in graph.initializer}
    scope = _Scope({**outside.constants, **constants}, {**outside.producers, **make_producers(graph)})
    # A pair shares its scale and its zero point, and many pairs share theirs.
    find_scale_reasons = cache(lambda name: tuple(_list_scale_refusals(name, scope)))
    find_zero_point_reasons = cache(lambda name: tuple(_list_zero_point_refusals(name, scope)))
    for node in graph.node:
        reasons: list[str] = []
        if node.op_type in DYNAMIC_OPS:
            reasons = [f"{node.op_type} quantizes while the network runs; only constant scales are taken"]
        elif node.op_type in FUSED_OPS:
            reasons = [f"{node.op_type} is ONNX Runtime's own form; only QuantizeLinear and DequantizeLinear are taken"]
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero_point = node.input[2] if len(node.input) > 2 else ""
            reasons = [*find_scale_reasons(node.input[1]), *_list_type_refusals(node, zero_point, scope)]
            reasons += find_zero_point_reasons(zero_point)
        yield from (Refusal(node.name or node.output[0], reason) for reason in reasons)
        for inner in read_graphs(node):
            yield from _list_graph_refusals(inner, scope)


def _list_scale_refusals(name: str, scope: _Scope) -> Iterator[str]:
    if _depends_on_input(name, scope):
        yield f"scale {name!r} is not a constant"
    elif name in scope.constants:
        values = numpy_helper.to_array(scope.constants[name]).astype(np.float64)
        if not np.isfinite(values).all():
            yield f"scale {name!r} holds a value that is not finite"
        elif (values <= 0).any():
            yield f"scale {name!r} holds {values.min():g}; expected values above zero"


def _depends_on_input(name: str, scope: _Scope) -> bool:
    """Return whether a tensor is an input of a graph, or computed from one; the parser may fold all others."""
    pending, visited = [name], {""}
    while pending:
        name = pending.pop()
        if name in visited or name in scope.constants:
            continue
        visited.add(name)
        if name not in scope.producers:
            return True
        pending += scope.producers[name].input
    return False


def _list_type_refusals(node: NodeProto, zero_point: str, scope: _Scope) -> Iterator[str]:
    # Without a zero point the quantized type is that of the input, or the one that `output_dtype` requests.
    quantized = scope.constants.get(zero_point or node.input[0])
    if not zero_point and node.op_type == "QuantizeLinear":
        output_dtype = next((a.i for a in node.attribute if a.name == "output_dtype"), TensorProto.UNDEFINED)
        if output_dtype not in QUANTIZED_TYPES:
            yield "no zero point: the output is uint8; expected int8"
    elif quantized is not None and quantized.data_type == TensorProto.INT32:
        yield "dequantizes int32, as quantized biases are; expected a float bias"
    elif quantized is not None and quantized.data_type not in QUANTIZED_TYPES:
        yield f"quantized type {TensorProto.DataType.Name(quantized.data_type).lower()}; expected int8 or float8e4m3fn"


def _list_zero_point_refusals(name: str, scope: _Scope) -> Iterator[str]:
    if name in scope.constants and np.any(numpy_helper.to_array(scope.constants[name]).astype(np.float32) != 0):
        yield f"zero point {name!r} is not 0; expected symmetric quantization"
