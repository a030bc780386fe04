"""Standard streams that are closed, full, of another encoding, or read by nobody: no traceback, nothing lost."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from enginebench.models.zoo import DATA_DIR
from processes import environment

GRAPH = str(DATA_DIR / "digits-mlp.onnx")
BENCH = f"bench {shlex.quote(GRAPH)} --engine fake:latency_us=10 --threads 1 --processes 1 --iters 5 --warmup 1 --out r"


def run(folder: Path, arguments: str, behind: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """`enginebench ARGUMENTS BEHIND` in a shell, started in `folder`."""
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m enginebench {arguments} {behind}"
    env = {**environment(folder), **variables}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("behind", "code"),
    [(">&-", 0), ("<&- >&- 2>&-", 0), ("2>&-", 0), ("2>/dev/full", 0), ("2>&1 | true", 0), ("> /dev/full", 5)],
)
def test_what_was_measured_is_kept_whoever_reads(behind: str, code: int, tmp_path: Path) -> None:
    done = run(tmp_path, BENCH, behind)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout and "Exception ignored" not in done.stderr
    if code:
        assert done.stderr.endswith("error: the output cannot be written: No space left on device\n")
    (row,) = (tmp_path / "r" / "rows").iterdir()
    stored = json.loads(row.read_text())
    assert stored["status"] == "ok" and len(stored["measurements"]) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_that_lacks_characters_gets_others(encoding: str, tmp_path: Path) -> None:
    graph = tmp_path / "mödell 模.onnx"
    graph.write_bytes(Path(GRAPH).read_bytes())
    arguments = f"bench '{graph.name}' --engine fake:latency_us=10 --threads 1 --processes 1 --iters 5 --warmup 1"
    env = environment(tmp_path) | {"PYTHONIOENCODING": encoding}
    command = ["bash", "-c", f"{shlex.quote(sys.executable)} -m enginebench {arguments} --out r"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    expected = {"ascii": "modell ?.onnx - ", "latin-1": "mödell ?.onnx · ", "utf-8": "mödell 模.onnx · "}
    assert done.stdout.decode(encoding).startswith(expected[encoding])
    read = subprocess.run(
        [sys.executable, "-m", "enginebench", "report", "r", "--format", "json", "--json"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert json.loads(read.stdout.decode(encoding))["model"] == graph.name


@pytest.mark.parametrize("verb", ["run", "bench", "infer", "export", "report", "calibrate", "quantize", "drift"])
def test_a_path_that_is_no_text_is_refused_by_name(verb: str, tmp_path: Path) -> None:
    command = [os.fsencode(sys.executable), b"-m", b"enginebench", verb.encode(), b"caf\xe9.onnx"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2 and b"Traceback" not in done.stderr
    assert rb"'caf\udce9.onnx' is no text in this system's encoding (utf-8)" in done.stderr
