"""What can run here: every engine, ours or a plug-in's, each asked in a process of its own. Never fails."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import find_package, list_names, list_refused
from enginebench.core.errors import EngineBenchError
from enginebench.core.records import Availability, EngineSpec, Machine
from enginebench.core.store import encode
from enginebench.measure.machine import describe_machine
from enginebench.workflow.child.elsewhere import PROBE_TIMEOUT_S, probe_elsewhere
from enginebench.workflow.child.isolate import run_child
from enginebench.workflow.child.jobs import ProbeJob
from enginebench.workflow.child.places import OPTION, describe_place, list_versions
from enginebench.workflow.fleet.ray_fleet import ask_nodes

# Every engine of a node is asked in a process of its own, one after the other, on all nodes at once.
FLEET_TIMEOUT_S = 600.0


class DoctorDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `doctor`."""

    schema: str = "enginebench.doctor/1"
    machine: Machine
    engines: tuple[Availability, ...]


def examine(on_engine: Callable[[str], None] = lambda name: None, environment: str | None = None) -> DoctorDocument:
    """The machine and every engine; a broken engine is part of the answer.

    Args:
        on_engine: called with the name of each before it is asked.
        environment: the name of another one, which is asked in place of this one.

    Raises:
        UsageError: no environment has this name.
        DependencyError: it has no working python, or lacks what every child needs.
    """
    place = describe_place(environment) if environment else None
    answers = []
    for name in list_names():
        on_engine(name)
        elsewhere = EngineSpec(backend=name, options={OPTION: environment}) if environment else None
        answers.append(probe_elsewhere(elsewhere) if elsewhere else probe_apart(name))
    machine = describe_machine()
    if place is not None:
        return DoctorDocument(machine=replace(machine, versions=list_versions(place)), engines=tuple(answers))
    return DoctorDocument(machine=machine, engines=(*answers, *list_refused()))


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """One node of a cluster: its own document, or why there is none."""

    node: str
    document: DoctorDocument | None
    reason: str = ""


class FleetDoctorDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `doctor --on`."""

    schema: str = "enginebench.doctor-fleet/1"
    nodes: tuple[NodeAnswer, ...]


def examine_here(_: bytes) -> bytes:
    """The JSON of this machine's document, for who asks from elsewhere."""
    return encode(examine())


def examine_fleet(address: str) -> FleetDoctorDocument:
    """What every node of a Ray cluster answers.

    Raises:
        MissingDependency: Ray is not installed here.
        BackendUnavailable: no cluster answers at this address.
    """
    return FleetDoctorDocument(
        nodes=tuple(
            read_answer(name, told) for name, told in ask_nodes(address, examine_here, timeout_s=FLEET_TIMEOUT_S)
        )
    )


def read_answer(name: str, told: bytes | str) -> NodeAnswer:
    """What a node says of itself; the reason in words where that is no document."""
    if isinstance(told, str):
        return NodeAnswer(node=name, document=None, reason=told)
    try:
        return NodeAnswer(node=name, document=msgspec.json.decode(told, type=DoctorDocument))
    except msgspec.DecodeError as error:
        return NodeAnswer(node=name, document=None, reason=f"its answer cannot be read: {error}")


def probe_apart(name: str) -> Availability:
    """Whether an engine works here, asked in a process of its own: a broken runtime may kill its process."""
    try:
        answer = run_child(ProbeJob(engine=name), timeout_s=PROBE_TIMEOUT_S)
    except EngineBenchError as error:
        reason = f"its runtime cannot be imported: {error}"
        return Availability(engine=name, available=False, reason=reason, package=find_package(name))
    return answer.availability
