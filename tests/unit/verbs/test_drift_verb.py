"""The verb drift: files, figures, gates, and refusals that list every difference."""

import json
from pathlib import Path

import numpy as np
import pytest

from enginebench.models.task import feed_digits, load_digits
from graphs import write_text
from processes import Cli


@pytest.fixture(scope="module")
def int8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped MLP in INT8."""
    from enginebench.models.onnx.source import read_packaged_onnx
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize

    graph = read_packaged_onnx("digits-mlp")
    data = open_data("digits", model="digits-mlp", inputs=graph.inputs, n=64)
    path = tmp_path_factory.mktemp("int8") / "mlp int8.onnx"
    quantize(graph, "int8", "cpu", path, calibration=calibrate(graph, data, threads=1), threads=1)
    return path


def test_two_engines_on_real_digits(cli: Cli, tiny_onnx: Path, int8: Path, tmp_path: Path) -> None:
    digits = load_digits().select(held_out=True)
    np.savez(tmp_path / "in.npz", input=feed_digits("digits-mlp", digits.images[:50]))
    done = cli("drift", f"ort@{tiny_onnx}", f"openvino@{int8}", "--inputs", "in.npz", "--out", "d é", "--json", code=0)
    document = json.loads(done.stdout)
    assert document["schema"] == "enginebench.drift/1"
    assert (document["n"], document["passed"], document["gate"]) == (50, True, False)
    assert 0 < document["outputs"][0]["max_abs_diff"] < 10
    assert document["limits"] == {"centred_cosine": 0.9, "snr": 6.0}, "those of the shorter precision"
    assert document["candidate"]["engine"]["precision"] == "int8"
    assert json.loads((tmp_path / "d é" / "output_diff.json").read_text()) == document
    samples = json.loads((tmp_path / "d é" / "per_sample_diff.json").read_text())
    assert samples["schema"] == "enginebench.drift-samples/1"
    assert [s["index"] for s in samples["samples"]] == list(range(50))
    with np.load(tmp_path / "d é" / "samples" / "candidate.npz") as stored:
        assert stored["output"].shape == (50, 10)
        worst = np.abs(stored["output"] - np.load(tmp_path / "d é" / "samples" / "reference.npz")["output"]).max()
    assert worst == pytest.approx(document["outputs"][0]["max_abs_diff"])


def test_without_a_limit_it_reports_and_does_not_judge_by_exit_code(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    sides = (f"fake@{tiny_onnx}", f"fake:bias=5@{tiny_onnx}")
    done = cli("drift", *sides, "--out", "d", "--skip-output-save", "--n", "3", code=0)
    assert "NOT within the limits" in done.stdout
    assert "the inputs are random" in done.stdout
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["output_diff.json", "per_sample_diff.json"]


def save_graph(path: Path, width: int, batch: int | str = "batch") -> Path:
    text = f"(float[{batch}, {width}] input) => (float[{batch}, {width}] scores)"
    return write_text(path, f"{text} {{ scores = Relu(input) }}", opset=20)


def test_graphs_of_a_fixed_batch_are_fed_at_that_batch(cli: Cli, tmp_path: Path) -> None:
    fixed, free = save_graph(tmp_path / "f.onnx", 8, batch=3), save_graph(tmp_path / "d.onnx", 8)
    done = cli("drift", f"ort@{fixed}", f"openvino@{free}", "--n", "10", "--limit", "max_abs=0", "--json", code=0)
    assert json.loads(done.stdout)["n"] == 10, "the last step is filled up, and cut again"
    wider = save_graph(tmp_path / "w.onnx", 8, batch=4)
    done = cli("drift", f"ort@{fixed}", f"ort@{wider}")
    assert done.returncode == 5


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ort@MODEL", "ort@MODEL", "--limit", "cosine=nan"], 2, "nan"),
        (["ort@MODEL", "ort@MODEL", "--limit", "cosine=1,cosine=2"], 2, "each NAME once"),
        (["ort@MODEL", "ort@MODEL", "--limit", "samples=0.9"], 2, "give snr=... as well"),
        (["ort@MODEL", "ort@MODEL", "--limit", "snr=9,samples=0"], 2, "give a fraction above 0, at most 1"),
        (["ort@MODEL", "ort@MODEL", "--limit", "cosine=2"], 2, "cosine is at most 1, so that no outputs can meet it"),
        (["ort@MODEL", "ort@MODEL", "--limit", "max_abs=-1"], 2, "max_abs is at least 0"),
        (["ort", "ort@MODEL"], 2, "names no target"),
        (["best.plan", "ort@MODEL"], 2, "Name its engine: tensorrt@best.plan or trtexec@best.plan"),
        (["ort@MODEL", "best.onnx"], 2, "Name its engine: ort@best.onnx"),
        (["ort@MODEL", "ort@MODEL", "--inputs", "absent.npz"], 2, "--inputs absent.npz: no such file or folder"),
        (["pytorch@MODEL", "ort@MODEL"], 5, "artifact of kind torch"),
    ],
)
def test_wrong_sides_and_limits_are_explained(cli, tiny_onnx, arguments, code, words) -> None:
    done = cli("drift", *(a.replace("MODEL", str(tiny_onnx)) for a in arguments))
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_limit_that_nothing_is_held_against_is_refused(cli: Cli, tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "g.onnx", 1)
    done = cli("drift", f"ort@{graph}", f"ort@{graph}", "--limit", "top1=1", code=2)
    assert "no output has such a figure" in done.stderr
