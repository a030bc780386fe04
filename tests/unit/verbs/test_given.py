"""Values that cannot be are refused before anything runs, with the argument's name."""

from pathlib import Path
from typing import Any

import pytest

import enginebench
from enginebench import UsageError
from enginebench.verbs.given import read_numbers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"engines": []}, "the list of engines is empty"),
        ({"batch": [1, 1]}, r"--batch \[1, 1\]: expected distinct positive numbers"),
        ({"batch": 1.5}, "batch"),
        ({"time_limit": 0}, "time_limit=0: expected a finite number, more than 0"),
        ({"input_shape": {"x": (0, 3)}}, r"--input-shape x: \(0, 3\) is not a shape"),
        ({"input_shape": "x:axb"}, "expected NAME:1x3x224x224"),
        ({"example_inputs": (1,)}, "example_inputs are for a module"),
        ({"trtexec": "/bin/true"}, "--trtexec sets the executable of the engine trtexec"),
    ],
)
@pytest.mark.feature("trtexec", "'trtexec'")
def test_run_refuses(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        enginebench.run("digits-mlp", **{"engines": "fake", "out": tmp_path, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", [3, None, object(), print, b"digits-mlp"])
def test_what_is_no_model_is_named(model: Any) -> None:
    with pytest.raises(
        UsageError, match=rf"model is an? {type(model).__name__}; expected a name, a path, or a torch.nn"
    ):
        enginebench.run(model, engines="fake")


@pytest.mark.parametrize("given", ["1, 8", [1, 8], (1, 8)])
def test_a_list_of_batches_may_be_text(given: str | list[int]) -> None:
    assert read_numbers("batch", given) == (1, 8) and read_numbers("batch", "4") == (4,)


def test_plans_are_built_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plans are built on a GPU"):
        enginebench.build(tmp_path / "m.onnx", tmp_path / "m.plan", device="cpu")


def test_limits_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(UsageError, match=r"'cosines=0\.9': expected NAME=VALUE"):
        enginebench.drift("fake@a.onnx", "fake@b.onnx", limit={"cosines": 0.9})
