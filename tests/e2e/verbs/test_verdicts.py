"""The small verbs on real engines: export, infer, bench, diff, report."""

import json
from pathlib import Path

import pytest

from in_process import children, cli
from processes import Cli

__all__ = ["children", "cli"]

FAST = ("--warmup", "2", "--iters", "30")


@pytest.mark.serial  # a verdict on times
def test_bench_against_a_stored_row(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """The very graph that was measured: it is not quantized again."""
    run = ("run", tiny_onnx, "--engines", "ort,fake", "--precisions", "int8", *FAST, "--processes", "1", "--out", "r")
    assert cli(*run).returncode == 0
    row = next((tmp_path / "r" / "rows").glob("ort-int8*.json"))
    stored = json.loads(row.read_text())["artifacts"]
    bench = ("bench", tiny_onnx, "--engine", "fake:latency_us=500", "--against", row, *FAST)
    done = cli(*bench, "--processes", "6", "--json", code=0)
    assert json.loads(done.stdout)["comparison"]["verdict"] == "slower"
    (against,) = (tmp_path / "results").glob("bench-*/rows/ort-int8.cpu-*-against.json")
    again = json.loads(against.read_text())
    assert [a["sha256"] for a in again["artifacts"]] == [a["sha256"] for a in stored]
    (graph,) = (against.parent.parent / "against").rglob("*.onnx")
    assert again["artifacts"][-1]["path"] == f"against/{graph.name}"
    assert "random_calibration" in {c["code"] for c in again["artifacts"][-1]["caveats"]}
    original = tmp_path / "r" / stored[-1]["path"]
    original.write_bytes(original.read_bytes() + b"\0")
    assert "was changed" in cli(*bench).stderr
    original.unlink()
    done = cli(*bench)
    assert done.returncode == 5 and "Name ENGINE@TARGET" in done.stderr


@pytest.mark.serial
def test_diff_of_a_run_with_itself_and_the_gate(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    for name, latency in (("a", 200), ("c", 400)):
        engines = f"fake:latency_us={latency}"
        done = cli("run", tiny_onnx, "--engines", f"{engines},fake:seed=3", "--warmup", "2", "--iters", "100",
                   "--processes", "6", "--out", name)  # fmt: skip
        assert done.returncode == 0, done.stderr
    same = json.loads(cli("diff", "a", "a", "--json").stdout)
    assert {row["verdict"] for row in same["rows"]} <= {"equivalent", "not_shown"}
    assert all(row["ratio"]["value"] == pytest.approx(1) for row in same["rows"])
    done = cli("diff", "a", "c", "--gate")
    assert done.returncode == 4
    assert "not comparable" in done.stdout or "slower" in done.stdout
    one, other = sorted((tmp_path / "a" / "rows").glob("*.json"))
    row = json.loads(other.read_text())
    for measured in row["measurements"]:
        measured["reference_ns"] = [
            3 * ns for ns in measured["reference_ns"]
        ]  # made apart, that would be another state
    for path in (other, tmp_path / "apart.json"):
        path.write_text(json.dumps(row))
    beside, apart = (json.loads(cli("diff", one, path, "--json").stdout)["rows"][0] for path in (other, path))
    assert beside["verdict"] != "not_comparable" and beside["ratio"]
    assert apart["verdict"] == "not_comparable"
