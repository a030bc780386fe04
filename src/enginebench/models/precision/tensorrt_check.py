"""Whether TensorRT would refuse a quantized graph: found in milliseconds, before a build is paid for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.models.precision.graph import load_whole_graph, make_consumers, make_producers

# Source: "Working with quantized types" in NVIDIA's TensorRT developer guide, 10.x: INT8, FP8 (E4M3) and INT4.
QUANTIZED_TYPES = frozenset({TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4})
# Zero points and integer products that are computed while the network runs.
DYNAMIC_OPS = frozenset({"DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul"})
INT32_BIAS = "dequantizes int32, as quantized biases are; expected a float bias"
# Refusals that a message lists before it counts the rest.
LISTED = 8
FUSED_OPS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd"})


class Refusal(Struct, frozen=True, kw_only=True):
    """One node that TensorRT does not take, and why."""

    node: str
    op_type: str
    reason: str


class _Graph(Struct, frozen=True, kw_only=True, eq=False):
    constants: dict[str, Any]  # name -> TensorProto
    consumers: dict[str, list[Any]]  # tensor -> nodes
    producers: dict[str, Any]  # tensor -> node


def check_for_tensorrt(path: Path) -> list[Refusal]:
    """What TensorRT would refuse in the Q/DQ nodes of an ONNX file; empty if nothing.

    Raises:
        ParseError: it is no ONNX model.
        ArtifactError: it cannot be read.
    """
    return find_refusals(load_whole_graph(path))


def refuse_what_tensorrt_refuses(model: ModelProto, what: str) -> None:
    """Returns if TensorRT takes the Q/DQ nodes of a graph.

    Args:
        model: the graph.
        what: how to call it in a message.

    Raises:
        ArtifactError: names the nodes that it would refuse, and why.
    """
    refusals = find_refusals(model)
    if refusals:
        listed = "; ".join(f"{r.node}: {r.reason}" for r in refusals[:LISTED])
        more = f"; and {len(refusals) - LISTED} more" if len(refusals) > LISTED else ""
        raise ArtifactError(
            f"TensorRT would refuse {len(refusals)} nodes of {what}: {listed}{more}. Make one that it takes with "
            "enginebench quantize --to int8@tensorrt, from the FP32 graph"
        )


def find_refusals(model: ModelProto) -> list[Refusal]:
    """What TensorRT would refuse in the Q/DQ nodes of a graph; empty if nothing.

    Source: "Working with quantized types" in the TensorRT developer guide; microsoft/onnxruntime issues 14229 and 17738
        (bias), NVIDIA/TensorRT issues 2774 (zero point) and 4698 (dynamic quantization).
    """
    graph = _Graph(
        constants=_collect_constants(model), consumers=make_consumers(model), producers=make_producers(model)
    )
    refusals = []
    for node in model.graph.node:
        reasons: Iterator[str] = iter(())
        if node.op_type in DYNAMIC_OPS:
            reasons = iter([f"{node.op_type} quantizes while the network runs; only constant scales are taken"])
        elif node.op_type in FUSED_OPS:
            reasons = iter(
                [f"{node.op_type} is ONNX Runtime's own form; only QuantizeLinear and DequantizeLinear are taken"]
            )
        elif node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            reasons = _judge_quantizer(node, graph)
        refusals += [Refusal(node=node.name or node.output[0], op_type=node.op_type, reason=r) for r in reasons]
    return refusals


def _collect_constants(model: ModelProto) -> dict[str, TensorProto]:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            tensors = [a.t for a in node.attribute if a.type == onnx.AttributeProto.TENSOR]
            constants.update(zip(node.output, tensors, strict=False))
    return constants


def _judge_quantizer(node: NodeProto, graph: _Graph) -> Iterator[str]:
    yield from _judge_scale(node, graph.constants)
    yield from _judge_zero_point(node, graph.constants)
    yield from _judge_bias(node, graph)
    yield from _judge_axis(node, graph)


def _judge_scale(node: NodeProto, constants: Mapping[str, TensorProto]) -> Iterator[str]:
    scale = constants.get(node.input[1])
    if scale is None:
        yield f"scale {node.input[1]!r} is not a constant"
        return
    values = numpy_helper.to_array(scale).astype(np.float64)
    if not np.isfinite(values).all():
        yield f"scale {node.input[1]!r} holds a value that is not finite"
    elif (values <= 0).any():
        yield f"scale {node.input[1]!r} holds {values.min():g}; expected values above zero"


def _judge_zero_point(node: NodeProto, constants: Mapping[str, TensorProto]) -> Iterator[str]:
    if len(node.input) < 3 or not node.input[2]:
        type_wanted = next((a.i for a in node.attribute if a.name == "output_dtype"), 0)
        if node.op_type == "QuantizeLinear" and type_wanted not in QUANTIZED_TYPES:
            yield "no zero point: the output is uint8; expected int8"
        return
    zero = constants.get(node.input[2])
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


def _judge_bias(node: NodeProto, graph: _Graph) -> Iterator[str]:
    if node.op_type != "DequantizeLinear":
        return
    stored = graph.constants.get(node.input[0])
    if stored is not None and stored.data_type == TensorProto.INT32 and len(node.input) < 3:
        yield INT32_BIAS
    for reader in graph.consumers.get(node.output[0], []):
        if reader.op_type in ("Conv", "ConvTranspose", "Gemm") and node.output[0] in reader.input[2:]:
            yield f"bias of {reader.name or reader.op_type!r} is quantized; expected a float bias"


def _judge_axis(node: NodeProto, graph: _Graph) -> Iterator[str]:
    scale = graph.constants.get(node.input[1])
    if scale is None or math.prod(scale.dims) <= 1:
        return
    weight = _find_weight(node, graph)
    if weight is None:
        yield "one scale for each channel of an activation; expected a single scale"
        return
    rank = len(weight.dims)
    axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1) % max(rank, 1)
    for reader in graph.consumers.get(node.output[0], []) if node.op_type == "DequantizeLinear" else []:
        expected = _find_channel_axis(reader, list(reader.input).index(node.output[0]), rank)
        if expected is not None and axis != expected:
            yield f"scales along axis {axis} of the weight of {reader.name or reader.op_type!r}; expected {expected}"


def _find_weight(node: NodeProto, graph: _Graph) -> TensorProto | None:
    """The constant behind a quantizer, or behind a pair; None if it is an activation."""
    source = node.input[0]
    if source not in graph.constants and source in graph.producers:
        before = graph.producers[source]
        source = before.input[0] if before.op_type == "QuantizeLinear" else source
    return graph.constants.get(source)


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
            return 0 if any(a.name == "transB" and a.i for a in reader.attribute) else 1
        case "MatMul":
            return rank - 1
    return None
