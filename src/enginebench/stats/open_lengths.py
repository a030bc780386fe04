"""Answers whose length depends on the values, made comparable: what one side did not answer counts as zeros."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

Answers = Mapping[str, "Array"]


def fill_lengths(reference: Answers, candidate: Answers, names: Collection[str]) -> tuple[Answers, Answers]:
    """Both sides, their outputs of these names as long as the longer one, filled up with zeros.

    A box more or less is then a difference of that box, in place of two answers that cannot be compared.
    """
    filled_reference, filled_candidate = dict(reference), dict(candidate)
    for name in names:
        if name in reference and name in candidate:
            filled_reference[name], filled_candidate[name] = _fill(reference[name], candidate[name])
    return filled_reference, filled_candidate


def _fill(a: Array, b: Array) -> tuple[Array, Array]:
    if a.ndim != b.ndim:  # one side gave every sample as many, and was joined without an axis of samples
        a, b = _split(a, len(b)) if a.ndim < b.ndim else a, _split(b, len(a)) if b.ndim < a.ndim else b
    if a.ndim != b.ndim or len(a) != len(b):
        return a, b
    shape = tuple(map(max, zip(a.shape, b.shape, strict=True)))
    return _pad(a, shape), _pad(b, shape)


def _split(array: Array, samples: int) -> Array:
    return array.reshape(samples, -1, *array.shape[1:]) if samples and len(array) % samples == 0 else array


def _pad(array: Array, shape: tuple[int, ...]) -> Array:
    return np.pad(array, [(0, want - have) for want, have in zip(shape, array.shape, strict=True)])
