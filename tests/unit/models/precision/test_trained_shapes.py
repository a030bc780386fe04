"""Forms of graphs that trained models have and hand-made ones lack: transforms take them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.cast import find_index_arithmetic
from enginebench.models.precision.quantize import quantize
from graphs import build_graph, run_graph, save, write_nodes

X = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)


def eye(n=4):
    return np.eye(n, dtype=np.float32)


def to_int8(model, tmp_path, recipe="cpu"):
    artifact = read_onnx(save(model, tmp_path / "m.onnx"))
    data = open_data("fake", model="m", inputs=artifact.inputs, n=8)
    quantize(artifact, "int8", recipe, tmp_path / "q.onnx", calibration=calibrate(artifact, data, threads=1))
    return artifact, tmp_path / "q.onnx"


@pytest.mark.parametrize("bias", [np.arange(4.0).reshape(1, 4), np.full((1,), 2.0), np.array(3.0)])
def test_a_bias_that_is_broadcast_is_quantized(tmp_path, bias):
    model = build_graph("y = Gemm (x, w, b)", {"w": eye(), "b": bias.astype(np.float32)})
    artifact, made = to_int8(model, tmp_path)
    assert np.allclose(run_graph(made, {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.1)
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(made).graph.node)


def test_a_bias_that_differs_by_row_stays_in_fp32(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = build_graph("h = Gemm (x, w, b) y = MatMul (h, w)", {"w": eye(), "b": rows}, [3, 4])
    artifact, made = to_int8(model, tmp_path)
    assert np.allclose(run_graph(made, {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.2)


@pytest.mark.parametrize("recipe", ["cpu", "tensorrt"])
def test_a_shared_bias_whose_copy_would_have_the_name_of_another_tensor(tmp_path, recipe):
    """The quantizer calls the second copy of the bias "b2", which is what the second sum is called."""
    nodes = "[first] b1 = Conv (x, w, b) [second] b2 = Conv (b1, w, b) y = Neg (b2)"
    constants = {"w": eye().reshape(4, 4, 1, 1), "b": np.arange(4, dtype=np.float32)}
    model = build_graph(nodes, constants, ["batch", 4, 2, 2])
    artifact, made = to_int8(model, tmp_path, recipe)
    x = np.random.default_rng(0).standard_normal((2, 4, 2, 2)).astype(np.float32)
    assert np.allclose(run_graph(made, {"x": x}), run_graph(artifact.path, {"x": x}), atol=0.2)


def test_names_that_a_cast_would_take_twice(tmp_path):
    """A constant read by several nodes that stay in FP32: the casts for each had the same name."""
    nodes = "h = MatMul (x, w) a = Max (h, c) d = Min (a, c) y = Mul (d, c)"
    constants = {"w": eye(), "c": np.array([0.5, 1, 1.5, 2], np.float32)}
    artifact = write_nodes(tmp_path, nodes, constants)
    for to in ("fp16", "bf16"):
        quantize(artifact, to, None, tmp_path / f"{to}.onnx")
    assert np.allclose(run_graph(tmp_path / "fp16.onnx", {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.01)


def test_scalars_stay_scalars(tmp_path):
    artifact = write_nodes(tmp_path, "y = Mul (x, two)", {"two": np.float32(2)})
    for to in ("fp16", "bf16"):
        quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        (scalar,) = [t for t in onnx.load(tmp_path / f"{to}.onnx").graph.initializer if len(t.dims) == 0]
        assert scalar.data_type == {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[to]


def test_lengths_that_are_computed_as_floats_stay_exact(tmp_path):
    """3,001 is no number of FP16 nor of BF16: the sum over the columns would be cut at another one."""
    nodes = """
        shape = Shape (x) columns = Gather (shape, one) floats = Cast <to = 1> (columns)
        part = Mul (floats, share) whole = Floor (part) stop = Cast <to = 7> (whole)
        cut = Slice (x, zero, stop, one) y = ReduceSum <keepdims = 1> (cut, one)
    """
    constants = {"one": np.array([1]), "zero": np.array([0]), "share": np.array([1.0], np.float32)}
    artifact = write_nodes(tmp_path, nodes, constants, ["batch", "columns"], ["batch", 1])
    x = np.zeros((1, 3001), np.float32)
    x[0, -1] = 1  # FP16 would cut at 3,000
    for to in ("fp16", "bf16"):
        made = quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        assert made.caveats == ()  # they are no part of the network, so nobody is told
    found = run_graph(tmp_path / "fp16.onnx", {"x": x})
    assert float(found[0, 0]) == 1
    prepared = onnx.shape_inference.infer_shapes(onnx.load(artifact.path))
    assert find_index_arithmetic(prepared.graph) == {"floats", "part", "whole", "stop"}


def test_an_output_that_is_declared_with_too_few_axes_is_corrected(tmp_path):
    nodes = "h = MatMul (x, w) y = Unsqueeze (h, one)"
    artifact = write_nodes(tmp_path, nodes, {"w": eye(), "one": np.array([1])}, ["batch", 4], [1, "length"])
    for to in ("fp16", "bf16"):
        made = quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        assert len(made.outputs[0].shape) == 3
    assert run_graph(tmp_path / "fp16.onnx", {"x": X}).shape == (3, 1, 4)


def test_the_smallest_numbers_do_not_vanish_in_fp16(tmp_path):
    artifact = write_nodes(tmp_path, "y = Div (x, c)", {"c": np.array([1e-12, 1, 1, 1], np.float32)})
    quantize(artifact, "fp16", None, tmp_path / "q.onnx")
    (tensor,) = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if list(t.dims) == [4]]
    assert (numpy_helper.to_array(tensor) > 0).all()


def test_a_normalization_that_is_written_out_stays_in_fp32(tmp_path):
    """Squares and their means have outliers that one scale cannot hold: Magika took every file for another type."""
    nodes = """
        h = MatMul (x, w) mean = ReduceMean <axes = [1]> (h) d = Sub (h, mean) s = Mul (d, d)
        v = ReduceMean <axes = [1]> (s) e = Add (v, eps) r = Sqrt (e) n = Div (d, r) m = Mul (n, g) y = MatMul (m, w)
    """
    constants = {"w": eye(), "eps": np.float32(1e-12), "g": np.ones(4, np.float32)}
    _, made = to_int8(build_graph(nodes, constants), tmp_path)
    model = onnx.load(made)
    quantized = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    readers = {node.op_type for node in model.graph.node if quantized.intersection(node.input)}
    assert readers == {"MatMul"}
