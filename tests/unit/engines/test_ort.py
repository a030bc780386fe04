"""ONNX Runtime: what is bound, what is refused, what cannot be known before a run, and values that are no tensors."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import load as load_graph

from calls import run_on
from enginebench.core import sums
from enginebench.core.errors import ArtifactError, BackendUnavailable, EngineBenchError, MissingDependency, UsageError
from enginebench.core.feeds import check_feeds, random_feeds
from enginebench.core.protocols import EmptyCall
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.onnxruntime import ort
from enginebench.engines.backends.onnxruntime.entries import OPTIMIZERS
from enginebench.engines.backends.onnxruntime.ort import OrtBackend, make_checked_session_options
from enginebench.engines.ort import flatten_output, make_plain_options, spell_optimizers
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.quantize import quantize
from enginebench.models.zoo import packaged_onnx
from enginebench.stats.drift import measure_drift
from graphs import UNKEPT_NORM, write_graph

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
    options = make_checked_session_options(replace(SPEC, options=given))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed
    assert options.get_session_config_entry("session.force_spinning_stop") == stopped


@pytest.mark.parametrize(("opt", "share"), [("all", 1), ("none", 0)])
def test_weight_only_int8_is_proved_by_its_kernel(tmp_path: Path, opt: str, share: int) -> None:
    artifact = quantize(read_onnx(packaged_onnx("digits-mlp")), "int8", "w8", tmp_path / "q.onnx")
    options = {"opt": opt, "accuracy_level": "4"}
    level = "session.qdq_matmulnbits_accuracy_level"
    assert make_checked_session_options(replace(SPEC, options=options)).get_session_config_entry(level) == "4"
    engine = OrtBackend().load(artifact, replace(SPEC, precision="int8", recipe="w8", options=options))
    engine.bind({"input": np.zeros((1, 64), np.float32)})
    # 1.23, the last for Python 3.10, computes it in FP32, and that is what is said of it.
    has_kernel = onnxruntime.__version__ >= "1.24"
    assert (engine.effective_precision().get("int8", 0) > 0) == (share and has_kernel)


def test_weight_only_products_are_those_of_a_session_without_settings(tmp_path: Path) -> None:
    """What is measured is what a program gets that opens the file, whatever this version of ONNX Runtime chooses."""
    artifact = quantize(read_onnx(packaged_onnx("digits-mlp")), "int8", "w8", tmp_path / "q.onnx")
    with pytest.raises(RuntimeError):  # its way of saying that the entry is not there
        make_checked_session_options(SPEC).get_session_config_entry("session.qdq_matmulnbits_accuracy_level")
    feeds = {"input": np.random.default_rng(0).uniform(0, 1, (1, 64)).astype(np.float32)}
    plain = onnxruntime.InferenceSession(artifact.path, providers=["CPUExecutionProvider"]).run(None, feeds)
    with OrtBackend().load(artifact, replace(SPEC, precision="int8", recipe="w8")) as engine:
        engine.bind(feeds)
        engine.run()
        for expected, given in zip(plain, engine.fetch().values(), strict=True):
            np.testing.assert_array_equal(given, expected)


def test_sums_are_those_of_a_session_without_settings_unless_exact_ones_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "sums_saturate", lambda: True)
    with pytest.raises(RuntimeError):  # its way of saying that the entry is not there
        make_checked_session_options(SPEC).get_session_config_entry(sums.EXACT_SUMS)
    exact = replace(SPEC, precision="int8", options={"sums": "exact"})
    assert make_checked_session_options(exact).get_session_config_entry(sums.EXACT_SUMS) == "1"


def test_threads_and_optimisation_are_set() -> None:
    options = make_checked_session_options(replace(SPEC, threads=3, options={"opt": "none"}))
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


def test_a_profile_with_control_characters_is_read(tmp_path: Path) -> None:
    """As ONNX Runtime up to 1.23, the last for Python 3.10, writes it; later versions escape them."""
    (tmp_path / "profile.json").write_text('[{"cat": "Node", "name": "tab\tand bell\a"}]')
    session = SimpleNamespace(run=lambda *_: None, end_profiling=lambda: str(tmp_path / "profile.json"))
    events = ort.record_events(lambda settings: session, SimpleNamespace(), {})
    assert events == [{"cat": "Node", "name": "tab\tand bell\a"}]


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


OF_TWO = EngineSpec(backend="ort", batch=2)


# Words to numbers.
LABELS = """g (string[n, 3] x) => (int64[n, 3] y) {
    y = ai.onnx.ml.LabelEncoder <keys_strings = ["red", "green"], values_int64s = [5, 7]> (x)
}"""
# Scores to maps of names and scores, as pipelines of scikit-learn end.
CLASSES = """g (float[n, 2] x) => (seq(map(string, float)) y) {
    y = ai.onnx.ml.ZipMap <classlabels_strings = ["b", "a"]> (x)
}"""
ROWS = "g (float[n, 3] x) => (seq(float) y) { y = SplitToSequence <axis = 0> (x) }"


@pytest.mark.parametrize(
    ("text", "x", "y"),
    [
        (LABELS, [["red", "green", "green"], ["green", "red", "a much longer word"]], [[5, 7, 7], [7, 5, -1]]),
        (CLASSES, np.float32([[1, 2], [3, 4], [5, 6]]), [[2, 1], [4, 3], [6, 5]]),
        (ROWS, np.arange(6, dtype=np.float32).reshape(2, 3), [[0, 1, 2, 3, 4, 5]]),
    ],
    ids=["text to numbers", "maps to rows in the order of their keys", "a sequence to one row"],
)
def test_what_is_no_tensor_goes_in_and_comes_out(text: str, x: Any, y: Any, tmp_path: Path) -> None:
    artifact = write_graph(tmp_path / "m.onnx", text)
    assert (artifact.inputs[0].dtype == "str") == (text == LABELS)
    with OrtBackend().load(artifact, OF_TWO) as engine:
        np.testing.assert_array_equal(run_on(engine, {"x": np.array(x)})["y"], y)


def test_outputs_of_every_form_become_arrays() -> None:
    assert flatten_output(np.array([["cat"], ["dog"]], object)).dtype.kind == "U"
    assert flatten_output({"b": 1.0, "a": 2.0}).tolist() == [[2.0, 1.0]]
    assert flatten_output([np.ones((2, 2)), np.zeros(1)]).tolist() == [[1, 1, 1, 1, 0]]
    assert flatten_output([]).shape == (1, 0)
    assert flatten_output(None).shape == (1, 0)
    assert flatten_output(3.5).tolist() == [[3.5]]


def test_words_are_made_and_checked(tmp_path: Path) -> None:
    specs = write_graph(tmp_path / "m.onnx", LABELS).inputs
    feeds = random_feeds(specs, 2, 0)
    assert feeds["x"].shape == (2, 3) and feeds["x"].dtype.kind == "U"
    check_feeds(specs, feeds)
    with pytest.raises(ArtifactError, match="has dtype int64, not str"):
        check_feeds(specs, {"x": np.ones((2, 3), np.int64)})


def test_a_changed_word_is_seen_as_another_class() -> None:
    said = {"y": np.array(["cat", "dog", "cat", "bird"])}
    same = measure_drift(said, {"y": np.array(["cat", "dog", "cat", "bird"])}, {"centred_cosine": 0.9999})
    other = measure_drift(said, {"y": np.array(["cat", "cat", "cat", "bird"])}, {"centred_cosine": 0.9999})
    assert same.passed and same.outputs[0].top1_agreement == 1
    assert not other.passed and other.outputs[0].top1_agreement == 0.75


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    from enginebench.core.operators import find_library

    with pytest.raises(UsageError, match="no such file"):
        find_library(str(tmp_path / "nowhere.so"))
    with pytest.raises(MissingDependency, match="pip install no-such-operators"):
        find_library("no_such_operators")
    with pytest.raises(UsageError, match="get_library_path"):
        find_library("json")
    text = tmp_path / "text.so"
    text.write_text("no library")
    artifact = write_graph(tmp_path / "m.onnx", LABELS)
    with pytest.raises(UsageError, match="cannot load it"):
        OrtBackend().load(replace(artifact, operator_libraries=(str(text),)), OF_TWO)


@pytest.mark.parametrize(
    ("declared", "given", "shape"),
    [
        ("1, seqlen", "f = Cast <to = 1> (shape) s = Cast <to = 7> (f)", [-1, 1, 3]),  # is known only when it runs
        ("n", "s = Identity (shape)", [-1]),
    ],
)
def test_an_output_of_another_rank_or_shape_than_the_graph_declares_is_answered(tmp_path, declared, given, shape):
    text = (
        f"(float[n, 3] x) => (float[{declared}] y) {{ both = Concat <axis = 0> (x, x) {given} y = Reshape (both, s) }}"
    )
    artifact = write_graph(tmp_path / "m.onnx", text, {"shape": np.array(shape)})
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    with OrtBackend().load(artifact, OF_TWO) as engine:
        for data in (rows, rows + 1, rows[:1]):
            engine.bind({"x": data})
            for _ in range(3):
                engine.run()
            np.testing.assert_array_equal(engine.fetch()["y"], np.concatenate([data, data]).reshape(shape))


FUSIONS = "LayerNormFusion+SimplifiedLayerNormFusion"


@pytest.mark.parametrize("ahead", ["0", "1"])
def test_an_optimizer_is_left_out_by_its_name(tmp_path: Path, ahead: str) -> None:
    graph = write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13)
    x = np.random.default_rng(0).standard_normal((8, 8), np.float32)

    def compute(**options: str) -> Any:
        spec, backend = replace(SPEC, options=options), OrtBackend()
        with backend.load(backend.build(graph, spec, tmp_path / "built"), spec) as engine:
            return run_on(engine, {"x": x})["y"]

    expected = compute(opt="none")
    np.testing.assert_allclose(compute(ahead=ahead, disable=FUSIONS), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(compute(ahead=ahead, disable="LayerNormFusion") - expected).max() > 0.1  # the other one takes part


def test_no_optimizer_is_left_when_all_are_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = write_graph(tmp_path / "m.onnx", UNKEPT_NORM, opset=13)
    settings = make_plain_options(1, "all", "+".join(OPTIMIZERS))
    settings.log_severity_level = 0  # which names those that are asked
    onnxruntime.InferenceSession(graph.path, settings)
    left = set(re.findall(r"GraphTransformer (\w+)", capfd.readouterr().err))
    # These run whatever is left out.
    always = {"CastFloat16Transformer", "EnsureUniqueDQForNodeUnit", "RemoveDuplicateCastTransformer"}
    always |= {"FreeDimensionOverrideTransformer", "MemcpyTransformer", "RocmBlasAltImpl"}  # the last up to 1.23
    assert always & left and {name for name in left if "RuleBased" not in name} <= always
    assert len(spell_optimizers("+".join(OPTIMIZERS))) <= 4096  # more is refused by ONNX Runtime 1.23


def test_an_optimizer_that_does_not_exist_is_refused_with_the_nearest(onnx_artifact: Artifact) -> None:
    spec = replace(SPEC, options={"disable": "GeluFusion+LayernormFusion"})
    with pytest.raises(UsageError, match=r"'LayernormFusion' is none .*near: LayerNormFusion"):
        OrtBackend().load(onnx_artifact, spec)


def test_every_optimizer_is_on_its_page_and_has_no_sign_that_engine_means() -> None:
    page = Path("docs/engines.md").read_text("utf-8")
    assert all(name.isalnum() and f"`{name}`" in page for name in OPTIMIZERS)
