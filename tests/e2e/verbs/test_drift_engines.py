"""The verb drift: files, figures, gates, and refusals that list every difference."""

import json
from pathlib import Path

import numpy as np

from enginebench.models.task import feed_digits, load_digits
from processes import Cli


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


def test_a_stored_row_is_run_on_its_own_artifact(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    run = ("run", tiny_onnx, "--engines", "openvino,ort", "--warmup", "1", "--iters", "3", "--processes", "1")
    assert cli(*run, "--out", "r").returncode == 0
    row = next((tmp_path / "r" / "rows").glob("openvino*.json"))
    done = cli("drift", f"ort@{tiny_onnx}", row, "--limit", "max_abs=1e-3", "--json")
    assert done.returncode == 0, done.stderr
    graph = next((tmp_path / "r" / "artefacts").rglob("*.xml"))
    graph.write_text(graph.read_text() + " ")
    done = cli("drift", f"ort@{tiny_onnx}", row)
    assert done.returncode == 5 and "was changed" in done.stderr
