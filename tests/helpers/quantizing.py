"""The verbs calibrate and quantize, called in a folder with the shipped graph in it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from enginebench.models.zoo import packaged_onnx
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
