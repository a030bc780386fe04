"""Imports ahead of a measurement: children that will take turns load their runtimes side by side before.

Importing PyTorch takes seconds, several times what a row is timed for. A child that has imported waits for its job
without using a CPU, a GPU or more than its own memory, so whoever is timed meanwhile is as alone as before.
"""

from contextlib import suppress
from importlib import import_module

import psutil

from enginebench.core.records import EngineSpec, Machine
from enginebench.engines.abilities import ImportsLate
from enginebench.runs.child.jobs import PreloadJob
from enginebench.runs.child.places import OPTION

# What a measurement imports on its way, whatever the engine.
_MEASURE = ("loop", "machine", "nvml", "pin", "reference", "rotation", "watch")
MODULES = (
    *("enginebench.runs.child.perform.build", *(f"enginebench.measure.{name}" for name in _MEASURE)),
    *("enginebench.models.task", "enginebench.runs.child.perform.measure", "enginebench.runs.child.watching"),
)
# All wait for the slowest, torch.compile's, whose import keeps one CPU busy: the fewer groups the better.
MOST_AT_ONCE = 16
# A process that has imported PyTorch and its compiler holds about half of this.
BYTES_OF_ONE = 1 << 30


def preload(job: PreloadJob) -> None:
    """Imports what the job will need. What fails here fails again when the job is done, and is told then."""
    from enginebench.measure.pin import pin_process
    from enginebench.runs.child.opening import open_for

    if job.pin:
        pin_process(job.engine.threads)
    for module in (*MODULES, *(["enginebench.models.torch.source"] if job.kind == "torch" else [])):
        with suppress(Exception):
            import_module(module)
    with suppress(Exception):
        backend = open_for(job.engine, job.out_dir)
        if isinstance(backend, ImportsLate):
            backend.import_ahead()


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
