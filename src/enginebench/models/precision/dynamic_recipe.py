"""INT8 by ONNX Runtime's dynamic quantization: scales of activations are found in each run, so no data are needed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from onnx import ModelProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from enginebench.core.errors import ArtifactError
from enginebench.models.precision.graph import load_whole_graph, quiet_logging

# Convolutions stay in FP32: the recipe is for transformers and other networks of products.
DYNAMIC = ("MatMul", "Gemm")


def quantize_dynamically(model: ModelProto, exclude: Sequence[str] = (), reduce_range: bool = False) -> ModelProto:
    """The graph with its products with constant weights in INT8, weights with a scale for each output channel."""
    constants = {tensor.name for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in DYNAMIC and node.input[1] in constants]
    if not any(node.name not in exclude for node in products):
        raise ArtifactError(
            "int8@dynamic quantizes MatMul and Gemm with constant weights, and the graph has none to quantize. "
            "Recipes that quantize convolutions: int8@tensorrt, int8@cpu, int8@nncf"
        )
    given = ModelProto()
    given.CopyFrom(model)
    # ONNX Runtime turns the weights of a Gemm, and would find them at odds with the shapes that stand here.
    known = [value for value in given.graph.value_info if value.name not in constants]
    del given.graph.value_info[:]
    given.graph.value_info.extend(known)
    with tempfile.TemporaryDirectory(prefix="enginebench-") as folder, quiet_logging():
        made = Path(folder) / "made.onnx"
        try:
            quantize_dynamic(
                given,
                made,
                op_types_to_quantize=list(DYNAMIC),
                per_channel=True,
                reduce_range=reduce_range,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=list(exclude),
                use_external_data_format=True,
            )
        except Exception as error:  # ONNX and ONNX Runtime each have their own
            raise ArtifactError(f"ONNX Runtime cannot quantize this graph: {error}") from error
        return load_whole_graph(made)
