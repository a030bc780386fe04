"""A record of options: what Python callers, `help()` and the command line get of one declaration."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Unpack

import click
import pytest
from click.testing import CliRunner

from enginebench import door
from enginebench.core.errors import UsageError
from enginebench.options import Opt, PathLike, Printed, Progress, verb


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
