"""Whether batches that are on their way at once get the answers that each gets alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import MeasurementError

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds
    from enginebench.core.streams import InFlight


def check_slots(pipeline: InFlight, feeds: Feeds, compute: Callable[[Feeds], Mapping[str, Array]]) -> None:
    """Checks that every slot, all of them on their way, answers inputs of its own as `compute` does.

    Raises:
        MeasurementError: a slot answers otherwise, by more than a hundredth of the largest value.
    """
    inputs = [{name: np.roll(array, turn) for name, array in feeds.items()} for turn in range(2 * pipeline.depth)]
    answers: list[Mapping[str, Array]] = []
    for turn, one in enumerate(inputs):
        if turn >= pipeline.depth:
            answers.append(pipeline.collect())
        pipeline.submit(one)
    answers += [pipeline.collect() for _ in range(pipeline.depth)]
    for turn, (one, answer) in enumerate(zip(inputs, answers, strict=True)):
        for name, expected in compute(one).items():
            if not _is_alike(answer[name], expected):
                raise MeasurementError(
                    f"scope pipelined: output {name!r} of batch {turn} in slot {turn % pipeline.depth} is not what the "
                    "engine computes for the same input alone. Time it with --scope compute or io, and report this"
                )


def _is_alike(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    known = np.abs(expected[np.isfinite(expected)], dtype=np.float64)
    return bool(np.allclose(found, expected, rtol=0, atol=0.01 * float(known.max(initial=0.0)), equal_nan=True))
