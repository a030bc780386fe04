"""Forms of graphs that trained models have and hand-made ones lack, and those that TensorRT refuses."""

import hashlib
import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper

from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.cast import find_index_arithmetic
from enginebench.models.precision.quantize import quantize
from enginebench.models.precision.tensorrt_check import find_refusals
from graphs import build_graph, run_graph, save, write_nodes
from processes import ROOT
from refusal_graphs import Pair, in_branch, in_function, make_broken, make_left_to_parser, make_sound

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
        assert made.warnings == ()  # they are no part of the network, so nobody is told
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


SOUND, BROKEN, LEFT = make_sound(), make_broken(), make_left_to_parser()
DATA = ROOT / "tests" / "data" / "tensorrt-8.6" / "parser-verdicts.json"
RECORDED: dict[str, dict[str, Any]] = json.loads(DATA.read_bytes())["graphs"]
GRAPHS = {
    **{f"sound/{name}": model for name, model in SOUND.items()},
    **{f"broken/{name}": model for name, (model, _) in BROKEN.items()},
    **{f"left/{name}": model for name, (model, _) in LEFT.items()},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_graph_has_no_refusals(name: str) -> None:
    assert find_refusals(SOUND[name]) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_reported(name: str) -> None:
    model, words = BROKEN[name]
    assert any(words in refusal.reason for refusal in find_refusals(model))


@pytest.mark.parametrize("name", LEFT)
def test_what_the_parser_says_is_left_to_it(name: str) -> None:
    assert find_refusals(LEFT[name][0]) == []


def list_nodes(name: str) -> list[str]:
    return [refusal.node for refusal in find_refusals(BROKEN[name][0])]


def test_every_node_that_breaks_a_rule_is_named_and_no_other() -> None:
    assert list_nodes("zero point 3") == list_nodes("scale is computed") == ["x_Q", "x_D"]
    assert list_nodes("no zero point") == ["x_Q", "w_Q"]
    assert list_nodes("bias int32") == list_nodes("bias int32 without zero point") == ["b_D"]
    assert list_nodes("dynamic") == ["dynamic", "product"] and list_nodes("QLinearMatMul") == ["product"]


def test_graphs_are_found_where_they_lie() -> None:
    """The node of a branch and of a function is named, so that it can be found."""
    assert [refusal.node for refusal in find_refusals(in_branch(Pair(zero=3)))] == ["x_Q", "x_D"]
    first, second = find_refusals(in_function(Pair(zero=3)))
    assert "inner_Q" in first.node and "inner_D" in second.node


def hash_graph(model: ModelProto) -> str:
    """SHA-256 of a graph without the names of itself and its producer."""
    bare = ModelProto.FromString(model.SerializeToString())
    bare.ClearField("producer_name")
    bare.graph.ClearField("name")
    return hashlib.sha256(bare.SerializeToString()).hexdigest()


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_is_that_of_this_graph(name: str) -> None:
    assert hash_graph(GRAPHS[name]) == RECORDED[name]["sha256"], "another graph: ask the parser of 8.6 again"


def test_what_breaks_a_rule_is_refused_by_the_library_too() -> None:
    asked = {name: said["verdict"] for name, said in RECORDED.items() if not name.startswith("sound/")}
    assert len(asked) == 17
    assert set(asked.values()) == {"refused"}


def test_int8_products_of_one_type_are_taken() -> None:
    """But for Conv, whose kernel 8.6 wants as a constant of four axes, and types that came later than 8.6."""
    taken = {name for name, said in RECORDED.items() if said["verdict"] == "taken"}
    forms = ("one scale", "by channel", "stored, by channel")
    products = ("Gemm", "Gemm transB", "MatMul")
    assert {f"sound/{product}: {form}" for product in products for form in forms} <= taken
    assert not any("FP8" in name or "int4" in name for name in taken)
