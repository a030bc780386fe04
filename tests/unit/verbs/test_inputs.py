"""The user's inputs and shapes through whole commands: what was given is what is fed, timed, compared and told."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from calls import FAST
from fakes.tensorrt_modules import use_fakes
from graphs import build_graph, classify, draw_lines, translate_words, write_lines, write_text
from processes import Cli, rows_of


def test_without_them_a_size_is_chosen_and_never_in_silence(cli: Cli, tmp_path: Path) -> None:
    path = write_lines(tmp_path)
    done = cli("run", path, "--engines", "ort,openvino", "--out", "r", *FAST, code=0)
    told = cli("report", "r", "--format", "md", "--warnings").stdout
    assert "Warnings (" in done.stdout and "--input-shape x:1x3x8x" in " ".join(told.split())
    (shape,) = {tuple(row["shapes"]["x"]) for row in rows_of(tmp_path / "r").values()}
    assert shape[3] > 3


@pytest.mark.parametrize("verb", ["run", "profile", "infer"])
def test_a_graph_without_inputs_is_refused_before_anything_is_built(cli: Cli, tmp_path: Path, verb: str) -> None:
    write_text(tmp_path / "m.onnx", "() => (float[3] y) { y = Neg(w) }", {"w": np.ones(3, np.float32)})
    np.savez(tmp_path / "in.npz", x=np.ones(3, np.float32))
    engine = {"run": "--engines"}.get(verb, "--engine")
    done = cli(verb, "m.onnx", *["in.npz"] * (verb == "infer"), engine, "ort", code=5)
    assert "m.onnx: the graph has no inputs; expected at least one" in done.stderr
    assert "building" not in done.stderr


def test_a_file_without_arrays_is_a_file_that_cannot_be_used(cli: Cli, tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    done = cli("infer", write_lines(tmp_path), "empty.npz", "--engine", "ort", code=5)
    assert "empty.npz: found no array; expected one array for each input" in done.stderr


def test_a_shape_that_the_graph_fixes_is_skipped_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    path = write_lines(tmp_path)
    done = cli("run", path, "--engines", "ort", "--input-shape", "x:1x3x8x9,1x3x9x9", "--out", "r", "--json", *FAST)
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows] == ["ok", "skipped"] and "the model takes" in rows[1]["reason"]


def test_a_graph_of_batch_four_runs_at_four_where_no_batch_was_asked(cli: Cli, tmp_path: Path) -> None:
    path = write_lines(tmp_path, batch=4)
    np.savez(tmp_path / "in.npz", x=draw_lines(8, 11))
    done = cli("run", path, "--engines", "ort,openvino", "--inputs", "in.npz", "--out", "r", *FAST, code=0)
    for row in rows_of(tmp_path / "r").values():
        assert row["engine"]["batch"] == 4 and row["shapes"]["x"] == [4, 3, 8, 11] and row["drift"]["n"] == 8
    done = cli("run", path, "--engines", "ort", "--batch", 1, "--out", "s", *FAST, code=2)
    assert "fixed batch of 4" in done.stderr and not (tmp_path / "s").exists()


def test_ranges_are_taken_from_the_users_entries(cli: Cli, tmp_path: Path) -> None:
    path = write_lines(tmp_path)
    np.savez(tmp_path / "in.npz", x=draw_lines(6, 11) * 100)
    done = cli("calibrate", path, "--inputs", "in.npz", "--out", "calib.json", "--json", code=0)
    assert json.loads(done.stdout)["n"] == 6 and json.loads(done.stdout)["source"] == "in.npz"
    ranges = json.loads((tmp_path / "calib.json").read_text())["ranges"]
    assert ranges["x"]["high"] == pytest.approx(float((draw_lines(6, 11) * 100).max()))
    done = cli("quantize", path, "--to", "int8", "--inputs", "in.npz", "--out", "q.onnx", code=0)
    assert "give --data or --inputs" in cli("calibrate", path, "--out", "calib.json", code=2).stderr


def test_a_module_is_exported_and_checked_with_the_users_entries(cli: Cli, tmp_path: Path) -> None:
    """Its factory brings no examples, and its ids must stay below seven: what is made up would leave the table."""
    pytest.importorskip("torch")
    (tmp_path / "own_ids.py").write_text(
        "import torch\n"
        "class Words(torch.nn.Embedding):\n"
        "    def forward(self, ids):\n"
        "        return super().forward(ids).mean(1)\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return Words(7, 4)\n"
    )
    ids = np.random.default_rng(0).integers(0, 7, (5, 12))
    np.savez(tmp_path / "ids.npz", input=ids)
    cli("run", "own_ids:make", "--engines", "pytorch,ort", "--inputs", "ids.npz", "--out", "r", *FAST, code=0)
    for row in rows_of(tmp_path / "r").values():
        assert row["shapes"] == {"input": [1, 12]} and row["drift"]["n"] == 5


def test_inputs_that_nothing_would_be_fed_with_are_refused(cli: Cli, tmp_path: Path, monkeypatch) -> None:
    use_fakes(monkeypatch, "11.4")
    np.savez(tmp_path / "in.npz", x=draw_lines(2, 11))
    (tmp_path / "a.plan").write_bytes(b"a plan")
    assert "use infer or drift" in cli("bench", "a.plan", "--engine", "tensorrt", "--inputs", "in.npz", code=2).stderr


def test_text_is_run_compared_and_refused_by_name(cli: Cli, tmp_path: Path) -> None:
    path = translate_words(tmp_path / "words.onnx")
    np.savez(tmp_path / "in.npz", x=np.array([["red", "green"], ["green", "a much longer word"], ["blue", "red"]]))
    done = cli("run", path, "--engines", "ort,ort:opt=none,openvino", "--inputs", "in.npz", "--out", "r", *FAST, code=0)
    rows = {row["engine"]["backend"] + str(row["engine"]["options"]): row for row in rows_of(tmp_path / "r").values()}
    other = rows["ort{'opt': 'none'}"]["drift"]
    assert other["passed"] and other["n"] == 3 and other["outputs"][0]["top1_agreement"] == 1
    assert rows["openvino{}"]["status"] == "failed"
    assert "engine openvino takes no text, and the input x is text; engine ort takes it" in rows["openvino{}"]["reason"]
    done = cli("infer", path, "in.npz", "--engine", "ort", "--out", "out.npz", code=0)
    with np.load(tmp_path / "out.npz") as found:
        assert found["y"].tolist() == [["rot", "gruen"], ["gruen", "unbekannt"], ["unbekannt", "rot"]]
    done = cli("infer", path, "in.npz", "--engine", "openvino", "--out", "no.npz", code=5)
    assert "openvino takes no text" in done.stderr
    np.savez(tmp_path / "numbers.npz", x=np.zeros((1, 2), np.float32))
    done = cli("run", path, "--engines", "ort", "--inputs", "numbers.npz", "--out", "s", *FAST, code=5)
    assert "input 'x' has dtype float32, not str" in done.stderr


def test_a_graph_that_one_engine_alone_takes_is_a_good_run(cli: Cli, tmp_path: Path) -> None:
    path = classify(tmp_path / "forest.onnx")
    cli("run", path, "--out", "r", *FAST, code=0)
    found = {row["engine"]["backend"]: row["status"] for row in rows_of(tmp_path / "r").values()}
    assert found == {"ort": "ok", "openvino": "failed"}
    assert "OpenVINO cannot read" in cli("run", path, "--engines", "ort,openvino", "--out", "s", *FAST, code=6).stderr


def test_a_graph_that_an_engine_refuses_is_named_as_it_was_given(cli: Cli, tmp_path: Path) -> None:
    """Not as its copy, whose folder is gone by then."""
    node = helper.make_node("Neg", ["x"], ["t"], "same"), helper.make_node("Neg", ["t"], ["y"], "same")
    onnx.save(build_graph(node, {}, (4, 8)), tmp_path / "twice.onnx")
    refused = cli("drift", "ort@twice.onnx", "ort:opt=none@twice.onnx", code=5).stderr
    assert "ONNX Runtime cannot load twice.onnx: " in refused
