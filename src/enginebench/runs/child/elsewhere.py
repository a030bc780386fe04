"""What runs in another environment, found out in a child there."""

from functools import cache

from enginebench.core.errors import EngineBenchError
from enginebench.core.records import Availability, EngineSpec
from enginebench.engines.registry import find_entry, find_installed
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import ProbeJob
from enginebench.runs.child.places import OPTION, describe_place

# Importing the slowest runtimes one after the other took 10 s; ten times that is a hang.
PROBE_TIMEOUT_S = 100.0


def find_available(engine: EngineSpec) -> Availability:
    """Whether an engine can run where it is to run: here, judged without importing its runtime, or elsewhere."""
    return probe_elsewhere(engine) if OPTION in engine.options else find_installed(engine.backend)


def probe_elsewhere(engine: EngineSpec) -> Availability:
    return _probe(engine.backend, engine.options[OPTION])


@cache
def _probe(name: str, environment: str) -> Availability:
    try:
        place = describe_place(environment)
        answer = run_child(ProbeJob(engine=name), timeout_s=PROBE_TIMEOUT_S, place=place)
    except EngineBenchError as error:
        return Availability(engine=name, available=False, reason=str(error))
    if answer.available:
        return answer
    packages = find_entry(name).distributions[:1]
    fix = f"python -m pip --python {place.python} install {packages[0]}" if packages else None
    return Availability(engine=name, available=False, reason=f"environment {environment}: {answer.reason}", fix=fix)
