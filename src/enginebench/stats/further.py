"""Compare outputs on inputs beyond the usual ones, without blaming a correct engine.

A correct engine is not called changed for what its format or the model explains: values overflow on both sides, a short
format clips or overflows outside of its calibration, and some functions turn a rounding step into another output.
"""

from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from enginebench.core.input_sets import CELL, EXAMPLES, LARGE, NUDGED, SET_NAMES
from enginebench.core.protocols import Array
from enginebench.core.records import Drift, Precision, ResultWarning, Task
from enginebench.core.warnings import make_warning
from enginebench.stats.drift import limits_between, list_unlike, measure_drift, measure_samples

Outputs = Mapping[str, Array]

# Formats that hold what FP32 holds, as far as values go: only these are held to large inputs.
WIDE: frozenset[Precision] = frozenset({"fp32", "tf32"})
# Where a few rounding steps in the inputs leave less than this above the limit of `snr`, in dB, an engine that rounds
# in another order may be as far away: a tenth of what the limit allows.
STABLE_DB = 20.0
# Of a few entries in a short format one decision near a tie is a tenth; another network shares fewer than half of them.
AGREEMENT = 0.5
# Limits of the user's that mean nothing where values are a thousand times the usual ones.
ABSOLUTE = frozenset({"max_abs", "mean_abs", "mean_rel"})


def measure_further(
    reference: Mapping[str, Outputs],
    candidate: Mapping[str, Outputs],
    precisions: tuple[Precision | None, Precision | None],
    *,
    limits: Mapping[str, float] | None = None,
    task: Task | None = None,
) -> tuple[Drift, ...]:
    """Measure the drift on each set of inputs for which both sides have outputs.

    Args:
        reference, candidate: set of `core/input_sets.py` -> its outputs, as `measure_drift` takes them.
        precisions: of both sides.
        limits: the user's own, in place of the usual ones of the shorter precision.
    """
    wide = all(precision in WIDE for precision in precisions)
    usual = dict(limits_between(*precisions) if limits is None else limits)
    held = {name: limit for name, limit in usual.items() if name not in ABSOLUTE}
    if not wide and limits is None:
        held["agreement"] = AGREEMENT
    drifts: list[Drift] = []
    for name in reference:
        if name not in candidate or name == NUDGED or (name == LARGE and not wide) or not held:
            continue
        sides = reference[name], candidate[name]
        own = usual if name == EXAMPLES or (name.startswith(CELL) and wide) else held
        if name == LARGE:
            sides = _keep_stable(*sides, reference.get(NUDGED), own.get("snr", 0.0) + STABLE_DB, task)
        if name != EXAMPLES and not name.startswith(CELL):
            sides = _drop_overflow(*sides)
        # Outputs whose lengths depend on the values, as behind a threshold, have no partners here.
        if any(array.size for array in sides[0].values()) and not list_unlike(*sides):
            drifts.append(replace(measure_drift(*sides, own, task=task), inputs=name))
    return tuple(drifts)


def add_further(drift: Drift, further: tuple[Drift, ...]) -> Drift:
    """Add the drift on further inputs; it passes only if each of them passes, too."""
    return replace(drift, further=further, passed=drift.passed and all(one.passed for one in further))


def list_refusal_warnings(
    reference: Mapping[str, str], candidate: Mapping[str, str], name: str
) -> tuple[ResultWarning, ...]:
    """Warn of sets that the candidate refused and the reference did not; set -> reason."""
    lacking = {key: why for key, why in candidate.items() if key not in reference and key in SET_NAMES}
    return tuple(
        make_warning("outputs_not_compared.further", row=name, inputs=SET_NAMES[key], why=why)
        for key, why in lacking.items()
    )


def _keep_stable(
    reference: Outputs, candidate: Outputs, nudged: Outputs | None, least_db: float, task: Task | None
) -> tuple[Outputs, Outputs]:
    """Remove the entries for which the reference itself moves when its inputs are nudged."""
    counts = {len(array) if array.ndim else 0 for side in (reference, candidate) for array in side.values()}
    if nudged is None or len(counts) != 1 or any(nudged[n].shape != a.shape for n, a in reference.items()):
        return reference, candidate  # where lengths depend on the values, entries have no partners
    same, moved = _drop_overflow(reference, nudged)
    unstable = {
        row.index
        for row in measure_samples(same, moved, task)
        if (row.snr_db is not None and row.snr_db < least_db) or row.nonfinite or row.agreement not in (None, 1.0)
    }
    kept = [i for i in range(counts.pop()) if i not in unstable]
    first, second = ({name: array[kept] for name, array in side.items()} for side in (reference, candidate))
    return first, second


def _drop_overflow(reference: Outputs, candidate: Outputs) -> tuple[Outputs, Outputs]:
    """Set both sides to zero where the reference's values are not finite: they cannot be compared there."""
    first, second = dict(reference), dict(candidate)
    for name, array in reference.items():
        if array.dtype.kind == "f" and name in candidate and candidate[name].shape == array.shape:
            finite = np.isfinite(array)
            first[name], second[name] = np.where(finite, array, 0), np.where(finite, candidate[name], 0)
    return first, second
