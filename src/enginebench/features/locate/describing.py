"""The record of a search: of a fault, and of the steps and outputs that the search leaves out."""

import time
from collections.abc import Callable

from enginebench.features.locate.nonfinite import explain_beginning
from enginebench.features.locate.search import Fault, Search
from enginebench.report.located import FoundFault, LocatedSide
from enginebench.stats.drift import FULL

LONGER = "An engine may keep a longer format than FP16 between nodes, in which less overflows."


def describe_fault(search: Search, fault: Fault) -> FoundFault:
    steps = search.program.steps
    tensor, deviation = min(fault.deviations.items(), key=lambda item: item[1].snr_db or 0.0)
    step = steps[search.producers[tensor]]
    return FoundFault(
        node=step.name,
        kind=step.kind,
        tensor=tensor,
        nodes=tuple(steps[i].name for i in fault.indices),
        hidden_by=fault.hidden_by,
        untried=fault.untried,
        snr_db=deviation.snr_db,
        largest=deviation.largest,
        nonfinite=deviation.nonfinite,
        tamed=deviation.tamed,
        overflowed=_explain_tamed(search, tensor) if deviation.tamed else "",
    )


def _explain_tamed(search: Search, tensor: str) -> str:
    """Explain where the values begin that are not finite in the reference, and others in the engine."""
    begins = explain_beginning(search.program, [tensor])
    return begins if search.precision in FULL else f"{begins} {LONGER}"


def make_located_side(search: Search, text: str) -> LocatedSide:
    """Return what is said of every search of this model: the steps and the outputs that it leaves out."""
    program = search.program
    made = [name for name in program.outputs if name in search.producers]
    return LocatedSide(
        text=text,
        state="unknown",
        drawn=tuple(program.steps[i].name for i in sorted(program.drawing)),
        uncompared=tuple(name for name in made if name not in program.values),
    )


def start_timer(limit_s: float) -> Callable[[], bool]:
    """Return a function that tells whether less than this time has gone by."""
    start = time.monotonic()
    return lambda: time.monotonic() - start < limit_s
