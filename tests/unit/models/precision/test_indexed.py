"""What is found by name makes the same graph as onnxruntime's own search, byte for byte."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from onnxruntime.quantization import qdq_quantizer

from enginebench.models.precision import qdq
from enginebench.models.precision.calibration import TensorRange
from enginebench.models.precision.graph import name_nodes, sort_nodes

RNG = np.random.default_rng(2)
WEIGHT = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6
SQUARE = RNG.standard_normal((8, 8)).astype(np.float32) / 3
BIAS, CHANNELS = (RNG.standard_normal(n).astype(np.float32) for n in (8, 4))
PICTURE, ROWS = "(float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y)", "(float[8, 8] x) => (float[8, 8] y)"
PADS = "<pads = [1, 1, 1, 1]>"

GRAPHS: dict[str, tuple[str, dict[str, Any]]] = {
    "removed activations": (
        f"{PICTURE} {{ a = Conv {PADS} (x, w, b) r = Relu (a) c = Conv {PADS} (r, w2, b2) y = Clip (c, lo, hi) }}",
        {"w": WEIGHT, "w2": -WEIGHT, "b": CHANNELS, "b2": 2 * CHANNELS, "lo": np.float32(0), "hi": np.float32(6)},
    ),
    "residual sums": (
        f"{PICTURE} {{ a = Conv {PADS} (x, w) s = Add (a, x) r = Relu (s) c = Conv {PADS} (r, w2) y = Add (c, r) }}",
        {"w": WEIGHT, "w2": -WEIGHT},
    ),
    "shared constants": (
        f"{ROWS} {{ a = Gemm (x, w, b) r = Relu (a) c = Gemm (r, w, b) m = MatMul (c, w) y = Add (m, x) }}",
        {"w": SQUARE, "b": BIAS},
    ),
    "an output that is read": (
        "(float[8, 8] x) => (float[8, 8] y, float[8, 8] z) { y = Gemm <transB = 1> (x, w, b) r = Sigmoid (y) "
        "z = MatMul (r, v) }",
        {"w": SQUARE, "v": SQUARE.T.copy(), "b": BIAS},
    ),
    "shapes": (
        "(float[1, 4, 6, 6] x) => (float[1, 2, 24] y) { a = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w) "
        "m = MaxPool <kernel_shape = [1, 1]> (a) c = Concat <axis = 0> (m, a) r = Reshape (c, s) "
        "t = Transpose <perm = [1, 0, 2]> (r) n = Mul (t, k) y = Squeeze (n, z) }",
        {"w": WEIGHT, "s": np.array([2, 1, 36]), "k": CHANNELS[:1], "z": np.array([0])},
    ),
}


def make_graph(name: str) -> onnx.ModelProto:
    text, constants = GRAPHS[name]
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> graph {text}')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), key) for key, v in constants.items())
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    name_nodes(model)
    return model


def quantize_by_search(model: onnx.ModelProto, **settings: Any) -> onnx.ModelProto:
    made: onnx.ModelProto = qdq_quantizer.QDQQuantizer(model, **settings).quantize_model()
    return made


@pytest.mark.parametrize("scheme", ["CPU", "CPU_TRANSFORMER", "TENSORRT"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_is_that_of_the_search(name: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_graph(name)
    floats = {v for node in model.graph.node for v in (*node.input, *node.output)}
    ranges = {value: TensorRange(low=-2.0, high=1.0 + i) for i, value in enumerate(sorted(floats))}
    found = qdq.insert_quantizers(model, ranges, getattr(qdq, scheme))
    monkeypatch.setattr(qdq, "quantize_indexed", quantize_by_search)
    wanted = qdq.insert_quantizers(model, ranges, getattr(qdq, scheme))
    assert found[0].SerializeToString() == wanted[0].SerializeToString()
    assert found[1] == wanted[1]
    assert any(node.op_type == "DequantizeLinear" for node in found[0].graph.node)


def test_nodes_are_sorted_as_they_wait() -> None:
    """A node that stands before what it reads goes behind all that need not wait; else the order stays."""
    text = "c = Neg (b) d = Exp (x) a = Sin (x) b = Cos (a) e = Add (d, c) y = Relu (d)"
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> graph (float[2] x) => (float[2] y, float[2] e) {{ {text} }}'
    )
    sort_nodes(model)
    assert [node.output[0] for node in model.graph.node] == ["d", "a", "b", "y", "c", "e"]
