"""Arrays for an engine's inputs: made from a seed, or checked before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import FeedError
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import concrete_shape, fits_shape, show_shape

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

# Integer inputs are token ids or indices as a rule; every vocabulary has this many entries.
INTEGER_RANGE = 100


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
        elif not fits_shape(spec.shape, array.shape):
            problems.append(f"input {spec.name!r} has shape {show_shape(array.shape)}, not {show_shape(spec.shape)}")
    if problems:
        expected = ", ".join(f"{s.name}: {s.dtype}[{show_shape(s.shape)}]" for s in specs)
        raise FeedError(f"{'; '.join(problems)}. Expected {expected}")
