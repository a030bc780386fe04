"""Which rows may be built and checked beside each other: nothing is timed then, but much is chosen and filled."""

from __future__ import annotations

from collections.abc import Sequence

import psutil

from enginebench.core.records import EngineSpec, Gpu, Machine
from enginebench.engines.registry import find_entry
from enginebench.runs.plan import PlannedRow

# A process that has imported PyTorch and its compiler holds about half of this, on the host and on a GPU.
BYTES_OF_ONE = 1 << 30
# A model lies in memory as its file, its graph, what the engine makes of it, and what flows through it.
COPIES = 4
# What is left to others, and to what was guessed too low.
SHARE_OF_MEMORY = 0.5


def split_runs(rows: Sequence[PlannedRow], machine: Machine) -> list[list[PlannedRow]]:
    """The rows, run by run: those of one run may be built at the same time.

    An engine whose builder times kernels to choose among them chooses alone, and after all others, so that none of
    them holds memory that its choice depends on. The others keep their order; each needs room in memory for itself and
    its model.
    """
    beside = [row for row in rows if not tunes(row.engine)]
    alone = [row for row in rows if tunes(row.engine)]
    runs: list[list[PlannedRow]] = []
    for row in beside:
        if runs and fits([*runs[-1], row], machine):
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs + [[row] for row in alone]


def tunes(engine: EngineSpec) -> bool:
    """Whether its builder times kernels. What compiles for a GPU and for a CPU does so for the CPU only if told to."""
    told = any(value.startswith("max-autotune") for value in engine.options.values())
    return find_entry(engine.backend).tunes and (engine.device != "cpu" or told)


def fits(rows: Sequence[PlannedRow], machine: Machine) -> bool:
    """Whether memory is enough for all of them at a time."""
    free = psutil.virtual_memory().available
    memory = min(free, machine.memory_limit_bytes or free)
    if sum(map(_count_bytes, rows)) > SHARE_OF_MEMORY * memory:
        return False
    return all(
        sum(_count_bytes(row) for row in rows if row.engine.device == f"cuda:{gpu.index}") <= _find_room(gpu)
        for gpu in machine.gpus
    )


def count_workers(machine: Machine) -> int:
    """How many of a run work at a time: one a CPU, of those that a container may use.

    Most of a build is the work of one thread, and the threads of a child that is not timed wait asleep.
    """
    return max(1, int(min(len(machine.cpus_allowed), machine.cpu_quota_cores or len(machine.cpus_allowed))))


def _count_bytes(row: PlannedRow) -> int:
    files = row.source.files if row.source is not None else ()
    return BYTES_OF_ONE + COPIES * sum(file.size_bytes for file in files)


def _find_room(gpu: Gpu) -> float:
    return SHARE_OF_MEMORY * gpu.memory_bytes
