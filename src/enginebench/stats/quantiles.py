"""Median and percentiles of raw samples: one definition each, used everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.errors import MeasurementError, UsageError

if TYPE_CHECKING:
    from enginebench.core.protocols import Array


def median(values: Sequence[float] | Array) -> float:
    """The middle value; the mean of the two middles where their number is even. Keeps the unit of `values`."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise MeasurementError("no samples to take a median of; at least one is needed")
    middle = array.size // 2
    if array.size % 2:
        return float(np.partition(array, middle)[middle])
    pair = np.partition(array, (middle - 1, middle))
    return float((pair[middle - 1] + pair[middle]) / 2)


def nearest_rank(sorted_values: Sequence[float] | Array, q: float) -> float:
    """The smallest value that at least the share `q` of the values does not exceed. Keeps their unit.

    The rank is ceil(q n), computed exactly from the decimal digits of `q`: in binary floating point 0.07 x 100 is
    a little more than 7, and its ceiling would be 8.

    Args:
        sorted_values: ascending, at least one.
        q: share, 0 < q <= 1 (0.99 for p99).

    Raises:
        UsageError: `q` lies outside (0, 1].
        MeasurementError: there are no values.

    Source: R. Hyndman, Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50 (1996),
        definition 1; ISO 3534-1 calls it the nearest rank.
    """
    return float(sorted_values[find_rank(len(sorted_values), q) - 1])


def find_rank(n: int, q: float) -> int:
    """The nearest rank ceil(q n), from 1 to n.

    Raises:
        UsageError: `q` lies outside (0, 1].
        MeasurementError: n is 0.
    """
    if not 0 < q <= 1:
        raise UsageError(f"percentile {100 * q:g} cannot be taken; it must be above 0 and at most 100")
    if n < 1:
        raise MeasurementError(f"no samples to take p{100 * q:g} of; at least one is needed")
    return math.ceil(Fraction(repr(float(q))) * n)


def convert_percent(percent: float) -> float:
    """The share of a percentile: 99.9 -> 0.999, the nearest number to it, which 99.9 / 100 is not."""
    return float(Fraction(repr(float(percent))) / 100)
