"""Ranges and other precisions are made of a graph as it is written, whatever ONNX Runtime's optimizer makes of it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.records import Artifact
from enginebench.models.onnx.reference import GraphReference, keeps_outputs, open_reference_session
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import make_fake
from enginebench.models.precision.graph import _computes_alike, prepare_graph
from enginebench.models.precision.quantize import quantize
from graphs import build_graph


@pytest.fixture
def lost_axis(tmp_path: Path) -> Artifact:
    """A normalization whose means lost their axis: ONNX Runtime fuses it into a LayerNormalization, which it is not."""
    constants = {"two": 2.0, "eps": 1e-5, "scale": np.linspace(0.5, 1.5, 8), "shift": np.linspace(-1, 1, 8)}
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[-1], keepdims=0),
        helper.make_node("Sub", ["x", "mean"], ["centred"]),
        helper.make_node("Pow", ["centred", "two"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["variance"], axes=[-1], keepdims=0),
        helper.make_node("Add", ["variance", "eps"], ["sum"]),
        helper.make_node("Sqrt", ["sum"], ["deviation"]),
        helper.make_node("Div", ["centred", "deviation"], ["normal"]),
        helper.make_node("Mul", ["normal", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy")
    stored = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()]
    model = helper.make_model(
        helper.make_graph(nodes, "lost_axis", [x], [y], stored), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    onnx.save(model, tmp_path / "lost_axis.onnx")
    return read_onnx(tmp_path / "lost_axis.onnx")


def list_outputs(path: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(GraphReference(Path(path)).run({"x": x})["y"])


def test_the_optimizer_does_change_this_graph(lost_axis: Artifact) -> None:
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    (fused,) = open_reference_session(lost_axis.path, optimize=True).run(None, {"x": x})
    assert np.abs(fused - list_outputs(lost_axis.path, x)).max() > 0.1, "else these tests show nothing"


def test_ranges_and_casts_are_those_of_the_graph_as_it_is_written(lost_axis: Artifact, tmp_path: Path) -> None:
    data = make_fake(lost_axis.inputs, 16, seed=0)
    found = calibrate(lost_axis, data, threads=1).ranges["y"]
    values = [list_outputs(lost_axis.path, data.read(i, i + 8)["x"]) for i in (0, 8)]
    assert (found.low, found.high) == pytest.approx((np.min(values), np.max(values)), rel=1e-5)
    cast = quantize(lost_axis, "fp16", None, tmp_path / "cast.onnx")
    x = data.read(0, 8)["x"]
    np.testing.assert_allclose(list_outputs(cast.path, x), values[0], atol=0.02)


def test_graphs_are_compared_as_they_are_written(lost_axis: Artifact, tmp_path: Path) -> None:
    x = {"x": np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)}
    model = onnx.load(lost_axis.path)
    changed = tmp_path / "changed.onnx"
    onnx.save(model, changed)
    assert keeps_outputs(Path(lost_axis.path), changed, x)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.float32(0.5), "eps"))
    onnx.save(model, changed)
    assert not keeps_outputs(Path(lost_axis.path), changed, x)
    assert keeps_outputs(Path(lost_axis.path), changed, {"x": x["x"][:3]}), "a graph that does not run says nothing"


def test_a_graph_that_is_prepared_twice_is_run_once(lost_axis: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """To calibrate and to rewrite it; what the first found holds for the second."""
    runs = list[bool]()

    def keep(original: Path, converted: Path, feeds: Any, libraries: Any = ()) -> bool:
        runs.append(keeps_outputs(original, converted, feeds, libraries))
        return runs[-1]

    monkeypatch.setattr("enginebench.models.precision.graph.keeps_outputs", keep)
    monkeypatch.setattr("enginebench.models.precision.graph._KEPT", {})
    made = [prepare_graph(onnx.load(lost_axis.path), inputs=lost_axis.inputs) for _ in range(2)]
    assert runs == [False] and made[0] == made[1]
    prepare_graph(onnx.load(lost_axis.path))
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("nodes", "folded"), [("h = MatMul (x, w) y = Relu (h)", 0), ("h = Identity (x) y = Relu (h)", 1)]
)
def test_outputs_are_compared_only_where_something_was_folded(
    nodes: str, folded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening both forms takes ONNX Runtime a second for 20,000 nodes, and they are the same graph."""
    compared: list[Path] = []
    monkeypatch.setattr("enginebench.models.precision.graph._KEPT", {})
    monkeypatch.setattr(
        "enginebench.models.precision.graph.keeps_outputs", lambda a, *_: bool(compared.append(a)) or True
    )
    weights = {"w": np.eye(4, dtype=np.float32)} if not folded else {}
    model = build_graph(nodes, weights)
    onnx.save(model, tmp_path / "g.onnx")
    prepare_graph(model, (), read_onnx(tmp_path / "g.onnx").inputs)
    assert len(compared) == folded


@pytest.mark.parametrize("change", ["weight", "text", "attribute", "order"])
def test_a_graph_with_another_constant_or_node_is_another(change: str) -> None:
    def make(values: float, text: str, slope: float, first: str) -> onnx.ModelProto:
        nodes = [helper.make_node("LeakyRelu", ["x"], ["h"], alpha=slope), helper.make_node("Sub", [first, "w"], ["y"])]
        stored = [
            helper.make_tensor("w", TensorProto.FLOAT, [1], [values]),
            helper.make_tensor("t", TensorProto.STRING, [1], [text.encode()]),
        ]
        return helper.make_model(helper.make_graph(nodes, "g", [], [], stored))

    same = {"values": 1.0, "text": "a", "slope": 0.5, "first": "h"}
    other = (
        same
        | {"weight": {"values": 2.0}, "text": {"text": "b"}, "attribute": {"slope": 0.25}, "order": {"first": "x"}}[
            change
        ]
    )
    assert _computes_alike(make(**same), make(**same))  # type: ignore[arg-type]
    assert not _computes_alike(make(**same), make(**other))  # type: ignore[arg-type]
