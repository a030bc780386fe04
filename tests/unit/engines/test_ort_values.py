"""Graphs whose inputs or answers are no plain tensors of numbers: text, sequences, maps, custom operators."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from enginebench.core.errors import ArtifactError, MissingDependency, UsageError
from enginebench.core.feeds import check_feeds, random_feeds
from enginebench.core.records import EngineSpec
from enginebench.engines.backends.onnxruntime.ort import OrtBackend
from enginebench.engines.ort import flatten_answer
from enginebench.models.onnx.source import read_onnx
from enginebench.stats.drift import measure_drift

SPEC = EngineSpec(backend="ort", batch=2)


def save(nodes: list[onnx.NodeProto], values: list[onnx.ValueInfoProto], path: Path, ml: bool = False) -> Path:
    """A graph whose first value is its input, the others its outputs."""
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])]
    model: ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, path)
    return path


def encode_labels(path: Path) -> Path:
    """Words to numbers."""
    node = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_strings=["red", "green"], values_int64s=[5, 7]
    )
    x = helper.make_tensor_value_info("x", TensorProto.STRING, ["n", 3])
    return save([node], [x, helper.make_tensor_value_info("y", TensorProto.INT64, ["n", 3])], path, ml=True)


def name_classes(path: Path) -> Path:
    """Scores to maps of names and scores, as pipelines of scikit-learn end."""
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["b", "a"])
    pairs = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    y = helper.make_value_info("y", helper.make_sequence_type_proto(pairs))
    return save([node], [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2]), y], path, ml=True)


def split_rows(path: Path) -> Path:
    """A matrix to the sequence of its rows."""
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    return save([helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)], [x, y], path)


def answer(path: Path, x: np.ndarray) -> np.ndarray:
    """What the engine replies to one array."""
    with OrtBackend().load(read_onnx(path), SPEC) as engine:
        engine.bind({"x": x})
        engine.run()
        return engine.fetch()["y"]


def test_text_goes_in_and_numbers_come_out(tmp_path: Path) -> None:
    path = encode_labels(tmp_path / "m.onnx")
    assert [(s.name, s.dtype) for s in read_onnx(path).inputs] == [("x", "str")]
    x = np.array([["red", "green", "green"], ["green", "red", "a much longer word"]])
    np.testing.assert_array_equal(answer(path, x), [[5, 7, 7], [7, 5, -1]])


def test_maps_become_rows_in_the_order_of_their_keys(tmp_path: Path) -> None:
    found = answer(name_classes(tmp_path / "m.onnx"), np.array([[1, 2], [3, 4], [5, 6]], np.float32))
    np.testing.assert_array_equal(found, [[2, 1], [4, 3], [6, 5]])
    assert found.dtype == np.float64 or found.dtype == np.float32


def test_a_sequence_becomes_one_row(tmp_path: Path) -> None:
    found = answer(split_rows(tmp_path / "m.onnx"), np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(found, [[0, 1, 2, 3, 4, 5]])


def test_answers_of_every_form_become_arrays() -> None:
    assert flatten_answer(np.array([["cat"], ["dog"]], object)).dtype.kind == "U"
    assert flatten_answer({"b": 1.0, "a": 2.0}).tolist() == [[2.0, 1.0]]
    assert flatten_answer([np.ones((2, 2)), np.zeros(1)]).tolist() == [[1, 1, 1, 1, 0]]
    assert flatten_answer([]).shape == (1, 0)
    assert flatten_answer(None).shape == (1, 0)
    assert flatten_answer(3.5).tolist() == [[3.5]]


def test_words_are_made_and_checked(tmp_path: Path) -> None:
    specs = read_onnx(encode_labels(tmp_path / "m.onnx")).inputs
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
    artifact = read_onnx(encode_labels(tmp_path / "m.onnx"))
    from msgspec.structs import replace

    with pytest.raises(UsageError, match="cannot load it"):
        OrtBackend().load(replace(artifact, operator_libraries=(str(text),)), SPEC)


def test_an_output_of_another_rank_than_the_graph_declares_is_run_again_and_again(tmp_path: Path) -> None:
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [-1, 1, 3])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "seqlen"])  # in truth [n, 1, 3]
    two = helper.make_node("Concat", ["x", "x"], ["both"], axis=0)
    node = helper.make_node("Reshape", ["both", "given"], ["y"])
    given = helper.make_node("Cast", ["floats"], ["given"], to=TensorProto.INT64)  # known only when it runs
    floats = helper.make_node("Cast", ["shape"], ["floats"], to=TensorProto.FLOAT)
    graph = helper.make_graph([two, floats, given, node], "g", [x], [y], [shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    with OrtBackend().load(read_onnx(tmp_path / "m.onnx"), SPEC) as engine:
        for data in (rows, rows + 1):
            engine.bind({"x": data})
            for _ in range(3):
                engine.run()
            np.testing.assert_array_equal(engine.fetch()["y"], np.concatenate([data, data])[:, None])


def test_an_output_of_another_shape_than_the_graph_declares_is_answered(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])  # in truth [2 * n * 3]
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["both"], axis=0),
        helper.make_node("Reshape", ["both", "flat"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [helper.make_tensor("flat", TensorProto.INT64, [1], [-1])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    with OrtBackend().load(read_onnx(tmp_path / "m.onnx"), SPEC) as engine:
        for data in (rows, rows + 1, rows[:1]):
            engine.bind({"x": data})
            for _ in range(3):
                engine.run()
            np.testing.assert_array_equal(engine.fetch()["y"], np.concatenate([data, data]).reshape(-1))
