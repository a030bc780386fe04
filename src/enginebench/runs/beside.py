"""Which rows may be built and checked beside each other: nothing is timed then, but much is chosen and filled."""

from collections.abc import Sequence

from enginebench.core.records import Artifact, EngineSpec, Machine
from enginebench.engines.registry import find_entry
from enginebench.runs.child.preload import BYTES_OF_ONE, find_memory
from enginebench.runs.plan import PlannedRow

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
    rooms = {"cpu": find_memory(machine), **{f"cuda:{gpu.index}": gpu.memory_bytes for gpu in machine.gpus}}
    return all(
        sum(_count_bytes(row.source) for row in rows if place in ("cpu", row.engine.device)) <= SHARE_OF_MEMORY * room
        for place, room in rooms.items()
    )


def count_workers(machine: Machine) -> int:
    """How many work at a time: one a CPU, since most of a build is the work of one thread, and the others sleep."""
    return max(1, int(min(len(machine.cpus_allowed), machine.cpu_quota_cores or len(machine.cpus_allowed))))


def count_room(source: Artifact, machine: Machine) -> int:
    """How many graphs may be made of a source at a time: as many as work, and as memory holds."""
    return max(1, min(count_workers(machine), int(SHARE_OF_MEMORY * find_memory(machine)) // _count_bytes(source)))


def _count_bytes(source: Artifact | None) -> int:
    return BYTES_OF_ONE + COPIES * sum(file.size_bytes for file in (source.files if source is not None else ()))
