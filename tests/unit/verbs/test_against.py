"""`bench --against` holds the answers of both sides against each other: what makes it say no, and what it then says."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from processes import Cli
from scale_graphs import FAST, bench, make_scale

GATED = ("--warmup", "2", "--iters", "50", "--processes", "6", "--gate")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"given": "z"}, "input 'z' is missing from"),
        ({"answer": "w"}, "output 'w' is missing from"),
        ({"shape": "n, 8"}, "input 'x' has shape [1, 8] against [1, 4]"),
        ({"shape": "n, 4, 1"}, "input 'x' has shape [1, 4, 1] against [1, 4]"),
        # An open axis is fed with a length of its own.
        ({"shape": "n, m"}, "input 'x' has shape [1, 16000] against [1, 4]"),
        ({"dtype": "double"}, "input 'x' has dtype float64 against float32"),
    ],
)
def test_what_cannot_be_compared_says_why(cli: Cli, tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", 1, **fields)
    document = bench(cli, target, "--engine", "ort", "--against", f"ort@{other}")
    comparison, row = document["comparison"], document["row"]
    assert comparison["verdict"] == "not_comparable" and why in comparison["reasons"][0]
    assert comparison["outputs_agree"] is row["outputs_agree"] is row["max_abs_diff"] is None
    assert "outputs_not_compared" in {caveat["code"] for caveat in row["caveats"]}


def test_a_side_that_fails_is_a_failure_for_ci(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    sides = ("--engine", "fake:fault=raise", "--against", "fake")
    cli("bench", tiny_onnx, *sides, *FAST, "--junit", "j.xml", "--summary", "s.md", code=6)
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert failure is not None and "the candidate is failed" in str(failure.text)
    assert "the candidate is failed" in (tmp_path / "s.md").read_text()


def test_batches_that_differ_are_refused_before_anything_is_measured(cli: Cli, tmp_path: Path) -> None:
    make_scale(tmp_path / "a.onnx", 1, shape="3, 4")
    make_scale(tmp_path / "b.onnx", 1)
    done = cli("bench", "a.onnx", "--engine", "ort", "--against", "ort@b.onnx", *FAST, code=2)
    assert "a.onnx runs at batch 3, b.onnx at 1: give --batch 3" in done.stderr and "build" not in done.stderr


def test_the_gate_fails_on_other_answers_however_fast(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    sides = ("--engine", "fake:latency_us=50,bias=3", "--against", "fake:latency_us=2000")
    files = ("--junit", "j.xml", "--summary", "s.md", "--out", "b.json")
    done = cli("bench", tiny_onnx, *sides, *GATED, *files, code=4)
    comparison = json.loads((tmp_path / "b.json").read_text())["comparison"]
    (why,) = comparison["failures"]
    assert why.startswith("the outputs are not within the limits: ") and "snr is " in why and "the limit is 60" in why
    assert f"Verdict: not comparable: {why}" in " ".join(done.stdout.split())
    assert why in done.stderr
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert failure is not None and failure.get("message") == why
    summary = (tmp_path / "s.md").read_text()
    assert "gate failed" in summary and "the outputs are not within the limits" in summary and "snr is " in summary


def test_a_stored_row_of_another_model_is_compared_with(cli: Cli, tmp_path: Path) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", -5)
    assert cli("run", other, "--engines", "ort", *FAST, "--out", "r").returncode == 0
    (row,) = (tmp_path / "r" / "rows").glob("ort-*.json")
    document = bench(cli, target, "--engine", "ort", "--against", row)
    assert document["comparison"]["outputs_agree"] is False
    assert cli("run", target, "--engines", "ort", *FAST, "--out", "s").returncode == 0
    (row,) = (tmp_path / "s" / "rows").glob("ort-*.json")
    assert bench(cli, target, "--engine", "ort", "--against", row)["comparison"]["outputs_agree"] is True
