"""What a graph says of its inputs, read and tried: graphs that say it, and graphs that mislead."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact
from enginebench.core.shapes import concrete_shape, find_batch_axes
from enginebench.models.onnx.inputs import complete_inputs
from enginebench.models.onnx.source import read_onnx
from graphs import save, write_graph

PICTURE = "(float[batch, 3, height, width] x) => (float[batch, 3, height, width] y) { y = Relu (x) }"


def settle(folder: Path, text: str, constants: dict[str, Any] | None = None, **given: Any) -> Artifact:
    return complete_inputs(write_graph(folder / "g.onnx", text, constants), **given)


def answer(artifact: Artifact, batch: int = 1, seed: int = 3) -> list[Any]:
    session = onnxruntime.InferenceSession(artifact.path)
    return list(session.run(None, random_feeds(artifact.inputs, batch, seed)))


def shapes_of(artifact: Artifact) -> dict[str, tuple[int, ...]]:
    return {spec.name: concrete_shape(spec, 1) for spec in artifact.inputs}


@pytest.mark.parametrize(
    ("between", "out"),
    [
        ("c = Cast <to = 7> (ids)", "?, ?, ?"),
        ("a = Cast <to = 6> (ids) b = Unsqueeze (a, one) c = Cast <to = 7> (b)", "?, ?, ?, ?"),
        ("b = Reshape (ids, flat) c = Cast <to = 7> (b)", "?, ?"),
        ("b = Concat <axis = 1> (ids, ids) c = Cast <to = 7> (b)", "?, ?, ?"),
    ],
)
@pytest.mark.parametrize("kind", ["int64", "float"])
def test_ids_stay_within_the_configurations_of_their_table(tmp_path: Path, between: str, out: str, kind: str) -> None:
    """Seven rows: of 0 to 99, which unknown integers get, nine in ten would leave the table."""
    ends = f"({kind}[batch, seq] ids) => (float[{out}] y)"
    constants = {"table": np.ones((7, 4), np.float32), "one": np.array([1]), "flat": np.array([-1])}
    made = settle(tmp_path, f"{ends} {{ {between} y = Gather (table, c) }}", constants)
    assert made.inputs[0].values == (0, 6)
    for seed in range(3):
        answer(made, batch=2, seed=seed)


def test_a_table_that_only_a_run_knows_is_found_by_trying(tmp_path: Path) -> None:
    text = "(int64[batch] ids) => (float[batch, 4] y) { t = Add (table, table) y = Gather (t, ids) }"
    made = settle(tmp_path, text, {"table": np.ones((2, 4), np.float32)})
    assert made.inputs[0].values in ((0, 1), (0, 0))
    answer(made, batch=4)


def test_a_line_of_text_is_as_high_as_the_graph_needs_it(tmp_path: Path) -> None:
    """A recognizer squeezes its height away: a square picture is refused, 48 is not."""
    text = """(float[n, 3, h, w] x) => (float[?, 3, ?] y) {
        p = MaxPool <kernel_shape = [48, 4], strides = [48, 4]> (x) y = Squeeze (p, two)
    }"""
    model = onnx.load(write_graph(tmp_path / "g.onnx", text, {"two": np.array([2])}).path)
    for axis in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = "?"
    made = complete_inputs(read_onnx(save(model, tmp_path / "g.onnx")))
    assert shapes_of(made) == {"x": (1, 3, 48, 320)}
    assert len(set(made.inputs[0].shape)) == 4  # "?" three times: three axes of their own


def test_metadata_of_a_detector_say_its_size(tmp_path: Path) -> None:
    graph = write_graph(tmp_path / "g.onnx", PICTURE)
    model = onnx.load(graph.path)
    helper.set_model_props(model, {"imgsz": "[320, 480]"})
    save(model, tmp_path / "g.onnx")
    assert shapes_of(complete_inputs(graph)) == {"x": (1, 3, 320, 480)}


def test_the_users_shape_wins_and_is_no_warning(tmp_path: Path) -> None:
    made = complete_inputs(write_graph(tmp_path / "g.onnx", PICTURE), {"x": (1, 3, 96, 64)})
    assert shapes_of(made) == {"x": (1, 3, 96, 64)} and made.warnings == ()
    assert made.inputs[0].shape == ("batch", 3, "height", "width")  # open for whoever takes it so


def test_states_rates_masks_and_lengths_are_what_they_are_called(tmp_path: Path) -> None:
    """As a streaming detector of speech has them: the other branch of the rate needs another width."""
    text = """(
        float[2, ?, 128] state, float[?, ?] x, int64 sr, int64[?, 3] attention_mask, int64[?] x_lengths
    ) => (float[?, 1] y, float[?, ?, ?] stateN, int64[?, ?] z) {
        is16 = Equal (sr, rate)
        y = If (is16) <
            then_branch = yes () => (float[] yes_y) { yes_y = MatMul (x, wide) },
            else_branch = no () => (float[] no_y) { no_y = MatMul (x, narrow) }
        >
        stateN = Identity (state)
        z = Mul (attention_mask, x_lengths)
    }"""
    widths = {"wide": np.ones((512, 1), np.float32), "narrow": np.ones((256, 1), np.float32)}
    made = settle(tmp_path, text, {**widths, "rate": np.array(16000)})
    values = {spec.name: spec.values for spec in made.inputs}
    assert values["sr"] == (16000, 16000) and values["state"] == (0, 0) and values["attention_mask"] == (1, 1)
    assert shapes_of(made)["x"] == (1, 512) and shapes_of(made)["state"] == (2, 1, 128)
    assert find_batch_axes(made.inputs)["state"] == 1
    assert made.outputs[1].shape[0] != made.outputs[0].shape[0]  # the state's layers are no batch
    assert values["x_lengths"] is not None and values["x_lengths"][0] == values["x_lengths"][1]


def test_a_recurrent_network_starts_from_zeros_whatever_its_states_are_called(tmp_path: Path) -> None:
    text = """(float[time, batch, 4] x, float[1, batch, 5] foo) => (float[?, ?, ?, ?] y) {
        y = GRU <hidden_size = 5> (x, w, r, , , foo)
    }"""
    constants = {"w": np.zeros((1, 15, 4), np.float32), "r": np.zeros((1, 15, 5), np.float32)}
    made = settle(tmp_path, text, constants)
    assert made.inputs[1].values == (0, 0) and find_batch_axes(made.inputs) == {"x": 1, "foo": 1}
    assert answer(made, batch=3)[0].shape == (100, 1, 3, 5)


def test_a_single_number_is_one_beside_others_and_varies_where_nothing_else_does(tmp_path: Path) -> None:
    alone = settle(tmp_path, "(float x) => (float y) { y = Mul (x, x) }")
    assert len({float(answer(alone, seed=seed)[0]) for seed in range(4)}) == 4
    beside = settle(tmp_path, "(float[4] x, float k) => (float[4] y) { y = Mul (x, k) }")
    assert [spec.values for spec in (*alone.inputs, *beside.inputs)] == [(0.5, 2.0), None, (1, 1)]


def test_a_graph_that_refuses_every_size_says_so(tmp_path: Path) -> None:
    text = "(float[batch, length] x) => (float[1, 7, 11, 13] y) { y = Reshape (x, to) }"
    made = settle(tmp_path, text, {"to": np.array([1, 7, 11, 13])})
    assert [c.template for c in made.warnings] == ["chosen_shapes.refused"]
    assert "Reshape" in made.warnings[0].message and "--input-shape x:1x" in made.warnings[0].advice
    assert shapes_of(made)["x"][1] != 1


def test_one_name_for_two_axes_of_an_input_is_two_axes(tmp_path: Path) -> None:
    """Some exporters call every open axis `dynamic`; a batch of 1 would make the sequence 1, too."""
    made = settle(tmp_path, "(float[dynamic, dynamic] x) => (float[dynamic, dynamic] y) { y = Relu (x) }")
    assert shapes_of(made)["x"][1] > 1
