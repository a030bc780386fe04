"""What a graph says of its inputs, read and tried: graphs that say it, and graphs that mislead."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact
from enginebench.core.shapes import concrete_shape, find_batch_axes
from enginebench.models.onnx.inputs import guess_values, settle_inputs
from enginebench.models.onnx.source import read_onnx

FLOAT, INT64, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
Axes = Sequence[int | str | None]


def write(
    folder: Path,
    nodes: Sequence[Any],
    inputs: dict[str, tuple[int, Axes]],
    outputs: dict[str, tuple[int, Axes]],
    constants: dict[str, Any] | None = None,
    metadata: dict[str, str] | None = None,
) -> Artifact:
    infos = [
        [helper.make_tensor_value_info(name, kind, list(axes)) for name, (kind, axes) in side.items()]
        for side in (inputs, outputs)
    ]
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", *infos, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, folder / "g.onnx")
    return read_onnx(folder / "g.onnx")


def answer(artifact: Artifact, batch: int = 1, seed: int = 3) -> list[Any]:
    session = onnxruntime.InferenceSession(artifact.path)
    return list(session.run(None, random_feeds(artifact.inputs, batch, seed)))


def shapes_of(artifact: Artifact) -> dict[str, tuple[int, ...]]:
    return {spec.name: concrete_shape(spec, 1) for spec in artifact.inputs}


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(outputs), **attributes)


@pytest.mark.parametrize(
    "between",
    [
        [],
        [node("Cast", ["ids"], ["a"], to=INT32), node("Unsqueeze", ["a", "one"], ["b"])],
        [node("Reshape", ["ids", "flat"], ["b"])],
        [node("Concat", ["ids", "ids"], ["b"], axis=1)],
    ],
)
@pytest.mark.parametrize("kind", [INT64, FLOAT])
def test_ids_stay_within_the_rows_of_their_table(tmp_path: Path, between: list[Any], kind: int) -> None:
    """Seven rows: of 0 to 99, which unknown integers get, nine in ten would leave the table."""
    nodes = [
        *between,
        node("Cast", ["b" if between else "ids"], ["c"], to=INT64),
        node("Gather", ["table", "c"], ["y"]),
    ]
    constants = {"table": np.ones((7, 4), np.float32), "one": np.array([1]), "flat": np.array([-1])}
    inputs: dict[str, tuple[int, Axes]] = {"ids": (kind, ("batch", "seq"))}
    rank = 4 if len(between) == 2 else 2 if between and between[0].op_type == "Reshape" else 3
    made = settle_inputs(write(tmp_path, nodes, inputs, {"y": (FLOAT, [None] * rank)}, constants))
    assert made.inputs[0].values == (0, 6)
    for seed in range(3):
        answer(made, batch=2, seed=seed)


def test_a_table_that_only_a_run_knows_is_found_by_trying(tmp_path: Path) -> None:
    nodes = [node("Add", ["table", "table"], ["t"]), node("Gather", ["t", "ids"], ["y"])]
    inputs: dict[str, tuple[int, Axes]] = {"ids": (INT64, ("batch",))}
    outputs: dict[str, tuple[int, Axes]] = {"y": (FLOAT, ("batch", 4))}
    made = settle_inputs(write(tmp_path, nodes, inputs, outputs, {"table": np.ones((2, 4), np.float32)}))
    assert made.inputs[0].values in ((0, 1), (0, 0))
    answer(made, batch=4)


def test_an_open_picture_gets_a_size_that_its_strides_accept_and_the_caveat_names_the_option(tmp_path: Path) -> None:
    """A skip connection over two strides refuses any length that four does not divide; 1 is refused by the pooling."""
    nodes = [
        node("AveragePool", ["x"], ["small"], kernel_shape=[4, 4], strides=[4, 4]),
        node("Resize", ["small", "", "scales"], ["large"], mode="nearest"),
        node("Add", ["large", "x"], ["y"]),
    ]
    axes = ("b", 3, "H", "W")
    constants = {"scales": np.array([1, 1, 4, 4], np.float32)}
    made = settle_inputs(write(tmp_path, nodes, {"x": (FLOAT, axes)}, {"y": (FLOAT, axes)}, constants))
    assert shapes_of(made) == {"x": (1, 3, 640, 640)}
    (caveat,) = made.caveats
    assert caveat.code == "chosen_shapes" and "--input-shape x:1x3x640x640" in caveat.advice


def test_a_line_of_text_is_as_high_as_the_graph_needs_it(tmp_path: Path) -> None:
    """A recognizer squeezes its height away: a square picture is refused, 48 is not."""
    nodes = [node("MaxPool", ["x"], ["p"], kernel_shape=[48, 4], strides=[48, 4]), node("Squeeze", ["p", "two"], ["y"])]
    inputs: dict[str, tuple[int, Axes]] = {"x": (FLOAT, ("?", 3, "?", "?"))}
    made = settle_inputs(write(tmp_path, nodes, inputs, {"y": (FLOAT, (None, 3, None))}, {"two": np.array([2])}))
    assert shapes_of(made) == {"x": (1, 3, 48, 320)}
    assert len(set(made.inputs[0].shape)) == 4  # "?" three times: three axes of their own


def test_metadata_of_a_detector_say_its_size(tmp_path: Path) -> None:
    axes = ("batch", 3, "height", "width")
    graph = write(
        tmp_path, [node("Relu", ["x"], ["y"])], {"x": (FLOAT, axes)}, {"y": (FLOAT, axes)}, {}, {"imgsz": "[320, 480]"}
    )
    assert shapes_of(settle_inputs(graph)) == {"x": (1, 3, 320, 480)}


def test_the_users_shape_wins_and_is_no_caveat(tmp_path: Path) -> None:
    axes = ("batch", 3, "height", "width")
    graph = write(tmp_path, [node("Relu", ["x"], ["y"])], {"x": (FLOAT, axes)}, {"y": (FLOAT, axes)})
    made = settle_inputs(graph, {"x": (1, 3, 96, 64)})
    assert shapes_of(made) == {"x": (1, 3, 96, 64)} and made.caveats == ()
    assert made.inputs[0].shape == axes  # the graph stays open for whoever takes it so


def test_states_rates_masks_and_lengths_are_what_they_are_called(tmp_path: Path) -> None:
    """As a streaming detector of speech has them: the other branch of the rate needs another width."""
    branch = [
        helper.make_graph(
            [node("MatMul", ["x", weight], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", FLOAT, None)],
        )
        for name, weight in (("yes", "wide"), ("no", "narrow"))
    ]
    nodes = [
        node("Equal", ["sr", "rate"], ["is16"]),
        node("If", ["is16"], ["y"], then_branch=branch[0], else_branch=branch[1]),
        node("Identity", ["state"], ["stateN"]),
        node("Mul", ["attention_mask", "x_lengths"], ["z"]),
    ]
    inputs: dict[str, tuple[int, Axes]] = {
        "state": (FLOAT, (2, None, 128)),
        "x": (FLOAT, (None, None)),
        "sr": (INT64, ()),
        "attention_mask": (INT64, (None, 3)),
        "x_lengths": (INT64, (None,)),
    }
    outputs: dict[str, tuple[int, Axes]] = {"y": (FLOAT, None), "stateN": (FLOAT, [None] * 3), "z": (INT64, [None] * 2)}
    outputs["y"] = (FLOAT, [None, 1])
    constants = {
        "wide": np.ones((512, 1), np.float32),
        "narrow": np.ones((256, 1), np.float32),
        "rate": np.array(16000),
    }
    made = settle_inputs(write(tmp_path, nodes, inputs, outputs, constants))
    values = {spec.name: spec.values for spec in made.inputs}
    assert values["sr"] == (16000, 16000) and values["state"] == (0, 0) and values["attention_mask"] == (1, 1)
    assert shapes_of(made)["x"] == (1, 512) and shapes_of(made)["state"] == (2, 1, 128)
    assert find_batch_axes(made.inputs)["state"] == 1
    assert made.outputs[1].shape[0] != made.outputs[0].shape[0]  # the state's layers are no batch
    assert values["x_lengths"] is not None and values["x_lengths"][0] == values["x_lengths"][1]


def test_a_recurrent_network_starts_from_zeros_whatever_its_states_are_called(tmp_path: Path) -> None:
    nodes = [node("GRU", ["x", "w", "r", "", "", "foo"], ["y", ""], hidden_size=5)]
    constants = {"w": np.zeros((1, 15, 4), np.float32), "r": np.zeros((1, 15, 5), np.float32)}
    inputs: dict[str, tuple[int, Axes]] = {"x": (FLOAT, ("time", "batch", 4)), "foo": (FLOAT, (1, "batch", 5))}
    made = settle_inputs(write(tmp_path, nodes, inputs, {"y": (FLOAT, [None] * 4)}, constants))
    assert made.inputs[1].values == (0, 0) and find_batch_axes(made.inputs) == {"x": 1, "foo": 1}
    assert answer(made, batch=3)[0].shape == (100, 1, 3, 5)


@pytest.mark.parametrize("operator", ["Log", "Sqrt", "Acos", "Relu"])
def test_what_is_made_up_gives_answers_that_are_finite(tmp_path: Path, operator: str) -> None:
    axes = ("batch", 4)
    made = settle_inputs(write(tmp_path, [node(operator, ["x"], ["y"])], {"x": (FLOAT, axes)}, {"y": (FLOAT, axes)}))
    assert all(np.isfinite(answer(made, seed=seed)[0]).all() for seed in range(5))
    assert (made.inputs[0].values is None) == (operator == "Relu")  # standard normal wherever that does


def test_a_graph_that_refuses_every_size_says_so(tmp_path: Path) -> None:
    nodes = [node("Reshape", ["x", "to"], ["y"])]
    constants = {"to": np.array([1, 7, 11, 13])}
    made = settle_inputs(
        write(tmp_path, nodes, {"x": (FLOAT, ("batch", "length"))}, {"y": (FLOAT, (1, 7, 11, 13))}, constants)
    )
    assert [c.template for c in made.caveats] == ["chosen_shapes.refused"]
    assert "Reshape" in made.caveats[0].message and "--input-shape x:1x" in made.caveats[0].advice
    assert shapes_of(made)["x"][1] != 1


def test_a_fixed_graph_of_floats_is_not_run_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = write(tmp_path, [node("Relu", ["x"], ["y"])], {"x": (FLOAT, (1, 4))}, {"y": (FLOAT, (1, 4))})
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: pytest.fail("it was run"))
    assert settle_inputs(graph) == graph


def test_text_may_be_compared_with_text(tmp_path: Path) -> None:
    said = {"male": np.asarray(["male"], object)}
    axes = ("batch", 1)
    sides = {"sex": (TensorProto.STRING, axes)}, {"y": (TensorProto.BOOL, axes)}
    assert guess_values(write(tmp_path, [node("Equal", ["sex", "male"], ["y"])], *sides, said))[0].values is None


def test_one_name_for_two_axes_of_an_input_is_two_axes(tmp_path: Path) -> None:
    """Some exporters call every open axis `dynamic`; a batch of 1 would make the sequence 1, too."""
    axes = ("dynamic", "dynamic")
    made = settle_inputs(write(tmp_path, [node("Relu", ["x"], ["y"])], {"x": (FLOAT, axes)}, {"y": (FLOAT, axes)}))
    assert shapes_of(made)["x"][1] > 1
