"""What a program gives, checked: models, lists of engines, numbers in their ranges."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from enginebench.api.given import list_texts, read_axes, read_metrics, take_model, take_side, to_path
from enginebench.backends.registry import read_engine
from enginebench.backends.registry import read_engines as read_engine_list
from enginebench.core.errors import UsageError
from enginebench.core.names import parse_precision
from enginebench.core.records import Cache, Precision, Recipe, Scope, Task
from enginebench.options import Model, PathLike, Shapes, Side
from enginebench.workflow.child import places
from enginebench.workflow.request import Shared, Timing, parse_device

Axes: TypeAlias = "str | Sequence[str] | Mapping[str, Sequence[int]]"

__all__ = [
    "Axes",
    "Model",
    "PathLike",
    "Shapes",
    "Side",
    "list_texts",
    "read_axes",
    "read_metrics",
    "take_model",
    "take_side",
    "to_path",
]

# Name of an argument -> (smallest, largest) that it takes; None: no end. The command line has the same; a test says so.
RANGES: dict[str, tuple[float, float | None]] = {
    "threads": (1, 4096),
    "seed": (0, 2**32 - 1),
    "warmup": (0, None),
    "iters": (1, None),
    "processes": (1, 1000),
    "builds": (2, None),
    "timeout": (1, None),
    "input_size": (1, None),
    "batch": (1, None),
    "n": (1, None),
    "topk": (1, None),
    "decoders": (1, 256),
    "opset": (13, None),
    "profile_index": (0, None),
    "workspace_mb": (1, None),
    "optimization_level": (0, 5),
    "warmup_ms": (0, None),
    "max_metric_drop": (0, None),
    "max_top1_drop": (0, None),
    "max_wait_ms": (0, None),
    "rounds": (1, 100),
}
# The same where the smallest itself is not taken.
OPEN_RANGES: dict[str, tuple[float, float | None]] = {
    "time_limit": (0, None),
    "margin": (0, 1),
    "p99_limit_ms": (0, None),
    "load_p99_ms": (0, None),
    "qps": (0, None),
    "duration": (0, None),
    "time_budget": (0, None),
    "percentile": (50, 100),
}
CHOICES = {
    "goal": ("latency", "throughput", "capacity"),
    "scope": ("compute", "io"),
    "cache": ("hot", "cold"),
    "task": get_args(Task),
    "calibration_method": ("minmax", "entropy", "percentile"),
    "method": ("minmax", "entropy", "percentile"),
    "io_types": ("keep", "cast"),
    "scenario": ("single", "multi", "server", "offline"),
    "forms": ("bundle", "triton", "kserve", "dockerfile"),
    "hardware_compatibility": ("none", "ampere+", "sameComputeCapability"),
}


def check(**given: Any) -> None:
    """Checks that every value is in the range, or among the choices, of its argument; None means not given.

    Raises:
        UsageError: one does not; names argument, value and what it takes.
    """
    for name, value in given.items():
        if value is None:
            continue
        if name in CHOICES and value not in CHOICES[name]:
            raise UsageError(f"{name}={value!r}: expected one of {', '.join(CHOICES[name])}")
        if name in RANGES or name in OPEN_RANGES:
            _check_range(name, value)


def _check_range(name: str, value: Any) -> None:
    low, high = RANGES[name] if name in RANGES else OPEN_RANGES[name]
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    whole = name not in OPEN_RANGES and name not in (
        "timeout",
        "warmup_ms",
        "max_metric_drop",
        "max_top1_drop",
        "max_wait_ms",
    )
    fits = number and (low < value if name in OPEN_RANGES else low <= value) and (high is None or value <= high)
    if not fits or (whole and not isinstance(value, int)):
        least = f"more than {low:g}" if name in OPEN_RANGES else f"at least {low:g}"
        kind = "a whole number" if whole else "a finite number"
        most = f" and at most {high:.0f}" if high is not None else ""
        raise UsageError(f"{name}={value!r}: expected {kind}, {least}{most}")


def read_engines(given: str | Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The engines of `ort,openvino` or of ["ort", "pytorch-compile:mode=reduce-overhead"].

    Raises:
        UsageError: a name is unknown, given twice, or there is none.
    """
    if isinstance(given, str):
        return read_engine_list(given)
    listed = list(given)
    engines = [read_engine(text) for text in listed]
    if not engines:
        raise UsageError("the list of engines is empty")
    for i, engine in enumerate(engines):
        if engine in engines[:i]:
            raise UsageError(f"engine {listed[i]} is given twice; bench(..., against=...) compares one with itself")
    return engines


def read_precisions(given: str | Iterable[str]) -> list[tuple[Precision, Recipe | None]]:
    """The precisions of `fp32,int8@cpu` or of a list of them.

    Raises:
        UsageError: one is unknown.
    """
    return [parse_precision(text) for text in list_texts(given)]


def read_batches(given: int | str | Iterable[int] | None, default: int | None) -> tuple[int, ...] | None:
    """The batches asked for, as numbers or as `1,8`, else that of the example inputs; None if neither says one.

    Raises:
        UsageError: one is below 1, or given twice.
    """
    if given is None:
        return None if default is None else (default,)
    if isinstance(given, str):
        pieces = list_texts(given)
        if not all(piece.isdecimal() for piece in pieces):
            raise UsageError(f"batch={given!r}: expected positive whole numbers, separated by commas")
        batches = tuple(map(int, pieces))
    else:
        batches = tuple(given) if isinstance(given, Iterable) else (given,)
    for batch in batches:
        check(batch=batch)
    if not batches or len(set(batches)) != len(batches):
        raise UsageError(f"batch={given!r}: expected different positive numbers")
    return batches


def name_environments(given: Mapping[str, PathLike] | None) -> None:
    """Makes environments known by their names.

    Raises:
        UsageError: a name is not plain or stands for two, or nothing that can be started is there.
    """
    places.name_environments(f"{name}={os.fspath(path)}" for name, path in (given or {}).items())


def read_shared(
    device: str,
    threads: int | None,
    seed: int,
    input_shape: Shapes | None,
    weights: PathLike,
    inputs: PathLike | None = None,
    ort_extension: PathLike | Sequence[PathLike] = (),
) -> Shared:
    """What the verbs that run engines have in common.

    Raises:
        UsageError: a value that cannot be.
    """
    check(threads=threads, seed=seed)
    shapes = (input_shape,) if isinstance(input_shape, str) else input_shape or ()
    return Shared(
        device=parse_device(device),
        threads=threads,
        seed=seed,
        input_shape=shapes if isinstance(shapes, Mapping) else tuple(shapes),
        weights=os.fspath(weights),
        inputs=None if inputs is None else os.fspath(inputs),
        ort_extension=read_libraries(ort_extension),
    )


def read_libraries(given: PathLike | Sequence[PathLike]) -> tuple[str, ...]:
    """The libraries of custom operators, one or several, as text."""
    libraries = (given,) if isinstance(given, str | os.PathLike) else given
    return tuple(os.fspath(library) for library in libraries)


def read_timing(
    warmup: int | None, iters: int | None, time_limit: float, processes: int | None, scope: Scope, cache: Cache
) -> Timing:
    """How a row is measured.

    Raises:
        UsageError: a value that cannot be.
    """
    check(warmup=warmup, iters=iters, time_limit=time_limit, processes=processes, scope=scope, cache=cache)
    return Timing(warmup=warmup, iters=iters, time_limit=time_limit, processes=processes, scope=scope, cache=cache)


def read_percentiles(percentiles: Iterable[float]) -> tuple[float, ...]:
    """The percentiles of a row.

    Raises:
        UsageError: one does not lie between 0 and 100, or there is none.
    """
    values = tuple(float(value) for value in percentiles)
    if not values or not all(0 < value < 100 for value in values):
        raise UsageError(f"percentile={values}: expected numbers between 0 and 100")
    return values


def check_gpu(device: str) -> str:
    """The device, if it is a GPU.

    Raises:
        UsageError: it is the CPU.
    """
    if device == "cpu":
        raise UsageError("plans are built on a GPU: give device='cuda:N', such as cuda:0")
    return device
