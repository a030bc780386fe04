"""Condense trials to what comparisons need of their samples, so that a run of many configurations fits in memory.

A condensed trial replaces the whole one: functions that assess and compare trials take both, with the same results.
"""

from array import array
from collections.abc import Iterable

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from enginebench.core.records import Block, Mark, Measurement
from enginebench.stats.quantiles import Floats, median

# The quantiles that are kept of a trial, evenly spaced: in such steps the fastest calls of several can be found.
LADDER = 101
# Times that a trial may have of each call beside its latency.
_OTHER_TIMES = ("device_ns", "enqueue_ns", "h2d_ns", "d2h_ns", "staging_ns")


class Quiet(Struct, frozen=True):
    """The median of the samples of a trial outside of some blocks, and the fraction that they are."""

    median_ns: float
    fraction: float


class TrialFigures(Struct, frozen=True, kw_only=True):
    """Figures of the samples of one trial."""

    n: int
    median_ns: float
    halves_ns: tuple[float, float] | None  # medians of the first and of the second half; None: a single sample
    ladder_ns: "array[float]"  # quantiles from the fastest call to the slowest, `LADDER` of them
    beside_nobody: Quiet | None  # outside of blocks in which others used the CPU or the GPU; None: there are no such
    beside_no_gpu_user: Quiet | None  # outside of blocks in which others used the GPU


class CondensedTrial(Measurement, frozen=True, kw_only=True):
    """A trial whose times are medians alone, one sample each. Its blocks stay, with their numbers of samples."""

    figures: TrialFigures


def condense_trial(measurement: Measurement) -> Measurement:
    """Replace the samples of a trial by figures; a trial without samples stays unchanged."""
    if isinstance(measurement, CondensedTrial) or not measurement.latency_ns:
        return measurement
    figures = measure_figures(measurement)
    medians = {name: [median(times)] for name in _OTHER_TIMES if (times := getattr(measurement, name))}
    medians["latency_ns"] = [figures.median_ns]
    cells = [[round(median(times))] for times in measurement.cells_ns]
    return CondensedTrial(**{**asdict(measurement), **medians, "cells_ns": cells}, figures=figures)


def take_figures(measurement: Measurement) -> TrialFigures:
    """Return the figures of a trial that has samples, or had before it was condensed."""
    return measurement.figures if isinstance(measurement, CondensedTrial) else measure_figures(measurement)


def measure_figures(measurement: Measurement) -> TrialFigures:
    values = np.asarray(measurement.latency_ns, dtype=np.float64)
    n, half = len(values), len(values) // 2
    ordered = np.sort(values)
    steps = np.linspace(0, n - 1, LADDER)
    below = steps.astype(int)
    ladder = ordered[below] + (steps - below) * (ordered[np.minimum(below + 1, n - 1)] - ordered[below])
    return TrialFigures(
        n=n,
        median_ns=float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2,
        halves_ns=(median(values[:half]), median(values[half:])) if half else None,
        ladder_ns=array("d", ladder.tolist()),
        beside_nobody=_measure_quiet(values, measurement.blocks, {"foreign_cpu", "foreign_gpu"}),
        beside_no_gpu_user=_measure_quiet(values, measurement.blocks, {"foreign_gpu"}),
    )


def _measure_quiet(values: Floats, blocks: Iterable[Block], marks: set[Mark]) -> Quiet | None:
    loud = [block for block in blocks if not marks.isdisjoint(block.marks)]
    if not loud:
        return None
    alone = ~mark_samples(len(values), loud)
    return Quiet(median(values[alone]) if alone.any() else 0.0, float(alone.mean()))


def mark_samples(n: int, blocks: Iterable[Block]) -> NDArray[np.bool_]:
    """Mark which of `n` samples are in any of the blocks."""
    marked = np.zeros(n, dtype=np.bool_)
    for block in blocks:
        marked[block.start : block.stop] = True
    return marked


def count_timed(measurement: Measurement) -> int:
    """Count the samples that a trial has, or had before it was condensed."""
    return measurement.figures.n if isinstance(measurement, CondensedTrial) else len(measurement.latency_ns)
