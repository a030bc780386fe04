"""The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from enginebench.core.store import read_result
from processes import Cli, environment

CopyRun = Callable[[str], Path]

FAST = ("--warmup", "2", "--iters", "30")


def rows_of(folder: Path) -> dict[str, dict[str, object]]:
    return {p.stem: json.loads(p.read_text()) for p in sorted((folder / "rows").glob("*.json"))}


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


def test_repetitions_take_turns(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    done = cli("run", tiny_onnx, "--engines", "fake:seed=1,fake:seed=2", *FAST, "--processes", "2", "--out", "r")
    assert done.returncode == 0, done.stderr
    orders = [[m["order"] for m in row["measurements"]] for row in rows_of(tmp_path / "r").values()]  # type: ignore[attr-defined]
    assert orders == [[0, 2], [1, 3]]


def test_precisions_stand_in_one_table_with_accuracy_and_proof(cli: Cli, tmp_path: Path) -> None:
    """The packaged graph, quantized on the bundled digits; one of the engines says INT8 and runs FP32."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = f"{site}:{variables['PYTHONPATH']}"
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
    stored = rows_of(tmp_path / "r")[int8["id"]]["artifacts"][-1]  # type: ignore[index]
    assert len(stored["preprocess_sha256"]) == 64


def test_an_onnx_model_skips_pytorch_with_the_reason(cli: Cli, tiny_onnx: Path) -> None:
    done = cli(
        "run", tiny_onnx, "--engines", "pytorch,fake,fake:seed=2", *FAST, "--processes", "1", "--json", "--out", "r"
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["status"] == "skipped"
    assert rows[0]["reason"] == "pytorch needs a PyTorch model; MODEL is a graph"
    assert rows[1]["speedup"]["value"] == 1


FAULTS = {
    "segfault": "killed by SIGSEGV",
    "oom": "when memory runs out",
    "hang": "time-out",
    "garbage": "no answer",
    "raise": "raised an error, as requested",
}


def test_a_fault_costs_one_row(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    bad = ",".join(f"fake:fault={fault},after=32" for fault in FAULTS)
    done = cli("run", tiny_onnx, "--engines", f"fake,{bad},fake:seed=2", *FAST, "--processes", "2",
               "--timeout", "4", "--out", "r")  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = list(rows_of(tmp_path / "r").values())
    assert sorted(str(row["status"]) for row in rows) == [*["failed"] * len(FAULTS), "ok", "ok"]
    failed = {row["engine"]["options"]["fault"]: row for row in rows if row["status"] == "failed"}  # type: ignore[index]
    for fault, reason in FAULTS.items():
        assert reason in str(failed[fault]["reason"])
        assert f"fault {fault}" in str(failed[fault]["stderr_tail"])
    assert done.stdout.count("failed") >= len(FAULTS)


def test_a_failed_baseline_is_exit_code_6(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("run", tiny_onnx, "--engines", "fake:fault=raise,fake", *FAST, "--processes", "1", "--out", "r")
    assert done.returncode == 6
    assert "the baseline and at least one other row must be ok" in done.stderr


def test_other_outputs_are_seen(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("run", tiny_onnx, "--engines", "fake:latency_us=300,fake:bias=1", *FAST, "--processes", "1",
               "--out", "r", "--json")  # fmt: skip
    document = json.loads(done.stdout)
    assert document["rows"][1]["max_abs_diff"] == pytest.approx(1)
    assert document["fastest"]["engine"] == "fake:latency_us=300"


def start(cli_args: list[object], folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "enginebench", *map(str, cli_args)]
    return subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def wait_for_samples(folder: Path, count: int) -> None:
    """Returns once the run has stored so many measurements."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if folder.exists() and sum(len(r["measurements"]) for r in rows_of(folder).values()) >= count:  # type: ignore[arg-type]
            return
        time.sleep(0.05)
    raise AssertionError("nothing was stored")


LONG = ("--warmup", "2", "--iters", "1000", "--processes", "40")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_was_measured_survives_and_is_continued(
    cli: Cli, tiny_onnx: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "r"
    engines = "fake:latency_us=100,fake:latency_us=90"
    run = start(["run", tiny_onnx, "--engines", engines, *LONG, "--out", out], tmp_path)
    wait_for_samples(out, 3)
    run.send_signal(number)
    _, stderr = run.communicate(timeout=60)
    assert run.returncode == (-9 if number == signal.SIGKILL else 130), stderr
    before = {k: r["measurements"] for k, r in rows_of(out).items()}
    assert sum(len(m) for m in before.values()) >= 3  # type: ignore[arg-type]
    record = json.loads((out / "run.json").read_text())
    record["request"]["measure"]["processes"] = 4  # finish soon
    (out / "run.json").write_text(json.dumps(record))

    done = cli("run", tiny_onnx, "--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    for row_id, row in rows_of(out).items():
        assert row["status"] == "ok"
        kept = before.get(row_id, [])
        assert row["measurements"][: len(kept)] == kept[: len(row["measurements"])]  # type: ignore[index, arg-type]


def test_an_interrupted_run_prints_what_it_has(tiny_onnx: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run = start(["run", tiny_onnx, "--engines", "fake,fake:seed=2", *LONG, "--out", out], tmp_path)
    wait_for_samples(out, 4)
    run.send_signal(signal.SIGINT)
    stdout, stderr = run.communicate(timeout=60)
    assert "seed=2" in stdout
    assert "--resume" in stderr


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
    assert sum(len(row["measurements"]) for row in rows.values()) >= 2  # type: ignore[arg-type]
    assert not list((tmp_path / "r").rglob("*.tmp"))
    assert "seed=2" in done.stdout, "the table of what was measured is printed from memory"
    assert cli("run", tiny_onnx, "--resume", "--out", "r").returncode == 0


def test_a_full_file_system_is_survived(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        done = cli("run", tiny_onnx, "--engines", "fake,fake:seed=2", "--warmup", "2", "--iters", "900",
                   "--processes", "40", "--out", disk / "r")  # fmt: skip
        assert done.returncode == 5, done.stderr
        assert "No space left on device" in done.stderr
        assert all(read_result(p).measurements for p in (disk / "r" / "rows").glob("*.json"))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_two_runs_on_one_device_take_turns_or_refuse(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    first = start(["run", tiny_onnx, "--engines", "fake,fake:seed=2", *LONG, "--out", tmp_path / "first"], tmp_path)
    try:
        wait_for_samples(tmp_path / "first", 1)
        second = cli("run", tiny_onnx, "--engines", "fake,fake:seed=2", *FAST, "--no-wait", "--out", "second")
        assert second.returncode == 6
        assert "another run is measuring on cpu" in second.stderr
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)


def test_a_folder_with_a_run_is_not_overwritten(cli: Cli, tiny_onnx: Path, copy_run: CopyRun) -> None:
    copy_run("r")
    again = cli("run", tiny_onnx, "--engines", "fake,fake:seed=2", *FAST, "--processes", "1", "--out", "r")
    assert again.returncode == 2
    assert "holds a run already" in again.stderr


def test_a_damaged_row_names_file_and_field(cli: Cli, tiny_onnx: Path, copy_run: CopyRun) -> None:
    row = next((copy_run("r") / "rows").glob("*.json"))
    document = json.loads(row.read_text())
    document["measurements"][0]["latency_ns"][3] = "fast"
    row.write_text(json.dumps(document))
    for verb in (("report", "r"), ("run", tiny_onnx, "--resume", "--out", "r")):
        done = cli(*verb)
        assert done.returncode == 5
        assert row.name in done.stderr and "latency_ns" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_changed_graph_is_not_continued(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    run = start(["run", tiny_onnx, "--engines", "fake,fake:seed=2", *LONG, "--out", out], tmp_path)
    wait_for_samples(out, 1)
    run.kill()
    run.communicate()
    graph = next((out / "artefacts").rglob("*.onnx"))
    data = graph.read_bytes()
    graph.unlink()
    graph.write_bytes(data + b" ")
    done = cli("run", tiny_onnx, "--resume", "--out", out)
    assert done.returncode == 5
    assert "was changed after the run began" in done.stderr


def test_a_moved_folder_is_still_a_run(cli: Cli, copy_run: CopyRun, tmp_path: Path) -> None:
    copy_run("elsewhere")
    done = cli("report", "elsewhere", "--format", "md,csv,json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "elsewhere" / "report.json").read_text())["schema"] == "enginebench.run/1"


def test_a_stored_run_shows_nobodys_home(finished_run: Path) -> None:
    """Its HOME was the folder in which the model lies."""
    paths = list(finished_run.rglob("*.json"))
    assert len(paths) >= 3 and (finished_run.parent / "tiny.onnx").is_file()
    for path in paths:
        assert str(finished_run.parent) not in path.read_text(), path


def test_engines_of_a_gpu_are_asked_for_on_a_gpu(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("run", tiny_onnx, "--device", "cuda:0", "--quick")
    assert "ort-cuda" in done.stdout and "openvino" not in done.stdout


def test_builds_are_made_measured_and_told(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    fast = ("--warmup", "2", "--iters", "10", "--out", "r", "--json")
    engines = "fake:latency_us=50,fake:latency_us=50,build_sd=0.3"
    done = cli("run", tiny_onnx, "--engines", engines, "--builds", "2", "--processes", "3", *fast)
    assert done.returncode == 0, done.stderr
    plain, drawn = json.loads(done.stdout)["rows"]
    assert [row["processes"] for row in (plain, drawn)] == [4, 4], "two of each build at least"
    assert drawn["builds"]["distinct"] == 2 and drawn["builds"]["between"]["n"] == 2
    assert plain["builds"]["distinct"] is None
    assert (drawn["unit"], drawn["verdict"], drawn["speedup"]["n"]) == ("build", "not_shown", 2)
    page = (tmp_path / "r" / "report.md").read_text()
    assert "## Builds" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--builds", "2", "--quick"), "--quick times one process"), (("--builds", "1"), "--builds")],
)
def test_builds_that_nobody_could_tell_apart_are_refused(
    cli: Cli, tiny_onnx: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = cli("run", tiny_onnx, "--engines", "fake", *arguments)
    assert done.returncode == 2 and said in done.stderr
