"""Quantized files of every form: read, and run as ONNX Runtime runs them; what is no such chain is refused by name."""

import os
from fractions import Fraction

import numpy as np
import onnx
import pytest
from networks import draw_inputs, make_network
from onnx import helper

from chains import SCALES, run_ort, write_chain
from enginebench.core.errors import FeedError, ModelError, ParseError, UsageError
from enginebench_fpga.network import Quantization, fit_multipliers, make_layer
from enginebench_fpga.onnx_reader import read_network

INPUTS = np.random.default_rng(3).random((2000, 6), dtype=np.float32)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"transposed": False},
        {"matmul": True},
        {"bias": "dq"},
        {"relu": "clip", "kind": np.int8},
        {"relu": "relu", "kind": np.int8},
        {"weight_zero": 128, "per_channel": False},
        {"constant_weights": True},
    ],
    ids=str,
)
def test_every_form_gives_what_onnx_runtime_gives(form, tmp_path):
    path = write_chain(tmp_path / "ein Netz é.onnx", **form)
    network = read_network(path)
    steps = (network.infer(INPUTS) - run_ort(path, INPUTS)) / SCALES["output"]
    # A float32 scale may put a near tie on the other side; never more than one step, never often.
    assert np.abs(steps).max() < 1.5
    assert (np.abs(steps) > 0.5).mean() < 1e-3
    assert (network.inputs, network.outputs, network.answer_bytes) == (6, 3, 1)
    assert network.input_shape == ("batch", 6)


def test_a_file_without_output_scale_gives_sums_and_a_pair_before_relu_is_folded(tmp_path):
    path = write_chain(tmp_path / "f.onnx", output_q=False)
    network = read_network(path)
    assert network.answer_bytes == 4
    assert np.allclose(network.infer(INPUTS), run_ort(path, INPUTS), atol=0.05)

    def swap(nodes, constants):
        place = next(i for i, node in enumerate(nodes) if node.op_type == "Relu")
        constants |= {"before_s": np.float32(0.02), "before_z": np.int8(0)}
        source = nodes[place].input[0]
        nodes.insert(place, helper.make_node("QuantizeLinear", [source, "before_s", "before_z"], ["before_q"]))
        nodes.insert(place + 1, helper.make_node("DequantizeLinear", ["before_q", "before_s", "before_z"], ["before"]))
        nodes[place + 2].input[0] = "before"

    path = write_chain(tmp_path / "f.onnx", kind=np.int8, relu="relu", swap=swap)
    network = read_network(path)
    assert "two roundings" in network.notes[0]
    assert (np.abs(network.infer(INPUTS) - run_ort(path, INPUTS)) / SCALES["output"]).max() < 1.5


def refuse(nodes, index, **changes):
    """Changes a node so that it cannot be read."""
    for key, value in changes.items():
        if key == "op":
            nodes[index].op_type = value
        else:
            del nodes[index].attribute[:]
            nodes[index].attribute.append(helper.make_attribute(key, value))


def float_weights(nodes, constants):
    constants["layer0_wf"] = np.ones((5, 6), np.float32)
    del nodes[2]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"swap": float_weights}, "not quantized"),
        ({"swap": lambda nodes, c: refuse(nodes, 3, op="Conv")}, "Conv"),
        ({"swap": lambda nodes, c: refuse(nodes, 3, alpha=2.0)}, "alpha"),
        ({"swap": lambda nodes, c: c.update(input_s=np.float32(0))}, "scale"),
        ({"swap": lambda nodes, c: c.update(input_s=np.ones(6, np.float32), input_z=np.zeros(6, np.uint8))}, "one"),
        ({"swap": lambda nodes, c: c.update(layer0_b=np.ones(4, np.float32))}, "bias has 4"),
        ({"swap": lambda nodes, c: c.update(layer0_b=np.full(5, 1e9, np.float32))}, "32 bits"),
        (
            {
                "axis": 1,
                "swap": lambda nodes, c: c.update(layer0_ws=np.ones(6, np.float32), layer0_wz=np.zeros(6, np.int8)),
            },
            "axis 1",
        ),
        (
            {
                "swap": lambda nodes, c: c.update(
                    layer0_w=np.full((5, 6), -128, np.int8), layer0_wz=np.full(5, 7, np.int8)
                )
            },
            "signed byte",
        ),
        ({"swap": lambda nodes, c: c.update(layer0_w=np.ones((5, 6), np.int32))}, "int32"),
        ({"swap": lambda nodes, c: c.pop("layer0_b")}, "is not a constant"),
        ({"swap": lambda nodes, c: nodes.append(helper.make_node("Relu", ["input_dq"], ["z"]))}, "one node"),
    ],
)
def test_what_is_no_chain_of_quantized_layers_is_refused(form, said, tmp_path):
    path = write_chain(tmp_path / "f.onnx", **form)
    with pytest.raises(ModelError, match=said):
        read_network(path)


def test_ends_that_differ_and_two_inputs_are_refused(tmp_path):
    def swap(nodes, constants):
        constants["other"] = np.float32(0.5)
        nodes[1].input[1] = "other"

    with pytest.raises(ModelError, match="differ"):
        read_network(write_chain(tmp_path / "f.onnx", swap=swap))
    path = write_chain(tmp_path / "f.onnx")
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("more", onnx.TensorProto.FLOAT, [1]))
    onnx.save(model, path)
    with pytest.raises(ModelError, match="2 inputs"):
        read_network(path)


@pytest.mark.parametrize("data", [b"", b"not onnx", b"\x00" * 100])
def test_what_is_no_onnx_file_is_named(data, tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(ParseError, match=r"broken\.onnx"):
        read_network(path)
    with pytest.raises(ParseError, match="missing"):
        read_network(tmp_path / "missing.onnx")


# The integer reference against plain Python, and what a network refuses.


def test_reference_is_what_exact_fractions_say():
    network = make_network((7, 5, 3), bits=32)
    for row in draw_inputs(network, 20):
        values = [int(v) for v in row]
        for layer in network.layers:
            sums = [
                sum(int(w) * v for w, v in zip(weights, values, strict=True)) + int(bias)
                for weights, bias in zip(layer.weights, layer.bias, strict=True)
            ]
            exact = [
                Fraction(s * int(m), 2 ** int(k)) for s, m, k in zip(sums, layer.multiplier, layer.shift, strict=True)
            ]
            values = [min(127, max(layer.low, round(e) + layer.zero_point)) for e in exact]  # round: ties to even
        assert network.infer_bytes(row[None])[0].tolist() == values


def test_bounds_ties_and_checksums_hold():
    network = make_network((9, 4))
    layer = network.layers[0]
    low, high = layer.bound_accumulators()
    worst = np.where(layer.weights > 0, 127, -128)
    assert [int(layer.accumulate(row[None])[0, i]) for i, row in enumerate(worst)] == high.tolist()
    best = np.where(layer.weights > 0, -128, 127)
    assert [int(layer.accumulate(row[None])[0, i]) for i, row in enumerate(best)] == low.tolist()
    kind = Quantization(scale=0.5, zero_point=-3)
    assert kind.encode(np.array([0.25, 0.75, 100, -100], np.float32)).tolist() == [-3, -1, 127, -128]
    assert kind.decode(np.array([-3, -1], np.int8)).tolist() == [0.0, 1.0]
    with pytest.raises(FeedError, match="not a number"):
        kind.encode(np.array([np.nan], np.float32))
    network = make_network((7, 5, 3))
    assert network.checksum == make_network((7, 5, 3)).checksum
    others = [make_network((7, 5, 3), seed=1), make_network((7, 5, 3), bits=16), make_network((7, 5, 3), relu=False)]
    assert network.checksum not in [other.checksum for other in others]


@pytest.mark.parametrize("bits", [0, 3, 33])
def test_width_of_a_multiplier_is_checked(bits):
    with pytest.raises(UsageError, match="4 to 32"):
        fit_multipliers(make_network((3, 2)), bits)


def test_what_overflows_or_has_no_multiplier_is_refused():
    source = Quantization(scale=1.0, zero_point=0)
    weights = np.ones((2, 3), np.int8)
    tiny = make_layer(weights, np.zeros(2), np.full(2, 1e-30), source, source, relu=False)
    network = make_network((3, 2))
    with pytest.raises(ModelError, match="shift"):
        fit_multipliers(type(network)(layers=(tiny,), input_quantization=source), 32)
    source = Quantization(scale=1.0, zero_point=0)
    with pytest.raises(ModelError, match="32 bits"):
        make_layer(np.full((1, 140_000), 127, np.int8), np.zeros(1), np.ones(1), source, None, relu=False)
    network = make_network((7, 3))
    assert network.infer(np.zeros((2, 7, 1, 1), np.float32)).shape == (2, 3)
    for shape in ((2, 6), (7,), ()):
        with pytest.raises(FeedError, match="7"):
            network.infer(np.zeros(shape, np.float32))


def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "f.onnx")
    with pytest.raises(ParseError, match="a pipe or a device, not a regular file"):
        read_network(tmp_path / "f.onnx")
