"""One real chain of processes for each capability, as a user types it: each command takes what the last one left."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.models.task import feed_digits, load_digits
from enginebench.models.zoo import DATA_DIR
from fakes.trtexec_shim import install_trtexec
from processes import Cli, environment

FAST = ("--warmup", "2", "--iters", "20", "--processes", "1", "--threads", "1")


def ask(cli: Cli, *args: object, code: int = 0, **options: Any) -> Any:
    """The JSON document of a command that ends with `code`."""
    done = cli(*args, "--json", **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_the_main_job_on_three_engines_and_its_report(cli: Cli, tmp_path: Path) -> None:
    document = ask(cli, "run", "digits-mlp", "--engines", "pytorch,ort,openvino", *FAST, "--out", "r")
    rows = {row["engine"]: row for row in document["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(("pytorch", "ort", "openvino"), "ok")
    for row in rows.values():
        assert row["effective_precision"] == {"fp32": 1.0} and row["scores"][0]["value"]["value"] > 0.95
    assert all(rows[name]["outputs_agree"] and rows[name]["max_abs_diff"] < 1e-3 for name in ("ort", "openvino"))
    assert cli("report", "r", "--format", "html,md,json").returncode == 0
    assert "openvino" in (tmp_path / "r" / "report.html").read_text("utf-8")
    assert json.loads((tmp_path / "r" / "report.json").read_text("utf-8"))["rows"] == document["rows"]


@pytest.mark.feature("deliver")
def test_the_bundle_of_a_row_checks_itself_without_us(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", "digits-mlp", "--engines", "ort", *FAST, "--out", "r").returncode == 0
    done = cli("deliver", "r", "--row", "ort", "--out", "ship")
    assert done.returncode == 0, done.stderr
    alone = {name: value for name, value in environment(tmp_path).items() if name != "PYTHONPATH"}
    program = [sys.executable, tmp_path / "ship" / "predict.py", "--check"]
    checked = subprocess.run(program, env=alone, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (weights,) = (tmp_path / "ship").rglob("*.onnx")
    weights.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
    checked = subprocess.run(program, env=alone, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode != 0, "another model answers otherwise"


def test_a_module_becomes_a_graph_the_graph_int8_and_both_answer_alike(cli: Cli, tmp_path: Path) -> None:
    assert cli("export", "digits-cnn", "--dynamic-batch", "--out", "m.onnx").returncode == 0
    assert cli("calibrate", "digits-cnn", "--data", "digits", "--n", "64", "--out", "calib.json").returncode == 0
    done = cli("quantize", "m.onnx", "--to", "int8@cpu", "--calib", "calib.json", "--out", "m8.onnx")
    assert done.returncode == 0, done.stderr
    np.savez(tmp_path / "digits.npz", input=feed_digits("digits-cnn", load_digits().images[:32]))
    drift = ask(cli, "drift", "ort@m.onnx", "ort@m8.onnx", "--inputs", "digits.npz", "--out", "d")
    assert drift["passed"] and drift["outputs"][0]["max_abs_diff"] > 0
    assert cli("infer", "m8.onnx", "digits.npz", "--engine", "ort", "--out", "y.npz").returncode == 0
    assert {array.shape for array in np.load(tmp_path / "y.npz").values()} == {(32, 10)}


@pytest.mark.feature("trtexec")
def test_trtexec_builds_a_plan_times_it_and_its_log_is_read(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    tool = ("--engine", "trtexec", "--trtexec", install_trtexec(tmp_path / "tools", "10.16"))
    assert cli("build", tiny_onnx, *tool, "--precision", "fp16", "--out", "m.plan").returncode == 0
    asked = ("--iters", "20", "--log", "run.log", "--out", "b")
    row = ask(cli, "bench", "m.plan", *tool, "--processes", "1", *asked)["row"]
    assert row["clock"] == "tool" and row["p50_device_ms"]["value"] > 0
    (parsed,) = ask(cli, "parse", "log", "run.log")["runs"]
    assert parsed["status"] == "passed" and parsed["latency_ms"]["median"] > 0
    left = {path.name for path in (tmp_path / "b" / "trtexec").iterdir()}
    assert left == {"trtexec_stdout.log", "times.json", "profile.json", "layers.json"}
    assert cli("report", "b/trtexec", "--format", "md").returncode == 0
    assert "| m.plan |" in (tmp_path / "b" / "trtexec" / "report.md").read_text("utf-8")


@pytest.mark.feature("load")
def test_a_short_load_has_every_request_in_it(cli: Cli, tiny_onnx: Path) -> None:
    asked = ("--qps", "200", "--duration", "0.5", "--scenario", "server", "--out", "l")
    (point,) = ask(cli, "load", tiny_onnx, "--engine", "ort", *asked)["points"]
    assert point["completed"] > 50 and point["failed"] == 0


FAULTS: dict[int, tuple[str, ...]] = {
    2: ("bench", "digits-mlp", "--engine", "no-such-engine"),
    3: ("bench", "tiny.onnx", "--engine", "fake:env=nowhere"),
    4: ("drift", "fake@tiny.onnx", "fake:bias=1@tiny.onnx", "--n", "2", "--limit", "max_abs=0.01", "--out", "d"),
    5: ("bench", "cut.onnx", "--engine", "ort"),
    6: ("bench", "tiny.onnx", "--engine", "fake:fault=segfault", "--iters", "5", "--processes", "1", "--out", "b"),
}


@pytest.mark.parametrize("code", sorted(FAULTS))
def test_each_kind_of_error_has_its_exit_code_and_one_line(cli: Cli, tmp_path: Path, code: int) -> None:
    graph = (DATA_DIR / "digits-mlp.onnx").read_bytes()
    (tmp_path / "tiny.onnx").write_bytes(graph)
    (tmp_path / "cut.onnx").write_bytes(graph[: len(graph) // 2])
    done = cli(*FAULTS[code])
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr and done.stderr.strip()
