"""Whether TensorRT would refuse a quantized graph: found in milliseconds, before a build is paid for.

TensorRT and TensorRT for RTX differ here and there. The rules of RTX were held against NVIDIA's own parser and builder
(`benchmarks/refusals.py`); those of TensorRT are what its documentation and its users say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.models.precision.graph import load_whole_graph, make_consumers, make_producers

# Source: "Working with quantized types" in NVIDIA's TensorRT developer guide, 10.x: INT8, FP8 (E4M3) and INT4.
QUANTIZED_TYPES = frozenset({TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4})
# Zero points and integer products that are computed while the network runs.
DYNAMIC_OPS = frozenset({"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul"})
FUSED_OPS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd"})
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
INT32_BIAS = "dequantizes int32, as quantized biases are; expected a float bias"
# Refusals that a message lists before it counts the rest.
LISTED = 8
# A scale is folded out of constants up to this size; beyond it nothing is a scale.
FOLDED_ELEMENTS = 1 << 20
# Compute capabilities without a type, and without matrix products that end in FP32. Seen in TensorRT for RTX 1.7.1.
LACKING: dict[int, frozenset[str]] = {
    TensorProto.FLOAT8E4M3FN: frozenset({"7.5", "8.0", "8.6"}),
    TensorProto.INT4: frozenset({"7.5"}),
    TensorProto.BFLOAT16: frozenset({"7.5"}),
}
LACKING_FP32_PRODUCTS = frozenset({"7.5"})


class Refusal(Struct, frozen=True, kw_only=True):
    """One node that TensorRT does not take, and why."""

    node: str
    op_type: str
    reason: str


class _Scope(Struct, frozen=True, kw_only=True, eq=False):
    """What the nodes of one graph see: what it holds itself, and what the graphs around it do."""

    constants: dict[str, Any]  # name -> TensorProto
    producers: dict[str, Any]  # tensor -> node
    consumers: dict[str, list[Any]]  # tensor -> nodes
    types: dict[str, Any]  # tensor -> TypeProto.Tensor
    rtx: bool
    targets: frozenset[str]


def check_for_tensorrt(path: Path) -> list[Refusal]:
    """What TensorRT would refuse in the Q/DQ nodes of an ONNX file; empty if nothing.

    Raises:
        ParseError: it is no ONNX model.
        ArtifactError: it cannot be read.
    """
    return find_refusals(load_whole_graph(path))


def refuse_what_tensorrt_refuses(
    model: ModelProto, what: str, *, rtx: bool = False, targets: Collection[str] = ()
) -> None:
    """Checks that TensorRT accepts the Q/DQ nodes of a graph.

    Args:
        model: the graph.
        what: how to call it in a message.
        rtx: as `find_refusals`.
        targets: as `find_refusals`.

    Raises:
        ArtifactError: names the nodes that it would refuse, and why.
    """
    refusals = find_refusals(model, rtx=rtx, targets=targets)
    if refusals:
        listed = "; ".join(f"{r.node}: {r.reason}" for r in refusals[:LISTED])
        more = f"; and {len(refusals) - LISTED} more" if len(refusals) > LISTED else ""
        raise ArtifactError(
            f"TensorRT{' for RTX' if rtx else ''} would refuse {len(refusals)} nodes of {what}: {listed}{more}. Make "
            "one that it takes with enginebench quantize --to int8@tensorrt, from the FP32 graph"
        )


def find_refusals(model: ModelProto, *, rtx: bool = False, targets: Collection[str] = ()) -> list[Refusal]:
    """What TensorRT would refuse in the Q/DQ nodes of a graph, its branches and functions; empty if nothing.

    A graph that TensorRT for RTX takes and gives another meaning (uint8 as int8, a zero point of FP8 dropped) is
    refused as well.

    Args:
        model: the graph, with its weights.
        rtx: by the rules of TensorRT for RTX.
        targets: compute capabilities, such as 8.6, that the plan is to be for.

    Source: "Working with quantized types" in the TensorRT developer guide; microsoft/onnxruntime issues 14229 and 17738
        (bias), NVIDIA/TensorRT issues 2774 (zero point) and 4698 (dynamic quantization).
    """
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    outside = _Scope(constants={}, producers={}, consumers={}, types={}, rtx=rtx, targets=frozenset(targets))
    return list(_judge_graph(model.graph, outside))


def _judge_graph(graph: GraphProto, outside: _Scope) -> Iterator[Refusal]:
    scope = _enter(graph, outside)
    for node in graph.node:
        for reason in _judge_node(node, scope):
            yield Refusal(node=node.name or node.output[0], op_type=node.op_type, reason=reason)
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs:
                yield from _judge_graph(inner, scope)


def _enter(graph: GraphProto, outside: _Scope) -> _Scope:
    """The scope of a graph inside of another one."""
    values = (*graph.input, *graph.value_info, *graph.output)
    return replace(
        outside,
        constants=outside.constants | {tensor.name: tensor for tensor in graph.initializer} | _read_constants(graph),
        producers=outside.producers | make_producers(graph),
        consumers=make_consumers(graph),
        types=outside.types | {value.name: value.type.tensor_type for value in values},
    )


def _read_constants(graph: GraphProto) -> dict[str, TensorProto]:
    """Name -> tensor of the Constant nodes, in whatever form they hold it; text and sparse ones left out."""
    found = {}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute:
            value = helper.get_attribute_value(node.attribute[0])
            if isinstance(value, TensorProto):
                found[node.output[0]] = value
            elif node.attribute[0].name in ("value_float", "value_floats"):
                found[node.output[0]] = numpy_helper.from_array(np.asarray(value, np.float32))
            elif node.attribute[0].name in ("value_int", "value_ints"):
                found[node.output[0]] = numpy_helper.from_array(np.asarray(value, np.int64))
    return found


def _judge_node(node: NodeProto, scope: _Scope) -> Iterator[str]:
    if node.op_type in DYNAMIC_OPS:
        yield f"{node.op_type} quantizes while the network runs; only constant scales are taken"
    elif node.op_type in FUSED_OPS:
        yield f"{node.op_type} is ONNX Runtime's own form; only QuantizeLinear and DequantizeLinear are taken"
    elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        yield from _judge_quantizer(node, scope)
    elif node.op_type in PRODUCTS:
        yield from _judge_operands(node, scope)


def _judge_quantizer(node: NodeProto, scope: _Scope) -> Iterator[str]:
    scale = _find_constant(node.input[1], scope)
    if scale is None:
        yield f"scale {node.input[1]!r} is not a constant"
    else:
        yield from _judge_scale(node, scale)
        yield from _judge_count(node, scale, scope)
        yield from _judge_axis(node, scale, scope)
        yield from _judge_target(scale.data_type, scope)
    yield from _judge_zero_point(node, scope)
    yield from _judge_bias(node, scope)


def _find_constant(name: str, scope: _Scope) -> TensorProto | None:
    """The constant of a name; for RTX, whose parser folds, also one that is computed from constants."""
    if name in scope.constants or not scope.rtx:
        return scope.constants.get(name)
    node = scope.producers.get(name)
    if node is None or not node.input or node.op_type.endswith("QuantizeLinear"):
        return None
    operands = {operand: _find_constant(operand, scope) for operand in node.input if operand}
    if any(tensor is None or math.prod(tensor.dims) > FOLDED_ELEMENTS for tensor in operands.values()):
        return None
    return _fold(node, name, {operand: numpy_helper.to_array(tensor) for operand, tensor in operands.items() if tensor})


def _fold(node: NodeProto, name: str, operands: dict[str, Any]) -> TensorProto | None:
    """What a node makes of constants; None for what the reference of ONNX cannot compute."""
    from onnx.reference import ReferenceEvaluator

    try:
        found = ReferenceEvaluator(node).run(None, operands)
        return numpy_helper.from_array(np.asarray(found[list(node.output).index(name)]))
    except Exception:  # an operator of another domain, or operands that do not fit: no constant in any case
        return None


def _judge_scale(node: NodeProto, scale: TensorProto) -> Iterator[str]:
    values = numpy_helper.to_array(scale).astype(np.float64)
    if not np.isfinite(values).all():
        yield f"scale {node.input[1]!r} holds a value that is not finite"
    elif (values <= 0).any():
        yield f"scale {node.input[1]!r} holds {values.min():g}; expected values above zero"


def _judge_zero_point(node: NodeProto, scope: _Scope) -> Iterator[str]:
    if len(node.input) < 3 or not node.input[2]:
        type_wanted = _read_attribute(node, "output_dtype", 0)
        if node.op_type == "QuantizeLinear" and type_wanted not in QUANTIZED_TYPES:
            yield "no zero point: the output is uint8; expected int8"
        yield from _judge_target(type_wanted, scope)
        return
    zero = _find_constant(node.input[2], scope)
    if zero is None:
        yield f"zero point {node.input[2]!r} is not a constant"
        return
    if zero.data_type == TensorProto.INT32:
        yield INT32_BIAS
    elif zero.data_type not in QUANTIZED_TYPES:
        yield f"quantized type {TensorProto.DataType.Name(zero.data_type).lower()}; expected int8 or float8e4m3fn"
    # One byte a number, or two numbers a byte: what is not zero has a bit set, in every one of the types.
    if np.any(numpy_helper.to_array(zero).astype(np.float32) != 0):
        yield f"zero point {node.input[2]!r} is not 0; expected symmetric quantization"
    yield from _judge_target(zero.data_type, scope)


def _judge_target(data_type: int, scope: _Scope) -> Iterator[str]:
    without = sorted(scope.targets & LACKING.get(data_type, frozenset()))
    if without:
        name = TensorProto.DataType.Name(data_type).lower()
        yield f"GPUs of compute capability {', '.join(without)} have no {name}"


def _judge_bias(node: NodeProto, scope: _Scope) -> Iterator[str]:
    if node.op_type != "DequantizeLinear":
        return
    stored = scope.constants.get(node.input[0])
    if stored is not None and stored.data_type == TensorProto.INT32 and len(node.input) < 3:
        yield INT32_BIAS
    if scope.rtx:
        return  # which adds it in floats, in the same kernel
    for reader in scope.consumers.get(node.output[0], []):
        if reader.op_type in ("Conv", "ConvTranspose", "Gemm") and node.output[0] in reader.input[2:]:
            yield f"bias of {reader.name or reader.op_type!r} is quantized; expected a float bias"


def _judge_count(node: NodeProto, scale: TensorProto, scope: _Scope) -> Iterator[str]:
    """The number of scales against the tensor that they belong to, where its shape is known."""
    shape = _find_shape(node, scope)
    if math.prod(scale.dims) <= 1 or not shape:
        return
    axis = _read_attribute(node, "axis", 1)
    length = shape[axis] if -len(shape) <= axis < len(shape) else 0
    count = scale.dims[axis] if len(scale.dims) == len(shape) and len(shape) > 1 else scale.dims[0]
    if _read_attribute(node, "block_size", 0):
        if length and (count > length or length % count):
            yield f"{count} blocks along axis {axis}, which has {length} entries; expected blocks of one length"
    elif length and count != length:
        yield f"{count} scales along axis {axis}, which has {length} entries"


def _judge_axis(node: NodeProto, scale: TensorProto, scope: _Scope) -> Iterator[str]:
    """Along which axis there are scales. RTX takes any, and where it has no kernel for it computes in floats."""
    if scope.rtx or math.prod(scale.dims) <= 1:
        return
    weight = _find_weight(node, scope)
    if weight is None:
        yield "one scale for each channel of an activation; expected a single scale"
        return
    if _read_attribute(node, "block_size", 0):
        if weight.data_type != TensorProto.INT4:
            yield "scales in blocks; expected one for each channel, since blocks are for weights in int4"
        return
    rank = len(weight.dims)
    axis = _read_attribute(node, "axis", 1) % max(rank, 1)
    for reader in scope.consumers.get(node.output[0], []) if node.op_type == "DequantizeLinear" else []:
        expected = _find_channel_axis(reader, list(reader.input).index(node.output[0]), rank)
        if expected is not None and axis != expected:
            yield f"scales along axis {axis} of the weight of {reader.name or reader.op_type!r}; expected {expected}"


def _judge_operands(node: NodeProto, scope: _Scope) -> Iterator[str]:
    """What a product is given by Q/DQ nodes: both sides in one type."""
    pairs = [scope.producers.get(name) for name in node.input[:2]]
    if not any(pair is not None and pair.op_type == "DequantizeLinear" for pair in pairs):
        return
    types = [_find_float_type(name, scope) for name in node.input[:2]]
    if None not in types and types[0] != types[1]:
        names = " and ".join(TensorProto.DataType.Name(kind or 0).lower() for kind in types)
        yield f"its operands are {names}, as the scales before them are; expected one type"
    without = sorted(scope.targets & LACKING_FP32_PRODUCTS)
    if without and node.op_type in ("Gemm", "MatMul") and TensorProto.FLOAT in types:
        yield f"GPUs of compute capability {', '.join(without)} have no matrix product that ends in FP32"
    if scope.rtx and pairs[0] is not None and pairs[1] is not None:
        yield from _judge_mixture(pairs[0], pairs[1], scope)


def _judge_mixture(activation: NodeProto, weight: NodeProto, scope: _Scope) -> Iterator[str]:
    """Two quantized types in one product: RTX knows one such pair."""
    stored = [_find_stored_type(pair, scope) for pair in (activation, weight)]
    scale = _find_constant(weight.input[1], scope) if stored[1] is not None else None
    if stored[0] == stored[1] or scale is None or not QUANTIZED_TYPES.issuperset(stored):
        return  # what is none of the quantized types was refused for that
    names = [TensorProto.DataType.Name(kind or 0).lower() for kind in stored]
    by_channel = math.prod(scale.dims) > 1
    if stored != [TensorProto.INT8, TensorProto.INT4] or not by_channel:
        yield f"an activation in {names[0]} and a weight in {names[1]}; expected one type, or int4 weights by channel"


def _find_float_type(name: str, scope: _Scope) -> int | None:
    """The element type of an operand: that of the scale of the pair before it, of a constant, or as it is declared."""
    pair = scope.producers.get(name)
    if pair is not None and pair.op_type == "DequantizeLinear":
        scale = _find_constant(pair.input[1], scope)
        return _read_attribute(pair, "output_dtype", 0) or (None if scale is None else int(scale.data_type))
    if name in scope.constants:
        return int(scope.constants[name].data_type)
    return int(scope.types[name].elem_type) or None if name in scope.types else None


def _find_stored_type(pair: NodeProto | None, scope: _Scope) -> int | None:
    """The quantized type behind a DequantizeLinear, as its zero point says it."""
    if pair is None or pair.op_type != "DequantizeLinear" or len(pair.input) < 3:
        return None
    zero = _find_constant(pair.input[2], scope)
    return None if zero is None else int(zero.data_type)


def _find_shape(node: NodeProto, scope: _Scope) -> list[int]:
    """The shape of what a quantizer works on, open axes as 0; empty if it is not known."""
    weight = _find_weight(node, scope)
    if weight is not None:
        return list(weight.dims)
    for name in (node.input[0], _find_source(node, scope), node.output[0]):
        if name in scope.types and scope.types[name].HasField("shape"):
            return [int(axis.dim_value) for axis in scope.types[name].shape.dim]
    return []


def _find_source(node: NodeProto, scope: _Scope) -> str:
    """The tensor before a quantizer, or before the pair that it is part of."""
    before = scope.producers.get(node.input[0]) if node.input[0] not in scope.constants else None
    return str(before.input[0] if before is not None and before.op_type == "QuantizeLinear" else node.input[0])


def _find_weight(node: NodeProto, scope: _Scope) -> TensorProto | None:
    """The constant behind a quantizer, or behind a pair; None if it is an activation."""
    return scope.constants.get(_find_source(node, scope))


def _read_attribute(node: NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _find_channel_axis(reader: NodeProto, operand: int, rank: int) -> int | None:
    """The axis of a weight that counts output channels, by the layout of its operator; None if it is no weight."""
    if operand != 1:
        return None
    match reader.op_type:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1
        case "Gemm":
            return 0 if _read_attribute(reader, "transB", 0) else 1
        case "MatMul":
            return rank - 1
    return None
