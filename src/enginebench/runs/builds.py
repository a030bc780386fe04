"""Several builds of one engine: how many a row has, where each lies, and what is known of it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.records import Build
from enginebench.engines.registry import find_entry
from enginebench.runs.child.arrays import load_answers
from enginebench.runs.child.jobs import PrepareAnswer
from enginebench.runs.child.places import OPTION
from enginebench.runs.plan import PlannedRow
from enginebench.stats.drift import measure_drift

# Options that name a file which builds would share.
SHARED = ("timing_cache",)


def count_builds(row: PlannedRow) -> int:
    """The builds of a row: those that were asked for, or 1 of an engine that builds nothing that stays."""
    entry, options = find_entry(row.engine.backend), row.engine.options
    if row.measure.builds == 1 or row.source is None or entry.builds_with is None:
        return 1
    kept = all(options.get(key) == value for key, value in entry.builds_with.items())
    if not kept or row.source.kind in ("plan", *entry.reopens):  # of a finished engine there is one
        return 1
    if shared := [key for key in SHARED if options.get(key)]:
        raise UsageError(
            f"--builds builds each time from nothing, and {entry.name}:{shared[0]}={options[shared[0]]} would hand on "
            "what an earlier build timed: leave it out"
        )
    return row.measure.builds


def choose_place(artifacts: Path, folder: Path, row: PlannedRow) -> Path:
    """Where one of several builds leaves what it makes: neither builds nor environments find what others left."""
    name = row.engine.options.get(OPTION)
    return artifacts / f"env-{name}" / folder.relative_to(artifacts) if name else folder


def describe_build(answer: PrepareAnswer, first: Path, outputs: Path) -> Build:
    """One build, with how far its answers lie from those of the first."""
    return Build(
        artifact=answer.artifact,
        build_s=answer.build_s,
        size_bytes=answer.size_bytes,
        fingerprint=answer.fingerprint,
        max_abs_diff=compare_answers(first, outputs),
    )


def compare_answers(first: Path, outputs: Path) -> float | None:
    """Largest difference of two builds' outputs for the check inputs; None where one has none."""
    if not (first.exists() and outputs.exists()):
        return None
    try:
        drift = measure_drift(*cut_common(load_answers(first)[0], load_answers(outputs)[0]), {})
    except EngineBenchError:
        return None
    return max((o.max_abs_diff for o in drift.outputs if o.max_abs_diff is not None), default=None)


def cut_common(
    reference: Mapping[str, Any], candidate: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Both, cut to the samples that both answered: a tool that restarts for each answer gives only the first few."""
    common = {name: min(len(reference[name]), len(candidate[name])) for name in reference.keys() & candidate.keys()}
    reference, candidate = ({n: a[: common.get(n)] for n, a in side.items()} for side in (reference, candidate))
    return reference, candidate
