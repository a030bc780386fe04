"""Compare outputs of an engine after its timed calls with its own outputs, for the same inputs, in its check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from enginebench.core.protocols import Array, Engine, Feeds
from enginebench.core.records import Artifact, EngineSpec, Precision, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.runs.child.arrays import load_arrays, save_arrays
from enginebench.runs.child.perform.outputs import run_engine

# Samples that are asked again: the one that is timed, and another.
SAMPLES = 2
# Differences, as a share of the largest value, that two processes of one engine do not reach. They may choose other
# kernels: order of sums leaves a hundredth of this open in FP32 (as for `runs/building.py: VARIATION`). Short formats
# round at 2^-8 (BF16) and 2^-7 (8 bits), and a deep network adds that up to some hundredths.
LIMITS: Mapping[Precision | None, float] = {"fp32": 1e-2, "tf32": 1e-2, "fp16": 0.1, "bf16": 0.1}
SHORT_LIMIT = 0.25
# Outputs that are no floats differ in a share of their values.
DECISIONS_LIMIT = 0.25
# Values of an output that are looked for in the inputs before all are.
FEW = 4


def sample_rechecked(
    artifact: Artifact, model: str, engine: EngineSpec, seed: int, samples: str | None
) -> list[dict[str, Array]]:
    """Return the inputs that are asked again, the timed ones first; the same in the check and in each trial.

    Of a user who gave inputs for one call alone the other ones are those, with their values turned round.
    """
    from enginebench.models.task import sample_feeds

    feeds = sample_feeds(artifact.inputs, model, engine.batch, seed, SAMPLES, samples)
    if len(feeds) < SAMPLES or not _are_alike(feeds[0], feeds[1]):
        feeds = [feeds[0], {name: np.roll(array, 1) for name, array in feeds[0].items()}]
    return feeds


def _are_alike(one: Feeds, other: Feeds) -> bool:
    return all(array.shape == other[name].shape for name, array in one.items())


def save_expected(path: Path, outputs: Sequence[Mapping[str, Array]]) -> None:
    """Store the outputs for the inputs of `sample_rechecked`, in their order; of a mix those of each cell in turn."""
    save_arrays(path, {f"{index}/{name}": array for index, one in enumerate(outputs) for name, array in one.items()})


def load_expected(path: Path) -> list[dict[str, Array]]:
    """Return what `save_expected` stored. Raises ParseError where the file is damaged or gone."""
    expected: dict[int, dict[str, Array]] = {index: {} for index in range(SAMPLES)}
    for key, array in load_arrays(path).items():
        index, _, name = key.partition("/")
        expected.setdefault(int(index) if index.isdecimal() else 0, {})[name] = array
    return [expected[index] for index in sorted(expected)]


def recheck_outputs(
    engine: Engine, feeds: Sequence[Feeds], expected: Sequence[Mapping[str, Array]], precision: Precision | None
) -> list[ResultWarning]:
    """Return a warning if the engine, after its timed calls, gives outputs that are not those of its inputs.

    Three calls, each on other inputs than the one before: an engine that computes in every second call is found in one
    of them. All lie in the same arrays, as a program reuses its own: an engine that knows inputs by their address has
    the outputs of others.
    """
    worst = 0.0
    arrays = {
        name: np.empty(array.shape, np.result_type(*(own[name] for own in feeds))) for name, array in feeds[0].items()
    }
    for index in (1, 0, 1):
        for name, array in arrays.items():
            array[...] = feeds[index][name]
        outputs = run_engine(engine, arrays)
        worst = max(worst, measure_strangeness(outputs, expected[index], expected[1 - index], precision))
    engine.bind(feeds[1])  # which outlive this call
    return [make_warning("implausible_time.outputs", share=worst)] if worst else []


def find_early_outputs(
    engine: Engine, feeds: Sequence[Feeds], expected: Sequence[Mapping[str, Array]], precision: Precision | None
) -> list[ResultWarning]:
    """Return a warning if an engine that ran on the second inputs has the outputs of the first when these are bound.

    An honest one has those of its last run, or refuses. Where an output holds nothing but values of an input, it may be
    the input itself, without any work; and where both inputs give the same outputs, nothing can be seen.
    """
    computed = [name for name, array in expected[0].items() if not _holds_inputs(array, feeds[0])]
    own, other = ({name: one[name] for name in computed if name in one} for one in expected)
    if not own or not measure_strangeness(other, own, other, precision):
        return []
    run_engine(engine, feeds[1])
    try:
        engine.bind(feeds[0])
        fetched = engine.fetch()
    except Exception:  # it refuses, in words of its own
        return []
    early = not measure_strangeness(fetched, own, other, precision)
    evidence = "the outputs for new inputs are there before run is called"
    return [make_warning("implausible_time.outside_run", evidence=evidence)] if early else []


def _holds_inputs(array: Array, feeds: Feeds) -> bool:
    """Return whether each value is one of an input. The first few show mostly that it is not: looking for all of them
    sorts the input, half a second for a batch of 32 images."""
    inputs = [values for values in feeds.values() if values.dtype == array.dtype]
    few = array.reshape(-1)[:FEW]
    return array.size == 0 or any(
        all(bool((values == value).any()) for value in few) and bool(np.isin(array, values).all()) for values in inputs
    )


def measure_strangeness(
    outputs: Mapping[str, Array], own: Mapping[str, Array], other: Mapping[str, Array], precision: Precision | None
) -> float:
    """Return how far outputs are from their `own`, as a share of the largest value; 0 where they can be those.

    They are not if they are twice as near to the `other` ones, those of the inputs before, or too far from their own.
    The length of an output may depend on a rounding, so that another shape alone shows nothing.
    """
    worst = 0.0
    for name, array in own.items():
        if name not in outputs:
            return 1.0
        distance = _measure_distance(array, outputs[name])
        limit = LIMITS.get(precision, SHORT_LIMIT) if array.dtype.kind == "f" else DECISIONS_LIMIT
        stale = 2 * _measure_distance(other[name], outputs[name]) < distance if name in other else False
        if stale or (distance > limit and array.shape == outputs[name].shape):
            worst = max(worst, distance)
    return worst


def _measure_distance(expected: Array, actual: Array) -> float:
    """Return the largest difference of floats as a share of the largest value; of others the share that differs."""
    if expected.shape != actual.shape:
        return 1.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != actual)) if expected.size else 0.0
    one, other = (np.nan_to_num(a.astype(np.float64), posinf=0.0, neginf=0.0) for a in (expected, actual))
    largest = float(np.max(np.abs(one), initial=0.0))
    return float(np.max(np.abs(one - other), initial=0.0)) / (largest or 1.0)
