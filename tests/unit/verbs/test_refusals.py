"""What cannot be is refused at once: before the machine is waited for, and before anything is started."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import enginebench
from enginebench.core.errors import MissingDependency
from enginebench.runs.child import isolate
from processes import environment


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child and no lock: whoever asks for one is too late."""

    def refuse(*args: object, **more: object) -> None:
        raise AssertionError("something was started, or waited for")

    monkeypatch.setattr("enginebench.runs.lock.lock_device", refuse)
    monkeypatch.setattr(isolate.Child, "__enter__", refuse)


MODEL = ("run", "digits-cnn", "--engines", "fake")
WRITTEN = [f"{verb} x --out" for verb in ("stages", "profile", "export", "infer", "report", "tune", "load", "run")]
WRITTEN += ["drift x x --out", "bench x --junit", "run x --deliver", "history x --parquet"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((*MODEL[:3], "fake:latency_us=-1"), 2, "latency_us='-1' of engine fake must be a number, zero or more"),
        ((*MODEL, "--targets", "nosuch.npy"), 2, "--targets nosuch.npy: no such file"),
        ((*MODEL, "--weights", "nosuch.pt"), 2, "nosuch.pt: no such file or folder; expected default, random, a path"),
        (("run", "lfs.onnx", "--engines", "fake"), 5, "lfs.onnx: found a pointer of Git LFS"),
        (("quantize", "lfs.onnx", "--to", "fp16"), 5, "lfs.onnx: found a pointer of Git LFS"),
        (("export", "digits-cnn", "--weights", "lfs.onnx"), 5, "lfs.onnx: found a pointer of Git LFS"),
        (("run", "TINY", "--inputs", "given"), 5, "given/lfs.npz: found a pointer of Git LFS"),
        (("quantize", "TINY", "--to", "int8", "--inputs", "given"), 5, "given/lfs.npz: found a pointer of Git LFS"),
        (("run", "TINY", "--weights", "nosuch.pt"), 2, "tiny.onnx is a graph and brings its own"),
        (("bench", "TINY", "--engine", "fake", "--against-precision", "fp16"), 2, "is that of the other side"),
        (("bench", "TINY", "--engine", "fake", "--against", "ort", "--against-precision", "fp8"), 3, "ort has no fp8"),
        (("bench", "nosuch.plan", "--engine", "tensorrt"), 5, "model 'nosuch.plan': no such file"),
        (("load", "TINY", "--engine", "fake", "--qps", "5", "--resume"), 2, "--resume needs --out"),
        (("load", "TINY", "--engine", "fake", "--qps", "5", "--max-batch", "x"), 2, "--max-batch 'x': expected"),
        (("load", "TINY", "--engine", "fake", "--arrivals", "late.txt"), 5, "late.txt, line 2: found '1'"),
        (("tune", "TINY", "--engines", "fake", "--data", "nosuch"), 2, "--data nosuch: no such file"),
        (("quantize", "TINY", "--to", "bf16", "--calib", "late.txt"), 2, "--to bf16 takes no ranges"),
        (("quantize", "TINY", "--to", "fp16", "--calib", "late.txt"), 5, "late.txt"),  # looks for what it cannot hold
        (("build", "a:b", "--engine", "pytorch-aoti", "--dry-run"), 2, "pytorch-aoti has none"),
        (("build", "digits-cnn", "--engine", "pytorch-aoti", "--normalize", "0/1"), 2, "is for --input-dtype uint8"),
        *(
            ((*text.split(), "late.txt/x"), 5, "cannot write late.txt/x: Not a directory. Free space")
            for text in WRITTEN
        ),
        (("sweep", "wrong.toml", "--dry-run"), 2, "error: wrong.toml: device: 'gpu' is neither cpu nor cuda:N"),
        (("sweep", "spec.toml", "--dry-run", "--kind", "nosuch"), 2, "--kind nosuch is not in the sweep"),
    ],
)
@pytest.mark.feature("load", "'load'")
@pytest.mark.feature("tune", "'tune'")
@pytest.mark.feature("sweep", "'sweep'")
@pytest.mark.feature("trtexec", "--dry-run")
def test_at_once(cli, tiny_onnx, tmp_path, arguments, code, message) -> None:
    (tmp_path / "late.txt").write_text("2\n1\n")
    (tmp_path / "given").mkdir()
    for name in ("lfs.onnx", "given/lfs.npz"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "wrong.toml").write_text('device = "gpu"\nengines = ["fake"]\n[[model]]\nname = "digits-mlp"\n')
    (tmp_path / "spec.toml").write_text(
        'engines = ["fake"]\n[[model]]\nname = "digits-mlp"\n[[machine]]\nkind = "this"\n'
    )
    if "pytorch-aoti" in arguments and "--normalize" in arguments:
        pytest.importorskip("torch")  # what is not installed is said first
    done = cli(*(str(tiny_onnx) if word == "TINY" else word for word in arguments))
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("models",), ("models", "--json"), ("--help",)])
def test_a_full_disk_is_an_error_and_no_traceback(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "enginebench", *arguments]
        done = subprocess.run(
            command, env=environment(tmp_path), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (5, f"error: the output cannot be written: {os.strerror(28)}\n")


@pytest.mark.parametrize("options", [{}, {"dynamic_batch": True}, {"opset": 18}])
def test_export_needs_pytorch_also_for_a_model_that_comes_as_a_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Otherwise it ends with success, and no file."""
    monkeypatch.setattr("enginebench.verbs.export.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"PyTorch, which export needs, is not installed. To add it: pip install"
    ):
        enginebench.export("digits-mlp", tmp_path / "m.onnx", **options)
    assert not [*tmp_path.iterdir()]
