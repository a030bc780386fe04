"""What can run here: every engine of the contract, each asked in a process of its own. Never fails."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import ENGINES
from enginebench.core.records import Availability, Machine
from enginebench.measure.machine import describe_machine
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import ProbeAnswer, ProbeJob

# Importing the slowest runtime took 3 s; ten times that is a hang.
PROBE_TIMEOUT_S = 60.0


class DoctorDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `doctor`."""

    schema: str = "enginebench.doctor/1"
    machine: Machine
    engines: tuple[Availability, ...]


def examine(on_engine: Callable[[str], None] = lambda name: None) -> DoctorDocument:
    """The machine and every engine; what breaks is part of the answer."""
    answers = []
    for name in ENGINES:
        on_engine(name)
        answers.append(probe_apart(name))
    return DoctorDocument(machine=describe_machine(), engines=tuple(answers))


def probe_apart(name: str) -> Availability:
    """Whether one engine works here; a runtime that kills its process when imported does not."""
    try:
        answer = run_child(ProbeJob(engine=name), timeout_s=PROBE_TIMEOUT_S)
    except EngineBenchError as error:
        return Availability(engine=name, available=False, reason=f"its runtime cannot be imported: {error}")
    assert isinstance(answer, ProbeAnswer)
    return answer.availability
