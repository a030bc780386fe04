"""What lower precision does to answers: noise against the signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.core.errors import MeasurementError

# Of answers that are not finite: worse than any, and still a number that JSON has.
WORST = 1e30

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def measure_harm(reference: Mapping[str, Any], answers: Mapping[str, Any]) -> float:
    """Power of the difference over that of the reference about its mean, over all outputs together.

    Args:
        reference: output name -> array [samples, ...] in FP32.
        answers: the same names and shapes.
    """
    noise, signal = 0.0, 0.0
    for name, array in reference.items():
        ref, cand = _as_rows(array), _as_rows(answers[name])
        if not np.isfinite(cand).all():
            return WORST
        noise += float(np.sum((cand - ref) ** 2))
        signal += float(np.sum((ref - ref.mean(axis=0)) ** 2)) if len(ref) > 1 else float(np.sum(ref**2))
    if not signal:
        raise MeasurementError("the outputs do not depend on the inputs, so that outputs cannot be compared")
    return noise / signal


def _as_rows(array: Any) -> Floats:
    rows: Floats = np.asarray(array).reshape(len(array), -1).astype(np.float64)
    return rows
