"""Forms of graphs that trained models have and hand-made ones lack: transforms take them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.cast import find_index_arithmetic
from enginebench.models.precision.quantize import quantize
from graphs import build_graph, run_graph, save, write_graph

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
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product")
    model = build_graph([node], {"w": eye(), "b": bias.astype(np.float32)}, ["batch", 4], ["batch", 4])
    artifact, made = to_int8(model, tmp_path)
    assert np.allclose(run_graph(made, {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.1)
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(made).graph.node)


def test_a_bias_that_differs_by_row_stays_in_fp32(tmp_path):
    node = helper.make_node("Gemm", ["x", "w", "b"], ["h"], "by_row")
    last = helper.make_node("MatMul", ["h", "w"], ["y"], "last")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    model = build_graph([node, last], {"w": eye(), "b": rows}, [3, 4], [3, 4])
    artifact, made = to_int8(model, tmp_path)
    assert np.allclose(run_graph(made, {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.2)


@pytest.mark.parametrize("recipe", ["cpu", "tensorrt"])
def test_a_shared_bias_whose_copy_would_have_the_name_of_another_tensor(tmp_path, recipe):
    """The quantizer calls the second copy of the bias "b2", which is what the second sum is called."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["b1"], "first"),
        helper.make_node("Conv", ["b1", "w", "b"], ["b2"], "second"),
        helper.make_node("Neg", ["b2"], ["y"], "negative"),
    ]
    constants = {"w": eye().reshape(4, 4, 1, 1), "b": np.arange(4, dtype=np.float32)}
    model = build_graph(nodes, constants, ["batch", 4, 2, 2], ["batch", 4, 2, 2])
    artifact, made = to_int8(model, tmp_path, recipe)
    x = np.random.default_rng(0).standard_normal((2, 4, 2, 2)).astype(np.float32)
    assert np.allclose(run_graph(made, {"x": x}), run_graph(artifact.path, {"x": x}), atol=0.2)


def test_names_that_a_cast_would_take_twice(tmp_path):
    """A constant read by several nodes that stay in FP32: the casts for each had the same name."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Max", ["h", "c"], ["a"], "larger"),
        helper.make_node("Min", ["a", "c"], ["d"], "smaller"),
        helper.make_node("Mul", ["d", "c"], ["y"], "scaled"),
    ]
    constants = {"w": eye(), "c": np.array([0.5, 1, 1.5, 2], np.float32)}
    artifact = write_graph(tmp_path, nodes, constants)
    for to in ("fp16", "bf16"):
        quantize(artifact, to, None, tmp_path / f"{to}.onnx")
    assert np.allclose(run_graph(tmp_path / "fp16.onnx", {"x": X}), run_graph(artifact.path, {"x": X}), atol=0.01)


def test_scalars_stay_scalars(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "two"], ["y"], "double")]
    artifact = write_graph(tmp_path, nodes, {"two": np.float32(2)})
    for to in ("fp16", "bf16"):
        quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        (scalar,) = [t for t in onnx.load(tmp_path / f"{to}.onnx").graph.initializer if len(t.dims) == 0]
        assert scalar.data_type == {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[to]


def test_lengths_that_are_computed_as_floats_stay_exact(tmp_path):
    """3,001 is no number of FP16 nor of BF16: the sum over the columns would be cut at another one."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], "shape"),
        helper.make_node("Gather", ["shape", "one"], ["columns"], "columns"),
        helper.make_node("Cast", ["columns"], ["floats"], "to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "share"], ["part"], "part"),
        helper.make_node("Floor", ["part"], ["whole"], "whole"),
        helper.make_node("Cast", ["whole"], ["stop"], "to_int", to=TensorProto.INT64),
        helper.make_node("Slice", ["x", "zero", "stop", "one"], ["cut"], "cut"),
        helper.make_node("ReduceSum", ["cut", "one"], ["y"], "sum", keepdims=1),
    ]
    constants = {"one": np.array([1]), "zero": np.array([0]), "share": np.array([1.0], np.float32)}
    artifact = write_graph(tmp_path, nodes, constants, ["batch", "columns"], ["batch", 1])
    x = np.zeros((1, 3001), np.float32)
    x[0, -1] = 1  # FP16 would cut at 3,000
    for to in ("fp16", "bf16"):
        made = quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        assert made.caveats == ()  # they are no part of the network, so nobody is told
    found = run_graph(tmp_path / "fp16.onnx", {"x": x})
    assert float(found[0, 0]) == 1
    prepared = onnx.shape_inference.infer_shapes(onnx.load(artifact.path))
    assert find_index_arithmetic(prepared.graph) == {"to_float", "part", "whole", "to_int"}


def test_an_output_that_is_declared_with_too_few_axes_is_corrected(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Unsqueeze", ["h", "one"], ["y"], "axis"),
    ]
    artifact = write_graph(tmp_path, nodes, {"w": eye(), "one": np.array([1])}, ["batch", 4], [1, "length"])
    for to in ("fp16", "bf16"):
        made = quantize(artifact, to, None, tmp_path / f"{to}.onnx")
        assert len(made.outputs[0].shape) == 3
    assert run_graph(tmp_path / "fp16.onnx", {"x": X}).shape == (3, 1, 4)


def test_the_smallest_numbers_do_not_vanish_in_fp16(tmp_path):
    nodes = [helper.make_node("Div", ["x", "c"], ["y"], "over")]
    artifact = write_graph(tmp_path, nodes, {"c": np.array([1e-12, 1, 1, 1], np.float32)})
    quantize(artifact, "fp16", None, tmp_path / "q.onnx")
    (tensor,) = [t for t in onnx.load(tmp_path / "q.onnx").graph.initializer if list(t.dims) == [4]]
    assert (numpy_helper.to_array(tensor) > 0).all()


def test_a_normalization_that_is_written_out_stays_in_fp32(tmp_path):
    """Squares and their means have outliers that one scale cannot hold: Magika took every file for another type."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], "first"),
        helper.make_node("ReduceMean", ["h"], ["mean"], "mean", axes=[1]),
        helper.make_node("Sub", ["h", "mean"], ["d"], "centre"),
        helper.make_node("Mul", ["d", "d"], ["s"], "square"),
        helper.make_node("ReduceMean", ["s"], ["v"], "variance", axes=[1]),
        helper.make_node("Add", ["v", "eps"], ["e"], "plus"),
        helper.make_node("Sqrt", ["e"], ["r"], "root"),
        helper.make_node("Div", ["d", "r"], ["n"], "normal"),
        helper.make_node("Mul", ["n", "g"], ["m"], "scale"),
        helper.make_node("MatMul", ["m", "w"], ["y"], "last"),
    ]
    constants = {"w": eye(), "eps": np.float32(1e-12), "g": np.ones(4, np.float32)}
    _, made = to_int8(build_graph(nodes, constants, ["batch", 4], ["batch", 4], opset=17), tmp_path)
    model = onnx.load(made)
    quantized = {name for node in model.graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    readers = {node.op_type for node in model.graph.node if quantized.intersection(node.input)}
    assert readers == {"MatMul"}
