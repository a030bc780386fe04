"""Graphs in an older operator set: what has an equal there, what has none, and that answers are compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.errors import UnsupportedOperator
from enginebench.core.records import Artifact
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision import lowering
from enginebench.models.precision.lowering import lower_graph

SHAPE = (2, 4, 6)
ONES = np.ones(4, np.float32)


def build(
    nodes: str,
    out: Sequence[int | str],
    constants: Mapping[str, Any] = {},
    opset: int = 20,
    shape: Sequence[int | str] = SHAPE,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    graph = helper.make_graph(
        onnx.parser.parse_graph(f"g (float x) => (float y) {{ {nodes} }}").node,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", kind, out)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def lower(model: ModelProto, folder: Path, newest: int = 17) -> tuple[Artifact, list[NodeProto]]:
    """The lowered graph, and its nodes but constants."""
    onnx.save(model, folder / "given.onnx")
    made = lower_graph(read_onnx(folder / "given.onnx"), newest, folder / "made" / "lowered.onnx")
    return made, [n for n in onnx.load(made.path).graph.node if n.op_type != "Constant"]


LAST = {"a": np.array([-1])}
PADS = {"p": np.array([1, 2]), "a": np.array([-1])}
# Graphs, and the operators that they are lowered to.
SAME: dict[str, tuple[ModelProto, list[str]]] = {
    "mean": (build("y = ReduceMean (x, a)", [2, 4, 1], LAST), ["ReduceMean"]),
    "mean, open batch": (
        build("y = ReduceMean <keepdims = 0> (x, a)", ["n", 4], LAST, shape=("n", 4, 6)),
        ["ReduceMean"],
    ),
    "a token for each entry": (
        build(
            """n = Shape <start = 0, end = 1> (x)
            m = Shape <start = -1> (x)
            s = Concat <axis = 0> (n, one, m)
            e = Expand (t, s)
            y = Concat <axis = 1> (e, x)""",
            ["n", 5, 6],
            {"one": np.array([1]), "t": np.ones((1, 1, 6), np.float32)},
            shape=("n", 4, 6),
        ),
        ["Shape", "Slice", "Shape", "Slice", "Concat", "Expand", "Concat"],
    ),
    "max over all": (build("y = ReduceMax (x)", [1, 1, 1]), ["ReduceMax"]),
    "axes that are computed in both": (
        build("c = Identity (a) y = Unsqueeze (x, c)", [1, 2, 4, 6], {"a": np.array([0])}, 21),
        ["Identity", "Unsqueeze"],
    ),
    "gelu": (build("y = Gelu (x)", SHAPE), ["Div", "Erf", "Sum", "Mul", "Mul"]),
    "gelu in FP16": (build("y = Gelu (x)", SHAPE, kind=TensorProto.FLOAT16), ["Div", "Erf", "Sum", "Mul", "Mul"]),
    "gelu by tanh": (
        build('y = Gelu <approximate = "tanh"> (x)', SHAPE),
        ["Pow", "Mul", "Sum", "Mul", "Tanh", "Sum", "Mul", "Mul"],
    ),
    "mish": (build("y = Mish (x)", SHAPE), ["Softplus", "Tanh", "Mul"]),
    "split": (build("y, z = Split <axis = 2, num_outputs = 2> (x)", [2, 4, 3]), ["Split"]),
    "pad": (build("y = Pad (x, p, , a)", [2, 4, 9], PADS), ["Pad"]),
    "grid": (
        build(
            'y = GridSample <mode = "linear"> (x, g)',
            [1, 2, 3, 3],
            {"g": np.linspace(-1, 1, 18, dtype=np.float32).reshape(1, 3, 3, 2)},
            shape=(1, 2, 4, 4),
        ),
        ["GridSample"],
    ),
    "resize": (
        build(
            'y = Resize <mode = "linear", antialias = 0> (x, , s)',
            [1, 2, 8, 8],
            {"s": np.array([1, 1, 2, 2], np.float32)},
            shape=(1, 2, 4, 4),
        ),
        ["Resize"],
    ),
    "quantized": (
        build(
            "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)",
            SHAPE,
            {"s": np.float32(0.1), "z": np.int8(0)},
            opset=21,
        ),
        ["QuantizeLinear", "DequantizeLinear"],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_has_an_equal_is_lowered(name: str, tmp_path: Path) -> None:
    model, operators = SAME[name]
    made, nodes = lower(model, tmp_path)
    assert [n.op_type for n in nodes] == operators
    assert made.opset == 17 and onnx.load(made.path).ir_version == 8
    assert made.parent_sha256 == read_onnx(tmp_path / "given.onnx").sha256 != made.sha256


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_becomes_its_definition(opset: int, tmp_path: Path) -> None:
    constants = {"s": ONES * 2, "b": ONES} if opset == 21 else {"s": np.ones(2, np.float32), "b": ONES[:2]}
    model = build("y = GroupNormalization <num_groups = 2> (x, s, b)", SHAPE, constants, opset)
    _, nodes = lower(model, tmp_path)
    assert "GroupNormalization" not in {n.op_type for n in nodes}
    axes = [a.ints for n in nodes if n.op_type == "ReduceMean" for a in n.attribute if a.name == "axes"]
    assert axes == [[2], [2]]


def test_domains_of_others_stay_as_they_are(tmp_path: Path) -> None:
    model, _ = SAME["gelu"]
    model = onnx.ModelProto.FromString(model.SerializeToString())
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))  # ONNX Runtime's quantizer adds it
    made, _ = lower(model, tmp_path)
    assert made.opset == 17


def test_a_shape_of_some_axes_is_cut_in_branches_too_and_below_15(tmp_path: Path) -> None:
    branch = "g () => (int64[1] s) <int64[1] f = {0}> { t = Shape <start = -2, end = 9> (x) s = Gather (t, f) }"
    text = f"""b = If (c) <then_branch = {branch}, else_branch = {branch}>
        n = Shape <end = 1> (x)
        n_all = Identity (n)
        k = Concat <axis = 0> (n_all, b, m)
        y = Expand (one, k)"""
    model = build(text, [2, 4, 6], {"c": np.bool_(True), "m": np.array([6]), "one": ONES[:1]})
    for newest in (17, 14):
        made, nodes = lower(model, tmp_path, newest)
        assert [n.op_type for n in nodes] == ["If", "Shape", "Slice", "Identity", "Concat", "Expand"]
        inner = [[n.op_type for n in a.g.node if n.op_type != "Constant"] for a in nodes[0].attribute]
        assert inner == [["Shape", "Slice", "Gather"]] * 2 and made.opset == newest


REFUSED = {
    "no definition": (
        build("i = Cast <to = 6> (x) j = BitwiseNot (i) y = Cast <to = 1> (j)", SHAPE),
        "BitwiseNot .*came with opset 18",
    ),
    "computed axes": (
        build("s = Shape (x) [largest] y = ReduceMax (x, s)", SHAPE),
        r"^ReduceMax \(node 'largest'\): its axes 's' are computed",
    ),
    "an attribute": (
        build("[up] y = Resize <axes = [1, 2]> (x, , s)", [2, 8, 12], {"s": np.float32([2, 2])}),
        r"^Resize \(node 'up'\): its attribute axes=\[1, 2\] has no equal",
    ),
    "unequal parts": (
        build("[cut] y, z = Split <axis = 2, num_outputs = 2> (x)", [2, 4, 3], shape=(2, 4, 5)),
        r"^Split \(node 'cut'\): it cuts 5 into 2 parts",
    ),
    "a definition that the inliner cannot follow": (
        build("y = AffineGrid (x, n)", [2, 4, 6, 2], {"n": np.array([2, 3, 4, 6])}, shape=(2, 2, 3)),
        "definition of AffineGrid cannot be inlined",
    ),
    "a type": (
        build("[short] e = Cast <to = 17> (x) y = Cast <to = 1> (e)", SHAPE),  # an FP8
        "Cast.*short",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_equal_is_refused_by_name(name: str, tmp_path: Path) -> None:
    model, said = REFUSED[name]
    with pytest.raises(UnsupportedOperator, match=said):
        lower(model, tmp_path)
    assert not (tmp_path / "made").exists()


def test_a_form_with_other_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a rule were wrong: here that for axes, which then are all of them."""

    def forget(given: NodeProto, *_: object) -> list[TensorProto]:
        del given.input[1:]
        return []

    monkeypatch.setattr(lowering, "_lower_node", forget)
    with pytest.raises(UnsupportedOperator, match=r"output 'y' of the lowered graph is .* off"):
        lower(build("m = ReduceMean (x, a) y = Sub (x, m)", SHAPE, LAST), tmp_path)
    assert not (tmp_path / "made").exists()


def test_a_value_on_the_edge_of_a_step_of_8_bits_may_round_to_either_side(tmp_path: Path) -> None:
    text = "q = QuantizeLinear (c, one) d = DequantizeLinear (q, one) y = Mul (x, d)"
    half = np.float32(0.5)
    forms = [build(text, SHAPE, {"c": c, "one": np.float32(1)}) for c in (half, np.nextafter(half, np.float32(1)))]
    onnx.save(forms[0], tmp_path / "given.onnx")
    lowering.compare_forms(*forms, read_onnx(tmp_path / "given.onnx"))
