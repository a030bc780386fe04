"""The verbs `calibrate` and `quantize`, one after the other as a user calls them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from enginebench.models.zoo import packaged_onnx
from enginebench.verbs.calibrate import command as calibrate
from enginebench.verbs.quantize import command as quantize
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


def test_a_built_in_model_from_its_name_to_int8(folder: Path) -> None:
    document = call_json(
        calibrate, "digits-mlp", "--data", "digits", "--n", "64", "--method", "entropy", "--keep-batches", "kept.npz"
    )
    assert document["schema"] == "enginebench.calibrate/1" and document["path"] == "calib.json"
    assert (document["n"], document["source"], document["method"]) == (64, "digits", "entropy")
    assert len(document["preprocess_sha256"]) == 64 and document["batches"] == "kept.npz"
    for recipe in ("tensorrt", "cpu", "nncf"):
        made = call_json(quantize, "mlp.onnx", "--to", f"int8@{recipe}", "--calib", "calib.json", "--out", "q.onnx")
        assert made["schema"] == "enginebench.quantize/1"
        assert (made["artifact"]["precision"], made["artifact"]["recipe"]) == ("int8", recipe)
        assert made["artifact"]["preprocess_sha256"] == document["preprocess_sha256"]
        assert made["coverage"] == 1 and made["quantizers"] > 0
        assert (made["tensorrt_refusals"] == []) == (recipe == "tensorrt")
    kept = call_json(quantize, "mlp.onnx", "--to", "int8@nncf", "--calib", "kept.npz", "--out", "k.onnx")
    assert kept["artifact"]["sha256"] == made["artifact"]["sha256"]
