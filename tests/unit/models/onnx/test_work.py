"""The work that no engine can leave out, against counts worked out by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.records import LeastWork, TrafficCell
from enginebench.models.onnx.work import count_least_work
from enginebench.runs.child.jobs import LeastWorkJob

ROWS, WIDE = 3, 8
PRODUCT = ROWS * WIDE * WIDE


def make_model(text: str, constants: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """A model from `x` float [rows, WIDE] and `n` int64 [rows], with nodes in ONNX's own words."""
    nodes = onnx.parser.parse_graph(f"g (float x, int64 n) => (float y) {{ {text} }}").node
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDE]),
        helper.make_tensor_value_info("n", TensorProto.INT64, ["rows"]),
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "g", inputs, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


SQUARE = np.ones((WIDE, WIDE), np.float32)
HALF = np.triu(SQUARE) - np.diag(np.ones(WIDE, np.float32) / 2)  # 36 of 64 values are not zero


@pytest.mark.parametrize(
    ("nodes", "macs"),
    [
        ("y = MatMul (x, w)", PRODUCT),
        ("y = MatMul (x, w) unread = MatMul (y, w)", PRODUCT),
        ("a = MatMul (w, w) y = MatMul (x, a)", 0),  # nobody knows how many zeros it has
        ("a = Div (w, v) y = MatMul (x, a)", PRODUCT),
        ("a = MatMul (x, w) b = MatMul (x, w) y = Add (a, b)", PRODUCT),
        ("a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b)", 2 * PRODUCT),
        ("y = MatMul (x, half)", PRODUCT * 36 / 64),
        ("t = Transpose (half) y = MatMul (x, t)", PRODUCT * 36 / 64),
        ("t = Transpose (x) y = MatMul (x, t)", ROWS * ROWS * WIDE / 2),  # a causal mask leaves half
        ("s = Shape (x) f = Cast <to: int = 1> (s) a = MatMul (f, pair) y = Add (x, a)", 0),
        ("y = Relu (x)", 0),
        ("m = Mul (w, half) y = MatMul (x, m)", PRODUCT * 36 / 64),  # a mask that nobody folded
        ("u = Unknown (w) y = MatMul (x, u)", 0),
        ("a = MatMul (x, w) y = Gather (a, first)", PRODUCT / ROWS),  # one of the rows
        ("a = MatMul (x, w) r = Relu (a) y = Gather <axis: int = 1> (r, ends)", PRODUCT * 2 / WIDE),
        ("a = MatMul (x, w) b = MatMul (a, w) y = Gather (b, first)", PRODUCT + PRODUCT / ROWS),
        ("a = MatMul (x, w) b = MatMul (x, v) y = Where (yes, a, b)", PRODUCT),
        ("a, b = Split <axis: int = 1> (x, halves) c = MatMul (a, w4) y = Relu (c)", PRODUCT / 2),
        ("a = MatMul (x, w) b, c = Split <axis: int = 1> (a, halves) y = Relu (b)", PRODUCT / 2),
        ("o = OneHot (n, eight, v01) c = Cast <to: int = 1> (o) y = MatMul (c, w)", PRODUCT / WIDE),  # rows of w
        ("e = Expand (x, five) r = Relu (e) y = MatMul (r, w)", PRODUCT),  # five times the same
        ("e = Expand (x, five) a = Add (e, x5) y = MatMul (a, w)", 5 * PRODUCT),
        ("e = Pad (x, around) y = MatMul (e, w12)", PRODUCT),
        ("r = RandomNormal <shape: ints = [8, 8]> () y = MatMul (x, r)", PRODUCT / 2),
    ],
)
def test_products_that_must_be_computed(nodes: str, macs: float) -> None:
    constants = {"w": SQUARE, "v": 2 * SQUARE, "half": HALF, "pair": np.ones((2, 1), np.float32), "w4": SQUARE[:4]}
    constants |= {
        "first": np.array([0]),
        "ends": np.array([0, 7, 0]),
        "yes": np.array([True]),
        "halves": np.array([4, 4]),
        "eight": np.array(8),
        "v01": np.array([0, 1], np.float32),
        "five": np.array([5, ROWS, WIDE]),
        "x5": np.zeros((5, 1, WIDE), np.float32) + 1,
        "around": np.array([0, 2, 0, 2]),
        "w12": np.ones((WIDE + 4, WIDE), np.float32),
    }
    found = count_least_work(make_model(nodes, constants), {}, batch=ROWS)
    assert (found.gemm_macs, found.conv_macs) == (macs, 0)


def test_a_branch_that_reads_what_lies_around_it_keeps_its_inputs_alive() -> None:
    body = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["b"])],
        "body",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    model = make_model("a = MatMul (x, w) y = Identity (a)", {"w": SQUARE, "yes": np.array(True)})
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body))
    assert count_least_work(model, {}, batch=ROWS).gemm_macs == PRODUCT


def test_a_branch_that_may_not_be_taken_needs_nothing() -> None:
    made = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    takes = helper.make_graph([helper.make_node("Relu", ["a"], ["b"])], "takes", [], [made])
    leaves = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "leaves", [], [made])
    model = make_model("a = MatMul (x, w) y = Identity (a)", {"w": SQUARE, "yes": np.array(True)})
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("If", ["yes"], ["y"], then_branch=takes, else_branch=leaves))
    assert count_least_work(model, {}, batch=ROWS).gemm_macs == 0


def test_a_loop_that_may_not_run_needs_nothing_of_its_body() -> None:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("v", "b")}
    flags = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("c", "go")]
    nodes = [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Add", ["v", "a"], ["b"])]
    turn = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph(nodes, "body", [turn, flags[0], values["v"]], [flags[1], values["b"]])
    model = make_model("a = MatMul (x, w) y = Identity (a)", {"w": SQUARE, "axes": np.array([0])})
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("ReduceSum", ["n", "axes"], ["turns"], keepdims=0))
    model.graph.node.append(helper.make_node("Loop", ["turns", "", "x"], ["y"], body=body))
    assert count_least_work(model, {}, batch=ROWS).gemm_macs == 0


def test_zero_is_what_the_zero_point_stands_for() -> None:
    codes = np.full((WIDE, WIDE), 128, np.uint8)
    codes[:2] = 7  # a quarter
    constants = {"c": codes, "s": np.float32(0.1), "z": np.uint8(128), "x8": np.uint8(0), "w": HALF * 0.3}
    dequantized = make_model("w8 = DequantizeLinear (c, s, z) y = MatMul (x, w8)", constants)
    assert count_least_work(dequantized, {}, batch=ROWS).gemm_macs == PRODUCT / 4
    integers = make_model(
        "q = QuantizeLinear (x, s, x8) p = MatMulInteger (q, c, x8, z) y = Cast <to: int = 1> (p)", constants
    )
    assert count_least_work(integers, {}, batch=ROWS).gemm_macs == PRODUCT / 4
    # Values that are rounded to zero.
    rounded = make_model("q = QuantizeLinear (w, one, x8) w8 = DequantizeLinear (q, one, x8) y = MatMul (x, w8)", {})
    arrays = {"w": np.where(HALF > 0.6, HALF, 0.2).astype(np.float32), "one": np.float32(1), "x8": np.uint8(0)}
    rounded.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    assert count_least_work(rounded, {}, batch=ROWS).gemm_macs == PRODUCT * 28 / 64


def test_weights_beside_the_file_are_looked_into(tmp_path: Path) -> None:
    model = make_model("y = MatMul (x, half)", {"half": HALF})
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    stored = onnx.load(path, load_external_data=False)
    assert count_least_work(stored, {}, ROWS, path).gemm_macs == PRODUCT * 36 / 64
    assert count_least_work(stored, {}, ROWS).gemm_macs == 0, "nobody knows"


@pytest.mark.parametrize(
    ("side", "kernel", "more", "needed"),
    [
        (1, 3, {"pads": [1] * 4}, 1 / 9),  # all but the middle of the kernel lies in the padding
        (4, 3, {"pads": [1] * 4}, 100 / 144),  # 4 * 3 - 2 of 12 along each axis
        (4, 3, {"auto_pad": "SAME_UPPER"}, 100 / 144),
        (8, 3, {"pads": [8] * 4, "dilations": [8, 8]}, 1 / 9),
        (9, 3, {"strides": [2, 2]}, 1),
        (
            31,
            31,
            {"pads": [15] * 4},
            4 / 31**2,
        ),  # a Fourier transform: one of each, times what Winograd is thought to save
        (32, 16, {"strides": [16, 16]}, 1),  # patches
        (5, 1, {}, 1),
    ],
)
def test_padding_is_no_work_and_long_kernels_have_shorter_ways(
    side: int, kernel: int, more: dict[str, Any], needed: float
) -> None:
    found = count_conv(side, kernel, 2, more)
    assert found.conv_macs == pytest.approx(needed * found.written_bytes / 4 * 2 * kernel**2)


def test_winograd_saves_along_every_axis() -> None:
    found = count_conv(9, 3, 3, {})
    assert found.conv_macs == found.written_bytes / 4 * 2 * 27 / 2


def count_conv(side: int, kernel: int, axes: int, attributes: dict[str, Any]) -> LeastWork:
    """A convolution of two channels to four; its output has four bytes a value."""
    conv = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    ends = [("x", [1, 2, *[side] * axes]), ("y", None)]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends]
    weights = numpy_helper.from_array(np.ones((4, 2, *[kernel] * axes), np.float32), "w")
    graph = helper.make_graph([conv], "g", made[:1], made[1:], [weights])
    return count_least_work(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {})


def test_an_operator_of_another_domain_only_looks_like_a_product() -> None:
    model = make_model("y = MatMul (x, w)", {"w": SQUARE})
    model.graph.node[0].domain = "somebody"
    model.opset_import.append(helper.make_opsetid("somebody", 1))
    assert count_least_work(model, {}, batch=ROWS).gemm_macs == 0


def test_steps_behind_the_end_of_a_sequence_are_no_work() -> None:
    sizes = {"w": (1, 16, WIDE), "r": (1, 16, 4)}
    constants = {name: np.ones(size, np.float32) for name, size in sizes.items()}
    constants["axes"] = np.array([1])
    steps = "s = Unsqueeze (x, axes) y = LSTM <hidden_size: int = 4> (s, w, r)"
    assert count_least_work(make_model(steps, constants), {}, batch=ROWS).gemm_macs == ROWS * 16 * (WIDE + 4)
    constants["lengths"] = np.array([1], np.int32)
    cut = steps.replace("(s, w, r)", "(s, w, r, , lengths)")
    assert count_least_work(make_model(cut, constants), {}, batch=ROWS).gemm_macs == 0


@pytest.mark.parametrize(
    ("nodes", "read", "written"),
    [
        ("y = Relu (x)", 4 * ROWS * WIDE, 4 * ROWS * WIDE),
        ("f = Flatten (x) y = Relu (f)", 4 * ROWS * WIDE, 4 * ROWS * WIDE),
        ("y = Identity (x)", 0, 0),  # an engine may hand out what it was given
        ("y = Gather (w, n)", 0, 4 * ROWS * WIDE),
        ("g = Gather (x, first) y = Relu (g)", 4 * WIDE, 4 * WIDE),  # one row of it is read
        ("y = Gather (x, first)", 0, 0),  # a view
        ("y = Relu (w)", 0, 0),
        ("r = Relu (x) y = Slice (r, starts, ends, axes)", 4 * ROWS * 2, 0),  # two columns: the rest is never read
        ("y = Add (x, zero)", 0, 0),
        ("y = Add (x, w1)", 4 * ROWS * WIDE, 4 * ROWS * WIDE),
        ("y = ReduceSum <keepdims: int = 1> (x, axes)", 4 * ROWS * WIDE, 4 * ROWS),
    ],
)
def test_bytes_that_must_be_read_and_written(nodes: str, read: float, written: float) -> None:
    places = {"first": [0], "starts": [0], "ends": [2], "axes": [1]}
    constants = {"w": SQUARE, "zero": np.zeros(1, np.float32), "w1": SQUARE[0]}
    constants |= {name: np.array(place) for name, place in places.items()}
    found = count_least_work(make_model(nodes, constants), {}, batch=ROWS)
    assert (found.read_bytes, found.written_bytes) == (read, written)


@pytest.mark.parametrize(("side", "kernel", "read"), [(9, 3, 9), (9, 1, 5), (9, 2, 8)])
def test_a_convolution_reads_its_input_unless_its_steps_leave_values_out(side: int, kernel: int, read: int) -> None:
    found = count_conv(side, kernel, 2, {"strides": [2, 2]})
    assert found.read_bytes == pytest.approx(4 * 2 * read**2)


def test_a_mean_request_has_the_work_of_its_shapes_by_their_weights(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", WIDE))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("batch", WIDE))],
        [numpy_helper.from_array(SQUARE, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    cells = tuple(TrafficCell(weight=w, batch=n, shapes={"x": (n, WIDE)}) for w, n in ((0.75, 1), (0.25, 8)))
    work = LeastWorkJob(path=str(path), cells=cells).perform(print, print)
    assert work.gemm_macs == pytest.approx((0.75 * 1 + 0.25 * 8) * WIDE * WIDE)
    assert work.read_bytes == pytest.approx((0.75 * 1 + 0.25 * 8) * WIDE * 4)
