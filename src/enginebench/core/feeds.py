"""Arrays for an engine's inputs: made from a seed, or checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.records import TensorSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

# Integer inputs are token ids or indices as a rule; every vocabulary has this many entries.
INTEGER_RANGE = 100


def concrete_shape(spec: TensorSpec, batch: int) -> tuple[int, ...]:
    """The shape with every dynamic axis replaced: the first axis by `batch`, any other by 1."""
    return tuple(axis if isinstance(axis, int) else (batch if i == 0 else 1) for i, axis in enumerate(spec.shape))


def match_axes(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """{name of an open axis: its length in `shapes`}, without first axes: their length is the batch.

    Raises:
        UsageError: an input is unknown, a shape has another rank, contradicts a fixed axis, or two shapes disagree.
    """
    known = {spec.name: spec.shape for spec in specs}
    lengths: dict[str, int] = {}
    for name, shape in shapes.items():
        text = f"--input-shape {name}:{_show(shape)}"
        if name not in known:
            raise UsageError(f"{text}: no such input; there are {', '.join(known)}")
        if not _shape_fits(known[name], shape):
            raise UsageError(f"{text}: the model takes {_show(known[name])}")
        for axis, length in list(zip(known[name], shape, strict=True))[1:]:
            if isinstance(axis, str) and lengths.setdefault(axis, length) != length:
                raise UsageError(f"{text}: axis {axis!r} is {lengths[axis]} elsewhere, and {length} here")
    batch = {spec.shape[0] for spec in specs if spec.shape}
    return {axis: length for axis, length in lengths.items() if axis not in batch}


def fix_shapes(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    """The specs with the axes that `match_axes` finds the length of."""
    lengths = match_axes(specs, shapes)

    def fix(axis: int | str) -> int | str:
        return lengths.get(axis, axis) if isinstance(axis, str) else axis

    return tuple(replace(spec, shape=tuple(map(fix, spec.shape))) for spec in specs)


def random_feeds(specs: Sequence[TensorSpec], batch: int, seed: int) -> dict[str, Array]:
    """Seeded arrays, one for each input: standard normal floats, integers in [0, 100), coin-flip booleans.

    The same seed gives the same arrays on every machine (PCG64).
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for spec in specs:
        shape, dtype = concrete_shape(spec, batch), np.dtype(spec.dtype)
        if dtype.kind == "f":
            feeds[spec.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        elif dtype.kind == "b":
            feeds[spec.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[spec.name] = rng.integers(0, INTEGER_RANGE, shape).astype(dtype)
    return feeds


def check_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, object]) -> None:
    """Returns if `feeds` has exactly the inputs of `specs`, each with its dtype and shape.

    Raises:
        FeedError: names every input that is missing, unknown, or of another dtype or shape.
    """
    problems = [f"unknown input {name!r}" for name in feeds if name not in {s.name for s in specs}]
    for spec in specs:
        array = feeds.get(spec.name)
        if array is None:
            problems.append(f"missing input {spec.name!r}")
        elif not isinstance(array, np.ndarray):
            problems.append(f"input {spec.name!r} is a {type(array).__name__}, not a NumPy array")
        elif array.dtype != np.dtype(spec.dtype):
            problems.append(f"input {spec.name!r} has dtype {array.dtype}, not {spec.dtype}")
        elif not _shape_fits(spec.shape, array.shape):
            problems.append(f"input {spec.name!r} has shape {_show(array.shape)}, not {_show(spec.shape)}")
    if problems:
        expected = ", ".join(f"{s.name}: {s.dtype}[{_show(s.shape)}]" for s in specs)
        raise FeedError(f"{'; '.join(problems)}. Expected {expected}")


def _shape_fits(expected: Sequence[int | str], found: Sequence[int]) -> bool:
    return len(expected) == len(found) and all(
        want == have for want, have in zip(expected, found, strict=True) if isinstance(want, int)
    )


def _show(shape: Sequence[int | str]) -> str:
    return "x".join(str(axis) for axis in shape) or "scalar"
