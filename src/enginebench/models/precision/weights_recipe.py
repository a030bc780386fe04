"""Weight-only INT8 and INT4: weights in blocks behind DequantizeLinear, which ONNX Runtime fuses into `MatMulNBits`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.models.precision.graph import raise_opset

# Scales by block came to DequantizeLinear with this version. Source: ONNX operator changelog.
BLOCK_OPSET = 21
# Weights of one output that share a scale: what ONNX Runtime's quantizer and its fastest kernels take. A product whose
# weights of one output are no multiple of it stays in floats: OpenVINO does not read a last block that is shorter.
BLOCK = 32


def quantize_weights(model: ModelProto, exclude: Sequence[str] = (), bits: Literal[4, 8] = 8) -> ModelProto:
    """The graph with the constant weights of its matrix products as symmetric integers, a scale for 32 of an output."""
    made = ModelProto()
    made.CopyFrom(raise_opset(model, BLOCK_OPSET))
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer if len(t.dims) == 2}
    nodes: list[NodeProto] = []
    blocked: set[str] = set()
    for node in made.graph.node:
        # A Gemm is fused only as a product and a sum; one that turns its weights gets a copy of them turned.
        turned = any(a.name == "transB" and a.i for a in node.attribute)
        fits = (
            len(node.input) > 1 and (own := constants.get(node.input[1])) is not None and not own.shape[turned] % BLOCK
        )
        if node.name in exclude or not _is_product(node) or not fits:
            nodes.append(node)
            continue
        name = node.input[1] + (".T" if turned else "")
        if name not in blocked:
            weights = constants[node.input[1]]
            _add_blocks(made, name, weights.T if turned else weights, bits)
            blocked.add(name)
        floats = f"{node.name}.weights"
        stored = [f"{name}.blocks", f"{name}.scales"]
        nodes.append(helper.make_node("DequantizeLinear", stored, [floats], f"{floats}/dq", axis=0, block_size=BLOCK))
        bias = node.input[2] if len(node.input) > 2 else ""
        product = f"{node.name}.product" if bias else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], floats], [product], node.name))
        if bias:
            nodes.append(helper.make_node("Add", [product, bias], [node.output[0]], f"{node.name}.bias"))
    if not blocked:
        raise ArtifactError(
            f"int{bits}@w{bits} quantizes the constant weights of MatMul and Gemm in blocks of {BLOCK} of an output, "
            "and the graph has none that such blocks fill. Recipes that quantize convolutions: int8@tensorrt, "
            "int8@cpu, int8@nncf"
        )
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input} | {value.name for value in made.graph.output}
    kept = [tensor for tensor in made.graph.initializer if tensor.name in used]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


def _is_product(node: NodeProto) -> bool:
    """Whether it is a plain matrix product, with a sum or without."""
    if node.op_type != "Gemm":
        return bool(node.op_type == "MatMul")
    given = {a.name: a.f if a.name in ("alpha", "beta") else a.i for a in node.attribute}
    return bool(given.get("alpha", 1.0) == given.get("beta", 1.0) == 1.0 and not given.get("transA"))


def _add_blocks(
    model: ModelProto, name: str, weights: np.ndarray[tuple[int, ...], np.dtype[np.float32]], bits: int
) -> None:
    blocks = weights.reshape(-1, BLOCK, weights.shape[1])
    scales = np.abs(blocks).max(axis=1) / np.float32(2 ** (bits - 1) - 1)
    scales[scales == 0] = 1
    whole = np.rint(blocks / scales[:, None]).astype(np.int8).reshape(weights.shape)
    stored = numpy_helper.from_array(whole, f"{name}.blocks")
    if bits == 4:  # two values a byte, the first one below
        low, high = (whole.reshape(-1, 2).astype(np.uint8) & 15).T
        stored = helper.make_tensor(stored.name, TensorProto.INT4, whole.shape, (low | high << 4).tobytes(), raw=True)
    model.graph.initializer.extend([stored, numpy_helper.from_array(scales.astype(np.float32), f"{name}.scales")])
