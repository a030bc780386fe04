"""Find where 8 bits pay: divide a graph into regions at natural cuts, and time each with and without its Q/DQ pairs.

The pairs are those that a recipe made. Both graphs of a comparison run interleaved in one process, so that whatever
slows the machine slows both; regions are tried within the fastest graph so far, so that conversions at their ends
count. On a CPU they run on one thread and are compared by its CPU time: threads of the waiting graph would spin beside
the other's, and other programs take none of it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import onnx
from msgspec.structs import replace
from onnx import ModelProto

from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.limits import MARGIN
from enginebench.core.names import parse_precision
from enginebench.core.protocols import Engine, Loadable
from enginebench.features.tune.jobs import NodeGroup, Region, RegionsJob, RegionsResponse, RegionTime
from enginebench.features.tune.sensitivity import find_groups, quantize_only
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.graph import load_whole_graph, prepare_graph
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import build_graph, open_for
from enginebench.stats.intervals import Spread, estimate_geometric, measure_spread

# Regions at most: each costs a comparison, and what is smaller than a twentieth of a graph cannot be seen in its time.
MOST_REGIONS = 20
# Turns of a comparison, at least and at most, and the seconds in which it takes more than the least: an interval of
# eight has 1.2 times the width of one of twenty.
LEAST_TURNS = 8
MOST_TURNS = 24
COMPARISON_S = 1.5
# Of each turn: long against the clock, and against a wake-up of the engine's threads.
TURN_S = 0.02
LEVEL = 0.95


def find_regions(prepared: ModelProto, groups: Sequence[NodeGroup], most: int = MOST_REGIONS) -> tuple[Region, ...]:
    """Join groups of nodes to regions in the order of the graph: cut where a single tensor passes, as often as
    possible; neighbours with the least multiply-accumulates are joined until no more than `most` are left."""
    crossing = count_crossing(prepared)
    order = {node.name: i for i, node in enumerate(prepared.graph.node)}
    parts: list[list[NodeGroup]] = []
    for group in sorted(groups, key=lambda one: order[one.nodes[0]]):
        # The cut lies before the group's first node.
        if parts and crossing[order[group.nodes[0]]] > 1:
            parts[-1].append(group)
        else:
            parts.append([group])
    while len(parts) < most and (cut := find_widest(parts, crossing, order)) is not None:
        smallest, at = cut
        parts[smallest : smallest + 1] = [parts[smallest][:at], parts[smallest][at:]]
    while len(parts) > most:
        sizes = [sum(group.macs for group in (*first, *second)) for first, second in pairwise(parts)]
        smallest = sizes.index(min(sizes))
        parts[smallest : smallest + 2] = [parts[smallest] + parts[smallest + 1]]
    return tuple(
        Region(
            name=part[0].name,
            nodes=tuple(name for group in part for name in group.nodes),
            originals=tuple(name for group in part for name in group.originals),
            macs=sum(group.macs for group in part),
        )
        for part in parts
    )


def find_widest(
    parts: Sequence[Sequence[NodeGroup]], crossing: Sequence[int], order: Mapping[str, int]
) -> tuple[int, int] | None:
    """Return (the part with the most multiply-accumulates that can be cut, the position where fewest tensors pass)."""
    long = [i for i, part in enumerate(parts) if len(part) > 1]
    if not long:
        return None
    widest = max(long, key=lambda i: sum(group.macs for group in parts[i]))
    part, half = parts[widest], sum(group.macs for group in parts[widest]) / 2
    before = [sum(group.macs for group in part[:at]) for at in range(1, len(part))]
    at = min(range(1, len(part)), key=lambda i: (crossing[order[part[i].nodes[0]]], abs(before[i - 1] - half)))
    return widest, at


def count_crossing(model: ModelProto) -> list[int]:
    """Count, for each node, the computed tensors that were made before it and are read by it or after it."""
    last = {name: i for i, node in enumerate(model.graph.node) for name in node.input if name}
    constants = {tensor.name for tensor in model.graph.initializer}
    last |= {value.name: len(model.graph.node) for value in model.graph.output}
    live = {value.name for value in model.graph.input if value.name in last and value.name not in constants}
    counts = []
    for i, node in enumerate(model.graph.node):
        live = {name for name in live if last[name] >= i}
        counts.append(len(live))
        live |= {name for name in node.output if name in last and node.op_type != "Constant"}
    return counts


class RegionTimer:
    """Compares graphs of one model by time, on one engine: those with the pairs of some regions."""

    def __init__(self, job: RegionsJob, note: NoteCall) -> None:
        self._job, self._note = job, note
        exported = load_whole_graph(Path(job.artifact.path))
        self._prepared = prepare_graph(exported, job.artifact.operator_libraries, job.artifact.inputs)
        self._quantized = load_whole_graph(Path(job.quantized.path))
        self.regions = find_regions(self._prepared, find_groups(exported, self._prepared, self._quantized))
        self._backend = open_for(job.engine, job.out_dir)
        if not isinstance(self._backend, Loadable):
            raise UsageError(f"{job.engine.backend} times itself, so that regions cannot be compared in one process")
        self._engines: dict[frozenset[int], Engine] = {}
        on_cpu = job.engine.device == "cpu"
        self._engine = replace(job.engine, threads=1) if on_cpu else job.engine
        self._clock = time.process_time_ns if on_cpu else time.perf_counter_ns

    def compare(self, first: frozenset[int], second: frozenset[int]) -> Spread:
        """Return the log of how much faster the second graph is; each is named by the indices of its regions in 8
        bits."""
        engines = [self._open(first), self._open(second)]
        calls = [self._count_calls(engine) for engine in engines]
        logs: list[float] = []
        start_s = time.monotonic()
        while len(logs) < LEAST_TURNS or (len(logs) < MOST_TURNS and time.monotonic() - start_s < COMPARISON_S):
            order = (0, 1) if len(logs) % 2 else (1, 0)
            took = {i: time_calls(engines[i], calls[i], self._clock) for i in order}
            logs.append(math.log(took[0] / took[1]))
        return measure_spread(logs)

    def keep_only(self, wanted: Iterable[frozenset[int]]) -> None:
        """Close all engines but these."""
        kept = set(wanted)
        for key in [key for key in self._engines if key not in kept]:
            self._engines.pop(key).close()

    def _count_calls(self, engine: Engine) -> int:
        engine.run()
        return max(1, round(TURN_S / time_calls(engine, 3, self._clock)))

    def _open(self, inside: frozenset[int]) -> Engine:
        if inside not in self._engines:
            self._engines[inside] = self._load(inside)
        return self._engines[inside]

    def _load(self, inside: frozenset[int]) -> Engine:
        job, spec = self._job, self._engine
        nodes = [name for i in sorted(inside) for name in self.regions[i].nodes]
        path = Path(job.out_dir) / f"regions-{len(self._engines)}-{abs(hash(inside))}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(quantize_only(self._prepared, self._quantized, nodes), path)
        precision = "int8" if inside else "fp32"
        source = replace(read_onnx(path), precision=precision, inputs=job.artifact.inputs)
        if not inside:  # floats alone are a precision of their own
            options = {name: value for name, value in spec.options.items() if name != "floats"}
            floats = parse_precision(spec.options.get("floats", "fp32"))[0]
            spec = replace(spec, precision=floats, recipe=None, options=options)
        try:
            built = build_graph(self._backend, source, spec, job.out_dir, self._note)
            assert isinstance(self._backend, Loadable)
            engine = self._backend.load(built, spec)
        finally:
            path.unlink(missing_ok=True)
        engine.bind(random_feeds(engine.inputs, spec.batch, seed=job.seed))
        return engine


def time_calls(engine: Engine, count: int, clock: Callable[[], int]) -> float:
    """Return the seconds of a call, on average, by a clock in nanoseconds."""
    run, start_ns = engine.run, clock()
    for _ in range(count):
        run()
    return (clock() - start_ns) / count / 1e9


def choose_regions(job: RegionsJob, note: NoteCall) -> RegionsResponse:
    """Choose the regions that stay in 8 bits.

    It starts from 8 bits throughout or none, whichever is faster; then halves, quarters, ... down to single regions are
    switched, each kept if the interval shows that it gains 2% of its part of the work.
    """
    start_s = time.monotonic()
    timer = RegionTimer(job, note)
    everything, nothing = frozenset(range(len(timer.regions))), frozenset[int]()
    total = sum(region.macs for region in timer.regions) or 1
    throughout = timer.compare(nothing, everything)
    best = begin = everything if throughout.mean > 0 else nothing
    comparisons: list[RegionTime] = []
    for span in list_spans(len(timer.regions)):
        if time.monotonic() - start_s > job.time_limit_s:
            note(f"time ran out after {len(comparisons)} comparisons of regions")
            break
        inside = best.intersection(span)
        if inside and len(inside) < len(span):
            continue  # its parts were decided by now
        other = best - inside if inside else best | frozenset(span)
        try:
            gain = timer.compare(best, other)
        except EngineBenchError as error:
            note(f"regions {span[0] + 1} to {span[-1] + 1}: {error}")
            continue
        part = sum(timer.regions[i].macs for i in span) / total
        bounds = gain.interval(LEVEL)
        kept = bounds is not None and bounds[0] > math.log1p(MARGIN * part)
        spread = gain if not inside else replace(gain, mean=-gain.mean)
        method = f"{gain.n} turns in one process, Student t over ln(without / with 8 bits)"
        comparisons.append(
            RegionTime(
                first=span[0], last=span[-1], speedup=estimate_geometric(spread, LEVEL, 1.0, method), changed=kept
            )
        )
        note(f"regions {span[0] + 1} to {span[-1] + 1} of {len(timer.regions)}: {math.exp(gain.mean):.3f}x")
        best = other if kept else best
        timer.keep_only((best, begin))
    final = timer.compare(begin, best) if best != begin else None
    timer.keep_only(())
    method = "turns in one process, Student t over their logs"
    return RegionsResponse(
        regions=timer.regions,
        inside=tuple(sorted(best)),
        comparisons=tuple(comparisons),
        throughout=estimate_geometric(throughout, LEVEL, 1.0, method),
        gain=estimate_geometric(final, LEVEL, 1.0, method) if final else None,
        seconds=time.monotonic() - start_s,
    )


def list_spans(count: int) -> Iterator[tuple[int, ...]]:
    """Yield runs of neighbours: halves, then quarters, and so on down to single ones."""
    spans = [tuple(range(count))]
    while spans := [
        half for span in spans for half in (span[: len(span) // 2], span[len(span) // 2 :]) if len(span) > 1
    ]:
        yield from spans
