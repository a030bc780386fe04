"""Inputs as PyTorch's archives reveal them: held against the modules that PyTorch itself loads of them."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import enginebench
from enginebench.models.archives import read_program_batch, read_program_inputs, read_script_inputs
from enginebench.models.torch.scripted import describe_inputs, open_scripted
from enginebench.models.torch.source import make_torch_artifact
from held_device import check_refused_at_once

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x + self.table(ids)) * scale


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(3))
        self.inner = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.inner(image)


class OfADictionary(nn.Module):
    def forward(self, parts: dict[str, torch.Tensor], by: float) -> torch.Tensor:
        return parts["a"] * parts["b"] * by


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return x * factor


X, IDS = torch.rand(2, 3, 8), torch.zeros(2, 3, dtype=torch.long)
SCRIPTED: dict[str, Callable[[], torch.jit.ScriptModule]] = {
    "scripted, one with a default": lambda: torch.jit.script(TwoInputs().eval()),
    "scripted, with a picture": lambda: torch.jit.script(Pictures().eval()),
    "traced": lambda: torch.jit.trace(TwoInputs().eval(), (X, IDS)),
    "a container": lambda: torch.jit.trace(nn.Sequential(nn.Linear(8, 4)).eval(), X),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(Pictures().eval())),
    "without weights": lambda: torch.jit.script(nn.ReLU().eval()),
}


@pytest.mark.parametrize("kind", SCRIPTED)
def test_a_script_reveals_the_inputs_that_its_module_has(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "ä b.pt"
    SCRIPTED[kind]().save(str(path))
    module, _ = open_scripted(path, "m")
    described = read_script_inputs(path)
    assert described is not None and described.names == describe_inputs(module.module).names
    if kind != "frozen":  # whose weights are constants of the code
        assert described == describe_inputs(module.module)


def save_program(module: nn.Module, path: Path, *arguments: object, **more: object) -> None:
    torch.export.save(torch.export.export(module.eval(), arguments, **more), path)  # type: ignore[arg-type]


def test_a_program_reveals_the_names_types_and_ranks_that_its_module_has(tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    save_program(TwoInputs(), path, X, IDS)
    described = read_program_inputs(path)
    made = make_torch_artifact(str(path), tmp_path / "made").inputs
    assert described is not None
    assert [(s.name, s.dtype, len(s.shape)) for s in described] == [(s.name, s.dtype, len(s.shape)) for s in made]


@pytest.mark.parametrize("named", [False, True])
def test_a_lone_input_has_the_name_that_the_module_gives_it(named: bool, tmp_path: Path) -> None:
    """Only the name of both can be given to --input-shape."""
    path = tmp_path / "net.pt2"
    image = torch.zeros(1, 3, 8, 8)
    save_program(Pictures(), path, *([] if named else [image]), **({"kwargs": {"image": image}} if named else {}))
    described = read_program_inputs(path)
    made = make_torch_artifact(str(path), tmp_path / "made").inputs
    assert described is not None
    assert [spec.name for spec in described] == [spec.name for spec in made] == ["image" if named else "input"]


def test_a_program_reveals_the_only_batch_that_it_takes(tmp_path: Path) -> None:
    path, batch = tmp_path / "net.pt2", torch.export.Dim("batch")
    save_program(TwoInputs(), path, X, IDS)
    assert read_program_batch(path) == 2
    save_program(TwoInputs(), path, X, IDS, dynamic_shapes=({0: batch}, {0: batch}))
    assert read_program_batch(path) is None
    save_program(Scaled(), path, X, torch.rand(1))  # of two lengths none is the batch
    assert read_program_batch(path) is None


def test_a_program_whose_lengths_are_no_lengths_reveals_no_batch(tmp_path: Path) -> None:
    path, odd = tmp_path / "net.pt2", tmp_path / "odd.pt2"
    save_program(TwoInputs(), path, X, IDS)
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(odd, "w") as changed:
        text = new.read("net/models/model.json").decode()
        assert '"sizes": [{' in text
        changed.writestr("net/models/model.json", text.replace('"sizes": [{', '"sizes": [5, {'))
    assert read_program_batch(odd) is None


def test_the_same_program_in_the_older_format_reveals_the_same(tmp_path: Path) -> None:
    path, older = tmp_path / "net.pt2", tmp_path / "older.pt2"
    save_program(TwoInputs(), path, X, IDS)
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(older, "w") as old:
        old.writestr("serialized_exported_program.json", new.read("net/models/model.json"))
    assert read_program_inputs(older) == read_program_inputs(path) is not None


def test_a_program_whose_arguments_hold_several_tensors_is_left_to_its_module(tmp_path: Path) -> None:
    save_program(OfADictionary(), tmp_path / "net.pt2", {"a": X, "b": X}, 2.0)
    assert read_program_inputs(tmp_path / "net.pt2") is None


@pytest.mark.parametrize("read", [read_script_inputs, read_program_inputs])
@pytest.mark.parametrize("fault", ["cut", "empty", "another member", "nonsense", "a gigabyte"])
def test_a_damaged_archive_reveals_nothing(read: Callable[[Path], object], fault: str, tmp_path: Path) -> None:
    path = tmp_path / "x.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if fault == "another member":
            archive.writestr("x/readme", b"")
        elif fault != "empty":
            content = b"\0" * (1 << 30 if fault == "a gigabyte" else 100)
            for name in ("x/data.pkl", "x/code/__torch__.py", "x/models/model.json"):
                archive.writestr(name, content)
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:50])
    assert read(path) is None


def test_examples_whose_first_axes_differ_are_run_and_not_kept_as_entries(tmp_path: Path) -> None:
    save_program(Scaled(), tmp_path / "net.pt2", X, torch.rand(1))
    made = make_torch_artifact(str(tmp_path / "net.pt2"), tmp_path / "made")
    assert [spec.name for spec in made.inputs] == ["x", "factor"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    torch.jit.script(Pictures().eval()).save("script.pt")
    save_program(TwoInputs(), Path("net.pt2"), X, IDS)
    np.savez("names.npz", y=X.numpy())
    np.savez("types.npz", x=X.numpy().astype(np.float64), ids=IDS.numpy())
    torch.save(nn.Linear(8, 4).state_dict(), "other.pt")
    torch.save({"other": torch.zeros(2410)}, "as_many.pt")


SHORT: dict[str, object] = {"engines": "pytorch", "quick": True, "out": "r"}
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a script without inputs": (lambda: enginebench.run("script.pt", **SHORT), "--input-shape image:1x3x224x224"),
    "a script without inputs, in drift": (
        lambda: enginebench.drift("pytorch@script.pt", "ort@script.pt"),
        "TorchScript",
    ),
    "names": (lambda: enginebench.run("net.pt2", inputs="names.npz", **SHORT), "unknown input 'y'; missing input 'x'"),
    "types": (lambda: enginebench.run("net.pt2", inputs="types.npz", **SHORT), "has dtype float64, not float32"),
    "a name of a shape": (lambda: enginebench.run("net.pt2", input_shape="z:1x8", **SHORT), "the inputs are x, ids"),
    "a batch that the program does not take": (
        lambda: enginebench.run("net.pt2", batch=8, **SHORT),
        "net.pt2 takes a batch of 2 only, not 8: give --batch 2",
    ),
    "a batch that the program does not take, in bench": (
        lambda: enginebench.bench("net.pt2", engine="pytorch", batch=8, out="r"),
        "net.pt2 takes a batch of 2 only, not 8: give --batch 2",
    ),
    "weights of another network": (
        lambda: enginebench.run("digits-mlp", weights="other.pt", **SHORT),
        "weights of other.pt do not fit the module: they have",
    ),
    "weights of another network with as many values": (
        lambda: enginebench.run("digits-mlp", weights="as_many.pt", **SHORT),
        "weights of as_many.pt do not fit the module: Missing key",
    ),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("wrong", WRONG)
def test_it_is_refused_while_another_run_holds_the_device(wrong: str) -> None:
    check_refused_at_once(*WRONG[wrong])


@pytest.mark.usefixtures("files")
def test_right_inputs_of_a_program_and_a_script_are_taken() -> None:
    np.savez("right.npz", x=X.numpy(), ids=IDS.numpy())
    for model, more in (("net.pt2", {"inputs": "right.npz"}), ("script.pt", {"input_shape": "image:1x3x16x16"})):
        run = enginebench.run(model, **{**SHORT, "out": f"r-{model}"}, **more)
        assert [row.status for row in run.rows] == ["ok"]
