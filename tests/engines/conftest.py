"""The small network of the contract suite, for every engine, and the digits' CNN."""

from pathlib import Path

import pytest

from enginebench.core.records import Artifact
from enginebench.models.onnx.source import read_onnx
from enginebench.models.zoo import DATA_DIR
from small_net import expect, load_engine, loader, onnx_artifact, torch_artifact, weights

__all__ = ["expect", "load_engine", "loader", "onnx_artifact", "torch_artifact", "weights"]


@pytest.fixture
def graph(tmp_path: Path) -> Artifact:
    path = tmp_path / "mödel ünd Co" / "cnn.onnx"
    path.parent.mkdir()
    path.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
    return read_onnx(path)
