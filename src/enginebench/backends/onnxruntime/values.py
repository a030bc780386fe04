"""Outputs of ONNX Runtime that are no plain tensors, as arrays. Imports nothing of ours: bundles hold a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


def flatten_answer(value: Any) -> Array:
    """One array of one answer.

    Text keeps its shape. Maps, which classifiers of ai.onnx.ml give for each sample, become rows of their values in the
    order of their keys. A sequence of tensors becomes one row, its tensors one after another; an optional value that is
    absent a row without values.
    """
    if isinstance(value, np.ndarray):
        return value.astype(str) if value.dtype.kind == "O" else value
    if isinstance(value, Mapping):
        value = [value]
    if value is None or not isinstance(value, list):
        return np.atleast_1d(np.asarray([] if value is None else value))[None]
    if value and isinstance(value[0], Mapping):
        return np.array([[row[key] for key in sorted(row)] for row in value])
    pieces = [flatten_answer(piece).reshape(-1) for piece in value]
    return np.concatenate(pieces)[None] if pieces else np.empty((1, 0), np.float32)
