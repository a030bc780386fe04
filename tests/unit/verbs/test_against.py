"""Outputs of two sides against each other, by `bench --against` and `drift`: what makes them say no, and how."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from msgspec.structs import replace

from calls import FAST, bench
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Result
from enginebench.features.trtexec.difference import explain_difference
from enginebench.models.task import feed_digits, load_digits
from graphs import make_scale, write_text
from processes import Cli
from samples import make_result as make_row

GATED = ("--warmup", "2", "--iters", "50", "--processes", "6", "--gate")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"given": "z"}, "input 'z' is missing from"),
        ({"shape": "n, 8"}, "input 'x' has shape"),
        ({"shape": "n, 4, 1"}, "input 'x' has shape"),
        ({"dtype": "double"}, "input 'x' has dtype float32 against float64"),
    ],
)
def test_sides_with_other_inputs_are_refused_before_anything_is_measured(
    cli: Cli, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", 1, **fields)
    refused = cli("bench", target, "--engine", "ort", "--against", f"ort@{other}", code=5)
    assert "the sides cannot be compared: " in refused.stderr and why in refused.stderr


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"answer": "w"}, "output 'w' is missing from"),
        # An open axis is fed with a length of its own.
        ({"shape": "n, m"}, "input 'x' has shape [1, 16000] against [1, 4]"),
    ],
)
def test_what_cannot_be_compared_says_why(cli: Cli, tmp_path: Path, fields: dict[str, Any], why: str) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", 1, **fields)
    document = bench(cli, target, "--engine", "ort", "--against", f"ort@{other}")
    comparison, row = document["comparison"], document["row"]
    assert comparison["verdict"] == "not_comparable"
    models, reason, *_ = comparison["reasons"]
    assert models.startswith("the models differ: ") and why in reason
    assert comparison["outputs_agree"] is row["outputs_agree"] is row["max_abs_diff"] is None
    assert "outputs_not_compared" in {warning["code"] for warning in row["caveats"]}


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


def test_the_gate_fails_on_other_outputs_however_fast(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    sides = ("--engine", "fake:latency_us=50,bias=3", "--against", "fake:latency_us=2000")
    files = ("--junit", "j.xml", "--summary", "s.md", "--out", "b.json")
    done = cli("bench", tiny_onnx, *sides, *GATED, *files, code=4)
    comparison = json.loads((tmp_path / "b.json").read_text())["comparison"]
    (why,) = comparison["failures"]
    assert why.startswith("the outputs are not within the limits: ") and "error is " in why and "limit 60)" in why
    assert f"Verdict: not comparable: {why}" in " ".join(done.stdout.split())
    assert why in done.stderr
    failure = ElementTree.parse(tmp_path / "j.xml").getroot().find(".//failure")
    assert failure is not None and failure.get("message") == why
    summary = (tmp_path / "s.md").read_text()
    assert "gate failed" in summary and "the outputs are not within the limits" in summary and "error is " in summary


@pytest.mark.parametrize(("limit", "kept"), [("max_abs=0.5", False), ("max_abs=5", True)])
def test_a_limit_of_your_own_decides_the_gate(
    cli: Cli, tiny_onnx: Path, tmp_path: Path, limit: str, kept: bool
) -> None:
    """The outputs are 3 apart, which the usual limits do not allow. Times may fail the gate where others are busy."""
    sides = ("--engine", "fake:latency_us=50,bias=3", "--against", "fake:latency_us=2000")
    done = cli("bench", tiny_onnx, *sides, *GATED, "--limit", limit, "--out", "b.json")
    comparison = json.loads((tmp_path / "b.json").read_text())["comparison"]
    assert comparison["outputs_agree"] is kept
    assert any("outputs are not within" in why for why in comparison["failures"]) is not kept
    assert done.returncode == (4 if comparison["failures"] else 0)


def test_a_stored_configuration_of_another_model_is_compared_with(cli: Cli, tmp_path: Path) -> None:
    target, other = make_scale(tmp_path / "a.onnx", 1), make_scale(tmp_path / "b.onnx", -5)
    assert cli("run", other, "--engines", "ort", *FAST, "--out", "r").returncode == 0
    (row,) = (tmp_path / "r" / "rows").glob("ort-*.json")
    document = bench(cli, target, "--engine", "ort", "--against", row)
    assert document["comparison"]["outputs_agree"] is False
    assert cli("run", target, "--engines", "ort", *FAST, "--out", "s").returncode == 0
    (row,) = (tmp_path / "s" / "rows").glob("ort-*.json")
    assert bench(cli, target, "--engine", "ort", "--against", row)["comparison"]["outputs_agree"] is True


def make_result(backend: str, plan: str = "p", scope: str = "compute", **options: str) -> Result:
    artifact = Artifact(kind="plan", model="m", path="m.plan", sha256=plan, files=(), inputs=(), outputs=())
    measure, engine = MeasureSpec(scope=scope), EngineSpec(backend=backend, options=options)  # type: ignore[arg-type]
    return replace(make_row(processes=0), id=backend, engine=engine, measure=measure, artifacts=(artifact,))


def messages(*results: Result) -> list[str]:
    return [c.message for c in explain_difference(results)]


def test_what_differs_between_two_runs_of_one_plan_is_named() -> None:
    assert messages(make_result("ort"), make_result("trtexec")) == [] == messages(make_result("trtexec"))
    (only,) = messages(make_result("trtexec", "a"), make_result("tensorrt", "b"))
    assert "the plan is one build in trtexec" in only
    (only,) = messages(make_result("trtexec", graph="1"), make_result("tensorrt"))
    assert "the clock is the device's" in only
    assert len(messages(make_result("trtexec", scope="io"), make_result("tensorrt", scope="io"))) == 2
    found = messages(make_result("trtexec", graph="0", streams="2"), make_result("tensorrt", spin="0"))
    assert found[:2] == ["CUDA graph is 0 in trtexec and 1 in tensorrt", "spin-wait is 1 in trtexec and 0 in tensorrt"]
    assert "the number of streams" in found[2]


def test_outputs_beyond_the_usual_limits_are_reported_and_end_with_code_4(
    cli: Cli, tiny_onnx: Path, tmp_path: Path
) -> None:
    sides = (f"fake@{tiny_onnx}", f"fake:bias=5@{tiny_onnx}")
    done = cli("drift", *sides, "--out", "d", "--skip-output-save", "--n", "3", code=4)
    assert "NOT within the limits" in done.stdout and "output: error is" in done.stderr
    assert "on random inputs" in " ".join(done.stdout.split())
    assert sorted(p.name for p in (tmp_path / "d").iterdir()) == ["output_diff.json", "per_sample_diff.json"]


def save_noise(path: Path, share: float) -> Path:
    """A graph that adds random numbers between 0 and `share` to its input."""
    noise = f"n = RandomUniformLike <low = 0.0, high = {share}> (input)"
    text = f"(float[batch, 8] input) => (float[batch, 8] scores) {{ {noise} scores = Add(input, n) }}"
    return write_text(path, text, opset=20)


def test_random_outputs_are_called_so_and_do_not_pass_for_agreement(cli: Cli, tmp_path: Path) -> None:
    """INT8 may differ by half of the signal; chance that stays within is no agreement."""
    np.savez(tmp_path / "in.npz", input=np.random.default_rng(0).uniform(0, 4, (8, 8)).astype(np.float32))
    noisy, steady = save_noise(tmp_path / "noisy.onnx", 0.3), save_noise(tmp_path / "steady.onnx", 1e-6)
    ask = ("--inputs", "in.npz", "--precision", "int8", "--json")
    said = "random outputs: the same inputs give different outputs"
    both = cli("drift", f"ort@{noisy}", f"ort@{noisy}", *ask, code=4)
    assert said in both.stderr and json.loads(both.stdout)["exceeded"] == [said]
    assert [c["figures"]["row"] for c in json.loads(both.stdout)["caveats"] if c["code"] == "outputs_vary"] == [
        f"ort@{noisy}"
    ]
    candidate = cli("drift", f"ort@{steady}", f"ort@{noisy}", *ask, code=0)
    assert said in json.loads(candidate.stdout)["exceeded"], "an engine that varies by itself is held to the limits"
    alike = json.loads(cli("drift", f"ort@{steady}", f"ort@{steady}", *ask, code=0).stdout)
    assert (alike["exceeded"], alike["passed"]) == ([], True), "less than a hundredth is no randomness"


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
    if "pytorch@MODEL" in arguments:
        pytest.importorskip("torch")
    done = cli("drift", *(a.replace("MODEL", str(tiny_onnx)) for a in arguments))
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr


def test_a_limit_that_nothing_is_held_against_is_refused(cli: Cli, tmp_path: Path) -> None:
    graph = save_graph(tmp_path / "g.onnx", 1)
    done = cli("drift", f"ort@{graph}", f"ort@{graph}", "--limit", "top1=1", code=2)
    assert "no output has such a figure" in done.stderr


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
