"""Graphs whose inputs or answers are no plain tensors of numbers: text, sequences, maps, custom operators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import ArtifactError, MissingDependency, UsageError
from enginebench.core.feeds import check_feeds, random_feeds
from enginebench.core.records import EngineSpec
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.ort import flatten_answer
from enginebench.stats.drift import measure_drift
from graphs import write_graph

SPEC = EngineSpec(backend="ort", batch=2)


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
    with OrtBackend().load(artifact, SPEC) as engine:
        np.testing.assert_array_equal(run_on(engine, {"x": np.array(x)})["y"], y)


def test_answers_of_every_form_become_arrays() -> None:
    assert flatten_answer(np.array([["cat"], ["dog"]], object)).dtype.kind == "U"
    assert flatten_answer({"b": 1.0, "a": 2.0}).tolist() == [[2.0, 1.0]]
    assert flatten_answer([np.ones((2, 2)), np.zeros(1)]).tolist() == [[1, 1, 1, 1, 0]]
    assert flatten_answer([]).shape == (1, 0)
    assert flatten_answer(None).shape == (1, 0)
    assert flatten_answer(3.5).tolist() == [[3.5]]


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
        OrtBackend().load(replace(artifact, operator_libraries=(str(text),)), SPEC)


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
    with OrtBackend().load(artifact, SPEC) as engine:
        for data in (rows, rows + 1, rows[:1]):
            engine.bind({"x": data})
            for _ in range(3):
                engine.run()
            np.testing.assert_array_equal(engine.fetch()["y"], np.concatenate([data, data]).reshape(shape))
