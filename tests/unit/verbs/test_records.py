"""Options: one declaration for Python callers, help() and the command line, and what is refused by it."""

import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner

import enginebench
from enginebench import door
from enginebench.core.errors import UsageError
from enginebench.options import Opt, PathLike, Printed, Progress, Unpack, verb
from enginebench.verbs.common import read_numbers


class SharedByTwo(Progress, total=False):
    threads: Annotated[int | None, Opt("Threads. [all]", ge=1, le=8)]


class GaugeOptions(SharedByTwo, total=False):
    share: Annotated[float, Opt("What matters.", 0.5, gt=0, lt=1)]
    scope: Annotated[Literal["compute", "io"], Opt("What is timed.", "compute")]
    quick: Annotated[bool, Opt("Once.", False)]
    shapes: Annotated[str | Mapping[str, int], Opt("Shapes.", (), multiple=True)]
    gate: Annotated[bool, Opt("Raise.", True, program=True)]


@verb(GaugeOptions)
def gauge(
    target: object, out: Annotated[PathLike | None, Opt("A file.", path="file")] = None, **options: Unpack[GaugeOptions]
) -> dict[str, Any]:
    """Gauge TARGET.

    Raises:
        UsageError: it cannot be.
    """
    return {"target": target, "out": out, **options}


@door.command(gauge, "TARGET")
def command(target: str, out: str | None, shown: Printed, **options: Unpack[GaugeOptions]) -> None:
    click.echo(repr((gauge(target, out, **options), shown)))


DEFAULTS = {"threads": None, "share": 0.5, "scope": "compute", "quick": False, "shapes": (), "gate": True}
DEFAULTS["progress"] = None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("threads", 0, "a whole number, at least 1 and at most 8"),
        ("threads", 1.5, "a whole number, at least 1 and at most 8"),
        ("share", float("nan"), "a finite number, more than 0 and less than 1"),
        ("scope", "all", "one of compute, io"),
        ("quick", 1, "True or False"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        gauge("t", **{name: value})
    assert str(caught.value) == f"{name}={value!r}: expected {expected}"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"gauge\(\) has no argument 'thread'; did you mean threads\?"):
        gauge("t", thread=1)  # type: ignore[call-arg]


def test_help_shows_the_fields() -> None:
    assert {*inspect.signature(gauge).parameters} == {"target", "out", *DEFAULTS}
    text = inspect.getdoc(gauge) or ""
    assert "    threads: Threads. [all]\n" in text and text.index("out: A file.") < text.index("Raises:")
    assert inspect.signature(gauge).parameters["share"].default == 0.5


@pytest.mark.parametrize("text", ["nan", "inf", "0", "1", "half"])
def test_the_command_refuses_what_the_function_refuses(text: str) -> None:
    done = CliRunner().invoke(command, ["t", "--share", text])
    assert done.exit_code == 2 and "--share" in done.output


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


def test_what_is_no_model_is_named_where_there_is_no_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of PyTorch would not make a model of it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "enginebench.models.torch.object_source", raising=False)
    with pytest.raises(UsageError, match=r"model is an int; expected a name, a path, or a torch.nn"):
        enginebench.run(3, engines="fake")  # type: ignore[call-overload]


@pytest.mark.parametrize("given", ["1, 8", [1, 8], (1, 8)])
def test_a_list_of_batches_may_be_text(given: str | list[int]) -> None:
    assert read_numbers("batch", given) == (1, 8) and read_numbers("batch", "4") == (4,)


def test_plans_are_built_on_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="plans are built on a GPU"):
        enginebench.build(tmp_path / "m.onnx", tmp_path / "m.plan", device="cpu")


def test_limits_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(UsageError, match=r"'cosines=0\.9': expected NAME=VALUE"):
        enginebench.drift("fake@a.onnx", "fake@b.onnx", limit={"cosines": 0.9})
