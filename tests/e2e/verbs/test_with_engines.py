"""Verbs with engines that compute: what they compare, feed, calibrate and time."""

import json
from pathlib import Path

import numpy as np

from enginebench.models.task import feed_digits, load_digits
from enginebench.verbs.calibrate import command as calibrate
from enginebench.verbs.quantize import command as quantize
from in_process import children, cli
from line_graphs import FAST, draw, read_rows, write_lines
from processes import Cli
from quantizing import call_json, folder
from scale_graphs import bench

__all__ = ["children", "cli", "folder"]


def test_a_built_in_model_and_its_file_are_fed_alike(cli: Cli, tiny_onnx: Path) -> None:
    """By its name `digits-mlp` is fed digits, its file random arrays; that must not look like other answers."""
    for target, engine, other in (
        (tiny_onnx, "ort", "pytorch@digits-mlp"),
        ("digits-mlp", "pytorch", f"ort@{tiny_onnx}"),
    ):
        document = bench(cli, target, "--engine", engine, "--against", other)
        assert document["comparison"]["outputs_agree"] is True, document["comparison"]
        assert 0 < document["row"]["max_abs_diff"] < 1e-3


def test_a_gate_does_not_pass_on_fewer_samples_than_were_asked_for(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    digits = load_digits().select(held_out=True)
    np.savez(tmp_path / "in.npz", input=feed_digits("digits-mlp", digits.images[:9]))
    sides = (f"ort@{tiny_onnx}", f"ort@{tiny_onnx}", "--json")
    for inputs, n in ((("--inputs", "in.npz"), 9), ((), 450)):
        options = (*inputs, "--n", 1000) if inputs else ("--n", 1000)
        targets = sides if inputs else ("ort@digits-mlp", "ort@digits-mlp", "--json")
        free = cli("drift", *targets, *options)
        document = json.loads(free.stdout)
        assert free.returncode == 0 and (document["n"], document["n_asked"], document["passed"]) == (n, 1000, False)
        assert f"{n} of 1000 samples" in " ".join(c["message"] for c in document["caveats"])
        gate = cli("drift", *targets, *options, "--limit", "cosine=0.5")
        assert gate.returncode == 4 and f"{n} of 1000 samples were compared" in gate.stderr
        whole = cli("drift", *targets, *inputs, "--n", n, "--limit", "cosine=0.5")
        assert whole.returncode == 0 and json.loads(whole.stdout)["passed"], whole.stderr


def test_the_users_entries_are_compared_and_timed_and_their_shapes_told(cli: Cli, tmp_path: Path) -> None:
    """Three widths, five entries: all are compared, the first is timed; nothing is chosen, so no caveat says so."""
    path = write_lines(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for i, (n, width) in enumerate(((2, 11), (1, 7), (2, 11))):
        np.savez(folder / f"{i}.npz", x=draw(n, width, i))
    done = cli("run", path, "--engines", "ort,openvino", "--inputs", folder, "--out", "r", *FAST, code=0)
    assert "1x3x8x11" in done.stdout.replace("\n", "")
    rows = read_rows(tmp_path / "r")
    assert len(rows) == 2 and len(list((tmp_path / "r" / "artefacts" / "samples").glob("*.npz"))) == 5
    for row in rows.values():
        assert row["shapes"] == {"x": [1, 3, 8, 11]} and row["drift"]["n"] == 5
        assert not any(c["code"] == "chosen_shapes" for artifact in row["artifacts"] for c in artifact["caveats"])
    assert {row["engine"]["backend"]: row["axes"] for row in rows.values()} == {"ort": "open", "openvino": "fixed"}
    for name in ("report.html", "report.md", "table.csv"):
        assert "1x3x8x11" in (tmp_path / "r" / name).read_text(encoding="utf-8"), name


def test_a_built_in_model_from_its_name_to_int8(folder: Path) -> None:
    document = call_json(
        calibrate, "digits-mlp", "--data", "digits", "--n", "64", "--method", "entropy", "--keep-batches", "kept.npz"
    )
    assert document["schema"] == "enginebench.calibrate/1" and document["path"] == "calib.json"
    assert (document["n"], document["source"], document["method"]) == (64, "digits", "entropy")
    assert len(document["preprocess_sha256"]) == 64 and document["batches"] == "kept.npz"
    for recipe in ("tensorrt", "cpu", "nncf"):
        made = call_json(quantize, "mlp.onnx", "--to", f"int8@{recipe}", "--calib", "calib.json", "--out", "q.onnx")
        assert made["schema"] == "enginebench.quantize/1"
        assert (made["artifact"]["precision"], made["artifact"]["recipe"]) == ("int8", recipe)
        assert made["artifact"]["preprocess_sha256"] == document["preprocess_sha256"]
        assert made["coverage"] == 1 and made["quantizers"] > 0
        assert (made["tensorrt_refusals"] == []) == (recipe == "tensorrt")
    kept = call_json(quantize, "mlp.onnx", "--to", "int8@nncf", "--calib", "kept.npz", "--out", "k.onnx")
    assert kept["artifact"]["sha256"] == made["artifact"]["sha256"]


def test_several_engines_stand_side_by_side_and_a_failing_one_is_left_out(cli: Cli, tmp_path: Path) -> None:
    short = ("--n", 4, "--time-limit", 0.1, "--threads", 1, "--decoders", 1)
    done = cli("stages", "digits-cnn", "--engines", "ort,fake:fault=raise,at=load,fake", *short, "--out", "s.json")
    assert done.returncode == 0, done.stderr
    assert "fake:at=load,fault=raise is left out: " in done.stderr
    document = json.loads((tmp_path / "s.json").read_text())
    assert [document["engine"], *(other["engine"] for other in document["others"])] == ["ort", "fake"]
    assert "From file to label" in done.stdout and "ort fp32, batch 1" in done.stdout
    alone = cli("stages", "digits-cnn", "--engines", "fake:fault=raise,at=load", *short)
    assert alone.returncode == 6 and "is left out" not in alone.stderr
