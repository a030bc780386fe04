"""Explain why TensorRT's tool and its Python API differ on one plan."""

from collections.abc import Iterator, Sequence

from enginebench.core.records import Result, ResultWarning
from enginebench.core.warnings import make_warning

# Switches of both TensorRT engines: what they are called, and how they are set by default.
SWITCHES = {"graph": ("CUDA graph", "1"), "spin": ("spin-wait", "1"), "profile_index": ("optimization profile", "0")}


def explain_difference(results: Sequence[Result], /) -> Iterator[ResultWarning]:
    """Yield the reasons why two configurations of one plan differ; none unless both TensorRT engines ran the same plan.

    First come switches that the user can set alike, last the differences of the clocks, which remain.
    """
    by_engine = {r.engine.backend: r for r in results}
    tool, ours = by_engine.get("trtexec"), by_engine.get("tensorrt")
    if tool is None or ours is None:
        return
    if len({r.artifacts[-1].sha256 for r in (tool, ours) if r.artifacts}) > 1:
        alike = "one plan, given as TARGET to both: `bench F.plan --engine tensorrt --against trtexec`"
        yield _make_difference("the plan", "one build", "another, with tactics of its own,", alike)
        return
    for option, (what, default) in SWITCHES.items():
        theirs, mine = (r.engine.options.get(option, default) for r in (tool, ours))
        if theirs != mine:
            alike = f"with trtexec:{option}={mine}, or tensorrt:{option}={theirs}"
            yield _make_difference(what, theirs, mine, alike)
    if (streams := tool.engine.options.get("streams", "1")) != "1":
        yield _make_difference(
            "the number of streams, whose latencies overlap,", streams, "1", "with trtexec:streams=1"
        )
    yield _make_difference(
        "the clock",
        "the device's, while the next query is enqueued,",
        "the host's, which waits for every run,",
        "device times; host times include launch and wait",
    )
    if tool.measure.scope == "io":
        yield _make_difference(
            "scope io",
            "the sum of copy, computation and copy",
            "that and the copies between your arrays and pinned memory",
            "with --scope compute",
        )


def _make_difference(what: str, theirs: str, mine: str, alike: str) -> ResultWarning:
    return make_warning("environment.tools", what=what, theirs=theirs, mine=mine, alike=alike)
