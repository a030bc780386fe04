"""`bench --against` holds the answers of both sides against each other: what makes it say no, and what it then says."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from graphs import write_text
from processes import Cli
from scale_graphs import FAST, bench, make_scale

GATED = ("--warmup", "2", "--iters", "50", "--processes", "6", "--gate")


def make_difference(path: Path, inputs: str) -> Path:
    """A graph y = a - b whose inputs are listed in the order given."""
    return write_text(path, f"({inputs}) => (float[n, 4] y) {{ y = Sub(a, b) }}")


def test_two_models_that_answer_differently_are_told_apart(cli: Cli, tmp_path: Path) -> None:
    same, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", -5)
    document = bench(cli, same, "--engine", "ort", "--against", f"ort@{other}")
    comparison, row = document["comparison"], document["row"]
    assert comparison["outputs_agree"] is row["outputs_agree"] is False
    assert comparison["verdict"] == "not_comparable" and row["max_abs_diff"] > 1
    (why,) = comparison["failures"]
    # The power of -5 x against that of 6 x, and the smallest signal to noise that FP32 must keep.
    assert "the outputs differ beyond the limits: y: snr is -1.58362, the limit is 60" in why


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


def test_the_gate_fails_on_other_answers_however_fast(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    sides = ("--engine", "fake:latency_us=50,bias=3", "--against", "fake:latency_us=2000")
    files = ("--junit", "j.xml", "--summary", "s.md", "--out", "b.json")
    done = cli("bench", tiny_onnx, *sides, *GATED, *files, code=4)
    comparison = json.loads((tmp_path / "b.json").read_text())["comparison"]
    (why,) = comparison["failures"]
    assert why.startswith("the outputs differ beyond the limits: ") and "snr is " in why and "the limit is 60" in why
    assert f"Verdict: not comparable: {why}" in " ".join(done.stdout.split())
    assert why in done.stderr
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert failure is not None and failure.get("message") == why
    summary = (tmp_path / "s.md").read_text()
    assert "gate failed" in summary and "the outputs differ beyond the limits" in summary and "snr is " in summary


def test_the_gate_fails_where_nobody_can_compare(cli: Cli, tmp_path: Path) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", 1, given="z")
    sides = ("--engine", "fake:latency_us=50", "--against", f"fake:latency_us=2000@{other}")
    assert "input 'z' is missing from" in cli("bench", target, *sides, *GATED, "--junit", "j.xml", code=4).stderr
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert failure is not None and "input 'z' is missing from" in (failure.text or "")


def test_inputs_in_another_order_are_the_same_inputs(cli: Cli, tmp_path: Path) -> None:
    target = make_difference(tmp_path / "ab.onnx", "float[n, 4] a, float[n, 4] b")
    other = make_difference(tmp_path / "ba.onnx", "float[n, 4] b, float[n, 4] a")
    document = bench(cli, target, "--engine", "ort", "--against", f"ort@{other}")
    assert document["comparison"]["outputs_agree"] is True


def test_int8_is_held_against_fp32_by_the_limits_of_int8(cli: Cli, tmp_path: Path, tiny_onnx: Path) -> None:
    sides = ("--precision", "int8", "--against", "ort", "--against-precision", "fp32")
    document = bench(cli, tiny_onnx, "--engine", "ort", *sides)
    assert document["comparison"]["outputs_agree"] is True and document["row"]["max_abs_diff"] > 0.01
    turned = ("--precision", "fp32", "--against", "ort", "--against-precision", "int8")
    document = bench(cli, tiny_onnx, "--engine", "ort", *turned)
    assert document["comparison"]["outputs_agree"] is True and document["row"]["max_abs_diff"] > 0.01


def test_a_stored_row_of_another_model_is_compared_with(cli: Cli, tmp_path: Path) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", -5)
    assert cli("run", other, "--engines", "ort", *FAST, "--out", "r").returncode == 0
    (row,) = (tmp_path / "r" / "rows").glob("ort-*.json")
    document = bench(cli, target, "--engine", "ort", "--against", row)
    assert document["comparison"]["outputs_agree"] is False
    assert cli("run", target, "--engines", "ort", *FAST, "--out", "s").returncode == 0
    (row,) = (tmp_path / "s" / "rows").glob("ort-*.json")
    assert bench(cli, target, "--engine", "ort", "--against", row)["comparison"]["outputs_agree"] is True


def test_one_side_alone_agrees_with_nobody(cli: Cli, tmp_path: Path) -> None:
    row = bench(cli, make_scale(tmp_path / "a.onnx", 1), "--engine", "ort")["row"]
    assert row["outputs_agree"] is row["max_abs_diff"] is row["cosine"] is None


def test_the_report_of_a_comparison_names_no_winner_with_other_answers(cli: Cli, tmp_path: Path) -> None:
    target = make_scale(tmp_path / "a.onnx", 1)
    for other, note in (
        (make_scale(tmp_path / "b.onnx", -5), "outputs changed"),
        (make_scale(tmp_path / "c.onnx", 1, given="z"), "outputs were not compared"),
    ):
        sides = ("--engine", "fake:latency_us=50", "--against", f"fake:latency_us=200@{other}")
        if note == "outputs changed":
            sides = ("--engine", "fake:latency_us=50,bias=2", *sides[2:])
        cli("bench", target, *sides, *FAST, code=0)
        folder = sorted((tmp_path / "results").iterdir())[-1]
        assert cli("report", folder, "--format", "md,json").returncode == 0
        document = json.loads((folder / "report.json").read_text())
        assert document["fastest"] is None or document["fastest"]["id"].endswith("-against")
        assert note in (folder / "report.md").read_text()
