"""The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation."""

import json
import resource
from pathlib import Path

from processes import Cli, hide_packages, rows_of

FAST = ("--warmup", "2", "--iters", "30")


def test_precisions_stand_in_one_table_with_accuracy_and_proof(cli: Cli, tmp_path: Path) -> None:
    """The packaged graph, quantized on the bundled digits; one of the engines says INT8 and runs FP32."""
    variables = hide_packages(tmp_path, "torch")
    done = cli("run", "digits-mlp", "--engines", "ort,fake:ran=fp32", "--precisions", "fp32,int8", *FAST, "--processes",
               "1", "--strict-precision", "--json", "--out", "r", env=variables)  # fmt: skip
    assert done.returncode == 4 and "asked for int8, ran in fp32" in done.stderr
    document = json.loads(done.stdout)
    fp32, wrong, int8, liar = document["rows"]
    assert abs(int8["scores"][0]["value"]["value"] - fp32["scores"][0]["value"]["value"]) <= 0.005
    assert int8["scores"][0]["value"]["method"] == "Wilson score interval" and int8["scores"][0]["value"]["n"] == 450
    assert int8["recipe"] == "cpu" and int8["size_bytes"] < fp32["size_bytes"] and int8["build_s"] > 0
    assert int8["effective_precision"]["int8"] > 0.3 and fp32["effective_precision"] == {"fp32": 1.0}
    assert (liar["requested_precision"], liar["precision"]) == ("int8", "fp32")
    assert "relabelled" in {c["code"] for c in liar["caveats"]}
    assert wrong["scores"][0]["value"]["value"] < 0.5 and document["recommended_by"] == "metric"
    assert document["recommended"]["engine"] == "ort", "what answers wrongly is not recommended, however fast"
    stored = rows_of(tmp_path / "r")[int8["id"]]["artifacts"][-1]
    assert len(stored["preprocess_sha256"]) == 64


def test_a_full_disk_loses_nothing_that_was_stored(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """A limit on the size of files stops a row's file from growing, as a full disk does."""
    limit = 30_000
    done = cli(
        "run", tiny_onnx, "--engines", "fake,fake:seed=2", "--warmup", "2", "--iters", "2400", "--processes", "6",
        "--out", "r", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "cannot write" in done.stderr and "File too large" in done.stderr
    rows = rows_of(tmp_path / "r")
    assert sum(len(row["measurements"]) for row in rows.values()) >= 2
    assert not list((tmp_path / "r").rglob("*.tmp"))
    assert "seed=2" in done.stdout, "the table of what was measured is printed from memory"
    assert cli("run", tiny_onnx, "--resume", "--out", "r").returncode == 0
