"""Whether batches that are on their way at once get the answers that each gets alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import MeasurementError

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds
    from enginebench.core.streams import Overlapping


def check_slots(engines: Sequence[Overlapping], feeds: Feeds, alone: Engine) -> None:
    """Checks that every engine, all of them with a batch on its way, answers inputs of its own as `alone` does.

    Raises:
        MeasurementError: one answers otherwise, by more than a hundredth of the largest value.
    """
    depth = len(engines)
    inputs = [{name: np.roll(array, turn) for name, array in feeds.items()} for turn in range(2 * depth)]
    answers: list[Mapping[str, Array]] = []
    for turn, one in enumerate(inputs):
        engine = engines[turn % depth]
        if turn >= depth:
            answers.append(engine.finish()[0])
        engine.begin((one,))
    answers += [engine.finish()[0] for engine in engines]
    for turn, (one, answer) in enumerate(zip(inputs, answers, strict=True)):
        alone.bind(one)
        alone.run()
        for name, expected in alone.fetch().items():
            if not _is_alike(answer[name], expected):
                raise MeasurementError(
                    f"scope pipelined: output {name!r} of batch {turn} in slot {turn % depth} is not what the "
                    "engine computes for the same input alone. Time it with --scope compute or io, and report this"
                )


def _is_alike(found: Array, expected: Array) -> bool:
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    known = np.abs(expected[np.isfinite(expected)], dtype=np.float64)
    return bool(np.allclose(found, expected, rtol=0, atol=0.01 * float(known.max(initial=0.0)), equal_nan=True))
