"""The verbs `calibrate` and `quantize`, one after the other as a user calls them."""

import json
import shutil
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.models.zoo import packaged_onnx
from enginebench.verbs.calibrate import command as calibrate
from enginebench.verbs.quantize import command as quantize
from graphs import write_text
from processes import ROOT


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the shipped graph in it."""
    home = tmp_path / "mein Ordner"
    home.mkdir()
    shutil.copy(packaged_onnx("digits-mlp"), home / "mlp.onnx")
    np.save(home / "x.npy", np.random.default_rng(0).random((40, 64), dtype=np.float32))
    monkeypatch.chdir(home)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))  # the child that loads the model starts in this folder
    return home


def call(command: Any, *args: str) -> Result:
    result = CliRunner().invoke(command, list(args))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def call_json(command: Any, *args: str) -> Any:
    result = call(command, *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_tensorrts_cache_is_written_and_read(folder: Path) -> None:
    call_json(calibrate, "mlp.onnx", "--data", "x.npy", "--out", "calib.cache")
    assert (folder / "calib.cache").read_text().startswith("TRT-100001-MinMaxCalibration\ninput: ")
    made = call_json(quantize, "mlp.onnx", "--to", "int8@tensorrt", "--calib-cache", "calib.cache")
    both = ("--calib", "x.npy", "--calib-cache", "new.cache")
    call_json(quantize, "mlp.onnx", "--to", "int8", *both, "--out", "a.onnx")
    assert (folder / "new.cache").read_text() == (folder / "calib.cache").read_text()
    said = call(quantize, "mlp.onnx", "--to", "int8", "--calib", "nowhere.npy", *both[2:]).stderr
    assert "read from new.cache, not from nowhere.npy" in said, "a cache that is there is read"
    assert made["coverage"] == 1
    with pytest.raises(UsageError, match="needs the data"):
        call(quantize, "mlp.onnx", "--to", "int8@nncf", "--calib-cache", "calib.cache")


def test_temporary_files_of_a_calibration_that_was_killed_go_with_the_next(folder: Path, monkeypatch) -> None:
    left = folder / "tmp" / ".enginebench-calibrate.partial-x"
    left.mkdir(parents=True)
    (left / "weights").write_text("half")
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    call_json(calibrate, "mlp.onnx", "--data", "x.npy", "--out", "calib.json")
    assert not list((folder / "tmp").glob(".enginebench-calibrate*"))


def test_dynamic_int8_takes_no_ranges(folder: Path) -> None:
    made = call_json(quantize, "mlp.onnx", "--to", "int8@dynamic")
    assert (made["artifact"]["recipe"], made["coverage"]) == ("dynamic", 1)
    with pytest.raises(UsageError, match="--to int8@dynamic takes no ranges"):
        call(quantize, "mlp.onnx", "--to", "int8@dynamic", "--inputs", "x.npy")


def test_overflow_is_looked_for_with_inputs_that_the_graph_takes(folder: Path) -> None:
    """A vocabulary of 20 words, and pictures of any size that a window of 5 must fit into."""
    for name, text, constants in (
        ("words", "(int64[n, w] words) => (float[n, w, 4] y) { y = Gather(table, words) }", {"table": (20, 4)}),
        ("picture", "(float[n, 1, h, w] x) => (float[n, 1, a, b] y) { y = Conv(x, kernel) }", {"kernel": (1, 1, 5, 5)}),
    ):
        weights = {key: np.ones(shape, np.float32) for key, shape in constants.items()}
        write_text(folder / f"{name}.onnx", text, weights)
        made = call_json(quantize, f"{name}.onnx", "--to", "fp16", "--out", "q.onnx")
        assert made["artifact"]["precision"] == "fp16"


def test_prints_what_was_done(folder: Path) -> None:
    said = call(
        calibrate, "mlp.onnx", "--data", "fake", "--n", "8", "--method", "percentile", "--percentile", "99"
    ).stdout
    assert "percentile 99, ranges of" in said and "random inputs" in said
    said = call(quantize, "mlp.onnx", "--to", "int8@cpu", "--calib", "calib.json").stdout
    assert "100% of the multiply-accumulates" in said and "TensorRT would refuse" in said and "random inputs" in said


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["mlp.onnx", "--to", "int8@static"],
            "unknown recipe 'static' of int8; known: tensorrt, cpu, nncf, nncf:mixed, smooth, dynamic",
        ),
        (["mlp.onnx", "--to", "int8", "--inputs", "x.npy", "--calib-cache", "c"], "keep one"),
        (["mlp.onnx", "--to", "int8@nncf", "--calib", "x.npy", "--calib-cache", "c"], "none to write"),
        (["mlp.onnx", "--to", "int8", "--calib", "digits"], "calibrate digits-cnn --data digits --out calib.json"),
        (["mlp.onnx", "--to", "fp16", "--out", "./mlp.onnx"], "is the file to be quantized"),
    ],
)
def test_quantize_refuses(folder: Path, args: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call(quantize, *args)


def test_data_that_has_gone_is_missed(folder: Path) -> None:
    call_json(calibrate, "mlp.onnx", "--data", "x.npy")
    (folder / "x.npy").unlink()
    with pytest.raises(ArtifactError, match="no such file"):
        call(quantize, "mlp.onnx", "--to", "int8@nncf", "--calib", "calib.json")


@pytest.mark.parametrize("to", ["int8@tensorrt", "int8@cpu"])
def test_what_a_large_graph_takes_a_second_for_is_done_once(
    folder: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for module, name in (("quantize", "measure_coverage"), ("tensorrt_check", "find_refusals")):
        place = f"enginebench.models.precision.{module}.{name}"
        real = resolve_name(place)
        monkeypatch.setattr(place, lambda *a, _real=real, _name=name, **k: (done.append(_name), _real(*a, **k))[1])
    made = call_json(quantize, "mlp.onnx", "--to", to, "--calib", "x.npy")
    assert sorted(done) == ["find_refusals", "measure_coverage"]
    assert made["coverage"] == 1 and bool(made["tensorrt_refusals"]) == (to == "int8@cpu")
