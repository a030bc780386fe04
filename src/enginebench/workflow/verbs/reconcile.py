"""Why the same plan takes another time with trtexec than with the Python API: the switches that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from enginebench.core.caveats import make_caveat
from enginebench.core.records import Caveat, EngineSpec, MeasureSpec, Result


def explain_difference(results: Sequence[Result]) -> list[Caveat]:
    """Why two rows of one plan differ; empty unless both TensorRT engines ran the same plan.

    The first items are switches that the user can match, the last are differences of the clocks that remain.
    """
    by_engine = {r.engine.backend: r for r in results}
    tool, ours = by_engine.get("trtexec"), by_engine.get("tensorrt")
    if tool is None or ours is None:
        return []
    plans = {r.artifacts[-1].sha256 for r in (tool, ours) if r.artifacts}
    if len(plans) > 1:
        return [make_caveat("environment.plans")]
    return [*compare_switches(tool, ours), *compare_clocks(tool.measure)]


def compare_switches(tool: Result, ours: Result) -> Iterator[Caveat]:
    """One item for each switch that is set differently on the two sides."""
    for option, default, what in (
        ("graph", "1", "CUDA graph"),
        ("spin", "1", "spin-wait"),
        ("profile_index", "0", "optimization profile"),
    ):
        theirs, mine = (read_option(r.engine, option, default) for r in (tool, ours))
        if theirs != mine:
            yield make_caveat("environment.switch", what=what, option=option, theirs=theirs, mine=mine)
    if read_option(tool.engine, "streams", "1") != "1":
        yield make_caveat("environment.streams")


def compare_clocks(measure: MeasureSpec) -> Iterator[Caveat]:
    """What stays when every switch is matched."""
    yield make_caveat("environment.clocks")
    if measure.scope == "io":
        yield make_caveat("environment.copies")


def read_option(engine: EngineSpec, key: str, default: str) -> str:
    """The value of an option that took effect."""
    return engine.options.get(key, default)
