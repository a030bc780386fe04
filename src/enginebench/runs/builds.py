"""Builds: how many a row has, which may be made beside each other (nothing is timed then), what is known of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.records import Artifact, Build, EngineSpec, Machine
from enginebench.engines.registry import find_entry
from enginebench.runs.child.arrays import load_outputs
from enginebench.runs.child.jobs import PrepareResponse
from enginebench.runs.child.places import OPTION
from enginebench.runs.plan import PlannedRow
from enginebench.stats.drift import measure_drift

# Options that name a file which builds would share.
SHARED = ("timing_cache",)
# All wait for the slowest, torch.compile's, whose import keeps one CPU busy: the fewer groups the better.
MOST_AT_ONCE = 16
# A process that has imported PyTorch and its compiler holds about half of this.
BYTES_OF_ONE = 1 << 30
# A model lies in memory as its file, its graph, what the engine makes of it, and what flows through it.
COPIES = 4
# What is left to others, and to what was guessed too low.
SHARE_OF_MEMORY = 0.5


def can_wait(engine: EngineSpec) -> bool:
    """Whether a child may import its engine before its turn; of another environment whatever breaks costs one row."""
    return OPTION not in engine.options


def count_at_once(machine: Machine) -> int:
    """How many children may have imported at a time: what fits into half of the memory."""
    return int(max(1, min(MOST_AT_ONCE, find_memory(machine) // (2 * BYTES_OF_ONE))))


def find_memory(machine: Machine) -> int:
    """What is free, or the limit of a container, which the system's own figure does not show."""
    free = psutil.virtual_memory().available
    return min(free, machine.memory_limit_bytes or free)


def split_runs(rows: Sequence[PlannedRow], machine: Machine) -> list[list[PlannedRow]]:
    """The rows, run by run: those of one run may be built at the same time.

    An engine whose builder times kernels to choose among them chooses alone, and after all others, so that none of
    them holds memory that its choice depends on. The others keep their order; each needs room in memory for itself and
    its model.
    """
    rooms = {"cpu": find_memory(machine), **{f"cuda:{gpu.index}": gpu.memory_bytes for gpu in machine.gpus}}

    def fit(rows: Sequence[PlannedRow]) -> bool:
        return all(
            sum(_count_bytes(r.source) for r in rows if place in ("cpu", r.engine.device)) <= SHARE_OF_MEMORY * room
            for place, room in rooms.items()
        )

    runs: list[list[PlannedRow]] = []
    for row in rows:
        if tunes(row.engine):
            continue
        if runs and fit([*runs[-1], row]):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs + [[row] for row in rows if tunes(row.engine)]


def tunes(engine: EngineSpec) -> bool:
    """Whether its builder times kernels. What compiles for a GPU and for a CPU does so for the CPU only if told to."""
    told = any(value.startswith("max-autotune") for value in engine.options.values())
    return find_entry(engine.backend).tunes and (engine.device != "cpu" or told)


def builds_slowly(engine: EngineSpec) -> bool:
    """Whether a build may take minutes: it compiles code, or times kernels."""
    return find_entry(engine.backend).tunes


def count_workers(machine: Machine) -> int:
    """How many work at a time: one a CPU, since most of a build is the work of one thread, and the others sleep."""
    return max(1, int(min(len(machine.cpus_allowed), machine.cpu_quota_cores or len(machine.cpus_allowed))))


def count_at_a_time(source: Artifact, machine: Machine) -> int:
    """How many graphs may be made of a source at a time: as many as work, and as memory holds."""
    return max(1, min(count_workers(machine), int(SHARE_OF_MEMORY * find_memory(machine)) // _count_bytes(source)))


def _count_bytes(source: Artifact | None) -> int:
    return BYTES_OF_ONE + COPIES * sum(file.size_bytes for file in (source.files if source is not None else ()))


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


def describe_build(answer: PrepareResponse, first: Path, outputs: Path) -> Build:
    """One build, with how far its answers lie from those of the first."""
    return Build(
        artifact=answer.artifact,
        build_s=answer.build_s,
        size_bytes=answer.size_bytes,
        fingerprint=answer.fingerprint,
        max_abs_diff=measure_build_difference(first, outputs),
    )


def measure_build_difference(first: Path, outputs: Path) -> float | None:
    """Largest difference of two builds' outputs for the check inputs; None where one has none."""
    if not (first.exists() and outputs.exists()):
        return None
    try:
        drift = measure_drift(*cut_common(load_outputs(first)[0], load_outputs(outputs)[0]), {})
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
