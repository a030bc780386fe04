"""Files that lie about themselves, for every verb that takes such files: an error names them, without a traceback."""

import struct
import zipfile
from pathlib import Path

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
