"""Reads a quantized ONNX file as a `Network`: the same file that ONNX Runtime, OpenVINO and TensorRT run.

Whatever tool wrote it, the file is a chain from input to output: QuantizeLinear and DequantizeLinear around Gemm or
MatMul, with biases and ReLU. Weights, scales and zero points are taken as they stand there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from enginebench.core.commands import format_command
from enginebench.core.errors import ModelError, ParseError
from enginebench.core.store import check_regular
from enginebench_fpga.network import Layer, Network, Quantization, fit_multipliers, make_layer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Constant: TypeAlias = Any  # an array of whatever type the file holds

_QUANTIZE = format_command("quantize", "F.onnx", options=[("--to", "int8")])
# Names that only reshape: the gateware sees a flat vector anyhow.
SHAPE_OPERATORS = ("Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze", "Dropout")
RANGES = {np.dtype(np.int8): (-128, 127), np.dtype(np.uint8): (0, 255)}
LARGEST_LAYER = 1 << 20  # weights; the largest device that `synth` knows holds about 126,000 bytes


class _Pending:
    """A linear layer whose output has not been seen to the end: signed bytes [outputs, inputs], a scale for each."""

    def __init__(self, name: str, weights: NDArray[np.int64], scale: NDArray[np.float64], source: Quantization) -> None:
        self.name, self.weights, self.scale, self.source = name, weights, scale, source
        self.bias: NDArray[np.float64] = np.zeros(len(weights))
        self.relu = False
        self.target: Quantization | None = None

    def finish(self) -> Layer:
        try:
            return make_layer(self.weights, self.bias, self.scale, self.source, self.target, relu=self.relu)
        except ModelError as error:
            raise ModelError(f"layer {self.name}: {error}") from error


def read_network(path: Path, multiplier_bits: int = 32) -> Network:
    """The network of a quantized ONNX file, with multipliers of 4 to 32 bits; 32 agree with ONNX Runtime."""
    try:
        graph = onnx.load(str(check_regular(path))).graph
    except onnx.checker.ValidationError as error:  # above all of external data
        advice = "Copy the model with its data into a folder of its own, without links"
        raise ParseError(path, "", str(error).rstrip("."), "weights that onnx reads", advice) from error
    except Exception as error:  # protobuf, the file system and onnx each have their own
        raise ParseError(path, "", f"{type(error).__name__}: {error}", "an ONNX file") from error
    if not graph.node:
        raise ParseError(path, "$.graph", "no nodes", "an ONNX model")
    return fit_multipliers(_Reader(path, graph).read(), multiplier_bits)


class _Reader:
    """Walks the chain from the graph's input to its output."""

    def __init__(self, path: Path, graph: onnx.GraphProto) -> None:
        self.path, self.graph = path, graph
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.producers = {name: node for node in graph.node for name in node.output}
        self.layers: list[_Pending] = []
        self.notes: list[str] = []
        self.input: Quantization | None = None
        self.current: Quantization | None = None  # of the tensor that the walk has reached, if it was quantized

    def read(self) -> Network:
        inputs = [value for value in self.graph.input if value.name not in self.tensors]
        if len(inputs) != 1 or len(self.graph.output) != 1:
            found = f"{len(inputs)} inputs and {len(self.graph.output)} outputs"
            raise ModelError(f"{self.path}: {found}; the FPGA design takes networks with one of each")
        source, target = inputs[0], self.graph.output[0]
        tensor, seen = source.name, 0
        while tensor != target.name:
            node = self._find_consumer(tensor)
            self._take(node, tensor)
            tensor, seen = node.output[0], seen + 1
            if seen > len(self.graph.node):
                raise ModelError(f"{self.path}: the graph is not a chain from {source.name!r} to {target.name!r}")
        if not self.layers or self.input is None:
            raise ModelError(f"{self.path}: no Gemm or MatMul on the way; expected a chain of linear layers")
        return Network(
            layers=tuple(layer.finish() for layer in self.layers),
            input_quantization=self.input,
            input_name=source.name,
            output_name=target.name,
            input_shape=_read_shape(source),
            output_shape=_read_shape(target),
            notes=tuple(self.notes),
        )

    def _find_consumer(self, tensor: str) -> onnx.NodeProto:
        nodes = [node for node in self.graph.node if tensor in node.input]
        if len(nodes) != 1:
            ops = ", ".join(node.op_type for node in nodes) or "nothing"
            raise ModelError(f"{self.path}: tensor {tensor!r} goes to {ops}; expected one node: a chain of layers")
        return nodes[0]

    def _take(self, node: onnx.NodeProto, tensor: str) -> None:
        if node.op_type == "QuantizeLinear":
            self._quantize(node)
        elif node.op_type == "DequantizeLinear":
            if self._read_quantization(node) != self.current:
                self._refuse(node, "its scale and zero point differ from those of the QuantizeLinear before it")
        elif node.op_type in ("Gemm", "MatMul"):
            self._begin_layer(node, tensor)
        elif node.op_type == "Add":
            other = [name for name in node.input if name != tensor]
            if not self.layers or len(other) != 1 or self.layers[-1].target or self.layers[-1].relu:
                self._refuse(node, "expected a bias, right behind Gemm or MatMul")
            self._set_bias(node, other[0])
        elif node.op_type in ("Relu", "Clip"):
            self._cut_off(node)
        elif node.op_type not in SHAPE_OPERATORS:
            self._refuse(node, "expected Gemm, MatMul, Add, Relu, QuantizeLinear, DequantizeLinear or a reshape")

    def _quantize(self, node: onnx.NodeProto) -> None:
        found = self._read_quantization(node)
        if not self.layers:
            self.input = found
        else:
            layer = self.layers[-1]
            if layer.target is not None:
                self.notes.append(f"{layer.name}: two roundings of the file are one here (Q/DQ before and behind ReLU)")
            layer.target = found
        self.current = found

    def _begin_layer(self, node: onnx.NodeProto, tensor: str) -> None:
        if self.current is None or (self.layers and self.layers[-1].target is None):
            self._refuse(node, f"its input is not quantized; quantize the model: {_QUANTIZE}")
        if node.input[0] != tensor or len(node.input) < 2:
            self._refuse(node, "the weights must be its second input")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            self._refuse(node, "transA, alpha and beta must be 0, 1 and 1")
        weights, scale = self._read_weights(node, bool(attributes.get("transB", 0)))
        self.layers.append(_Pending(node.name or node.output[0], weights, scale, self.current))
        if len(node.input) > 2 and node.input[2]:
            self._set_bias(node, node.input[2])

    def _set_bias(self, node: onnx.NodeProto, name: str) -> None:
        layer = self.layers[-1]
        bias = self._evaluate(node, name).astype(np.float64).reshape(-1)
        if bias.size not in (1, len(layer.bias)):
            self._refuse(node, f"its bias has {bias.size} values, the layer {len(layer.bias)} outputs")
        layer.bias = layer.bias + bias

    def _cut_off(self, node: onnx.NodeProto) -> None:
        if not self.layers:
            self._refuse(node, "there is no layer before it")
        if node.op_type == "Clip":
            bounds = [self._evaluate(node, name) for name in node.input[1:] if name]
            if len(bounds) != 1 or len(node.input) > 2 or float(bounds[0]) != 0.0:
                self._refuse(node, "only a Clip with minimum 0 and no maximum is a ReLU")
        self.layers[-1].relu = True

    def _read_quantization(self, node: onnx.NodeProto) -> Quantization:
        """One scale and zero point, an unsigned byte's moved to the signed one."""
        scale, zero = self._read_scale(node)
        if scale.size != 1:
            self._refuse(node, f"activations have {scale.size} scales; expected one")
        offset = 128 if zero.dtype == np.uint8 else 0
        return Quantization(scale=float(scale[0]), zero_point=int(zero[0]) - offset, offset=offset)

    def _read_scale(self, node: onnx.NodeProto) -> tuple[NDArray[np.float64], Constant]:
        scale = self._evaluate(node, node.input[1]).astype(np.float64).reshape(-1)
        named = len(node.input) > 2 and node.input[2]
        zero = self._evaluate(node, node.input[2]).reshape(-1) if named else np.zeros(scale.size, np.uint8)
        if not (np.isfinite(scale).all() and (scale > 0).all()):
            self._refuse(node, "a scale is not positive and finite")
        return scale, zero

    def _read_weights(self, node: onnx.NodeProto, transposed: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        name = node.input[1]
        dequantize = self.producers.get(name)
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            self._refuse(node, f"its weights are not quantized; run: {_QUANTIZE}")
        values = self._evaluate(dequantize, dequantize.input[0])
        scale, zero = self._read_scale(dequantize)
        if values.ndim != 2 or not 0 < values.size <= LARGEST_LAYER or values.dtype not in RANGES:
            self._refuse(node, f"weights {values.dtype} {values.shape}; expected bytes [outputs, inputs]")
        axis = next((a.i for a in dequantize.attribute if a.name == "axis"), 1) % values.ndim
        outputs_axis = 0 if transposed else 1
        if scale.size > 1 and (axis != outputs_axis or scale.size != values.shape[axis]):
            self._refuse(node, f"weight scales go along axis {axis}; expected one for each output")
        signed = values.astype(np.int64) - _spread(zero.astype(np.int64), outputs_axis)
        if signed.min() < -128 or signed.max() > 127:
            self._refuse(node, "a weight minus its zero point does not fit into a signed byte; quantize symmetrically")
        rows = signed if transposed else signed.T
        return rows, np.broadcast_to(scale, (len(rows),))

    def _evaluate(self, node: onnx.NodeProto, name: str) -> Constant:
        """A constant of the file: stored, or computed from stored ones by Q, DQ, Transpose or Constant."""
        if name in self.tensors:
            return numpy_helper.to_array(self.tensors[name], base_dir=str(self.path.parent))
        maker = self.producers.get(name)
        if maker is None:
            self._refuse(node, f"its input {name!r} is not a constant")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in maker.attribute}
        if maker.op_type == "Constant" and "value" in attributes:
            return numpy_helper.to_array(attributes["value"])
        if maker.op_type == "Transpose":
            return np.transpose(self._evaluate(maker, maker.input[0]), attributes.get("perm"))
        if maker.op_type in ("QuantizeLinear", "DequantizeLinear"):
            return self._convert(maker, int(attributes.get("axis", 1)))
        if maker.op_type == "Identity":
            return self._evaluate(maker, maker.input[0])
        return self._refuse(maker, f"{name!r} must be a constant; expected stored numbers")

    def _convert(self, node: onnx.NodeProto, axis: int) -> Constant:
        """Compute the output of a Q or DQ node over constants."""
        values = self._evaluate(node, node.input[0])
        scale, zero = self._read_scale(node)
        axis = axis % values.ndim if values.ndim else 0
        wide_scale = _spread(scale, axis, values.ndim).astype(np.float32)
        wide_zero = _spread(zero, axis, values.ndim)
        if node.op_type == "DequantizeLinear":
            return (values.astype(np.int64) - wide_zero.astype(np.int64)).astype(np.float64) * wide_scale
        if zero.dtype not in RANGES:
            self._refuse(node, f"quantizes to {zero.dtype}; expected int8 or uint8")
        low, high = RANGES[zero.dtype]
        steps = np.rint(values.astype(np.float32) / wide_scale) + wide_zero.astype(np.float32)
        return np.clip(steps, low, high).astype(zero.dtype)

    def _refuse(self, node: onnx.NodeProto, why: str) -> NoReturn:
        raise ModelError(f"{self.path}: node {node.name or node.output[0]!r} ({node.op_type}): {why}")


def _spread(values: Constant, axis: int, rank: int = 2) -> Constant:
    """One value, or one for each index of `axis`, shaped to be broadcast against an array of `rank` axes."""
    if values.size == 1:
        return values.reshape((1,) * rank)
    return values.reshape([-1 if i == axis else 1 for i in range(rank)])


def _read_shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...]:
    return tuple(d.dim_value or d.dim_param or "batch" for d in value.type.tensor_type.shape.dim)
