"""The verb accuracy: digits and labelled folders, through the model's own preprocessing."""

import json
from pathlib import Path

from processes import Cli


def test_digits_against_a_reference(cli: Cli, tiny_onnx: Path) -> None:
    """The graph of a file is prepared like the built-in model that it is compared with."""
    done = cli("accuracy", f"openvino@{tiny_onnx}", "--data", "digits", "--ref", "ort@digits-mlp", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "enginebench.accuracy/2"
    assert document["n"] == 450
    top1, top5 = document["scores"]
    assert [top1["metric"], top5["metric"]] == ["top1", "top5"]
    assert 0.95 < top1["value"]["low"] < top1["value"]["value"] < top1["value"]["high"] <= 1
    assert top5["value"]["value"] >= top1["value"]["value"]
    assert top1["delta"]["low"] <= 0 <= top1["delta"]["high"]
    assert top1["mcnemar_p"] == 1
    before = document["reference_scores"][0]["value"]["value"]
    assert before == top1["value"]["value"] - top1["delta"]["value"]
