"""ONNX Runtime: what is bound, what is refused, what cannot be known before a run."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import load as load_graph

from calls import run_on
from enginebench.core.errors import BackendUnavailable, EngineBenchError
from enginebench.core.protocols import EmptyCall
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.onnxruntime import ort
from enginebench.engines.backends.onnxruntime.ort import OrtBackend, make_session_options
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.quantize import quantize
from enginebench.models.zoo import packaged_onnx
from graphs import write_graph

SPEC = EngineSpec(backend="ort")


def test_output_whose_shape_the_data_decide(tmp_path: Path) -> None:
    text = "g (float[n] x) => (int64[1, count] found, float[n] twice) { found = NonZero (x) twice = Add (x, x) }"
    artifact = write_graph(tmp_path / "m.onnx", text)
    with OrtBackend().load(artifact, SPEC) as engine:
        for values, places in (([0, 2, 3], [[1, 2]]), ([1, 0, 0], [[0]]), ([0, 4], [[1]])):
            answer = run_on(engine, {"x": np.array(values, np.float32)})
            np.testing.assert_array_equal(answer["found"], places)
            np.testing.assert_array_equal(answer["twice"], 2 * np.array(values))


@pytest.mark.parametrize("level", ["all", "none"])
def test_an_input_that_is_handed_on_is_answered(tmp_path: Path, level: str) -> None:
    """ONNX Runtime leaves a buffer that is bound for it as it was, which of integers would be zeros."""
    x, ids, y = "float[batch, 3] x", "int64[batch, 2] ids", "float[batch, 3] y"
    artifact = write_graph(tmp_path / "m.onnx", f"g ({x}, {ids}) => ({y}, {ids}, {x}) {{ y = Neg (x) }}")
    with OrtBackend().load(artifact, replace(SPEC, options={"opt": level})) as engine:
        for seed, batch in enumerate((1, 1, 2, 2)):
            rng = np.random.default_rng(seed)
            feeds = {"x": rng.standard_normal((batch, 3), np.float32), "ids": rng.integers(1, 9, (batch, 2))}
            engine.bind(feeds)
            engine.run()
            engine.run()
            answer = engine.fetch()
            assert list(answer) == ["y", "ids", "x"]
            np.testing.assert_array_equal(answer["y"], -feeds["x"])
            np.testing.assert_array_equal(answer["ids"], feeds["ids"])
            np.testing.assert_array_equal(answer["x"], feeds["x"])
        assert engine._late == ["ids", "x"]  # y keeps its buffer
        assert type(engine.run).__module__ == "functools"


def test_dropped_provider_is_an_error(onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def get_providers(self) -> list[str]:
            return ["SomethingElse"]

    monkeypatch.setattr(ort.onnxruntime, "InferenceSession", Session)
    with pytest.raises(BackendUnavailable, match="asked ONNX Runtime for CPUExecutionProvider, got SomethingElse"):
        OrtBackend().load(onnx_artifact, SPEC)


@pytest.mark.parametrize(
    ("given", "allowed", "stopped"),
    [({}, "1", "1"), ({"spinning": "always"}, "1", "0"), ({"spinning": "never"}, "0", "1")],
)
def test_spinning_is_set_and_idle_engines_do_not_spin_by_default(given, allowed, stopped) -> None:
    options = make_session_options(replace(SPEC, options=given))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed
    assert options.get_session_config_entry("session.force_spinning_stop") == stopped


@pytest.mark.parametrize(("opt", "share"), [("all", 1), ("none", 0)])
def test_weight_only_int8_is_proved_by_its_kernel(tmp_path: Path, opt: str, share: int) -> None:
    artifact = quantize(read_onnx(packaged_onnx("digits-mlp")), "int8", "w8", tmp_path / "q.onnx")
    options = {"opt": opt, "accuracy_level": "4"}
    level = "session.qdq_matmulnbits_accuracy_level"
    assert make_session_options(replace(SPEC, options=options)).get_session_config_entry(level) == "4"
    engine = OrtBackend().load(artifact, replace(SPEC, precision="int8", recipe="w8", options=options))
    engine.bind({"input": np.zeros((1, 64), np.float32)})
    assert (engine.effective_precision().get("int8", 0) > 0) == share


def test_threads_and_optimisation_are_set() -> None:
    options = make_session_options(replace(SPEC, threads=3, options={"opt": "none"}))
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


def test_no_python_stands_between_loop_and_session(onnx_artifact: Artifact) -> None:
    """The timed call is C's partial around the extension's own method."""
    with OrtBackend().load(onnx_artifact, SPEC) as engine:
        engine.bind({"image": np.zeros((1, 3, 8, 8), np.float32)})
        engine.run()  # the first run on a shape looks whether the graph declares its outputs rightly
        run: Any = engine.run
        assert type(run).__module__ == "functools"
        assert type(run.func).__name__ in ("builtin_function_or_method", "method")
        assert not hasattr(run.func, "__code__")


def test_an_empty_call_reaches_the_extension(load_engine: Any) -> None:
    engine = load_engine("ort")
    with engine:
        assert isinstance(engine, EmptyCall)
        assert engine.call_nothing() is None
    with pytest.raises(EngineBenchError):
        engine.call_nothing()


def test_a_graph_that_is_optimised_ahead_is_a_build_of_its_own(tmp_path: Path) -> None:
    """It answers alike, its bytes are the same each time, and its operators are the kernels."""
    text = "g (float[n] x) => (float[n] y) { a = Identity (x) b = Add (a, a) y = Relu (b) }"
    artifact = write_graph(tmp_path / "m.onnx", text)
    spec = replace(SPEC, options={"ahead": "1"})
    one, two = (OrtBackend().build(artifact, spec, tmp_path / name) for name in "ab")
    assert one.sha256 == two.sha256 != artifact.sha256 and one.parent_sha256 == artifact.sha256
    assert "Identity" not in {node.op_type for node in load_graph(one.path).graph.node}
    assert OrtBackend().build(one, spec, tmp_path / "c") == one, "what was optimised is not optimised again"
    values = np.array([-1, 2], np.float32)
    answers = []
    for built, how in ((artifact, SPEC), (one, spec)):
        with OrtBackend().load(built, how) as engine:
            answers.append(run_on(engine, {"x": values})["y"])
    np.testing.assert_array_equal(answers[0], answers[1])
    assert OrtBackend().build(artifact, SPEC, tmp_path) == artifact
