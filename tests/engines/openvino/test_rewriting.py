"""Graphs that OpenVINO refuses as they are: rewritten, it answers what ONNX Runtime does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
from onnxruntime.quantization import QuantFormat

from calls import answer_as_ort, run_on
from enginebench.core.errors import ArtifactError, UnsupportedOperator
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.streams import StreamsSpec
from enginebench.engines.backends.openvino import graphs
from enginebench.engines.backends.openvino.graphs import GraphSource, is_misread, read_model
from enginebench.engines.backends.openvino.openvino import OpenvinoBackend
from enginebench.engines.backends.openvino.rewriting import Rewritable, find_deciders
from enginebench.models.onnx.source import read_onnx
from graphs import quantize_on_noise, write_graph, write_text

if TYPE_CHECKING:
    from enginebench.core.protocols import Feeds

SPEC = EngineSpec(backend="openvino")

# A recording of three samples gets a channel; one of four has it already. OpenVINO does not know the rank behind it.
BY_SHAPE = """pick (float[batch, length] x, float[2, 1, 2] w) => (float[batch, a, b] y) {
  shape = Shape (x)
  one = Constant <value = int64 {1}> ()
  length = Gather (shape, one)
  three = Constant <value = int64 {3}> ()
  axes = Constant <value = int64[1] {1}> ()
  short = Equal (length, three)
  wide = If (short) <
    then_branch = then () => (float[batch, 1, length] t) { t = Unsqueeze (x, axes) },
    else_branch = other () => (float[batch, length] e) { e = Relu (x) }
  >
  rank = Shape (wide)
  size = Size (rank)
  two = Constant <value = int64 {2}> ()
  flat = Equal (size, two)
  ready = If (flat) <
    then_branch = then () => (float[batch, 1, length] t2) { t2 = Unsqueeze (wide, axes) },
    else_branch = other () => (float[batch, 1, length] e2) { e2 = Identity (wide) }
  >
  y = Conv (ready, w)
}"""

# As Silero VAD: a sampling rate chooses between two networks, of which only one fits the shapes.
BY_VALUE = """pick (float[batch, length] x, int64 rate) => (float[batch, a, b] y) {
  high = Constant <value = int64 {16000}> ()
  axes = Constant <value = int64[1] {1}> ()
  w = Constant <value = float[1, 1, 2] {1, 2}> ()
  v = Constant <value = float[2, 1, 1] {3, 4}> ()
  is_high = Equal (rate, high)
  y = If (is_high) <
    then_branch = then () => (float[batch, a, b] t) { c = Unsqueeze (x, axes) t = Conv (c, w) },
    else_branch = other () => (float[batch, a, b] e) { d = Unsqueeze (x, axes) e = Conv (d, v) }
  >
}"""

# As a wake word of openWakeWord: what decides is data, in an array of one element with two axes.
BY_DATA = """pick (float[1, 1] x) => (float[1, 1] y) {
  half = Constant <value = float {0.5}> ()
  high = GreaterOrEqual (x, half)
  y = If (high) <
    then_branch = then () => (float[1, 1] t) { t = Neg (x) },
    else_branch = other () => (float[1, 1] e) { e = Add (x, x) }
  >
}"""

WEIGHTS = np.float32([[[1, -2]], [[3, 5]]])


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Artifact]:
    """Writes a graph to a file; gives its artifact."""

    return lambda text: write_graph(tmp_path / "given é.onnx", text)


def check_answers(artifact: Artifact, calls: list[Feeds]) -> None:
    """One engine answers each call, one after another, as ONNX Runtime does."""
    with OpenvinoBackend().load(artifact, SPEC) as engine:
        for feeds in calls:
            found = run_on(engine, feeds)
            for name, array in answer_as_ort(artifact.path, feeds).items():
                np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_branches_that_shapes_decide(write: Callable[[str], Artifact]) -> None:
    artifact = write(BY_SHAPE)
    with pytest.raises(ArtifactError, match="cannot read"):
        read_model(artifact)
    long, short = np.float32([[1, 2, 3, 4], [5, -6, 7, 8]]), np.float32([[1, -2, 3]])
    (warning,) = GraphSource(artifact, static=True).warnings
    assert warning.code == "rewritten_graph"
    built = OpenvinoBackend().build(artifact, SPEC, Path(artifact.path).parent / "built")
    assert (built.path, built.warnings) == (artifact.path, (warning,))  # no one file answers for all shapes
    check_answers(artifact, [{"x": long, "w": WEIGHTS}, {"x": short, "w": WEIGHTS}, {"x": -long, "w": WEIGHTS}])
    artifact = write(BY_SHAPE)
    graph = Rewritable(Path(artifact.path)).rewrite({"x": (1, 3), "w": (2, 1, 2)}, {})
    model = openvino.Core().read_model(graph)
    assert [sorted(port.get_names()) for port in model.inputs] == [["x"], ["w"]]
    assert model.output("y").get_element_type() == openvino.Type.f32
    with pytest.raises(ArtifactError, match="cannot read"):
        GraphSource(write(BY_SHAPE), static=False)


def test_a_branch_that_does_not_fit_the_shapes_costs_only_the_values_that_take_it(write, monkeypatch) -> None:
    """As Silero VAD at a length of the other sampling rate."""
    text = BY_VALUE.replace("[batch, length] x", "[1, 4] x").replace("float[2, 1, 1] {3, 4}", "float[1, 1, 9] {0}")
    artifact = write(text.replace("{0}", "{0, 1, 2, 3, 4, 5, 6, 7, 8}"))
    refuse(monkeypatch)
    x = np.float32([[1, 2, 3, 4]])
    with OpenvinoBackend().load(artifact, SPEC) as engine:
        with pytest.raises(UnsupportedOperator, match="cannot read"):
            engine.bind({"x": x, "rate": np.array(8000)})
        np.testing.assert_allclose(run_on(engine, {"x": x, "rate": np.array(16000)})["y"], [[[5, 8, 11]]])


def refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has OpenVINO refuse every file."""

    def read(path: str) -> None:
        error = UnsupportedOperator(f"If: OpenVINO cannot read {path}")
        error.log = "error"
        raise error

    monkeypatch.setattr(graphs, "read_model", read)


def test_values_and_conditions_with_axes_choose_a_branch_anew(write, monkeypatch) -> None:
    artifact = write(BY_DATA)
    with pytest.raises(UnsupportedOperator, match=r"^If: OpenVINO cannot read"):
        read_model(artifact)
    assert set(find_deciders(onnx.load(artifact.path).graph)) == set()  # floats do not settle anything
    check_answers(artifact, [{"x": np.float32([[0.7]])}, {"x": np.float32([[0.2]])}])
    artifact = write(BY_VALUE)
    refuse(monkeypatch)  # this one OpenVINO reads; Silero's own, which it does not, is in tests/e2e
    x = np.float32([[1, 2, 3, 4]])
    calls = [{"x": x, "rate": np.array(rate)} for rate in (16000, 8000, 16000)]
    assert answer_as_ort(artifact.path, calls[0])["y"].shape != answer_as_ort(artifact.path, calls[1])["y"].shape
    check_answers(artifact, calls)
    assert set(find_deciders(onnx.load(artifact.path).graph)) == {"rate"}


def quantize(tmp_path: Path, body: str, shapes: dict[str, tuple[int, ...]]) -> Artifact:
    """A graph with seeded weights of these shapes, in ONNX Runtime's operators on eight bits, scales by channel.

    Weights have seven bits: on a CPU without VNNI OpenVINO's own sums of 8-bit products saturate.
    """
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    text = f"(float[2, 3, 6, 6] x) => (float[a, b] y) {{ {body} }}"
    given, made = write_text(tmp_path / "given.onnx", text, weights), tmp_path / "made.onnx"
    how = {"quant_format": QuantFormat.QOperator, "per_channel": True, "reduce_range": True}
    quantize_on_noise(given, made, (2, 3, 6, 6), **how)
    return read_onnx(made)


def test_operators_of_onnx_runtime_on_eight_bits_are_the_same_in_floats(tmp_path: Path) -> None:
    body = """
      a = Conv (x, w, c) r = Sigmoid (a) s = Add (a, r) m = Mul (s, r) l = LeakyRelu <alpha = 0.1> (m)
      k = AveragePool <kernel_shape = [2, 2]> (l) p = GlobalAveragePool (k) f = Flatten (p)
      g = Gemm <transB = 1> (f, v, b) y = Gemm (g, u)
    """
    artifact = quantize(tmp_path, body, {"w": (4, 3, 1, 1), "c": (4,), "v": (3, 4), "b": (3,), "u": (3, 5)})
    kinds = {node.op_type for node in onnx.load(artifact.path).graph.node}
    assert {"QLinearConv", "QGemm", "QLinearAdd", "QLinearMul", "QLinearGlobalAveragePool"} <= kinds
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)
    made = Rewritable(Path(artifact.path)).rewrite({"x": x.shape}, {})
    assert {node.domain for node in onnx.load_from_string(made).graph.node} == {""}
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it would fuse them again
    session = onnxruntime.InferenceSession(made, settings, providers=["CPUExecutionProvider"])
    exact = answer_as_ort(artifact.path, {"x": x})["y"]
    assert np.ptp(exact) > 1
    np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, rtol=1e-5, atol=1e-5)


def test_scales_by_output_channel_are_not_taken_along_the_inputs(tmp_path: Path) -> None:
    body = "a = Conv (x, w) y = Flatten (a)"
    artifact = quantize(tmp_path, body, {"w": (3, 3, 1, 1)})  # as many inputs as outputs: OpenVINO has no objection
    openvino.Core().read_model(artifact.path)
    with pytest.raises(UnsupportedOperator, match=r"QLinearConv.*wrong axis"):
        read_model(artifact)
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 6)).astype(np.float32)
    with OpenvinoBackend().load(artifact, EngineSpec(backend="openvino", precision="int8", batch=2)) as engine:
        engine.bind({"x": x})
        engine.run()
        exact = answer_as_ort(artifact.path, {"x": x})["y"]
        assert np.abs(engine.fetch()["y"] - exact).max() <= 0.03 * np.abs(exact).max()
    artifact = quantize(tmp_path, "a = Conv (x, w) y = Flatten (a)", {"w": (1, 3, 1, 1)})
    assert not is_misread(Path(artifact.path))
    assert not is_misread(tmp_path / "missing.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"QLinearConv")
    assert not is_misread(tmp_path / "broken.onnx")


@pytest.mark.parametrize("opset", [10, 12])
def test_scales_by_output_channel_of_older_opsets(tmp_path: Path, opset: int) -> None:
    """`DequantizeLinear` had no axis then."""
    path = tmp_path / "old.onnx"
    write_convolution(path, opset)
    x = np.random.default_rng(1).integers(0, 100, (1, 3, 5, 5)).astype(np.uint8)
    with OpenvinoBackend().load(read_onnx(path), EngineSpec(backend="openvino", precision="int8")) as engine:
        engine.bind({"x": x})
        engine.run()
        wanted = answer_as_ort(path, {"x": x})["y"]
        assert np.ptp(wanted) > 20
        assert np.abs(engine.fetch()["y"].astype(int) - wanted.astype(int)).max() <= 1


def write_convolution(path: Path, opset: int) -> onnx.ModelProto:
    """One `QLinearConv` with three inputs, three outputs and a scale for each."""
    w = np.random.default_rng(0).integers(-50, 50, (3, 3, 1, 1)).astype(np.int8)
    arrays = {"xs": np.float32(0.1), "xz": np.uint8(7), "w": w, "ws": np.float32([0.02, 0.05, 0.01])}
    arrays |= {"wz": np.zeros(3, np.int8), "ys": np.float32(0.5), "yz": np.uint8(100)}
    text = f"(uint8[1, 3, 5, 5] x) => (uint8[1, 3, 5, 5] y) {{ y = QLinearConv (x, {', '.join(arrays)}) }}"
    return onnx.load(write_text(path, text, arrays, opset))


def test_a_convolution_within_a_branch_is_not_misread_either(tmp_path: Path) -> None:
    inner = write_convolution(tmp_path / "inner.onnx", 17)
    branches = []
    for name, kind in (("then_branch", "Identity"), ("else_branch", "Identity")):
        end = onnx.helper.make_node(kind, ["y"], [f"{name}/y"])
        made = onnx.helper.make_tensor_value_info(f"{name}/y", onnx.TensorProto.UINT8, [1, 3, 5, 5])
        branches.append(onnx.helper.make_graph([*inner.graph.node, end], name, [], [made], inner.graph.initializer))
    choice = onnx.helper.make_node("If", ["flag"], ["out"], then_branch=branches[0], else_branch=branches[1])
    flag = onnx.helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, [])
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.UINT8, [1, 3, 5, 5])
    graph = onnx.helper.make_graph([choice], "g", [*inner.graph.input, flag], [out])
    path = tmp_path / "branch.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    assert is_misread(path)
    feeds = {"x": np.random.default_rng(1).integers(0, 100, (1, 3, 5, 5)).astype(np.uint8), "flag": np.array(True)}
    with OpenvinoBackend().load(read_onnx(path), EngineSpec(backend="openvino", precision="int8")) as engine:
        engine.bind(feeds)
        engine.run()
        wanted = answer_as_ort(path, feeds)["out"]
        assert np.abs(engine.fetch()["out"].astype(int) - wanted.astype(int)).max() <= 1


def test_what_cannot_be_rewritten_is_refused_with_what_to_install(write, monkeypatch) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = my.own.Odd (x) }")
    for take in (OpenvinoBackend().load, lambda a, s: OpenvinoBackend().build(a, s, Path(a.path).parent / "built")):
        with pytest.raises(UnsupportedOperator, match=r"my.own.Odd: OpenVINO cannot read"):
            take(artifact, SPEC)
    artifact = write(BY_DATA)
    monkeypatch.delitem(sys.modules, Rewritable.__module__)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UnsupportedOperator, match=r"be rewritten, but onnxscript is not installed.*pip install"):
        GraphSource(artifact, static=True)


def test_streams_take_each_value_with_its_own_graph(write, monkeypatch) -> None:
    artifact = write(BY_VALUE)
    refuse(monkeypatch)
    streams = OpenvinoBackend().open_streams(artifact, SPEC, StreamsSpec(streams=1, max_batch=1), lambda: 0)
    try:
        for ticket, rate in enumerate((16000, 8000)):
            feeds = {"x": np.float32([[1, 2, 3, 4]]), "rate": np.array(rate)}
            streams.submit(ticket, [feeds])
            (ended,) = streams.collect(wait=True)
            assert ended.error is None
            np.testing.assert_allclose(ended.outputs["y"], answer_as_ort(artifact.path, feeds)["y"], rtol=1e-5)
    finally:
        streams.close()


def test_streams_of_a_graph_whose_input_has_a_second_name(write: Callable[[str], Artifact]) -> None:
    artifact = write("(float[1, 2] x) => (float[1, 2] y) { h = Identity (x) y = Relu (h) }")
    streams = OpenvinoBackend().open_streams(artifact, SPEC, StreamsSpec(streams=1, max_batch=1), lambda: 0)
    try:
        streams.submit(0, [{"x": np.float32([[1, -1]])}])
        (ended,) = streams.collect(wait=True)
        assert ended.error is None and ended.outputs is not None
        np.testing.assert_array_equal(ended.outputs["y"], [[1, 0]])
    finally:
        streams.close()
