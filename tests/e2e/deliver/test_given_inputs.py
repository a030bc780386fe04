"""Bundles of runs on the user's own inputs: they are checked on those, and ask for nothing that the run did not."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper

from bundles import FAST, ask
from graphs import build_graph, double, find_positive
from in_process import children, cli
from processes import Cli

__all__ = ["children", "cli"]


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


def test_other_outputs_do_not_pass(cli: Cli, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=draw(4, 6))
    assert cli(*run(cli, tmp_path, double(["batch", "length"]), "--inputs", "x.npz")).returncode == 0
    with np.load(tmp_path / "b" / "check.npz") as stored:
        arrays = dict(stored)
    outputs = arrays["outputs.y"]
    for other in (outputs[..., ::-1], outputs[..., :-1], np.concatenate([outputs, outputs], axis=-1)):
        np.savez(tmp_path / "b" / "check.npz", **arrays | {"outputs.y": other})
        refused = ask(tmp_path / "b", "--check", "--force")
        assert refused.returncode == 1 and "NOT within" in refused.stdout, refused.stderr


def test_inputs_that_are_gone_are_named(cli: Cli, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=draw(4, 4))
    deliver = run(cli, tmp_path, double(["batch", 4]), "--inputs", "x.npz")
    shutil.rmtree(tmp_path / "r" / "artefacts" / "samples")
    done = cli(*deliver)
    assert done.returncode == 5 and "samples" in done.stderr and not (tmp_path / "b").exists()
