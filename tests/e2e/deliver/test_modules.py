"""PyTorch rows: a user's own module, and every way in which a module is prepared."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

import enginebench
from bundles import FAST, ask, name
from enginebench.core.errors import UsageError
from enginebench.features.deliver.verb import deliver_configuration
from enginebench.runs import trust
from enginebench.runs.targets.bundles import load_engine, read_bundle_folder
from graphs import build_graph, double, find_positive
from in_process import children, cli
from processes import Cli
from reporters import Silent

__all__ = ["children", "cli"]

# PyTorch's profiler imports what PyTorch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
OWN = """
import torch
import torch.nn.functional as F
{imports}

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, left, right):
        return {{"sum": self.inner(left) + self.shift, "pair": [F.relu(right), left.mean(1)]}}

def make():
    torch.manual_seed(3)
    return Two(), (torch.zeros(1, 6), torch.zeros(1, 2))
"""


def run_own(cli: Cli, folder: Path, module: str, source: str) -> tuple[str, ...]:
    """The command that delivers what was run of this source."""
    (folder / f"{module}.py").write_text(source)
    cli("run", f"{module}:make", "--engines", "pytorch", *FAST[:-1], "1", "--out", "run", code=0)
    return "deliver", "run", "--row", name("pytorch"), "--out", "bundle", "--json"


def test_a_module_of_ones_own_goes_along(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = run_own(cli, tmp_path, "own_net", OWN.format(imports=""))
    monkeypatch.setattr(trust, "_named", {})  # as in a new process
    refused = cli(*deliver)
    assert (refused.returncode, "add --allow-code own_net:make" in refused.stderr) == (2, True)
    done = cli(*deliver, "--allow-code", "own_net:make", code=0)
    assert json.loads(done.stdout)["checked"] is True
    monkeypatch.setattr(trust, "_named", {})
    (tmp_path / "own_net.py").unlink()  # the bundle has its own
    assert ask(tmp_path / "bundle", "--check").returncode == 0
    with pytest.raises(UsageError, match="own_net:make"):
        load_engine(tmp_path / "bundle")
    enginebench.allow_code("own_net:make")
    with load_engine(tmp_path / "bundle") as predict:
        answer = predict({"left": np.ones((1, 6), np.float32), "right": -np.ones((1, 2), np.float32)})
    assert sorted(array.shape for array in answer.values()) == [(1,), (1, 2), (1, 4)]
    (pair,) = (array for array in answer.values() if array.shape == (1, 2))
    assert pair.tolist() == [[0.0, 0.0]]


def test_a_module_that_needs_other_files_says_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "parts.py").write_text("")
    done = cli(*run_own(cli, tmp_path, "net_of_parts", OWN.format(imports="import parts")))
    assert done.returncode == 5 and "net_of_parts.py imports parts" in done.stderr
    assert not (tmp_path / "bundle").exists()


def test_every_preparation_of_a_module_is_that_of_the_configuration(cli: Cli, tmp_path: Path) -> None:
    engines = "pytorch:fold_bn=1,channels_last=1,force=1,pytorch:cast=autocast,force=1"
    asked = ("--precisions", "bf16", *FAST[:-1], "1", "--batch", "3", "--out", "r")
    cli("run", "digits-cnn", "--engines", engines, *asked, code=0)
    rows = json.loads((tmp_path / "r" / "run.json").read_text("utf-8"))["rows"]
    assert len(rows) == 2
    for row in rows:
        deliver_configuration(tmp_path / "r", tmp_path / row, row=row, reporter=Silent())
        found = read_bundle_folder(tmp_path / row)
        done = ask(tmp_path / row, "--check", "--force")
        assert "output: max_abs_diff 0, " in done.stdout, f"{found.engine}: {done.stdout}"


# Bundles of runs on the user's own inputs: they are checked on those, and ask for nothing that the run did not.


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def squeeze() -> ModelProto:
    node = helper.make_node("Squeeze", ["x", "first"], ["y"])
    return build_graph([node], {"first": np.array([0])}, [1, 4], [4])


GIVEN: dict[str, tuple[ModelProto, int, list[Any]]] = {
    "one at a time": (double(["batch", 4]), 1, [draw(5, 4)]),
    "a batch that the last call fills up": (double(["batch", 4]), 2, [draw(5, 4)]),
    "fewer than a batch": (double(["batch", 4]), 4, [draw(3, 4)]),
    "one for all calls": (double([1, 4]), 1, [draw(1, 4)]),
    "of several lengths": (double(["batch", "length"]), 2, [draw(3, 9, seed=1), draw(4, 6), draw(2, 9, seed=2)]),
    "with outputs that have no batch": (squeeze(), 1, [draw(1, 4, seed=i) for i in range(3)]),
    "with outputs as long as there is something to say": (find_positive(), 1, [draw(6, 4)]),
    "made up, with outputs as long as there is something to say": (find_positive(), 1, []),
}


@pytest.mark.parametrize("case", GIVEN)
def test_a_bundle_is_checked_on_the_inputs_of_its_run(cli: Cli, tmp_path: Path, case: str) -> None:
    model, batch, given = GIVEN[case]
    (tmp_path / "given").mkdir()
    for i, array in enumerate(given):
        np.savez(tmp_path / "given" / f"{i}.npz", x=array)
    options = ("--inputs", "given") if given else ()
    cli(*run(cli, tmp_path, model, *options, "--batch", batch), code=0)
    with np.load(tmp_path / "b" / "check.npz") as stored:
        (asked,) = (stored[name] for name in stored.files if name.startswith("inputs."))
    if given:
        known = {entry.tobytes() for array in given for entry in array}
        assert {entry.tobytes() for call in asked for entry in call} <= known


def run(cli: Cli, folder: Path, model: ModelProto, *options: object) -> tuple[str, ...]:
    """The command that delivers what was run of this model."""
    onnx.save(model, folder / "net.onnx")
    cli("run", "net.onnx", "--engines", "ort", *options, *FAST, "--out", "r", code=0)
    (row,) = (folder / "r" / "rows").glob("*.json")
    return "deliver", "r", "--row", row.stem, "--out", "b"


def test_other_outputs_do_not_pass_and_inputs_that_are_gone_are_named(cli: Cli, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=draw(4, 6))
    deliver = run(cli, tmp_path, double(["batch", "length"]), "--inputs", "x.npz")
    assert cli(*deliver).returncode == 0
    with np.load(tmp_path / "b" / "check.npz") as stored:
        arrays = dict(stored)
    outputs = arrays["outputs.y"]
    for other in (outputs[..., ::-1], outputs[..., :-1], np.concatenate([outputs, outputs], axis=-1)):
        np.savez(tmp_path / "b" / "check.npz", **arrays | {"outputs.y": other})
        refused = ask(tmp_path / "b", "--check", "--force")
        assert refused.returncode == 1 and "NOT within" in refused.stdout, refused.stderr
    shutil.rmtree(tmp_path / "r" / "artefacts" / "samples")
    done = cli(*deliver[:-1], "c")
    assert done.returncode == 5 and "samples" in done.stderr and not (tmp_path / "c").exists()
