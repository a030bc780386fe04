"""Options shared by several verbs, and the values they parse to."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

import click
from msgspec import Struct

from enginebench.cli.device import read_device
from enginebench.core.errors import UsageError
from enginebench.core.records import Task
from enginebench.workflow.request import Shared, Timing, choose_drop

F = TypeVar("F", bound=Callable[..., Any])
Body = Callable[..., None]


class FiniteRange(click.FloatRange):
    """A range of floats without nan, which passes every comparison of a range, and without infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, if it is one and lies in the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is without an end or no number; expected a finite number", param, ctx)
        return number


class Common(Shared, frozen=True, kw_only=True):
    """The values of `common_options` as given. Shapes are parsed on request."""

    as_json: bool


COMMON_OPTIONS = (
    click.option("--device", callback=read_device, default="cpu", show_default=True, help="cpu or cuda:N"),
    click.option(
        "--threads", type=click.IntRange(1, 4096), help="Threads per engine. [physical cores; tune searches them]"
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**32 - 1),
        default=0,
        show_default=True,
        help="Seed for generated inputs and random weights.",
    ),
    click.option(
        "--input-shape",
        "input_shape",
        multiple=True,
        metavar="NAME:1x3x224x224",
        help="Shape of an input. Repeat it, or separate several by commas.",
    ),
    click.option(
        "--inputs",
        metavar="F.npz|DIR|package.module:function",
        help="Your own inputs: arrays by input name, one or many entries. [made up]",
    ),
    click.option(
        "--ort-extension",
        "ort_extension",
        multiple=True,
        metavar="LIB",
        help="Library of custom operators for ONNX Runtime, or onnxruntime_extensions. Repeat it for several.",
    ),
    click.option("--weights", default="default", show_default=True, help="default, random, or a state-dict file."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else."),
)
MEASURE_OPTIONS = (
    click.option("--warmup", type=click.IntRange(0), help="Exact number of warm-up calls. [until settled]"),
    click.option("--iters", type=click.IntRange(1), help="Exact number of timed calls. [until settled]"),
    click.option(
        "--time-limit",
        type=FiniteRange(0, min_open=True),
        default=3.0,
        show_default=True,
        metavar="S",
        help="Seconds of timed calls in each process.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 1000),
        help="Fresh processes per row, exactly; a verdict needs 6. [6 to 10: as many as the verdicts need]",
    ),
    click.option(
        "--scope",
        type=click.Choice(["compute", "io"]),
        default="compute",
        show_default=True,
        help="What is timed; io also copies inputs in and outputs out.",
    ),
    click.option(
        "--cache",
        type=click.Choice(["hot", "cold"]),
        default="hot",
        show_default=True,
        help="cold flushes a GPU's L2 cache before every call.",
    ),
)


class Judging(Struct, frozen=True, kw_only=True):
    """By what the answers to labelled samples are judged."""

    metric: tuple[str, ...]
    targets: str | None
    task: Task | None
    max_metric_drop: float | None
    max_top1_drop: float | None

    @property
    def max_drop(self) -> float | None:
        """What a row may lose of the first metric; see `choose_drop`."""
        return choose_drop(self.max_metric_drop, self.max_top1_drop, self.metric)


METRIC_OPTION = click.option(
    "--metric",
    multiple=True,
    metavar="NAME|package.module:function",
    help="top1, top5, f1, miou, map, wer, cer, mae, cosine, or your own f(outputs, targets). Of several the first "
    "decides. [that of --task]",
)
MAX_METRIC_DROP_OPTION = click.option(
    "--max-metric-drop",
    type=FiniteRange(0),
    metavar="X",
    help="What a row may lose of the metric, in its own unit. [0.01 of a share, 1% of anything else]",
)
MAX_TOP1_DROP_OPTION = click.option(
    "--max-top1-drop",
    type=FiniteRange(0),
    metavar="POINTS",
    help="The same of top-1 accuracy, in points: 1 is --max-metric-drop 0.01.",
)
TASK_OPTION = click.option(
    "--task",
    type=click.Choice(get_args(Task)),
    help="What the model is for: how its answers are read, the metric, and what drift means.",
)
TARGETS_OPTION = click.option(
    "--targets", metavar="F", help="Right answers, one for each sample: an .npz, .npy, .json, .csv or .txt file."
)
JUDGING_OPTIONS = (
    METRIC_OPTION,
    TARGETS_OPTION,
    TASK_OPTION,
    MAX_METRIC_DROP_OPTION,
    MAX_TOP1_DROP_OPTION,
)


def judging_options(function: Body) -> Body:
    """Adds --metric --targets --task --max-metric-drop --max-top1-drop; `function` gets them as `judging`."""
    return _collect(function, "judging", Judging, JUDGING_OPTIONS)


def common_options(function: Body) -> Body:
    """Adds --device --threads --seed --input-shape --weights --json; `function` gets them as `common`."""
    return _collect(function, "common", Common, COMMON_OPTIONS)


def measure_options(function: Body) -> Body:
    """Adds the options that say how a row is measured; `function` gets them as `timing`."""
    return _collect(function, "timing", Timing, MEASURE_OPTIONS)


def _collect(function: Body, keyword: str, kind: type[Struct], options: Sequence[Callable[[Body], Body]]) -> Body:
    """`function` with `options` before its own; their values reach it as one record of `kind`."""

    @functools.wraps(function)
    def collected(**given: Any) -> None:
        values = {name: given.pop(name) for name in kind.__struct_fields__}
        function(**given, **{keyword: kind(**values)})

    command: Body = collected
    for option in reversed(options):
        command = option(command)
    return command


def axes_option(function: F) -> F:
    """Adds --dynamic-axes."""
    option = click.option(
        "--dynamic-axes",
        multiple=True,
        metavar="NAME:AXIS",
        help="Axis of an input that an export leaves open beside the batch. Repeat it, or separate several by commas.",
    )
    return option(function)


def trtexec_option(function: F) -> F:
    """Adds --trtexec."""
    option = click.option(
        "--trtexec", metavar="PATH", help="The trtexec executable. [$TRTEXEC, PATH, the usual folders]"
    )
    return option(function)


def builds_option(function: F) -> F:
    """Adds --builds."""
    option = click.option(
        "--builds",
        type=click.IntRange(2),
        metavar="K",
        help="Build each engine that builds K times, from nothing; --processes counts those of all builds together.",
    )
    return option(function)


def table_options(function: F) -> F:
    """Adds --wide and --warnings."""
    for option in (
        click.option("--warnings", is_flag=True, help="Print all warnings, not their number alone."),
        click.option("--wide", is_flag=True, help="All columns: also p99.9, throughput, memory, start, roofline."),
    ):
        function = option(function)
    return function


def env_option(function: F) -> F:
    """Adds --env; the environments are known from then on."""
    option = click.option(
        "--env",
        multiple=True,
        metavar="NAME=PATH",
        callback=_name_environments,
        expose_value=False,
        help="An environment for ENGINE:env=NAME: a virtual environment or a python. Repeat it for several.",
    )
    return option(function)


def _name_environments(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> None:
    if texts:
        from enginebench.workflow.child.places import name_environments

        name_environments(texts)


def code_option(function: F) -> F:
    """Adds --allow-code; stored files may name that code from then on."""
    option = click.option(
        "--allow-code",
        multiple=True,
        metavar="NAME",
        callback=_allow_code,
        expose_value=False,
        help="Code that a stored file names and that may run: module:factory, a .pt2 file, a library, key=value.",
    )
    return option(function)


def _allow_code(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    if names:
        from enginebench.workflow.trust import allow_code

        allow_code(*names)


class Share(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A number between 0 and 1, also as `5%`."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a number."""
        text = str(value)
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            self.fail(f"{text!r} is no share between 0 and 1; expected 5% or 0.05", param, ctx)
        return share


def parse_percentiles(text: str) -> tuple[float, ...]:
    """The percentiles of `50,99,99.9`.

    Raises:
        UsageError: not a list of numbers between 0 and 100.
    """
    try:
        values = tuple(float(piece) for piece in text.split(","))
    except ValueError:
        values = ()
    if not values or not all(0 < v < 100 for v in values):
        raise UsageError(f"--percentile {text!r}: expected numbers between 0 and 100, separated by commas")
    return values


def parse_batches(text: str, option: str = "--batch") -> tuple[int, ...]:
    """The batches of `1,8,32`, or other counts of an option.

    Raises:
        UsageError: not a list of positive numbers without repetition.
    """
    try:
        batches = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        batches = ()
    if not batches or min(batches) < 1 or len(set(batches)) != len(batches):
        raise UsageError(f"{option} {text!r}: expected distinct positive numbers, separated by commas")
    return batches
