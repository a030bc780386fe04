"""The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation."""

import json
import signal
from pathlib import Path

import pytest

from enginebench.core.store import read_result
from processes import Cli, rows_of, start_cli, wait_for_samples

FAST = ("--warmup", "2", "--iters", "30")


@pytest.mark.serial  # which of two is faster, and by how much
def test_the_main_job_leaves_rows_reports_and_one_json_document(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    out = tmp_path / "run folder é"
    done = cli("run", tiny_onnx, "--engines", "fake:latency_us=200,fake:latency_us=50", *FAST,
               "--processes", "6", "--out", out, "--json")  # fmt: skip
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


FAULTS = {
    "segfault": "killed by SIGSEGV",
    "oom": "when memory runs out",
    "hang": "time-out",
    "garbage": "without a response",
    "raise": "raised an error, as requested",
}


def test_a_fault_costs_one_row(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    bad = ",".join(f"fake:fault={fault},after=32" for fault in FAULTS)
    done = cli("run", tiny_onnx, "--engines", f"fake,{bad},fake:seed=2", *FAST, "--processes", "2",
               "--timeout", "4", "--out", "r")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(rows_of(tmp_path / "r").values())
    assert sorted(str(row["status"]) for row in rows) == [*["failed"] * len(FAULTS), "ok", "ok"]
    failed = {row["engine"]["options"]["fault"]: row for row in rows if row["status"] == "failed"}
    for fault, reason in FAULTS.items():
        assert reason in str(failed[fault]["reason"])
        assert f"fault {fault}" in str(failed[fault]["stderr_tail"])
    assert done.stdout.count("Failed: ") >= len(FAULTS)


LONG = ("--warmup", "2", "--iters", "1000", "--processes", "40")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_measured_survives_and_is_continued(
    cli: Cli, tiny_onnx: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "r"
    engines = "fake:latency_us=100,fake:latency_us=90"
    run = start_cli(tmp_path, "run", tiny_onnx, "--engines", engines, *LONG, "--out", out)
    wait_for_samples(out, 3)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == (-9 if number == signal.SIGKILL else 130), stderr
    before = {k: r["measurements"] for k, r in rows_of(out).items()}
    assert sum(len(m) for m in before.values()) >= 3
    record = json.loads((out / "run.json").read_text())
    record["request"]["measure"]["processes"] = 4  # finish soon
    (out / "run.json").write_text(json.dumps(record))

    done = cli("run", tiny_onnx, "--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    for row_id, row in rows_of(out).items():
        assert row["status"] == "ok"
        kept = before.get(row_id, [])
        assert row["measurements"][: len(kept)] == kept[: len(row["measurements"])]


def test_two_runs_on_one_device_take_turns_or_refuse(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    first = start_cli(tmp_path, "run", tiny_onnx, "--engines", "fake,fake:seed=2", *LONG, "--out", tmp_path / "first")
    try:
        wait_for_samples(tmp_path / "first", 1)
        second = cli("run", tiny_onnx, "--engines", "fake,fake:seed=2", *FAST, "--no-wait", "--out", "second")
        assert second.returncode == 6
        assert "another run is measuring on cpu" in second.stderr
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
