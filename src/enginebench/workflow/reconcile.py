"""Why the same plan has one time through trtexec and another through the Python API: the switches that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from enginebench.core.records import Caveat, EngineSpec, MeasureSpec, Result

TENSORRT_ENGINES = ("trtexec", "tensorrt")


def explain_difference(results: Sequence[Result]) -> list[Caveat]:
    """What makes the two rows of one plan differ; empty unless both TensorRT engines ran the same plan.

    The first items are switches that the user can match, the last are properties of the clocks that stay.
    """
    pair = {r.engine.backend: r for r in results if r.engine.backend in TENSORRT_ENGINES}
    if len(pair) < 2:
        return []
    tool, ours = pair["trtexec"], pair["tensorrt"]
    plans = {r.artifacts[-1].sha256 for r in (tool, ours) if r.artifacts}
    if len(plans) > 1:
        return [
            Caveat(
                code="environment",
                message="trtexec and tensorrt ran different plans: each built its own, and tactics differ by build",
                advice="build one plan and give it as TARGET to both: bench F.plan --engine tensorrt --against trtexec",
            )
        ]
    return [*compare_switches(tool, ours), *compare_clocks(tool.measure)]


def compare_switches(tool: Result, ours: Result) -> Iterator[Caveat]:
    """One item for each switch that is set otherwise on the two sides."""
    for option, default, what in (
        ("graph", "1", "CUDA graph"),
        ("spin", "1", "spin-wait"),
        ("profile_index", "0", "optimization profile"),
    ):
        theirs, mine = (read_option(r.engine, option, default) for r in (tool, ours))
        if theirs != mine:
            yield Caveat(
                code="environment",
                message=f"{what} is {theirs} in trtexec and {mine} in tensorrt",
                advice=f"give both the same: trtexec:{option}={mine}, or tensorrt:{option}={theirs}",
            )
    if read_option(tool.engine, "streams", "1") != "1":
        yield Caveat(
            code="environment",
            message="trtexec ran several streams, whose latencies overlap; tensorrt runs one",
            advice="compare with trtexec:streams=1",
        )


def compare_clocks(measure: MeasureSpec) -> Iterator[Caveat]:
    """What stays when every switch is matched."""
    yield Caveat(
        code="environment",
        message="trtexec enqueues the next query while one runs and reads the device's clock; tensorrt waits for every "
        "run and reads the host's clock",
        advice="compare the device times of both rows; the host row holds launch and wait as well",
    )
    if measure.scope == "io":
        yield Caveat(
            code="environment",
            message="scope io: trtexec adds up copy, computation and copy; tensorrt also copies between your arrays "
            "and pinned memory",
            advice="compare with --scope compute",
        )


def read_option(engine: EngineSpec, key: str, default: str) -> str:
    """The value of an option as it took effect."""
    return engine.options.get(key, default)
