"""Integer products of a graph that runs as it is written: exact on processors whose signed kernels saturate."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from enginebench.models.onnx import reference
from enginebench.models.onnx.reference import open_reference_session
from enginebench.models.onnx.unsigned import write_unsigned
from graphs import build_graph

RNG = np.random.default_rng(0)
# As large as they get: two products of 255 and 127 are beyond 16 bits.
SQUARE = RNG.choice(np.array([-127, 126], np.int8), (64, 8))
KERNEL = RNG.choice(np.array([-127, 126], np.int8), (8, 16, 3, 3))
SCALES = {"s": np.float32(0.02), "z": np.uint8(100), "t": np.float32(40), "ws": np.float32(0.01)}
ROWS = {"shape": ("batch", 64), "out_shape": ("batch", 8), "opset": 19}
PICTURES = {"shape": (2, 16, 8, 8), "out_shape": (2, 8, 6, 6), "opset": 19}
QUANTIZED = "q = QuantizeLinear (x, s, z)\n"
ROUNDED = "\n y = DequantizeLinear (m, t, z)"
FLOATS = "\n y = Cast <to = 1> (m)"


def make_zero(value: int) -> dict[str, Any]:
    return {"wz": np.int8(value)}


PRODUCTS = {
    "MatMulInteger": (f"{QUANTIZED} m = MatMulInteger (q, w, z) {FLOATS}", {"w": SQUARE}, ROWS),
    "its zero point": (f"{QUANTIZED} m = MatMulInteger (q, w, z, wz) {FLOATS}", {"w": SQUARE, **make_zero(-3)}, ROWS),
    "ConvInteger": (f"{QUANTIZED} m = ConvInteger (q, w, z) {FLOATS}", {"w": KERNEL}, PICTURES),
    "QLinearMatMul": (
        f"{QUANTIZED} m = QLinearMatMul (q, s, z, w, ws, wz, t, z) {ROUNDED}",
        {"w": SQUARE, **make_zero(0), "t": np.float32(0.5)},
        ROWS,
    ),
    "QLinearConv": (
        f"{QUANTIZED} m = QLinearConv (q, s, z, w, ws, wz, t, z) {ROUNDED}",
        {"w": KERNEL, **make_zero(5), "t": np.float32(1)},
        PICTURES,
    ),
}


@pytest.fixture(params=PRODUCTS)
def graph(request: pytest.FixtureRequest) -> onnx.ModelProto:
    nodes, constants, ends = PRODUCTS[request.param]
    return build_graph(nodes, SCALES | constants, **ends)


def draw_feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    shape = [axis.dim_value or 3 for axis in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": RNG.normal(0, 2, shape).astype(np.float32)}


def test_a_graph_as_it_is_written_has_exact_sums(
    graph: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an optimizer ONNX Runtime's setting for exact sums has no effect: the reference itself was wrong."""
    monkeypatch.setattr(reference, "sums_saturate", lambda: True)
    whole = graph.SerializeToString()  # saving moves the tensors out of it
    onnx.save(graph, tmp_path / "g.onnx", save_as_external_data=True, location="g.bin", size_threshold=16)
    feeds = draw_feeds(graph)
    (expected,) = ReferenceEvaluator(onnx.load_from_string(whole)).run(None, feeds)
    for model in (whole, str(tmp_path / "g.onnx")):
        (given,) = open_reference_session(model, optimize=False).run(None, feeds)
        np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_weights_become_unsigned_and_outputs_stay(graph: onnx.ModelProto) -> None:
    unsigned = onnx.load_from_string(write_unsigned(graph.SerializeToString()) or b"")
    types = {tensor.name: tensor.data_type for tensor in unsigned.graph.initializer}
    (product,) = (node for node in unsigned.graph.node if node.output[0] == "m")
    assert [types[name] for name in product.input if name.endswith("/unsigned")] == [TensorProto.UINT8] * 2
    feeds = draw_feeds(graph)
    for before, after in zip(*(ReferenceEvaluator(m).run(None, feeds) for m in (graph, unsigned)), strict=True):
        np.testing.assert_array_equal(before, after)


def test_other_graphs_and_weights_stay_as_they_are() -> None:
    floats = build_graph("y = Relu (x)", {})
    assert write_unsigned(floats.SerializeToString()) is None
    nodes, constants, ends = PRODUCTS["MatMulInteger"]
    raised = build_graph(nodes, SCALES | constants | {"w": SQUARE.view(np.uint8)}, **ends)
    assert write_unsigned(raised.SerializeToString()) is None


def test_signed_activations_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """For them ONNX Runtime has no kernel with unsigned weights, and the signed one does not saturate."""
    monkeypatch.setattr(reference, "sums_saturate", lambda: True)
    nodes, constants, ends = PRODUCTS["QLinearMatMul"]
    model = build_graph(nodes, SCALES | constants | {"z": np.int8(0)}, **ends)
    feeds = draw_feeds(model)
    (given,) = open_reference_session(model.SerializeToString(), optimize=False).run(None, feeds)
    np.testing.assert_allclose(given, ReferenceEvaluator(model).run(None, feeds)[0], rtol=1e-5)
