"""Two graphs, each as it is written: the first node that differs, values that overflow, and the noise of each node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from enginebench.core.records import EngineSpec
from enginebench.features.locate.jobs import PairJob, PairResponse
from enginebench.features.locate.nonfinite import explain_beginning
from enginebench.features.locate.pairs import AGREE, is_same
from enginebench.models.onnx.source import read_onnx
from enginebench.runs.child.arrays import save_arrays
from graphs import build_graph, build_residual, run_graph

LAYERS, WIDTH = 40, 8


def build_layers(wrong: int | None = None) -> ModelProto:
    """Forty layers of a product, a softmax and a sum; the softmax of one may be along another axis."""
    rng = np.random.default_rng(0)
    constants = {f"w{i}": rng.standard_normal((WIDTH, WIDTH), np.float32) for i in range(LAYERS)}
    nodes = []
    for i in range(LAYERS):
        before, after = (f"a{i - 1}" if i else "x"), (f"a{i}" if i < LAYERS - 1 else "y")
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], [f"m{i}"], f"product{i}"),
            helper.make_node("Softmax", [f"m{i}"], [f"s{i}"], f"softmax{i}", axis=0 if i == wrong else 1),
            helper.make_node("Add", [f"s{i}", before], [after], f"sum{i}"),
        ]
    return build_graph(nodes, constants, (4, WIDTH))


def compare(first: ModelProto, second: ModelProto, folder: Path, shape: tuple[int, ...] = (4, WIDTH)) -> PairResponse:
    artifacts = []
    for name, model in (("first", first), ("second", second)):
        onnx.save(model, folder / f"{name}.onnx")
        artifacts.append(read_onnx(folder / f"{name}.onnx"))
    save_arrays(folder / "call.npz", {"x": np.random.default_rng(1).standard_normal(shape, np.float32)})
    job = PairJob(
        artifacts=(artifacts[0], artifacts[1]),
        engine=EngineSpec(backend="ort", precision=artifacts[1].precision, recipe=artifacts[1].recipe),
        graph=str(folder / "kept.onnx"),
        call=str(folder / "call.npz"),
        out_dir=str(folder / "scratch"),
        slice_mb=2000,
    )
    return job.perform(lambda text: None, lambda answer: None)


def change_constant(model: ModelProto, name: str, change: Callable[[Any], Any]) -> ModelProto:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))
    return model


def test_a_wrong_axis_in_the_twentieth_layer_is_found_there(tmp_path: Path) -> None:
    between = compare(build_layers(), build_layers(19), tmp_path).between
    assert between is not None
    assert (between.node, between.kind) == ("softmax19", "Softmax")
    assert between.unlike == "In the first graph it has another axis."


def test_graphs_that_are_the_same_have_no_difference_whatever_their_tensors_are_called(tmp_path: Path) -> None:
    renamed = build_layers()
    for node in renamed.graph.node:
        for listed in (node.input, node.output):
            listed[:] = [f"other_{name}" if name[0] in "ams" else name for name in listed]
    assert compare(build_layers(), renamed, tmp_path) == PairResponse()
    wrong = build_layers(30)
    for node in wrong.graph.node:
        for listed in (node.input, node.output):
            listed[:] = [f"a{(int(n[1:]) + 7) % LAYERS}" if n[0] == "a" else n for n in listed]
    between = compare(build_layers(), wrong, tmp_path).between
    assert between is not None and between.node == "softmax30"


def test_one_weight_in_the_middle_of_a_network_is_found(tmp_path: Path) -> None:
    def scale_one(weights: Any) -> Any:
        changed = weights.copy()
        changed[1, 0, 1, 1] *= 5
        return changed

    second = change_constant(build_residual(), "w1", scale_one)
    between = compare(build_residual(), second, tmp_path, (2, 3, 8, 8)).between
    assert between is not None
    assert (between.node, between.unlike) == ("second", "In the first graph its constant w1 has other values.")


def test_values_beyond_fp16_are_found_where_they_overflow(tmp_path: Path) -> None:
    def build(kind: int) -> ModelProto:
        nodes = [
            helper.make_node("Cast", ["x"], ["c"], "in", to=kind),
            helper.make_node("Mul", ["c", "large"], ["m"], "scale"),
            helper.make_node("Mul", ["m", "m"], ["s"], "square"),
            helper.make_node("Div", ["s", "large"], ["d"], "divide"),
            helper.make_node("Cast", ["d"], ["y"], "out", to=1),
        ]
        dtype = np.float16 if kind == onnx.TensorProto.FLOAT16 else np.float32
        return build_graph(nodes, {"large": np.array(1000, dtype)}, (4, WIDTH))

    response = compare(build(onnx.TensorProto.FLOAT), build(onnx.TensorProto.FLOAT16), tmp_path)
    assert response.between is not None and response.between.node == "square"
    assert response.between.nonfinite and "up to" in response.between.overflowed
    assert response.noise == ()  # of what is not finite there is no share
    # Those that make or read what FP16 does not hold; what passes between them is not made shorter.
    assert response.excluded == ("square", "divide")
    (way,) = response.between.ways
    assert way.change == "square, divide are in FP32" and way.slowdown is not None
    kept = onnx.load(way.graph)
    onnx.checker.check_model(kept, full_check=True)
    assert np.isfinite(run_graph(Path(way.graph), {"x": np.full((4, WIDTH), 2, np.float32)}, optimize=False)).all()


def test_the_bad_range_of_one_node_is_most_of_the_noise(tmp_path: Path) -> None:
    """Three products in eight bits; the range of the second input is a fortieth of what it should be."""

    def build(quantized: bool) -> ModelProto:
        rng = np.random.default_rng(0)
        constants: dict[str, Any] = {f"w{i}": rng.standard_normal((WIDTH, WIDTH), np.float32) / 3 for i in range(3)}
        constants |= {"good": np.float32(0.03), "bad": np.float32(0.0008), "zero": np.int8(0)}
        nodes = []
        for i in range(3):
            before, after = (f"t{i - 1}" if i else "x"), (f"t{i}" if i < 2 else "y")
            if quantized:
                scale = "bad" if i == 1 else "good"
                nodes.append(helper.make_node("QuantizeLinear", [before, scale, "zero"], [f"q{i}"], f"q{i}"))
                nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", scale, "zero"], [f"d{i}"], f"d{i}"))
            nodes.append(
                helper.make_node("MatMul", [f"d{i}" if quantized else before, f"w{i}"], [after], f"product{i}")
            )
        return build_graph(nodes, constants, (4, WIDTH))

    response = compare(build(False), build(True), tmp_path)
    assert response.noise[0].node == "product1" and (response.noise[0].share or 0) > 0.9
    assert response.excluded == ("product1",)
    assert response.excluded_snr_db is not None and response.excluded_snr_db > 10
    assert response.between is not None and response.between.node == "product1"
    assert "q1 (QuantizeLinear), which it reads, keeps " in response.between.unlike
    assert "% at an end of its range." in response.between.unlike
    (way,) = response.between.ways
    assert way.change == "product1 is in FP32"
    (product,) = (node for node in onnx.load(way.graph).graph.node if node.name == "product1")
    assert product.input[0] == "t0"  # what was quantized, not what its range left of it


@pytest.mark.parametrize("masked", [False, True])
def test_nan_is_followed_to_where_it_begins_and_a_mask_is_meant(tmp_path: Path, masked: bool) -> None:
    from enginebench.features.locate.graph_program import GraphProgram

    nodes = [
        helper.make_node("Add", ["x", "mask"], ["m"], "mask"),
        helper.make_node("Softmax", ["m"], ["s"], "softmax", axis=1),
        helper.make_node("Log", ["s"], ["l"], "log"),
        helper.make_node("Mul", ["s" if masked else "l", "zero"], ["y"], "product"),
    ]
    mask = np.where(np.arange(WIDTH) < 3, -np.inf, 0).astype(np.float32)
    onnx.save(build_graph(nodes, {"mask": mask, "zero": np.float32(0)}, (4, WIDTH)), tmp_path / "m.onnx")
    program = GraphProgram(read_onnx(tmp_path / "m.onnx"), EngineSpec(backend="ort"), tmp_path / "s", lambda text: None)
    program.record({"x": np.zeros((4, WIDTH), np.float32)}, 1 << 20)
    text = explain_beginning(program, program.outputs)
    assert text == "" if masked else "begin at log (Log): it makes infinity" in text


BRANCHES = """
    c = Greater (s, zero)
    t = If (c) <then_branch = a () => (float[4, 8] o) { q = Softmax <axis = 1> (r) o = MatMul (q, w) },
                else_branch = b () => (float[4, 8] p) { p = Neg (r) }>
"""
HEAD = "r = Mul (x, x) s = ReduceSum <keepdims = 0> (r)"
SHAPES = "m = MatMul (x, w) r = Reshape (m, there) q = Softmax <axis = -1> (r) k = Reshape (q, back) y = Tanh (k)"


@pytest.mark.parametrize(
    ("first", "change", "node", "unlike"),
    [
        (f"{HEAD} {BRANCHES} y = Neg (t)", ("axis = 1", "axis = 0"), "t",
         "In its then_branch, at Softmax_1 (Softmax): In the first graph it has another axis."),
        (f"{HEAD} {BRANCHES} y = Neg (t)", ("(q, w)", "(q, v)"), "t",
         "In its then_branch, at MatMul_1 (MatMul): In the first graph its constant w has other values."),
        ("a = Tanh (x) b = Sin (x) d = Sub (a, b) y = Tanh (d)", ("(a, b)", "(b, a)"), "d",
         "In the first graph it reads a, b."),
        ("a = Tanh (x) b = Sin (x) d = Sub (a, b) y = Tanh (d)", ("(a, b)", "(a, x)"), "d",
         "In the first graph it reads a, b."),
        (SHAPES, ("(m, there)", "(m, elsewhere)"), "r", "In the first graph its constant there has other values."),
        ("a = MatMul (x, w) b = Mul (a, big) d = Sin (b) y = Tanh (d)", ("(x, w)", "(x, near)"), "d",
         "Before it, a (MatMul) is not the same. In the first graph its constant w has other values."),
    ],
)  # fmt: skip
def test_how_a_node_is_not_the_same_is_said(
    tmp_path: Path, first: str, change: tuple[str, str], node: str, unlike: str
) -> None:
    """Also inside of a node, behind a Reshape, and where its own output keeps to the limits."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)
    constants = {"w": weights, "v": weights.T, "near": weights * np.float32(1.0001), "big": np.float32(300)}
    constants |= {"zero": np.float32(0), "there": np.array([4, 2, 4]), "elsewhere": np.array([4, 4, 2])}
    constants["back"] = np.array([4, 8])
    assert change[0] in first
    models = [build_graph(text, constants, (4, WIDTH)) for text in (first, first.replace(*change))]
    between = compare(models[0], models[1], tmp_path).between
    assert between is not None
    assert (between.node, between.unlike) == (node, unlike)


def test_of_two_graphs_every_node_that_differs_is_named(tmp_path: Path) -> None:
    """Fed with the first graph's own tensors: those behind the first one that are the same are not."""
    second = build_layers(9)
    second.graph.node[3 * 30 + 1].attribute[0].i = 0
    response = compare(build_layers(), second, tmp_path)
    assert response.between is not None and response.between.node == "softmax9"
    assert [fault.node for fault in response.further] == ["softmax30"]


def test_graphs_that_draw_are_compared_with_the_same_numbers(tmp_path: Path) -> None:
    text = "n = RandomNormalLike (x) a = Add (x, n) y = Mul (a, w)"
    first, second = (build_graph(text, {"w": np.float32(w)}, (4, WIDTH)) for w in (2, 3))
    assert (
        compare(first, build_graph(f"{text} z = Neg (y)", {"w": np.float32(2)}, (4, WIDTH)), tmp_path).between is None
    )
    between = compare(first, second, tmp_path).between
    assert between is not None and between.node == "y"


def test_nan_in_one_branch_of_a_network_is_found_with_the_value_that_it_comes_from(tmp_path: Path) -> None:
    """The other branch, which goes around it, is right."""
    from enginebench.features.locate.graph_program import GraphProgram

    rng = np.random.default_rng(0)
    shapes = {"a": (8, 3, 3, 3), "b": (16, 8, 3, 3), "t": (16, 8, 2, 2), "d": (2, 16, 3, 3)}
    constants = {name: rng.standard_normal(shape, np.float32) / 5 for name, shape in shapes.items()}
    text = """
        c1 = Conv <pads = [1, 1, 1, 1]> (x, a) r1 = Relu (c1) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r1)
        c2 = Conv <pads = [1, 1, 1, 1]> (p, b) r2 = Relu (c2) bottom = Tanh (r2)
        up = ConvTranspose <strides = [2, 2]> (bottom, t) both = Concat <axis = 1> (up, r1)
        c3 = Conv <pads = [1, 1, 1, 1]> (both, d) y = Sigmoid (c3)
    """
    ends = ([1, 3, 16, 16], [1, 2, 16, 16])
    first, second = (build_graph(each, constants, *ends) for each in (text, text.replace("Tanh", "Log")))
    between = compare(first, second, tmp_path, (1, 3, 16, 16)).between
    assert between is not None and between.node == "bottom" and between.nonfinite
    begins = "Values that are not finite begin at bottom (Log): it makes infinity, where it reads 0."
    assert (between.unlike, between.overflowed) == ("It is a Log in place of a Tanh.", begins)
    program = GraphProgram(read_onnx(tmp_path / "second.onnx"), EngineSpec(backend="ort"), tmp_path / "s", print)
    program.record({"x": np.random.default_rng(1).standard_normal((1, 3, 16, 16), np.float32)}, 1 << 20)
    assert explain_beginning(program, program.outputs) == begins


def test_a_fault_behind_what_is_computed_in_another_way_is_found_between_other_names(tmp_path: Path) -> None:
    """A Gemm is a product and a sum in the second graph, whose names are all others; three products read its output."""
    rng = np.random.default_rng(0)
    constants = {f"w{i}": rng.standard_normal((WIDTH, WIDTH), np.float32) for i in range(4)}
    constants["b"] = rng.standard_normal(WIDTH, np.float32)
    rest = "q = MatMul (h, w1) k = MatMul (h, w2) v = MatMul (h, w3) qk = Mul (q, k) s = Tanh (v) y = Add (qk, s)"
    first = build_graph(f"h = Gemm (x, w0, b) {rest}", constants, (4, WIDTH))
    others = rest.replace("(q, k)", "(k, q)").replace("(qk, s)", "(s, qk)")
    second = build_graph(f"m = MatMul (x, w0) h = Add (b, m) {others}", constants, (4, WIDTH))
    for node in second.graph.node:
        node.name = f"other_{node.name}"
        for listed in (node.input, node.output):
            listed[:] = [f"other_{name}" if name not in ("x", "y", *constants) else name for name in listed]
    assert compare(first, second, tmp_path) == PairResponse()
    wrong = onnx.ModelProto()
    wrong.CopyFrom(second)
    between = compare(first, change_constant(wrong, "w2", lambda weights: weights * 3), tmp_path).between
    assert between is not None and between.node == "other_k"
    assert between.unlike == "In the first graph its constant w2 has other values."
    between = compare(first, change_constant(second, "b", lambda bias: bias + 1), tmp_path).between
    assert between is not None and between.node == "other_h"
    assert between.unlike == (
        "It is an Add in place of a Gemm. It may also be in what it reads, which has no counterpart in the first "
        "graph: other_m."
    )


def test_a_constant_inside_of_a_loop_is_found_there(tmp_path: Path) -> None:
    def build(factor: float) -> ModelProto:
        body = onnx.parser.parse_graph(
            "body (int64 i, bool go, float[4, 8] s) => (bool on, float[4, 8] t) "
            "{ on = Identity (go) [scale] t = Mul (s, factor) }"
        )
        body.initializer.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
        node = helper.make_node("Loop", ["three", "", "x"], ["y"], "loop", body=body)
        return build_graph([node], {"three": np.array(3)}, (4, WIDTH))

    between = compare(build(1.0), build(1.1), tmp_path).between
    assert between is not None
    assert between.unlike == "In its body, at scale (Mul): In the first graph its constant factor is 1, here 1.1."


def test_a_difference_that_no_output_shows_says_so(tmp_path: Path) -> None:
    """What the second graph multiplies by two in one node, it divides by two in the next."""
    constants = {"w": np.eye(WIDTH, dtype=np.float32), "c": np.ones(WIDTH, np.float32)}
    first = build_graph("m = MatMul (x, w) y = Mul (m, c)", constants, (4, WIDTH))
    second = change_constant(change_constant(build_graph("m = MatMul (x, w) y = Mul (m, c)", constants, (4, WIDTH)),
                                             "w", lambda one: one * 2), "c", lambda one: one / 2)  # fmt: skip
    between = compare(first, second, tmp_path).between
    assert between is not None and between.node == "m" and "agree all the same" in between.unlike


def test_a_constant_that_a_node_makes_is_compared_as_well(tmp_path: Path) -> None:
    """Exporters write numbers as nodes Constant."""

    def build(number: float) -> ModelProto:
        nodes = [
            helper.make_node("Constant", [], ["k"], "k", value_float=number),
            helper.make_node("Sub", ["x", "k"], ["d"], "shift"),
            helper.make_node("Tanh", ["d"], ["y"], "tanh"),
        ]
        return build_graph(nodes, {}, (4, WIDTH))

    response = compare(build(-1.0), build(0.05), tmp_path)
    assert response.between is not None and response.between.node == "shift"
    assert response.between.unlike == "In the first graph its constant k is -1, here 0.05."


def test_weights_that_were_made_shorter_in_another_way_are_the_same() -> None:
    weights = np.random.default_rng(0).standard_normal(1000)
    short = weights.astype(np.float16)
    assert is_same(np.nextafter(short, np.float16(0)), weights.astype(np.float32))
    assert not is_same((short * np.float16(1.01)).astype(np.float16), weights.astype(np.float32))
    assert not is_same(np.nextafter(weights, 0), weights)  # of one type


def test_outputs_agree_as_drift_judges_them(tmp_path: Path) -> None:
    """Eight bits that keep 6 dB and not the correlation: `drift` refuses these."""

    def build(step: float) -> ModelProto:
        constants: dict[str, Any] = {"s": np.float32(step), "z": np.int8(0)}
        constants |= {"w": np.eye(WIDTH, dtype=np.float32), "far": np.full(WIDTH, 1.5, np.float32)}
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
            helper.make_node("MatMul", ["d", "w"], ["m"], "product"),
            helper.make_node("Add", ["m", "far"], ["y"], "sum"),
        ]
        return build_graph(nodes, constants, (4, WIDTH))

    response = compare(build(0.03), build(0.003), tmp_path)
    assert response.between is not None and response.between.node == "product"
    assert AGREE not in response.between.unlike
