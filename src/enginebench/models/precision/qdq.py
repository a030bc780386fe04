"""INT8 and FP8 by explicit Q/DQ nodes: what the recipes ask of onnxruntime's quantizer, and what they add to it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime.quantization.calibrate import TensorData, TensorsData

from enginebench.core.errors import ArtifactError, explaining
from enginebench.models.precision.calibration import TensorRange
from enginebench.models.precision.graph import (
    FreeNames,
    drop_unused_constants,
    make_consumers,
    make_producers,
    name_nodes,
    quiet_logging,
    sort_nodes,
)
from enginebench.models.precision.indexed import quantize_indexed

INT8_MAX = 127
# The largest number of E4M3. Source: P. Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433.
E4M3_MAX = 448.0
# FP8 came to QuantizeLinear with 19. Source: ONNX operator changelog.
FP8_OPSET = 19
# A channel whose scale is less than this share of the tensor's largest adds less than float32 rounds off a sum of both:
# half a unit in the last of 24 places.
SMALLEST_SCALE_SHARE = 2.0**-24

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class Scheme(Struct, frozen=True, kw_only=True):
    """The settings of a recipe for the quantizer."""

    op_types: tuple[str, ...]
    unsigned_activations: bool
    outputs: bool  # whether what nodes make is quantized, too, and needs a range
    options: dict[str, Any]


TENSORRT = Scheme(
    op_types=WEIGHTED,
    unsigned_activations=False,
    outputs=False,
    options={
        "ActivationSymmetric": True,
        "WeightSymmetric": True,
        "QuantizeBias": False,  # a dequantized int32 bias is refused
        "AddQDQPairToWeight": True,  # TensorRT before 10 takes weights as floats behind a pair only
        "DedicatedQDQPair": True,
        # Behind a convolution stand its bias, its activation and its residual sum, all fused in more than 8 bits.
        "OpTypesToExcludeOutputQuantization": list(WEIGHTED),
        "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1},
    },
)
# What ONNX Runtime has 8-bit CPU kernels for and classification networks use. No ConvTranspose: it has no such kernel.
# Source: onnxruntime/core/optimizer/qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc, 1.20.
CPU = Scheme(
    op_types=(
        *("Add", "AveragePool", "Clip", "Concat", "Conv", "Flatten", "Gemm", "GlobalAveragePool", "LeakyRelu"),
        *("MatMul", "MaxPool", "Mul", "Relu", "Reshape", "Sigmoid", "Squeeze", "Transpose", "Unsqueeze"),
    ),
    unsigned_activations=True,
    outputs=True,
    options={"ActivationSymmetric": False, "WeightSymmetric": True, "QDQOpTypePerChannelSupportToAxis": {"MatMul": -1}},
)
# Sums along the residual stream of a transformer have outliers by channel, which 8 bits of one scale cannot hold: with
# them quantized, ViT-tiny kept a centred cosine of 0.39; without, 0.99 (random weights). Only products are quantized,
# and give floats.
CPU_TRANSFORMER = Scheme(
    op_types=("Conv", "Gemm", "MatMul"),
    unsigned_activations=True,
    outputs=True,
    options={**CPU.options, "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
)


def insert_quantizers(
    model: ModelProto,
    ranges: Mapping[str, TensorRange],
    scheme: Scheme,
    *,
    per_channel: bool = True,
    reduce_range: bool = False,
    exclude: Sequence[str] = (),
) -> tuple[ModelProto, list[str]]:
    """(the graph with Q/DQ nodes, names of the weighted nodes that cannot have any).

    Args:
        ranges: of its tensors. A node without a range of its input stays as it is.
        reduce_range: weights in 7 bits, for CPUs whose 8-bit products saturate (no VNNI).
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    ends = {
        name: (np.array(tensor_range.low, np.float32), np.array(tensor_range.high, np.float32))
        for name, tensor_range in ranges.items()
    }
    data = {name: TensorData(lowest=low, highest=high) for name, (low, high) in ends.items()}
    prepare_biases(copy)
    left_out = find_unquantizable(copy, ranges, scheme)
    with explaining(ArtifactError, "onnxruntime's quantizer fails on this graph"), quiet_logging():
        made = quantize_indexed(
            copy,
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8 if scheme.unsigned_activations else QuantType.QInt8,
            tensors_range=TensorsData(CalibrationMethod.MinMax, data),
            nodes_to_quantize=[],
            nodes_to_exclude=[*left_out, *exclude],
            op_types_to_quantize=list(scheme.op_types),
            extra_options=dict(scheme.options),
        )
    sort_nodes(made)
    name_nodes(made)
    weighted = {node.name for node in model.graph.node if node.op_type in WEIGHTED}
    return made, [name for name in left_out if name in weighted]


def prepare_biases(model: ModelProto) -> None:
    """Give every weighted node a bias of its own, and that of a Gemm one axis, as the quantizer expects them.

    A shared bias it copies under the old name and a number, which may be the name of another tensor. Of a Gemm it takes
    one number for each column of the weight; graphs whose sums were fused into products have 1 x n, and a few one
    number.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    names = FreeNames({name for node in model.graph.node for name in (*node.input, *node.output)})
    used: set[str] = set()
    for node in model.graph.node:
        bias = tensors.get(node.input[2]) if node.op_type in WEIGHTED and len(node.input) > 2 else None
        if bias is None:
            continue
        values, weight = numpy_helper.to_array(bias), tensors.get(node.input[1])
        if node.op_type == "Gemm" and weight is not None and len(weight.dims) == 2:
            columns = weight.dims[0 if any(a.name == "transB" and a.i for a in node.attribute) else 1]
            if values.size in (1, columns) and values.shape[-1:] in ((), (1,), (columns,)):
                values = np.ascontiguousarray(np.broadcast_to(values.reshape(-1), (columns,)))
        if bias.name in used or values.shape != tuple(bias.dims):
            node.input[2] = names.take(f"{bias.name}_{node.name}")
            model.graph.initializer.append(numpy_helper.from_array(values, node.input[2]))
        used.add(bias.name)
    drop_unused_constants(model)


def find_unquantizable(model: ModelProto, ranges: Mapping[str, TensorRange], scheme: Scheme) -> list[str]:
    """Return the names of the nodes of the scheme's types that cannot be quantized.

    A weighted node must have a constant weight (products of two activations, as in attention, lose most and gain
    little), and every other float operand a range.
    """
    constants = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    left_out = []
    for node in model.graph.node:
        if node.op_type not in scheme.op_types:
            continue
        operands = [*node.input, *node.output] if scheme.outputs else [*node.input]
        missing = any(name in floats and name not in constants and name not in ranges for name in operands)
        constant = node.op_type not in WEIGHTED or (node.input[0] not in constants and node.input[1] in constants)
        bias = next(iter(node.input[2:3]), "") if node.op_type in WEIGHTED else ""  # a matrix of them has no scale
        if missing or not constant or (bias and constants.get(bias) != 1):
            left_out.append(node.name)
    return left_out


def quantize_residuals(model: ModelProto, ranges: Mapping[str, TensorRange], exclude: Sequence[str] = ()) -> None:
    """Put a signed symmetric Q/DQ pair on the skipping input of every residual sum.

    The other input comes straight out of a convolution or matrix product, which takes the sum into its own kernel; the
    kernel's output has the precision of what is added to it. So where an average alone reads the sum, and its result is
    rounded, it reads 8 bits as well: TensorRT 8.6 (resnet50, batch 32) else makes floats of the 8 bits before the last
    sum, writes floats, and copies them once more for the average, 26 us of 746.

    Source: "Q/DQ placement recommendations" in NVIDIA's TensorRT developer guide: quantize the residual input of skip
        connections; layers that do not commute with Q/DQ need a pair of their own.
    """
    sums = [node for node in model.graph.node if node.op_type == "Add" and node.name not in exclude]
    if not sums:
        return
    producers, consumers = make_producers(model), make_consumers(model)
    producers = {tensor: node for tensor, node in producers.items() if node.name not in exclude}
    order = {node.name: i for i, node in enumerate(model.graph.node)}
    for node in sums:
        skipping = _find_skipping_input(node, producers, consumers, order)
        skip = node.input[skipping] if skipping is not None else ""
        if skip in ranges:
            node.input[skipping] = _add_pair(model, skip, node.name, ranges[skip])
        average = _find_average(node, consumers) if skip in ranges or _find_rounded(skip, producers) else None
        if average is not None and average.name not in exclude and average.input[0] in ranges:
            average.input[0] = _add_pair(model, average.input[0], average.name, ranges[average.input[0]])
    sort_nodes(model)


def _find_average(node: NodeProto, consumers: Mapping[str, list[NodeProto]]) -> NodeProto | None:
    """The average that alone reads what a sum makes, behind its activation, if what it makes is rounded to 8 bits."""
    average = None
    while len(readers := consumers.get(node.output[0], [])) == 1:
        node = readers[0]
        if node.op_type in ("ReduceMean", "GlobalAveragePool", "AveragePool"):
            average = average or node
        elif node.op_type not in ("Relu", "Clip", "Flatten", "Reshape", "Squeeze"):
            break
    return average if node.op_type == "QuantizeLinear" else None


def _find_skipping_input(
    node: NodeProto,
    producers: Mapping[str, NodeProto],
    consumers: Mapping[str, list[NodeProto]],
    order: Mapping[str, int],
) -> int | None:
    """The index of the input that did not come out of the weighted node next to the sum; None if it is no such sum."""
    makers = [producers.get(name) for name in node.input]
    fusible = [
        maker is not None and maker.op_type in WEIGHTED and len(consumers[name]) == 1
        for maker, name in zip(makers, node.input, strict=True)
    ]
    if not any(fusible):
        return None
    if all(fusible):  # both branches end in a convolution: the later one takes the sum
        positions = [order[maker.name] for maker in makers if maker is not None]
        return positions.index(min(positions))
    return fusible.index(False)


def _add_pair(model: ModelProto, tensor: str, reader: str, tensor_range: TensorRange) -> str:
    """Add a pair behind a tensor, and return the name of its output."""
    base = f"{tensor}_{reader}"
    parameters = [f"{base}_scale", f"{base}_zero_point"]
    values = np.array(np.float32(tensor_range.largest / INT8_MAX) or 1, np.float32), np.array(0, np.int8)
    model.graph.initializer.extend(map(numpy_helper.from_array, values, parameters))
    for kind, source, made in (("Quantize", tensor, f"{base}_q"), ("Dequantize", f"{base}_q", f"{base}_dq")):
        model.graph.node.append(
            helper.make_node(f"{kind}Linear", [source, *parameters], [made], f"{base}_{kind}Linear")
        )
    return made


def release_excluded(model: ModelProto, exclude: Sequence[str]) -> None:
    """Let excluded nodes read the floats of a tensor: the quantizer gives all of its readers the rounded one.

    Without it a residual sum in FP32 would add what was rounded for the convolution beside it. Behind a quantized node
    there are no floats: its kernel makes 8-bit values.
    """
    producers = make_producers(model)
    names = set(exclude)
    for node in model.graph.node:
        for i, name in enumerate(node.input if node.name in names else ()):
            source = _find_rounded(name, producers)
            maker = producers.get(source or "")
            if source is not None and not (maker and any(_find_rounded(operand, producers) for operand in maker.input)):
                node.input[i] = source
    ends = {value.name for value in model.graph.output}
    while True:  # nodes without readers are removed, then those that only they read
        read = {name for node in model.graph.node for name in node.input} | ends
        pairs = [node for node in model.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
        if not (unread := [node for node in pairs if node.output[0] not in read]):
            break
        for node in unread:
            model.graph.node.remove(node)
    drop_unused_constants(model)


def _find_rounded(tensor: str, producers: Mapping[str, NodeProto]) -> str | None:
    """The tensor that a pair rounds to make this one; None if no pair makes it."""
    dequantizer = producers.get(tensor)
    if dequantizer is None or dequantizer.op_type != "DequantizeLinear":
        return None
    quantizer = producers.get(dequantizer.input[0])
    return str(quantizer.input[0]) if quantizer is not None and quantizer.op_type == "QuantizeLinear" else None


def release_outputs(model: ModelProto, prepared: ModelProto) -> None:
    """Remove the pair before every output of the graph: the last kernel computes floats, and 8 bits are few for logits.

    Args:
        prepared: the same graph before it got them. The quantizer takes a ReLU or Clip away where the levels behind it
            cut the same values off; without the levels it must stand there again.
    """
    producers, consumers = make_producers(model), make_consumers(model)
    for value in model.graph.output:
        source = _find_rounded(value.name, producers)
        maker = producers.get(source or "")
        if source is None or maker is None or value.name in consumers or len(consumers[source]) > 1:
            continue
        model.graph.node.remove(consumers[source][0])
        model.graph.node.remove(producers[value.name])
        if not _put_back(model, prepared, source, value.name):
            maker.output[list(maker.output).index(source)] = value.name
    drop_unused_constants(model)


def _put_back(model: ModelProto, prepared: ModelProto, source: str, output: str) -> bool:
    """Restore the nodes that the quantizer removed between `source` and an output; return whether there were any."""
    producers, present = make_producers(prepared), {node.name for node in model.graph.node}
    removed: list[NodeProto] = []  # copies of the activations that are not present, the first first
    node = producers.get(output)
    while node is not None and node.op_type in ("Relu", "Clip") and node.name not in present:
        removed.insert(0, NodeProto.FromString(node.SerializeToString()))
        node = producers.get(node.input[0])
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in removed:
        node.input[0], source = source, node.output[0]
        model.graph.node.append(node)
        limits = [t for t in prepared.graph.initializer if t.name in node.input[1:] and t.name not in stored]
        model.graph.initializer.extend(limits)
        stored.update(tensor.name for tensor in limits)
    return bool(removed)


def raise_dead_scales(model: ModelProto) -> int:
    """Give channels without weights a small scale in place of an arbitrary one; return their number.

    Only where weights are floats behind a pair: there the scale may change.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    weighted = [n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] in tensors]
    raised = 0
    for name, node in {node.input[1]: node for node in reversed(weighted)}.items():
        weights, scale = numpy_helper.to_array(tensors[node.input[0]]), numpy_helper.to_array(tensors[name])
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), 1)
        channels = np.moveaxis(weights, axis, 0).reshape(scale.size, -1) if scale.ndim else weights.reshape(1, -1)
        own = np.abs(channels).max(axis=1) / INT8_MAX
        floor = max(float(own.max()) * SMALLEST_SCALE_SHARE, float(np.finfo(np.float32).tiny))
        dead = own < floor
        if dead.any():
            floored = np.where(dead, np.float32(floor), scale.reshape(-1)).astype(np.float32)
            tensors[name].CopyFrom(numpy_helper.from_array(floored.reshape(scale.shape), name))
            raised += int(dead.sum())
    return raised


def write_scalars(model: ModelProto) -> None:
    """Give scales and zero points of one value the form of a scalar, which means the same.

    With a scale of shape [1] TensorRT for RTX (seen in 1.7.1) takes an activation for one with a scale by channel, and
    convolves in floats without a word.
    """
    parameters, others = set[str](), set[str]()
    for node in model.graph.node:
        is_quantizer = node.op_type in ("QuantizeLinear", "DequantizeLinear")
        others.update(node.input[:1] if is_quantizer else node.input)
        parameters.update(node.input[1:3] if is_quantizer else ())
    parameters -= others
    for tensor in model.graph.initializer:
        if tensor.name in parameters and list(tensor.dims) == [1]:
            del tensor.dims[:]


def turn_into_fp8(model: ModelProto) -> None:
    """Rewrite signed symmetric INT8 pairs as E4M3 ones of the same range, in place."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    scales, zero_points = set(), set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scales.add(node.input[1])
            zero_points.add(node.input[2])
    for name in scales:
        scale = numpy_helper.to_array(tensors[name]) * np.float32(INT8_MAX / E4M3_MAX)
        tensors[name].CopyFrom(numpy_helper.from_array(scale.astype(np.float32), name))
    for name in zero_points:
        zero = tensors[name]
        if zero.data_type != TensorProto.INT8:
            raise ArtifactError(f"zero point {name!r} is not int8; FP8 is made only from signed symmetric pairs")
        count = int(np.prod(zero.dims, dtype=np.int64))
        zero.CopyFrom(helper.make_tensor(name, TensorProto.FLOAT8E4M3FN, list(zero.dims), bytes(count), raw=True))
