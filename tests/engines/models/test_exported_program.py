"""`.pt2` files as MODEL."""

import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn

from enginebench.core.errors import ModelError, UsageError
from enginebench.models.torch.source import load_module, make_torch_artifact


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.inner(x) * scale}


def save(path: Path) -> nn.Module:
    module = Scaled().eval()
    shapes = {"x": {0: torch.export.Dim("b")}, "scale": None}
    program = torch.export.export(module, (torch.zeros(4, 4),), {"scale": torch.tensor(2.0)}, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return module


def test_a_program_keeps_names_weights_and_its_open_batch(tmp_path: Path) -> None:
    module = save(tmp_path / "m.pt2")
    artifact = make_torch_artifact(str(tmp_path / "m.pt2"), tmp_path / "out", batch=3)
    assert [(s.name, s.shape) for s in artifact.inputs] == [("x", (3, 4)), ("scale", ())]
    assert [(s.name, s.shape) for s in artifact.outputs] == [("outputs.scores", (3, 3))]
    assert (artifact.weights, artifact.kind) == ("file", "torch")
    (tmp_path / "m.pt2").unlink()  # the run's folder has its own
    x, scale = torch.randn(5, 4), torch.tensor(3.0)
    assert torch.allclose(load_module(artifact).eval()(x, scale), module(x, scale=scale)["scores"])


@pytest.mark.filterwarnings("ignore")
def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelError, match=r"m\.pt2 cannot be opened as an exported program .*torch.export.save wrote"):
        make_torch_artifact(str(path), tmp_path / "out")
    with pytest.raises(ModelError, match=r"no such file \(in the same folder: m.pt2\)"):
        make_torch_artifact(str(tmp_path / "n.pt2"), tmp_path / "out")
    with pytest.raises(UsageError, match="which brings its own"):
        make_torch_artifact(str(path), tmp_path / "out", weights="random")


def test_a_package_of_native_code_is_refused_before_pytorch_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt2", "w") as archive:
        archive.writestr("m/data/aotinductor/model/c.wrapper.so", "")
    opened: list[object] = []
    monkeypatch.setattr(torch.export, "load", opened.append)
    with pytest.raises(ModelError, match="package of native code"):
        make_torch_artifact(str(tmp_path / "m.pt2"), tmp_path / "out")
    assert not opened
