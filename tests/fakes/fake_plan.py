"""A plan of the fakes: one line of JSON, then the ONNX bytes that are run through ONNX Runtime. Both fakes read it."""

import json
from pathlib import Path
from typing import Any

MAGIC = b"FAKE TENSORRT PLAN\n"
_LAYER_MS = {"FP32": 0.5, "FP16": 0.3, "INT8": 0.2, "BF16": 0.3, "FP8": 0.2}
FLOATS = {1: "FP32", 10: "FP16", 16: "BF16"}
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
# What is no layer that runs: seen in 8.6.0 as `NoOp`, with a time of 0 in the profile.
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze", "Identity")


class PlanError(Exception):
    """What a real library would refuse."""


def time_layer(layer: dict[str, Any]) -> float:
    return 0.0 if layer["type"] == "NoOp" else _LAYER_MS[layer["precision"]]


def write_plan(onnx_bytes: bytes, **head: Any) -> bytes:
    return MAGIC + json.dumps(head).encode() + b"\n" + onnx_bytes


def read_plan(data: bytes) -> tuple[dict[str, Any], bytes]:
    if not data.startswith(MAGIC):
        raise PlanError("magic tag does not match")
    line, _, onnx_bytes = data[len(MAGIC) :].partition(b"\n")
    return json.loads(line), onnx_bytes


def describe_graph(
    onnx_bytes: bytes, weak: list[str], ignores_precision: bool = False, *, tf32: bool = False
) -> dict[str, Any]:
    """Inputs, outputs and layers of a graph, each layer with the precision and kernel that a builder would choose."""
    import onnx

    graph = onnx.load_model_from_string(onnx_bytes).graph
    weights = {t.name: t.data_type for t in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    layers = []
    for index, node in enumerate(graph.node):
        if node.op_type in (*QUANTIZERS, "Constant"):
            continue
        precision = "FP32" if ignores_precision else choose_precision(node, made_by, weights, weak)
        layers.append(
            {
                "name": node.name or f"{node.op_type}_{index}",
                "type": "NoOp" if node.op_type in RESHAPES else node.op_type,
                "precision": precision,
                "kernel": name_kernel(node.op_type, precision, tf32),
                "inputs": [name for name in node.input if name not in weights],
                "outputs": list(node.output),
            }
        )
    return {
        "inputs": [describe_value(v) for v in graph.input if v.name not in weights],
        "outputs": [describe_value(v) for v in graph.output],
        "layers": layers,
    }


def misread(onnx_bytes: bytes) -> bytes:
    """The network that TensorRT 8.6 makes of a graph: axes that came as an input are not read, so it takes all.

    Seen with 8.6.0, which says nothing of it; of an operator that is newer it says that it is no plugin.
    """
    import onnx

    model = onnx.load_model_from_string(onnx_bytes)
    for node in model.graph.node:
        if node.op_type == "Gelu":
            raise PlanError("Plugin not found, are the plugin name, version, and namespace correct?")
        if node.op_type.startswith("Reduce") and node.op_type != "ReduceSum":
            del node.input[1:]
    return model.SerializeToString()


def name_kernel(kind: str, precision: str, tf32: bool) -> str:
    """As TensorRT 8.4 to 10 name the kernels of products; others have names that say no type."""
    if kind not in ("Conv", "Gemm", "MatMul"):
        return f"fake_{kind}"
    types = {"FP16": "f16f16_f16f32", "BF16": "bf16bf16_bf16f32", "Int8": "i8i8_i8i32"}
    return f"sm80_xmma_gemm_{types.get(precision, 'f32f32_tf32f32' if tf32 else 'f32f32_f32f32')}_f32_tn_n"


def choose_precision(node: Any, made_by: dict[str, Any], weights: dict[str, int], weak: list[str]) -> str:
    heavy = node.op_type in ("Conv", "Gemm", "MatMul")
    if weak:
        return "INT8" if heavy and "int8" in weak else "FP16" if "fp16" in weak else "FP32"
    if heavy and any(name in made_by and made_by[name].op_type == "DequantizeLinear" for name in node.input):
        return "INT8"
    types = [FLOATS[weights[name]] for name in node.input if weights.get(name) in FLOATS]
    return types[0] if types else next(iter({FLOATS[t] for t in weights.values() if t in FLOATS}), "FP32")


def describe_value(value: Any) -> dict[str, Any]:
    tensor = value.type.tensor_type
    axes = [d.dim_value if d.dim_value > 0 else -1 for d in tensor.shape.dim]
    return {"name": value.name, "type": tensor.elem_type, "shape": axes}


def read_file(path: str) -> tuple[dict[str, Any], bytes]:
    return read_plan(Path(path).read_bytes())
