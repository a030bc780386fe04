"""Options that several verbs share, and the values that they parse to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct

from enginebench.cli.device import read_device
from enginebench.core.errors import UsageError
from enginebench.core.records import Cache, MeasureSpec, Precision, Recipe, Scope

if TYPE_CHECKING:
    from enginebench.workflow.folder import RunRequest
    from enginebench.workflow.sides import SideRequest

F = TypeVar("F", bound=Callable[..., Any])
Body = Callable[..., None]

# One process makes no claims; two seconds show the order of magnitude.
QUICK_TIME_LIMIT_S = 2.0


class Common(Struct, frozen=True, kw_only=True):
    """The values of `common_options`, as they were given. Shapes are parsed when asked for."""

    device: str
    threads: int | None
    seed: int
    input_shape: tuple[str, ...]
    weights: str
    as_json: bool

    def count_threads(self) -> int:
        """Threads of every engine: those of --threads, else the physical cores."""
        from enginebench.measure.pin import default_threads

        return self.threads or default_threads()

    def read_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """{name: shape} of --input-shape; None if nothing was given.

        Raises:
            UsageError: the text has another form.
        """
        return parse_shapes(self.input_shape)

    def make_request(
        self,
        model: str,
        *,
        engines: Iterable[tuple[str, dict[str, str]]],
        precisions: Iterable[tuple[Precision, Recipe | None]],
        batches: tuple[int, ...] | None,
        measure: MeasureSpec,
        input_size: int | None,
    ) -> RunRequest:
        """The request for rows of `model`; one engine, precision and batch make one row.

        Args:
            batches: those of --batch; None if it was not given.

        Raises:
            UsageError: a shape has another form, or another first axis than --batch.
        """
        from enginebench.workflow.folder import RunRequest

        return RunRequest(
            model=model,
            engines=tuple(engines),
            precisions=tuple(precisions),
            batches=choose_batches(batches, self.read_shapes()),
            device=self.device,
            threads=self.count_threads(),
            measure=measure,
            weights=self.weights,
            input_size=input_size,
            input_shapes=self.read_shapes(),
        )

    def name_engine(self, engine: str | None) -> str:
        """The engine that was asked for, else ONNX Runtime's for the device: it takes whatever has a graph."""
        return engine or ("ort" if self.device == "cpu" else "ort-cuda")

    def make_row_request(
        self,
        target: str,
        engine: str,
        precision: str,
        batch: int | None,
        *,
        time_limit_s: float,
        input_size: int | None,
    ) -> RunRequest:
        """The request for one row of `target`, timed in one process.

        Raises:
            UsageError: the engine, the precision or a shape has another form.
        """
        from enginebench.core.names import parse_engine, parse_precision

        return self.make_request(
            target,
            engines=[parse_engine(engine)],
            precisions=[parse_precision(precision)],
            batches=None if batch is None else (batch,),
            measure=MeasureSpec(seed=self.seed, time_limit_s=time_limit_s, processes=1),
            input_size=input_size,
        )

    def make_side_request(self, input_size: int | None, profile_index: int | None = None) -> SideRequest:
        """What the sides of a comparison have in common.

        Raises:
            UsageError: a shape has another form.
        """
        from enginebench.workflow.sides import SideRequest

        return SideRequest(
            device=self.device,
            threads=self.count_threads(),
            weights=self.weights,
            seed=self.seed,
            input_size=input_size,
            input_shapes=self.read_shapes(),
            profile_index=profile_index,
        )


class Timing(Struct, frozen=True, kw_only=True):
    """The values of `measure_options`: how a row is measured."""

    warmup: int | None
    iters: int | None
    time_limit: float
    processes: int
    scope: Scope
    cache: Cache

    def make_measure(
        self,
        seed: int,
        *,
        percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0),
        quick: bool = False,
    ) -> MeasureSpec:
        """The MeasureSpec of the options; `quick` is one process of at most two seconds."""
        return MeasureSpec(
            warmup=self.warmup,
            iters=self.iters,
            time_limit_s=min(self.time_limit, QUICK_TIME_LIMIT_S) if quick else self.time_limit,
            processes=1 if quick else self.processes,
            scope=self.scope,
            cache=self.cache,
            seed=seed,
            percentiles=percentiles,
        )


COMMON_OPTIONS = (
    click.option("--device", callback=read_device, default="cpu", show_default=True, help="cpu or cuda:N."),
    click.option("--threads", type=click.IntRange(1, 4096), help="Threads of every engine. [physical cores]"),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of inputs."),
    click.option(
        "--input-shape",
        "input_shape",
        multiple=True,
        metavar="NAME:1x3x224x224",
        help="Shape of an input; repeat it, or part several by commas.",
    ),
    click.option("--weights", default="default", show_default=True, help="default, random, or a file of a state dict."),
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else."),
)
MEASURE_OPTIONS = (
    click.option("--warmup", type=click.IntRange(0), help="Exact number of warm-up calls. [until settled]"),
    click.option("--iters", type=click.IntRange(1), help="Exact number of timed calls. [until settled]"),
    click.option(
        "--time-limit",
        type=click.FloatRange(0, min_open=True),
        default=3.0,
        show_default=True,
        metavar="S",
        help="Of timed calls in one process.",
    ),
    click.option(
        "--processes",
        type=click.IntRange(1, 1000),
        default=10,
        show_default=True,
        help="Fresh processes a row; a verdict needs 6.",
    ),
    click.option("--scope", type=click.Choice(["compute", "io"]), default="compute", show_default=True),
    click.option(
        "--cache",
        type=click.Choice(["hot", "cold"]),
        default="hot",
        show_default=True,
        help="Cold: a GPU's L2 is flushed before every call.",
    ),
)


def common_options(function: Body) -> Body:
    """Adds --device --threads --seed --input-shape --weights --json; `function` gets them as `common`."""
    return _collect(function, "common", Common, COMMON_OPTIONS)


def measure_options(function: Body) -> Body:
    """Adds the options that say how a row is measured; `function` gets them as `timing`."""
    return _collect(function, "timing", Timing, MEASURE_OPTIONS)


def _collect(function: Body, keyword: str, kind: type[Struct], options: Sequence[Callable[[Body], Body]]) -> Body:
    """`function` with `options` before its own, whose values reach it as one record of `kind`."""

    @functools.wraps(function)
    def collected(**given: Any) -> None:
        values = {name: given.pop(name) for name in kind.__struct_fields__}
        function(**given, **{keyword: kind(**values)})

    command: Body = collected
    for option in reversed(options):
        command = option(command)
    return command


def trtexec_option(function: F) -> F:
    """Adds --trtexec."""
    option = click.option("--trtexec", metavar="PATH", help="The executable. [$TRTEXEC, PATH, the usual folders]")
    return option(function)


def use_trtexec(path: str | None, engines: Iterable[str]) -> None:
    """Makes the executable of --trtexec the one that is run.

    Raises:
        UsageError: no engine of the call is trtexec, or `path` is no executable file.
    """
    if path is None:
        return
    if "trtexec" not in engines:
        raise UsageError("--trtexec names the executable of engine trtexec, which is not asked for")
    from enginebench.backends.registry import choose_executable

    choose_executable(path)


def merge_options(engine: str, own: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """The `key=value` options of ENGINE and those that have a name of their own on the command line.

    Raises:
        UsageError: both give one, with different values.
    """
    for key in own.keys() & given.keys():
        if own[key] != given[key]:
            raise UsageError(f"{engine}:{key}={own[key]} contradicts {key}={given[key]} of an option beside it")
    return {**own, **given}


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
        raise UsageError(f"--percentile {text!r}: expected numbers between 0 and 100, parted by commas")
    return values


def parse_shapes(texts: tuple[str, ...]) -> dict[str, tuple[int, ...]] | None:
    """{name: shape} of `name:1x3x224x224`; None if nothing was given.

    Raises:
        UsageError: the text has another form.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for text in (piece.strip() for t in texts for piece in t.split(",")):
        name, sep, dims = text.rpartition(":")
        try:
            shape = tuple(int(d) for d in dims.split("x"))
        except ValueError:
            shape = ()
        if not sep or not name or not shape or min(shape) < 1:
            raise UsageError(f"--input-shape {text!r}: expected NAME:1x3x224x224 with positive numbers")
        shapes[name] = shape
    return shapes or None


def choose_batches(given: tuple[int, ...] | None, shapes: dict[str, tuple[int, ...]] | None) -> tuple[int, ...]:
    """The batches of --batch, else the first axis that all of --input-shape have, else 1.

    Raises:
        UsageError: both were given, and the first axis is neither among the batches nor 1, that of one entry.
    """
    firsts = {shape[0] for shape in (shapes or {}).values()}
    first = firsts.pop() if len(firsts) == 1 else None
    if given is None:
        return (first or 1,)
    if first is not None and first not in (1, *given):
        asked = ", ".join(map(str, given))
        raise UsageError(f"the first axis of --input-shape is {first}, and --batch {asked}; say the same in both")
    return given


def parse_batches(text: str) -> tuple[int, ...]:
    """The batches of `1,8,32`.

    Raises:
        UsageError: not a list of positive numbers without repetition.
    """
    try:
        batches = tuple(int(piece) for piece in text.split(","))
    except ValueError:
        batches = ()
    if not batches or min(batches) < 1 or len(set(batches)) != len(batches):
        raise UsageError(f"--batch {text!r}: expected different positive numbers, parted by commas")
    return batches
