"""The least time of configurations and layers: the work of their graph at the peaks of their machine.

The bound of a fused group of nodes is the longer one of its multiply-accumulates at the best rate and its compulsory
bytes at the best bandwidth, plus the cost of launching it. Compulsory bytes are the group's inputs, weights and
outputs, each counted once: values that stay inside the group need never reach memory. Source: Williams, Waterman,
Patterson, "Roofline: an insightful visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, EngineBenchError
from enginebench.core.peaks import LEVELS, Peak, PeakKind, Peaks
from enginebench.core.records import Artifact, Bound, BoundBy, EngineSpec, LayerTime, Result
from enginebench.core.store import encode, open_temporary, write_atomic
from enginebench.core.text import count_of
from enginebench.features.roofline.jobs import GraphWork, NodeWork, Unit, WorkJob
from enginebench.features.roofline.joining import JoinedLayer, Joining, join_layers
from enginebench.features.roofline.stored_peaks import FILE, find_peaks
from enginebench.measure.machine import describe_machine
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.sources import make_sources
from enginebench.stats.engine_profile import LimitedLayers

# Bytes of a value in each precision: an engine may keep tensors in the one in which it computes.
WIDTHS = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0}


class Limits(Struct, frozen=True, kw_only=True):
    rates: dict[Unit, dict[str, float]]  # GMAC/s by precision
    levels: tuple[tuple[float | None, float], ...]  # (capacity in bytes, GB/s), innermost first; None: memory
    launch_ms: float = 0.0  # of each kernel; 0 where nothing is launched
    call_ms: float = 0.0  # of a call of the whole model

    def find_rate(self, unit: Unit, precision: str | None) -> float | None:
        """Return the peak rate in GMAC/s; the highest of all if the precision is unknown or has no peak.

        A convolution may run at the rate of a product, but not the reverse: Winograd's and similar algorithms need
        fewer multiplications for a 3x3 convolution than are counted, so that the rate of convolutions is too high.
        """
        units: tuple[Unit, ...] = ("conv", "gemm") if unit == "conv" else ("gemm",)
        rates_by_unit = [self.rates[name] for name in units if self.rates.get(name)]
        own = [rates[precision] for rates in rates_by_unit if precision in rates] if precision else []
        return max(own or [rate for rates in rates_by_unit for rate in rates.values()], default=None)


def choose_limits(peaks: Sequence[Peak], device: str, threads: int) -> Limits | None:
    """Return the limits of a device, of the CPU with `threads` threads; None if no peaks of it were measured.

    More threads are never assumed to be slower than fewer: the best peak of all thread counts up to `threads` is used.
    If `threads` itself was not measured, the next larger measured count replaces it.
    """
    own = [one for one in peaks if one.device == device]
    counts = sorted({one.threads for one in own if one.threads is not None})
    most = next((count for count in counts if count >= threads), None)
    if not own or (counts and most is None):
        return None
    usable = [one for one in own if one.threads is None or (most is not None and one.threads <= most)]
    rates: dict[Unit, dict[str, float]] = {}
    for unit in ("conv", "gemm"):
        for one in usable:
            if one.kind == unit and one.precision:
                best = rates.setdefault(unit, {})
                best[one.precision] = max(one.value, best.get(one.precision, 0.0))
    levels = [
        (max((one.capacity_bytes for one in alike if one.capacity_bytes), default=None), max(c.value for c in alike))
        for level in LEVELS
        if (alike := [one for one in usable if one.kind == level])
    ]
    if not rates or not levels:
        return None

    def cost_ms(kind: PeakKind) -> float:
        return min((one.value for one in usable if one.kind == kind), default=0.0) / 1e3

    launch_ms, call_ms = (0.0, cost_ms("call")) if device == "cpu" else (cost_ms("kernel"), cost_ms("graph"))
    return Limits(rates=rates, levels=tuple(levels), launch_ms=launch_ms, call_ms=call_ms)


def find_least_ms(count_bytes: float, limits: Limits) -> float:
    """Return the shortest time in milliseconds to move so many bytes: each level's capacity at that level's rate.

    The levels are filled one after the other, innermost first, as if each held a part of its own: a working set that
    fits into a level is never charged at the rate of the next one.
    """
    best, total_ns, left = max(rate for _, rate in limits.levels), 0.0, count_bytes
    floor = [max(rate for _, rate in limits.levels[i:]) for i in range(len(limits.levels))]  # noise may turn the order
    for (size, _), rate in zip(limits.levels, floor, strict=True):
        part = left if size is None else min(left, size)
        total_ns, left = total_ns + part / rate, left - part
    return (total_ns + left / best) / 1e6


def bound_nodes(
    graph: GraphWork, names: Collection[str], limits: Limits, precision: str | None, *, launches: int = 1
) -> Bound | None:
    """Return the least time of nodes executed together in at least `launches` kernels; None if they only move views."""
    nodes = [node for node in graph.nodes if node.name in names]
    if not nodes or all(node.moves for node in nodes):
        return None
    rates = ((node, limits.find_rate(node.unit, precision)) for node in nodes if node.unit)
    compute_ms = sum(node.macs / rate / 1e6 for node, rate in rates if rate)
    bandwidth_ms = find_least_ms(count_bytes(graph, nodes, precision), limits)
    launch_ms = launches * limits.launch_ms
    parts: dict[BoundBy, float] = {"compute": compute_ms, "bandwidth": bandwidth_ms, "launch": launch_ms}
    return Bound(
        bound_ms=max(compute_ms, bandwidth_ms) + launch_ms,
        bound_by=max(parts, key=lambda name: parts[name]),
        compute_ms=compute_ms,
        bandwidth_ms=bandwidth_ms,
        launch_ms=launch_ms,
    )


def count_bytes(graph: GraphWork, nodes: Sequence[NodeWork], precision: str | None) -> float:
    """Count the compulsory bytes of nodes executed together: their inputs, weights and outputs, each once."""
    made = {tensor for node in nodes for tensor in node.outputs}
    names = {node.name for node in nodes}
    wanted = {t for node in graph.nodes if node.name not in names for t in node.inputs} | set(graph.outputs)
    shares: dict[str, float] = {}
    for node in nodes:
        for tensor in node.inputs:
            if tensor not in made and not node.moves:
                shares[tensor] = max(shares.get(tensor, 0.0), node.read_shares.get(tensor, 1.0))
            elif tensor not in made:  # a view or a conversion: its readers read this tensor, or a part of it
                behind = [one.read_shares.get(t, 1.0) for t in node.outputs for one in nodes if t in one.inputs]
                shares[tensor] = max([shares.get(tensor, 0.0), *behind])
    width = WIDTHS.get(precision or "") if precision else min(WIDTHS.values())
    inside = sum(share * _size(graph, tensor, width) for tensor, share in shares.items())
    return inside + sum(_size(graph, tensor, width) for tensor in made & wanted)


def _size(graph: GraphWork, tensor: str, width: float | None) -> float:
    tensor_work = graph.tensors.get(tensor)
    return tensor_work.count_bytes(width) if tensor_work else 0.0


class BoundModel(Struct, frozen=True, kw_only=True):
    """The least time of one inference of a model, and its layers with theirs."""

    bound: Bound
    layers: tuple[LayerTime, ...] = ()


def bound_layers(joining: Joining, graph: GraphWork, limits: Limits, precision: str | None) -> BoundModel:
    """Bound each joined layer, and the whole model: the sum of its layers, of nodes in no layer, and of the call."""
    layers = tuple(_bound_layer(joined, graph, limits) for joined in joining.layers)
    left = bound_nodes(graph, joining.left, limits, None, launches=0)
    bounds = [layer.bound for layer in layers if layer.bound] + ([left] if left else [])
    if not bounds:
        return bound_whole(graph, limits, precision)
    return BoundModel(bound=replace(_add(bounds, limits), unmapped_share=joining.unmapped_share), layers=layers)


def _bound_layer(joined: JoinedLayer, graph: GraphWork, limits: Limits) -> LayerTime:
    layer = replace(joined.layer, onnx_nodes=joined.nodes)
    if joined.shares:
        return layer
    own = layer.precision if layer.precision in WIDTHS else None
    bound = bound_nodes(graph, joined.nodes, limits, own)
    if bound is not None and joined.unnamed:
        # The unnamed nodes may have run in another layer: the lower one of both bounds is right in either case.
        without_unnamed = bound_nodes(graph, set(joined.nodes) - set(joined.unnamed), limits, own)
        if without_unnamed is None or without_unnamed.bound_ms < bound.bound_ms:
            bound = without_unnamed
    return replace(layer, bound=bound)


def bound_whole(graph: GraphWork, limits: Limits, precision: str | None) -> BoundModel:
    """Bound a graph without any layers, as if all of its nodes were fused into one kernel."""
    bound = bound_nodes(graph, {node.name for node in graph.nodes}, limits, precision)
    return BoundModel(bound=_add([bound] if bound else [], limits))


def _add(bounds: Sequence[Bound], limits: Limits) -> Bound:
    """Add the bounds of groups that run one after the other, and the call; `bound_by` names the largest part."""
    sums: dict[BoundBy, float] = {"compute": 0.0, "bandwidth": 0.0, "launch": 0.0, "call": limits.call_ms}
    for bound in bounds:
        sums["compute" if bound.compute_ms >= bound.bandwidth_ms else "bandwidth"] += bound.bound_ms - bound.launch_ms
        sums["launch"] += bound.launch_ms
    return Bound(
        bound_ms=sum(sums.values()),
        bound_by=max(sums, key=lambda name: sums[name]),
        compute_ms=sum(bound.compute_ms for bound in bounds),
        bandwidth_ms=sum(bound.bandwidth_ms for bound in bounds),
        launch_ms=sums["launch"],
    )


# Inferring the shapes of the largest graphs that were tried took 10 s; ten times that is a hang.
WORK_TIMEOUT_S = 100.0


class Works:
    """Count the work of graphs, each once, in a child process: the parent imports no ONNX."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, str], GraphWork | EngineBenchError] = {}

    def count(self, graph: Artifact, engine: EngineSpec, shapes: dict[str, tuple[int, ...]]) -> GraphWork:
        key = graph.path, repr((engine.batch, sorted(shapes.items())))
        if key not in self._counted:
            job = WorkJob(path=graph.path, shapes=shapes, batch=engine.batch)
            try:
                self._counted[key] = run_child(job, timeout_s=WORK_TIMEOUT_S)
            except EngineBenchError as error:
                self._counted[key] = error
        work = self._counted[key]
        if isinstance(work, EngineBenchError):
            raise work
        return work


def bound_engine(peaks: Peaks, engine: EngineSpec, work: GraphWork, layers: Sequence[LayerTime]) -> BoundModel | None:
    """Bound an engine on a graph, layer by layer if it has layers; None without peaks of its device."""
    limits = choose_limits(peaks.peaks, engine.device, engine.threads)
    if limits is None:
        return None
    if not layers:
        return bound_whole(work, limits, engine.precision)
    return bound_layers(join_layers(layers, work), work, limits, engine.precision)


def limit_layers(
    request: RunRequest,
    folder: Path,
    ran: tuple[EngineSpec, Artifact, dict[str, tuple[int, ...]]],
    layers: Sequence[LayerTime],
    reporter: Reporter,
) -> LimitedLayers:
    """Join the layers of a profile to the nodes of the graph, and bound them.

    Args:
        ran: the engine of the profile, the artifact from which it was made, and the shapes of its inputs.
    """
    engine, source, shapes = ran
    stored = find_peaks(describe_machine())
    if stored.peaks is None and source.kind != "onnx":
        return LimitedLayers(layers=tuple(layers), notes=(f'no "of peak" column: {stored.reason}',))
    try:
        graph = source if source.kind == "onnx" else _export(request, folder, reporter)
        work = Works().count(graph, engine, shapes)
    except EngineBenchError as error:
        why = f"layers could not be joined to nodes of an ONNX graph: {error}"
        return LimitedLayers(layers=tuple(layers), notes=(why,))
    bounded = bound_engine(stored.peaks, engine, work, layers) if stored.peaks else None
    if bounded is not None:
        missing = f"the shapes of {count_of(work.unknown, 'nodes')} cannot be inferred; their work is not counted"
        notes = (missing,) if work.unknown else ()
        return LimitedLayers(layers=bounded.layers or tuple(layers), bound=bounded.bound, notes=notes)
    joined = tuple(replace(one.layer, onnx_nodes=one.nodes) for one in join_layers(layers, work).layers)
    reason = stored.reason or f"the stored roofline has no peaks of {engine.device} with {engine.threads} threads"
    return LimitedLayers(layers=joined, notes=(f'no "of peak" column: {reason}',))


def _export(request: RunRequest, folder: Path, reporter: Reporter) -> Artifact:
    out, axes = str(folder.absolute()), request.dynamic_axes
    job = SourceJob(source=request.source, out_dir=out, batch=request.batches[0], dynamic_axes=axes, data=request.data)
    made = make_sources(job, threads=request.threads, timeout_s=request.timeout_s, reporter=reporter)
    if graphs := [artifact for artifact in made if artifact.kind == "onnx"]:
        return graphs[0]
    raise ArtifactError(f"{request.source.model} holds no ONNX graph")


def bound_results(folder: RunFolder, record: RunRecord, results: dict[str, Result], reporter: Reporter) -> None:
    """Add its bound to every measured configuration, and store it, if peaks of this machine are stored.

    The peaks are copied into the run. A configuration that cannot be bounded has no bound, and the reason is reported.
    """
    measured = [result for result in results.values() if any(m.latency_ns for m in result.measurements)]
    if not measured:
        return
    stored = find_peaks(record.machine)
    if stored.peaks is None:
        if stored.exists:  # a user who never measured a roofline expects no such column
            reporter.say(f'no "of peak" column: {stored.reason}')
        return
    write_atomic(folder.root / FILE, encode(stored.peaks, indent=2))
    works, reasons = Works(), set[str]()
    with open_temporary() as path:
        graphs = _Graphs(folder, record, path, reporter)
        for result in measured:
            try:
                work = works.count(graphs.find(result), result.engine, result.shapes)
            except EngineBenchError as error:
                reasons.add(f"{result.model} has no bound: {error}")
                continue
            bounded = bound_engine(stored.peaks, result.engine, work, result.layers)
            if bounded is not None:
                results[result.id] = replace(result, bound=bounded.bound, layers=bounded.layers or result.layers)
                folder.write_result(results[result.id])
    for text in sorted(reasons):
        reporter.say(text)


def bound_model(
    folder: RunFolder, record: RunRecord, result: Result, timeout_s: float, reporter: Reporter
) -> tuple[Bound | None, str]:
    """Bound the model of a configuration, as if it were one kernel, in the run's fastest precision; or say why not.

    The bound is the same for all settings of the model.
    """
    stored, request = find_peaks(record.machine), replace(record.request, timeout_s=timeout_s)
    peaks = stored.peaks.peaks if stored.peaks else ()
    limits = choose_limits(peaks, result.engine.device, result.engine.threads)
    if limits is None:
        return None, stored.reason or "the stored roofline has no peaks of this device with so many threads"
    try:
        with open_temporary() as scratch:
            graphs = _Graphs(folder, replace(record, request=request), scratch, reporter)
            work = Works().count(graphs.find(replace(result, artifacts=())), result.engine, result.shapes)
    except EngineBenchError as error:
        return None, str(error)
    bounds = (bound_whole(work, limits, precision).bound for precision, _ in request.precisions)
    return min(bounds, key=lambda bound: bound.bound_ms), ""


class _Graphs:
    """Find the ONNX graph of a configuration; export one to be counted if no engine of the run needed one."""

    def __init__(self, folder: RunFolder, record: RunRecord, folder_path: Path, reporter: Reporter) -> None:
        self._sources = [folder.absolute(source) for source in record.sources]
        self._request, self._folder, self._reporter = record.request, folder_path, reporter
        self._exported: Artifact | EngineBenchError | None = None

    def find(self, result: Result) -> Artifact:
        """Return the graph from which the engine was made; for an engine that takes none, the run's own in FP32."""
        own = [artifact for artifact in result.artifacts if artifact.kind == "onnx"]
        plain = [artifact for artifact in self._sources if artifact.kind == "onnx" and artifact.precision == "fp32"]
        if (graphs := own[-1:] or plain[:1]) and Path(graphs[0].path).is_file():
            return graphs[0]
        if self._exported is None:
            try:
                self._exported = _export(self._request, self._folder, self._reporter)
            except EngineBenchError as error:
                self._exported = ArtifactError(f"no engine needed an ONNX graph, and none can be exported: {error}")
        if isinstance(self._exported, EngineBenchError):
            raise self._exported
        return self._exported
