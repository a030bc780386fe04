"""Axes that the user names the length of: fixed in the graph, for whichever engine; contradictions are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.errors import UsageError
from enginebench.models.onnx_shapes import fix_axes
from enginebench.models.onnx_source import read_onnx
from models.graphs import run_graph

WEIGHTS = np.arange(32, dtype=np.float32).reshape(8, 4)


def write_graph(folder: Path, shape: tuple[object, ...] = ("batch", "seq", 8), external: bool = False) -> Path:
    """y = x w over an open batch and an open sequence; `z` is x's shape passed through."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))
        for name, dims in (("x", shape), ("y", (*shape[:2], 4)), ("z", shape))
    }
    graph = helper.make_graph(
        nodes, "g", [values["x"]], [values["y"], values["z"]], [numpy_helper.from_array(WEIGHTS, "w")]
    )
    path = folder / "net é.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    if external:
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    else:
        onnx.save(model, path)
    return path


@pytest.mark.parametrize("external", [False, True])
def test_an_open_axis_is_fixed_in_inputs_and_outputs_and_the_batch_stays_open(tmp_path: Path, external: bool) -> None:
    source = read_onnx(write_graph(tmp_path, external=external))
    fixed = fix_axes(source, {"x": (2, 7, 8)})
    assert fixed.inputs[0].shape == ("batch", 7, 8)
    assert [spec.shape for spec in fixed.outputs] == [("batch", 7, 4), ("batch", 7, 8)]
    assert fixed.sha256 != source.sha256 and fixed.made_by["axes"] == "seq=7"
    assert Path(source.path).is_file() and fixed.path != source.path
    feeds = {"x": np.ones((3, 7, 8), np.float32)}
    for found, expected in zip(run_graph(Path(fixed.path), feeds), run_graph(Path(source.path), feeds), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_an_axis_without_a_name_is_fixed_too(tmp_path: Path) -> None:
    fixed = fix_axes(read_onnx(write_graph(tmp_path, ("batch", None, 8))), {"x": (1, 5, 8)})
    assert fixed.inputs[0].shape == ("batch", 5, 8)


def test_a_graph_without_open_axes_is_left_alone(tmp_path: Path) -> None:
    source = read_onnx(write_graph(tmp_path, ("batch", 5, 8)))
    assert fix_axes(source, {"x": (4, 5, 8)}) is source


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"q": (1, 7, 8)}, "no such input; there are x"),
        ({"x": (1, 7, 9)}, "the model takes batchxseqx8"),
        ({"x": (1, 8)}, "the model takes batchxseqx8"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        fix_axes(read_onnx(write_graph(tmp_path)), shapes)
