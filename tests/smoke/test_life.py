"""A run that is asked for the calls of a process: starts are timed alone, and the head speaks of the whole process."""

import json
from pathlib import Path

from processes import Cli


def test_a_run_for_the_calls_of_a_process(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    engines = ("--engines", "ort,fake:latency_us=20000", "--processes", "2", "--time-limit", "0.1")
    needs = ("--for-calls", "50", "--need", "memory=8GB")
    done = cli("run", tiny_onnx, *engines, *needs, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["for_calls"] == 50 and document["needs"] == {"memory": 8e9}
    (headline,) = document["headlines"]
    rows = {row["id"]: row for row in document["rows"]}
    named = rows[headline["id"]]
    assert named["engine"] == "ort" and headline["for_calls"] == 50
    started = named["import_s"] + named["start_s"]
    assert named["start_s"] > 0 and named["import_s"] > 0.01
    # Medians of two trials each against the mean of the two processes.
    assert 0.5 < headline["total_ms"]["value"] / 1e3 / (started + 50 * named["mean_ms"]["value"] / 1e3) < 2
    assert {"before", "import", "load", "first_run", "steady"} <= named["memory_bytes"].keys()
    assert named["memory_bytes"]["steady"] <= named["peak_memory_bytes"]
    stored = json.loads((out / "rows" / f"{headline['id']}.json").read_text())
    cold = stored["cold_start"]  # None where the files could not be dropped from the cache
    assert cold is None or (cold["read_bytes"] > 0 and cold["import_s"] > 0)
    page = (out / "report.md").read_text("utf-8")
    assert "50 calls in a new process" in page and "Break-even" in page
    again = cli("report", out)
    assert "50 calls in a new process" in again.stdout
