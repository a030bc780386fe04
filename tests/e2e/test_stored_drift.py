"""`read` and its like: every stored thing comes back as what it is, and nothing in it is executed."""

from pathlib import Path

import pytest

import enginebench
from enginebench import GateFailed
from enginebench.core.store import encode


def test_the_folder_of_a_drift_is_its_document(tmp_path: Path, tiny_onnx: Path) -> None:
    document = enginebench.drift(f"fake@{tiny_onnx}", f"fake@{tiny_onnx}", n=4, out=tmp_path / "d")
    assert encode(enginebench.read(tmp_path / "d")) == encode(document)  # type: ignore[arg-type]
    with pytest.raises(GateFailed, match="output"):
        enginebench.drift(f"fake@{tiny_onnx}", f"fake:bias=5@{tiny_onnx}", n=4, limit={"max_abs": 0.1})
