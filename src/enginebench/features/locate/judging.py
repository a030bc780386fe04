"""Whether a tensor leaves its reference, by the limits of its type, as `drift` judges outputs."""

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from enginebench.core.protocols import Array
from enginebench.core.records import Precision
from enginebench.stats.drift import MAX_SNR_DB, default_limits, find_worst_slice
from enginebench.stats.metrics.metric import Floats


class Deviation(Struct, frozen=True, kw_only=True):
    """The distance of a tensor from the reference. `snr_db` of None: there is nothing finite to compare."""

    leaves: bool
    snr_db: float | None = None
    largest: float = 0.0  # difference
    nonfinite: int = 0  # values that are not finite here, and are in the reference
    tamed: int = 0  # values that are not finite in the reference, and others here
    shape: str = ""  # where the shapes differ


def measure_deviation(expected: Array, actual: Array, precision: Precision | None) -> Deviation:
    """Measure how far a tensor is from the reference, and whether that is beyond the limits of the precision."""
    if expected.shape != actual.shape:
        return Deviation(leaves=True, shape=f"{list(actual.shape)} in place of {list(expected.shape)}")
    if expected.dtype.kind not in "fiub":
        differs = not np.array_equal(expected, actual)
        return Deviation(leaves=differs, snr_db=-MAX_SNR_DB if differs else MAX_SNR_DB, largest=float(differs))
    a, b = np.atleast_1d(expected).astype(np.float64), np.atleast_1d(actual).astype(np.float64)
    finite = np.isfinite(a)
    lost = int(np.count_nonzero(finite & ~np.isfinite(b)))
    tamed = int(np.count_nonzero(~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))))
    both = finite & np.isfinite(b)
    a, b = np.where(both, a, 0.0), np.where(both, b, 0.0)
    largest = float(np.abs(a - b).max(initial=0.0))
    snr = measure_ratio(a, b)
    limits = default_limits(precision)
    low = snr < limits["snr"]
    if not low and "snr_min" in limits and largest > 0:
        worst = find_worst_slice(a[None], b[None], samples=False)
        low = worst is not None and worst[0] < limits["snr_min"]
    leaves = low or lost > 0 or tamed > 0
    return Deviation(leaves=leaves, snr_db=snr, largest=largest, nonfinite=lost, tamed=tamed)


def measure_ratio(expected: Floats, actual: Floats) -> float:
    """Return the ratio of the signal to the noise, in dB, of arrays of finite values."""
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    signal, noise = float(np.sum((expected / scale) ** 2)), float(np.sum(((expected - actual) / scale) ** 2))
    if noise == 0:
        return MAX_SNR_DB
    if signal == 0:
        return -MAX_SNR_DB
    return float(np.clip(10 * (math.log10(signal) - math.log10(noise)), -MAX_SNR_DB, MAX_SNR_DB))


def find_leaving(
    expected: Mapping[str, Array], actual: Mapping[str, Array], precision: Precision | None
) -> dict[str, Deviation]:
    """Return the tensors that leave their reference."""
    measured = {name: measure_deviation(expected[name], array, precision) for name, array in actual.items()}
    return {name: deviation for name, deviation in measured.items() if deviation.leaves}
