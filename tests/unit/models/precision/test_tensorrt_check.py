"""Every reason for which TensorRT refuses a quantized graph, each by its node."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from enginebench.core.errors import ParseError
from enginebench.models.precision.tensorrt_check import check_for_tensorrt, find_refusals
from graphs import build_graph, build_pair, save


def reasons(model):
    return [(r.node, r.reason) for r in find_refusals(model)]


def test_a_sound_graph_has_no_refusals():
    assert reasons(build_pair()) == []
    assert reasons(build_pair(scale=[0.1] * 6, axis=1, data="w", reader="MatMul")) == []
    assert reasons(build_pair(scale=[0.1] * 6, axis=-1, data="w", reader="MatMul")) == []


def test_reads_files(tmp_path):
    assert check_for_tensorrt(save(build_pair(), tmp_path / "ok.onnx")) == []
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ParseError):
        check_for_tensorrt(tmp_path / "bad.onnx")


def test_zero_point():
    found = reasons(build_pair(zero=3))
    assert [node for node, _ in found] == ["quantizer", "dequantizer"]
    assert all("zero point 'z' is not 0" in reason for _, reason in found)


def test_unsigned():
    found = reasons(build_pair(zero_type=np.uint8))
    assert found and all("uint8; expected int8" in reason for _, reason in found)


def test_no_zero_point_means_unsigned():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "quantizer"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"], "dequantizer"),
    ]
    assert [node for node, _ in reasons(build_graph(nodes, {"s": np.float32(0.1)}, [2, 4], [2, 4]))] == ["quantizer"]


@pytest.mark.parametrize(
    ("scale", "said"),
    [(0.0, "holds 0"), (-0.5, "holds -0.5"), (np.inf, "not finite"), (np.nan, "not finite")],
)
def test_scale(scale, said):
    found = reasons(build_pair(scale=scale))
    assert len(found) == 2 and all(said in reason for _, reason in found)


def test_scale_that_is_computed():
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["s"], "largest", keepdims=0),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantizer"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantizer"),
    ]
    found = reasons(build_graph(nodes, {"z": np.int8(0)}, [2, 4], [2, 4]))
    assert [node for node, _ in found] == ["quantizer", "dequantizer"]
    assert "scale 's' is not a constant" in found[0][1]


def test_constants_of_nodes_are_constants():
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [], [0.1])
    nodes = [
        helper.make_node("Constant", [], ["s"], "scale", value=tensor),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantizer"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], "dequantizer"),
    ]
    assert reasons(build_graph(nodes, {"z": np.int8(0)}, [2, 4], [2, 4])) == []


@pytest.mark.parametrize("with_zero", [True, False])
def test_bias(with_zero):
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["b", "s", "z"] if with_zero else ["b", "s"], ["bias"], "bias_dequantizer"
        ),
        helper.make_node("Gemm", ["x", "w", "bias"], ["y"], "head"),
    ]
    constants = {"b": np.zeros(6, np.int32), "s": np.float32(0.1), "w": np.ones((4, 6), np.float32)}
    constants |= {"z": np.int32(0)} if with_zero else {}
    found = reasons(build_graph(nodes, constants, [2, 4], [2, 6]))
    assert {node for node, _ in found} == {"bias_dequantizer"}
    assert any("int32" in reason for _, reason in found) and any("bias of 'head'" in reason for _, reason in found)


@pytest.mark.parametrize(
    ("op", "weight", "axis", "right", "attributes", "shape", "out"),
    [
        ("Conv", (6, 4, 1, 1), 1, 0, {}, [1, 4, 2, 2], [1, 6, 2, 2]),
        ("ConvTranspose", (4, 6, 1, 1), 0, 1, {}, [1, 4, 2, 2], [1, 6, 2, 2]),
        ("Gemm", (4, 6), 0, 1, {}, [2, 4], [2, 6]),
        ("Gemm", (6, 4), 1, 0, {"transB": 1}, [2, 4], [2, 6]),
        ("MatMul", (4, 6), 0, 1, {}, [2, 4], [2, 6]),
    ],
)
def test_axis(op, weight, axis, right, attributes, shape, out):
    def build(axis):
        constants = {
            "w": np.ones(weight, np.int8),
            "s": np.full(weight[axis], 0.1, np.float32),
            "z": np.zeros(weight[axis], np.int8),
        }
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], "weight_dequantizer", axis=axis),
            helper.make_node(op, ["x", "d"], ["y"], "reader", **attributes),
        ]
        return build_graph(nodes, constants, shape, out)

    assert reasons(build(right)) == []
    assert reasons(build(right - len(weight))) == []
    assert reasons(build(axis)) == [
        ("weight_dequantizer", f"scales along axis {axis} of the weight of 'reader'; expected {right}")
    ]


def test_channels_of_an_activation():
    found = reasons(build_pair(scale=[0.1] * 4, axis=1))
    assert len(found) == 2 and all("channel of an activation" in reason for _, reason in found)


def test_dynamic_quantization():
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "dynamic"),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    found = reasons(build_graph(nodes, {"w": np.ones((4, 6), np.int8)}, [2, 4], [2, 6]))
    assert [node for node, _ in found] == ["dynamic", "product"]


def test_fused_operators_of_onnxruntime():
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantizer"),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["m"], "product"),
        helper.make_node("DequantizeLinear", ["m", "s", "z"], ["y"], "dequantizer"),
    ]
    constants = {"w": np.ones((4, 6), np.int8), "s": np.float32(0.1), "z": np.int8(0)}
    assert [node for node, _ in reasons(build_graph(nodes, constants, [2, 4], [2, 6]))] == ["product"]
