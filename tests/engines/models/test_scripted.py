"""TorchScript archives as MODELs: they run as modules under any name, and have a graph where they can."""

import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn

from enginebench.core.errors import ModelError, UsageError
from enginebench.models.torch.export import export_onnx
from enginebench.models.torch.source import load_module, make_torch_artifact

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is deprecated


class Branches(nn.Module):
    """What a trace would not keep: a branch on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.sum() > 0:
            return self.layer(rows) * 2
        return self.layer(rows) - 1


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.bin"
    torch.jit.save(torch.jit.script(Branches().eval()), str(path))
    return path


def test_an_archive_runs_and_is_exported_with_its_branches(archive: Path, tmp_path: Path) -> None:
    artifact = make_torch_artifact(str(archive), tmp_path / "torch", input_shapes={"rows": (2, 8)})
    assert ([spec.name for spec in artifact.inputs], artifact.weights) == (["rows"], "file")
    module, wanted = load_module(artifact), torch.jit.load(str(archive))
    made = export_onnx(artifact, tmp_path / "a.onnx", dynamic_batch=True)
    session = onnxruntime.InferenceSession(made.path)
    for sign in (1, -1):
        rows = sign * torch.rand(5, 8)
        torch.testing.assert_close(module(rows), wanted(rows))
        np.testing.assert_allclose(session.run(None, {"rows": rows.numpy()})[0], wanted(rows).detach(), rtol=1e-4)


def test_shapes_are_asked_for_with_those_that_its_weights_suggest(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"TorchScript.*no example inputs.*--input-shape rows:1x8, or arrays"):
        make_torch_artifact(str(archive), tmp_path / "torch")
    picture = tmp_path / "picture.pt"
    torch.jit.save(torch.jit.script(nn.Sequential(nn.Conv2d(4, 2, 3))), str(picture))
    with pytest.raises(UsageError, match="--input-shape input:1x4x224x224"):
        make_torch_artifact(str(picture), tmp_path / "torch")


def test_the_users_arrays_give_shapes_and_types(tmp_path: Path) -> None:
    path = tmp_path / "tokens.pt"
    torch.jit.save(torch.jit.script(nn.Embedding(10, 4)), str(path))
    given = {"input": np.array([[1, 2, 3]], np.int64)}
    artifact = make_torch_artifact(str(path), tmp_path / "torch", user_inputs=given)
    assert (artifact.inputs[0].dtype, artifact.outputs[0].shape[-1]) == ("int64", 4)


def test_a_damaged_archive_is_explained(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive, "w") as damaged:
        damaged.writestr("m/constants.pkl", b"x")
    with pytest.raises(ModelError, match=r"cannot be opened as TorchScript by PyTorch .* torch\.jit\.save wrote"):
        make_torch_artifact(str(archive), tmp_path / "torch", input_shapes={"rows": (2, 8)})
