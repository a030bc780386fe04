"""Real chains of processes, as a user types them: the main job with interrupts, and trtexec."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from enginebench.core.store import read_result
from fakes.trtexec_shim import install_trtexec
from processes import Cli, environment, rows_of, start_cli, wait_for_samples

FAST = ("--warmup", "2", "--iters", "20", "--processes", "1", "--threads", "1")


def ask(cli: Cli, *args: object, code: int = 0, **options: Any) -> Any:
    """The JSON document of a command that ends with `code`."""
    done = cli(*args, "--json", **options)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_the_main_job_on_three_engines_and_its_report(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    document = ask(cli, "run", "digits-mlp", "--engines", "pytorch,ort,openvino", *FAST, "--out", "r")
    rows = {row["engine"]: row for row in document["rows"]}
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(("pytorch", "ort", "openvino"), "ok")
    for row in rows.values():
        assert row["effective_precision"] == {"fp32": 1.0} and row["scores"][0]["value"]["value"] > 0.95
    assert all(rows[name]["outputs_agree"] and rows[name]["max_abs_diff"] < 1e-3 for name in ("ort", "openvino"))
    cli("report", "r", "--format", "html,md,json", code=0, env=environment(tmp_path, draws=True))
    assert "openvino" in (tmp_path / "r" / "report.html").read_text("utf-8")
    assert json.loads((tmp_path / "r" / "report.json").read_text("utf-8"))["rows"] == document["rows"]


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


RUN = ("--warmup", "2", "--iters", "30")


@pytest.mark.serial  # which of two is faster, and by how much
def test_the_main_job_leaves_configurations_reports_and_one_json_document(
    cli: Cli, tiny_onnx: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run folder é"
    done = cli(
        *("run", tiny_onnx, "--engines", "fake:latency_us=200,fake:latency_us=50"),
        *(*RUN, "--processes", "6", "--out", out, "--json"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "enginebench.run/1"
    assert [row["status"] for row in document["rows"]] == ["ok", "ok"]
    assert document["rows"][0]["speedup"]["value"] == 1
    assert document["rows"][1]["speedup"]["value"] > 2
    assert document["fastest"]["engine"] == "fake:latency_us=50"
    for row in document["rows"]:
        stored = read_result(out / row["result"])
        assert len(stored.measurements) == 6
        assert all(len(m.latency_ns) == 30 and m.warmup_dropped == 2 for m in stored.measurements)
    assert (out / "report.md").read_text().count("fake:latency\\_us=50") >= 1
    assert (out / "table.csv").is_file() and (out / "run.json").is_file()


LONG = ("--warmup", "2", "--iters", "1000", "--processes", "40")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_measured_survives_and_is_continued(cli, tiny_onnx, tmp_path, number) -> None:
    out = tmp_path / "r"
    engines = "fake:latency_us=100,fake:latency_us=90"
    run = start_cli(tmp_path, "run", tiny_onnx, "--engines", engines, *LONG, "--out", out)
    wait_for_samples(out, 3)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == (-9 if number == signal.SIGKILL else 130), stderr
    assert number == signal.SIGKILL or f"interrupted; kept in {out}: " in stderr
    before = {k: r["measurements"] for k, r in rows_of(out).items()}
    assert sum(len(m) for m in before.values()) >= 3
    record = json.loads((out / "run.json").read_text())
    record["request"]["measure"]["processes"] = 4  # finish soon
    (out / "run.json").write_text(json.dumps(record))

    done = cli("run", tiny_onnx, "--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    for configuration_id, row in rows_of(out).items():
        assert row["status"] == "ok"
        kept = before.get(configuration_id, [])
        assert row["measurements"][: len(kept)] == kept[: len(row["measurements"])]
