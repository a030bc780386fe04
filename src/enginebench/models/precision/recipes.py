"""Recipes without ranges of ours: INT8 by ONNX Runtime's dynamic quantization or by NNCF, weight-only INT8 and INT4.

Dynamic quantization finds the scales of activations in each run. Weights alone stand in blocks behind
DequantizeLinear, which ONNX Runtime fuses into `MatMulNBits`.
"""

import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from enginebench.core.errors import ArtifactError, explaining, importing
from enginebench.core.records import Recipe
from enginebench.core.store import open_temporary
from enginebench.models.precision.calibration_data import CalibrationData
from enginebench.models.precision.graph import (
    drop_unused_constants,
    is_transformer,
    load_whole_graph,
    quiet_logging,
    raise_opset,
    sort_nodes,
)

# Convolutions stay in FP32: the recipe is for transformers and other networks of products.
DYNAMIC = ("MatMul", "Gemm")
# Scales by block came to DequantizeLinear with this version. Source: ONNX operator changelog.
BLOCK_OPSET = 21
# Weights of one output that share a scale: what ONNX Runtime's quantizer and its fastest kernels take. A product whose
# weights of one output are no multiple of it stays in floats: OpenVINO does not read a last block that is shorter.
BLOCK = 32


def quantize_dynamically(model: ModelProto, exclude: Sequence[str] = (), reduce_range: bool = False) -> ModelProto:
    """The graph with its products with constant weights in INT8, weights with a scale for each output channel."""
    constants = {tensor.name for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in DYNAMIC and node.input[1] in constants]
    if not any(node.name not in exclude for node in products):
        raise ArtifactError(
            "int8@dynamic quantizes MatMul and Gemm with constant weights, and the graph has none to quantize. "
            "Recipes that quantize convolutions: int8@tensorrt, int8@cpu, int8@nncf"
        )
    copy = ModelProto()
    copy.CopyFrom(model)
    # ONNX Runtime turns the weights of a Gemm, and would find them at odds with the shapes that stand here.
    values = [value for value in copy.graph.value_info if value.name not in constants]
    del copy.graph.value_info[:]
    copy.graph.value_info.extend(values)
    with open_temporary() as folder, quiet_logging():
        made = folder / "made.onnx"
        with explaining(ArtifactError, "ONNX Runtime cannot quantize this graph"):
            quantize_dynamic(
                copy,
                made,
                op_types_to_quantize=list(DYNAMIC),
                per_channel=True,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(exclude),
                use_external_data_format=True,
            )
        return load_whole_graph(made)


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
        weights = constants.get(node.input[1]) if len(node.input) > 1 and _is_product(node) else None
        if weights is None or weights.shape[turned] % BLOCK or node.name in exclude:
            nodes.append(node)
            continue
        name = node.input[1] + (".T" if turned else "")
        if name not in blocked:
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
    drop_unused_constants(made)
    return made


def _is_product(node: NodeProto) -> bool:
    """Whether it is a plain matrix product, with a sum or without."""
    attributes = {a.name: a.f if a.name in ("alpha", "beta") else a.i for a in node.attribute}
    plain = attributes.get("alpha", 1.0) == attributes.get("beta", 1.0) == 1.0 and not attributes.get("transA")
    return bool(node.op_type == "MatMul" or (node.op_type == "Gemm" and plain))


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


def quantize_with_nncf(
    model: ModelProto, data: CalibrationData, exclude: Sequence[str] = (), recipe: Recipe = "nncf"
) -> ModelProto:
    """The graph with Q/DQ nodes where OpenVINO wants them: symmetric weights, activations unsigned where they are.

    Activations are symmetric in networks of convolutions, which NNCF calls the preset PERFORMANCE, and may have zero
    points in transformers (MIXED).

    The graph stays ONNX: OpenVINO compiles it to the same kernels as NNCF's own IR (ResNet-18 on AVX-512 VNNI: 9.0 ms
    both), and every check on Q/DQ graphs holds for it. NNCF's bias correction is off: on ONNX graphs it made ResNet-18
    worse, 0.952 against 0.975 in centred cosine, where on IR it changed nothing.

    Args:
        recipe: nncf:mixed gives zero points to networks of convolutions, too; with smooth outliers move into the
            weights that follow (SmoothQuant), as NNCF does in transformers alone.
    """
    with importing("nncf", 'pip install "enginebench[quantize]"'):
        import nncf
    copy = ModelProto()
    copy.CopyFrom(model)
    axis = next(iter(model.graph.input)).type.tensor_type.shape.dim[0]
    size = 1 if data.apart else axis.dim_value or 1
    steps = data.n // size
    transformer = recipe == "smooth" or is_transformer(model)
    zero_points = transformer or recipe == "nncf:mixed"
    with explaining(ArtifactError, "NNCF cannot quantize this graph"), _silence():
        made: ModelProto = nncf.quantize(
            copy,
            nncf.Dataset(_Entries(data, size, steps)),
            preset=nncf.QuantizationPreset.MIXED if zero_points else nncf.QuantizationPreset.PERFORMANCE,
            target_device=nncf.TargetDevice.CPU,
            subset_size=max(steps, 1),
            model_type=nncf.ModelType.TRANSFORMER if transformer else None,
            ignored_scope=nncf.IgnoredScope(names=list(exclude)) if exclude else None,
            advanced_parameters=nncf.AdvancedQuantizationParameters(disable_bias_correction=True),
        )
    sort_nodes(made)
    return made


class _Entries:
    """The data as often as NNCF asks for it: it reads more than once."""

    def __init__(self, data: CalibrationData, size: int, steps: int) -> None:
        self._data, self._size, self._steps = data, size, steps

    def __iter__(self) -> Iterator[object]:
        for i in range(self._steps):
            yield self._data.read(i * self._size, (i + 1) * self._size)

    def __len__(self) -> int:
        return self._steps


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """NNCF's progress bars go to stderr, which is where they belong, and its advice nowhere."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        logger.setLevel(level)
