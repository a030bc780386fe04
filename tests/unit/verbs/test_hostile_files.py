"""Files that lie about themselves, for every verb that takes such files: an error names them, without a traceback."""

import json
import os
import re
import signal
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.models.zoo import DATA_DIR
from in_process import run_here

GRAPH = str(DATA_DIR / "digits-mlp.onnx")
ARRAYS = {
    "infer": ("infer", GRAPH, "FILE", "--engine", "ort"),
    "infer --inputs": ("infer", GRAPH, "--inputs", "FILE", "--engine", "ort"),
    "calibrate": ("calibrate", GRAPH, "--data", "FILE", "--out", "c.json"),
    "quantize --calib": ("quantize", GRAPH, "--to", "int8", "--calib", "FILE", "--out", "q.onnx"),
    "quantize --inputs": ("quantize", GRAPH, "--to", "int8", "--inputs", "FILE", "--out", "q.onnx"),
    "run": ("run", GRAPH, "--engines", "ort", "--quick", "--inputs", "FILE", "--out", "r"),
    "bench": ("bench", GRAPH, "--engine", "ort", "--inputs", "FILE", "--out", "b"),
    "drift": ("drift", f"ort@{GRAPH}", f"ort@{GRAPH}", "--inputs", "FILE"),
    "accuracy --targets": ("accuracy", f"ort@{GRAPH}", "--data", "digits", "--targets", "FILE"),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of arrays that claim terabytes, unpack to gigabytes, or hold objects."""
    folder = tmp_path_factory.mktemp("hostile")
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, {2**40}), }}".encode().ljust(117) + b"\n"
    claim = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"1234"
    (folder / "claim.npy").write_bytes(claim)
    with zipfile.ZipFile(folder / "claim.npz", "w") as archive:
        archive.writestr("input.npy", claim)
    np.savez_compressed(folder / "bomb.npz", input=np.zeros(((300 << 20) // 256, 64), np.float32))
    np.savez(folder / "objects.npz", input=np.array([{}]))
    return folder


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("name", ["claim.npy", "claim.npz", "bomb.npz", "objects.npz"])
@pytest.mark.parametrize("verb", ARRAYS)
def test_arrays_that_lie_are_refused_by_name(verb: str, name: str, hostile: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    arguments = (str(hostile / name) if word == "FILE" else word for word in ARRAYS[verb])
    done = run_here(tmp_path, *arguments, code=5)
    assert f"{name}: found " in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run of two trials by a fake engine, stored in `r`."""
    arguments = ("--engines", "fake:latency_us=10", "--processes", "2", "--iters", "5", "--warmup", "1")
    run_here(tmp_path, "run", GRAPH, *arguments, "--threads", "1", "--out", "r", code=0)
    return next((tmp_path / "r" / "rows").iterdir())


def edit(row: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(row.read_text())
    change(document)
    row.write_text(json.dumps(document))


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a latency of 401 digits": (lambda row: row["measurements"][0].update(latency_ns=[10**400]), "10000.* digits"),
    "a batch of 30 digits": (lambda row: row["engine"].update(batch=10**29), "10000.* of 30 digits"),
    "a trial twice": (lambda row: row["measurements"].append(row["measurements"][0]), "found trial 1 2 times"),
}


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("verb", ["report", "diff", "history", "resume", "baseline"])
@pytest.mark.parametrize("lie", LIES)
def test_configurations_that_lie_are_refused_by_name(lie: str, verb: str, stored: Path, tmp_path: Path) -> None:
    change, said = LIES[lie]
    edit(stored, change)
    arguments = {
        "report": ("report", "r"),
        "diff": ("diff", "r", "r"),
        "history": ("history", "r"),
        "resume": ("run", GRAPH, "--resume", "--out", "r"),
        "baseline": ("baseline", "save", "b", "r"),
    }[verb]
    done = run_here(tmp_path, *arguments)
    assert "Traceback" not in done.stderr and re.search(f"{stored.name}.*{said}", done.stderr + done.stdout, re.DOTALL)
    assert done.returncode == 5 or verb == "history"  # which lists what it cannot read beside the rest


@pytest.mark.usefixtures("children")
def test_a_trial_without_samples_is_measured_again(stored: Path, tmp_path: Path) -> None:
    edit(stored, lambda row: row["measurements"][1].update(latency_ns=[]))
    run_here(tmp_path, "run", GRAPH, "--resume", "--out", "r", code=0)
    row = json.loads(stored.read_text())
    assert sorted(one["repetition"] for one in row["measurements"]) == [0, 1]
    assert all(len(one["latency_ns"]) == 5 for one in row["measurements"])


READS_FILES = {
    "run": ("run", "FILE", "--engines", "ort", "--quick", "--out", "o"),
    "run --inputs": ("run", GRAPH, "--engines", "ort", "--quick", "--inputs", "FILE", "--out", "o"),
    "quantize": ("quantize", "FILE", "--to", "fp16", "--out", "q.onnx"),
    "calibrate": ("calibrate", "FILE", "--data", "digits", "--out", "c.json"),
    "quantize --calib": ("quantize", GRAPH, "--to", "int8", "--calib", "FILE", "--out", "q.onnx"),
    "quantize --exclude": ("quantize", GRAPH, "--to", "fp16", "--exclude", "FILE", "--out", "q.onnx"),
    "accuracy --targets": ("accuracy", f"ort@{GRAPH}", "--data", "digits", "--targets", "FILE"),
    "diff": ("diff", "FILE", "FILE"),
    "sweep": ("sweep", "FILE", "--out", "o"),
    "parse": ("parse", "log", "FILE"),
    "report": ("report", "FILE"),
}


@pytest.fixture
def in_time() -> Iterator[None]:
    """Ends a test that waits for a pipe, of which nobody would hear otherwise."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.mark.usefixtures("children", "in_time")
@pytest.mark.parametrize("special", ["pipe", "device", "loop"])
@pytest.mark.parametrize("verb", READS_FILES)
def test_what_is_no_file_is_neither_read_nor_waited_for(verb: str, special: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "given.json"
    if special == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if special == "device" else path)
    done = run_here(tmp_path, *(str(path) if word == "FILE" else word for word in READS_FILES[verb]))
    assert done.returncode in (2, 5)
    assert "given.json" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("verb", READS_FILES)
def test_names_of_any_length_are_cut_in_the_message(verb: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = run_here(tmp_path, *("x" * 9000 if word == "FILE" else word for word in READS_FILES[verb]))
    assert done.returncode in (2, 5)
    assert "x" * 50 in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.partition("error: ")[2]) < 2000, "a terminal need not show all of it"


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    """`parse log <(zcat LOG)`."""
    reading, writing = os.pipe()
    os.write(writing, b"&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=a.onnx\n")
    os.close(writing)
    with os.fdopen(reading):
        done = run_here(tmp_path, "parse", "log", f"/dev/fd/{reading}")
    assert "UNKNOWN  TensorRT 8.6.1" in done.stdout
