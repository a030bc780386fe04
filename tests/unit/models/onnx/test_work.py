"""The work that no engine can leave out, against counts worked out by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.models.onnx.work import count_least_work

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
        ("a = MatMul (w, w) y = MatMul (x, a)", PRODUCT),
        ("a = MatMul (x, w) b = MatMul (x, w) y = Add (a, b)", PRODUCT),
        ("a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b)", 2 * PRODUCT),
        ("y = MatMul (x, half)", PRODUCT * 36 / 64),
        ("t = Transpose (half) y = MatMul (x, t)", PRODUCT * 36 / 64),
        ("t = Transpose (x) y = MatMul (x, t)", ROWS * ROWS * WIDE / 2),  # a causal mask leaves half
        ("s = Shape (x) f = Cast <to: int = 1> (s) a = MatMul (f, pair) y = Add (x, a)", 0),
        ("y = Relu (x)", 0),
        ("r = RandomNormal <shape: ints = [8, 8]> () y = MatMul (x, r)", PRODUCT / 2),
    ],
)
def test_products_that_must_be_computed(nodes: str, macs: float) -> None:
    constants = {"w": SQUARE, "v": 2 * SQUARE, "half": HALF, "pair": np.ones((2, 1), np.float32)}
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
        ("g = Gather (x, first) y = Relu (g)", 0, 4 * WIDE),  # one row of it is read
        ("y = Relu (w)", 0, 0),
    ],
)
def test_bytes_that_must_be_read_and_written(nodes: str, read: float, written: float) -> None:
    found = count_least_work(make_model(nodes, {"w": SQUARE, "first": np.array([0])}), {}, batch=ROWS)
    assert (found.read_bytes, found.written_bytes) == (read, written)


@pytest.mark.parametrize(("kernel", "share"), [(3, 1), (1, 0)])
def test_a_convolution_reads_its_input_unless_its_steps_leave_values_out(kernel: int, share: int) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])
    graph = helper.make_graph(
        [conv],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((4, 2, kernel, kernel), np.float32), "w")],
    )
    found = count_least_work(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), {})
    side = (9 - kernel) // 2 + 1
    assert (found.conv_macs, found.read_bytes) == (4 * side**2 * 2 * kernel**2, share * 4 * 2 * 81)
