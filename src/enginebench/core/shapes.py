"""Shapes of inputs: which axes are open, and what a user's shapes make of them. Without NumPy: a dry run needs this."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import TensorSpec


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
        text = f"--input-shape {name}:{show_shape(shape)}"
        if name not in known:
            raise UsageError(f"{text}: no such input; there are {', '.join(known)}")
        if not fits_shape(known[name], shape):
            raise UsageError(f"{text}: the model takes {show_shape(known[name])}")
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


def fits_shape(expected: Sequence[int | str], found: Sequence[int]) -> bool:
    """Whether a shape has the rank and the fixed axes that are expected."""
    return len(expected) == len(found) and all(
        want == have for want, have in zip(expected, found, strict=True) if isinstance(want, int)
    )


def show_shape(shape: Sequence[int | str]) -> str:
    """`1x3x224x224`."""
    return "x".join(str(axis) for axis in shape) or "scalar"


def format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Shapes as trtexec reads them; a name with a colon, comma or space stands in single quotation marks."""
    return ",".join(f"{quote_name(name)}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


def quote_name(name: str) -> str:
    """A tensor's name as trtexec reads it inside a list."""
    return name if re.fullmatch(r"[\w./\-]+", name) else f"'{name}'"
