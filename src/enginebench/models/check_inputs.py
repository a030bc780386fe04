"""Make further inputs on which outputs are compared, beside the usual ones; they are never timed.

Made-up inputs of one kind cover only a part of the inputs that a model may get: with a full mask, integers from the
middle of their range and standard normal floats, nothing shows of an engine that ignores the mask, or is wrong for
large values. The sets made here cover the rest. Each set is compared by itself, because differences for large values
would hide those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from enginebench.core.feeds import random_feeds
from enginebench.core.input_sets import EXAMPLES, INTEGERS, LARGE, MASKS, NUDGED
from enginebench.core.protocols import Array
from enginebench.core.records import TEXT, TensorSpec
from enginebench.core.shapes import find_batch_axes
from enginebench.models.samples import cut_entries, list_problems, read_samples

Entries: TypeAlias = list[dict[str, Array]]

# The range of an input whose usual values are all 1, like those of a mask, or all 0, like those of a state.
ONES: tuple[float, float] = (1.0, 1.0)
ZEROS: tuple[float, float] = (0.0, 0.0)
# Entries of a set: one of each of the six kinds of floats below. More would cost as much as the usual inputs.
ENTRIES = 6
# Standard deviations of large floats, beside 1 of the usual ones: a picture that is not normalized reaches 255.
SCALES = (10.0, 100.0, 1000.0)
# Fewer values than this are settings (thresholds, scales, lengths), which change what a model does, not data.
FEWEST_DATA = 8
# Integers of unknown range, of which FP32 holds every one exactly.
UNKNOWN_RANGE = (-1000, 1000)
# States of recurrent layers lie between -1 and 1, as tanh leaves them.
STATE_DEVIATION = 0.5
# The relative change of each float of a nudged input: four rounding steps of FP32.
NUDGE = 2.0**-22


def make_check_sets(specs: Sequence[TensorSpec], seed: int, batch: int = 1) -> dict[str, Entries]:
    """Return the made-up sets that differ from the usual inputs of a model, each of single entries.

    With the same seed and batch they are the same for a graph as for the module that it was exported from.
    """
    large = _make_set(specs, seed, batch, _enlarge)
    sets = {
        MASKS: _make_set(specs, seed, batch, _pad),
        INTEGERS: _make_set(specs, seed, batch, _widen),
        LARGE: large,
        NUDGED: [{name: _nudge(array, seed + i) for name, array in entry.items()} for i, entry in enumerate(large)],
    }
    return {name: entries for name, entries in sets.items() if entries}


def read_examples(folder: Path, specs: Sequence[TensorSpec]) -> Entries:
    """Return the example inputs stored in `folder`, without those that do not fit the inputs."""
    axes = find_batch_axes(specs)
    entries = read_samples(str(folder / EXAMPLES))
    return [entry for entry in entries if not list_problems(entry, specs, axes)]


# (input, its usual values, index of the entry, generator) -> other values; None: the input stays as it is.
_Change: TypeAlias = "Callable[[TensorSpec, Array, int, np.random.Generator], Array | None]"


def _make_set(specs: Sequence[TensorSpec], seed: int, batch: int, change: _Change) -> Entries:
    """Return the usual entries with the inputs that `change` makes of them; an empty list where it changes nothing."""
    usual: Entries = []
    while len(usual) < ENTRIES:
        usual += cut_entries(random_feeds(specs, batch, seed + len(usual)), specs)
    entries: Entries = []
    changed = False
    for index, entry in enumerate(usual[:ENTRIES]):
        made = dict(entry)
        for spec in specs:
            rng = np.random.default_rng((seed, index))
            if (values := change(spec, entry[spec.name], index, rng)) is not None:
                made[spec.name], changed = values.astype(entry[spec.name].dtype), True
        entries.append(made)
    return entries if changed else []


def _is_mask(spec: TensorSpec) -> bool:
    """Return whether an input is a mask: ones where entries count, by its name, its type and its range of values."""
    named = "mask" in spec.name.lower()
    return spec.values == ONES and len(spec.shape) >= 2 and (named or not spec.dtype.startswith(("float", "bfloat")))


def _pad(spec: TensorSpec, usual: Array, index: int, rng: np.random.Generator) -> Array | None:
    if _is_mask(spec):
        return _draw_mask(usual.shape, index, rng)
    if spec.dtype.startswith("float") and spec.values == ZEROS and usual.size >= FEWEST_DATA:
        return rng.standard_normal(usual.shape) * STATE_DEVIATION
    limits = spec.widest or spec.values
    if spec.dtype == TEXT or usual.dtype.kind not in "iu" or limits is None or limits[0] == limits[1] or not usual.size:
        return None
    low, high = map(int, limits)
    values = rng.integers(low, high, usual.shape, endpoint=True)
    ends = rng.permutation(values.size)[:2]
    values.reshape(-1)[ends] = (low, high)[: len(ends)] if index % 2 else (high, low)[: len(ends)]
    return values


def _draw_mask(shape: tuple[int, ...], index: int, rng: np.random.Generator) -> Array:
    """Return ones with padding behind, before, or in between; each line of the last axis has at least one 1."""
    length = shape[-1]
    kept = rng.integers(1, max(2, length), (*shape[:-1], 1))
    steps = np.broadcast_to(np.arange(length), shape)
    kinds: list[Array] = [steps < kept, steps >= length - kept, (rng.random(shape) < 0.5) | (steps == kept % length)]
    return kinds[(0, 1, 0, 2)[index % 4]]


def _widen(spec: TensorSpec, usual: Array, index: int, rng: np.random.Generator) -> Array | None:
    if spec.dtype == TEXT or usual.dtype.kind not in "iu" or spec.values is not None or spec.widest is not None:
        return None
    if usual.size < FEWEST_DATA:
        return None
    limits = np.iinfo(str(usual.dtype))
    low, high = max(UNKNOWN_RANGE[0], int(limits.min)), min(UNKNOWN_RANGE[1], int(limits.max))
    values = rng.integers(low, high, usual.shape, endpoint=True)
    values.reshape(-1)[:2] = low, high
    return values


def _enlarge(spec: TensorSpec, usual: Array, index: int, rng: np.random.Generator) -> Array | None:
    if usual.dtype.kind != "f" or usual.size < FEWEST_DATA or _is_mask(spec):
        return None
    if spec.values is not None:
        low, high = spec.values
        if low == high:
            return None
        ends = (np.full(usual.shape, high), np.full(usual.shape, low), rng.choice([low, high], usual.shape))
        return np.asarray(ends[index % 3])
    values = rng.standard_normal(usual.shape)
    kinds = (
        *(values * scale for scale in SCALES),
        np.abs(values) * SCALES[0],
        -np.abs(values) * SCALES[0],
        np.zeros(usual.shape),
    )
    return np.asarray(kinds[index % len(kinds)])


def _nudge(array: Array, seed: int) -> Array:
    if array.dtype.kind != "f":
        return array
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], array.shape)
    return (array.astype(np.float64) * (1 + signs * NUDGE)).astype(array.dtype)
