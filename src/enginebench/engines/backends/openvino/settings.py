"""Settings and counters of OpenVINO's CPU plugin, in its own package or inside of ONNX Runtime."""

from collections.abc import Sequence

from enginebench.core.precisions import REORDER, UNKNOWN
from enginebench.core.text import count_of
from enginebench.engines.proof import Operator

# Nodes that bring values from one type or layout to another.
CONVERSIONS = ("Reorder", "Convert", "FakeQuantize")
# Nodes that run graphs of their own, whose nodes have no counters. Their type is that of their first input: an `If` of
# FP32 work ends in "I8", after its condition, a `Loop` in "i32", after its count.
CONTAINERS = ("If", "Loop", "TensorIterator")
# What a node may have taken beyond the time that is read out of its counters: see `note_clock`.
CUT_NS = 3e3
# How an `exec_type` begins where the plugin does not know which implementation ran.
NO_IMPLEMENTATION = "unknown"


def find_node_dtype(node_type: str, exec_type: str) -> str:
    """The element type in which a node computes; "unknown" where only its own graph's nodes could tell."""
    if node_type in CONVERSIONS:
        return REORDER
    implementation, _, dtype = exec_type.rpartition("_")
    return UNKNOWN if node_type in CONTAINERS or implementation in ("", NO_IMPLEMENTATION) else dtype


def choose_calm_window(runs: Sequence[Sequence[Operator]]) -> tuple[list[Operator], int]:
    """Return (the nodes with their mean times over the calmest half of the runs but the first; that number of runs).

    The first run prepares weights and memory, and an interruption may be longer than all the rest. The counter drops a
    node whose mean falls below a microsecond, although it ran.

    Args:
        runs: the counters after each run, each the mean over all runs so far, in whole microseconds.

    Source: `Graph::GetPerfData` of OpenVINO's CPU plugin, 2026.4, which gives the average of a node's counter, and
        calls a node executed if that is above zero.
    """
    length = max(1, (len(runs) - 1) // 2)
    if len(runs) < 2:
        return list(runs[0]), length
    sums = [{(o.name, o.kind): count * o.time_ns for o in run} for count, run in enumerate(runs, start=1)]
    totals = [sum(after.values()) for after in sums]
    start = min(range(len(runs) - length), key=lambda i: totals[i + length] - totals[i])
    before, after = sums[start], sums[start + length]
    nodes = {(o.name, o.kind): o for run in (*runs, runs[start + length]) for o in run}
    times = {key: max(0.0, after.get(key, 0.0) - before.get(key, 0.0)) / length for key in nodes}
    return [node._replace(time_ns=times[key]) for key, node in nodes.items()], length


def choose_longest(runs: Sequence[Sequence[Operator]]) -> list[Operator]:
    """Return the nodes with their longest reported means, to show which ran where the times of all are too short.

    The first run, which prepares, is included: these are fractions, not times of one run.
    """
    longest: dict[tuple[str, str], Operator] = {}
    for node in (node for run in runs for node in run):
        key = node.name, node.kind
        longest[key] = max(longest.get(key, node), node, key=lambda one: one.time_ns)
    return list(longest.values())


def note_clock(nodes: Sequence[Operator]) -> tuple[str, ...]:
    """A note where nodes are so short that the counters' whole microseconds are much of their times.

    Each run is cut to whole microseconds, and so are the two averages whose difference a time is, the later of them
    over twice as many runs as lie between them: up to one and two microseconds.
    """
    low_us = CUT_NS / 1e3
    short = sum(node.time_ns < 10 * CUT_NS for node in nodes)
    if not short:
        return ()
    return (
        f"{count_of(short, 'layers')} under {10 * low_us:g} us: times are cut to whole us, up to {low_us:g} us low",
    )
