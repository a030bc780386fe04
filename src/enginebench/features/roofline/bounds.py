"""How far from the machine's limits: the least time that work can take where these rates were the best observed.

The bound of a fused group of nodes is the longer one of its multiply-accumulates at the best rate and its compulsory
bytes at the best bandwidth, plus what launching it costs. Compulsory are what enters the group, its weights, and what
leaves it, once each: what stays inside need never reach memory. Source: Williams, Waterman, Patterson, "Roofline: an
insightful visual performance model for multicore architectures", CACM 52(4), 2009.
"""

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.ceilings import LEVELS, Ceiling, CeilingKind
from enginebench.core.records import Bound, BoundBy, LayerTime
from enginebench.features.roofline.joining import JoinedLayer, Joining
from enginebench.features.roofline.work import GraphWork, NodeWork, Unit

# Bytes of a value in each precision: an engine may keep tensors in the one in which it computes.
WIDTHS = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "int8": 1.0, "fp8": 1.0}


class Limits(Struct, frozen=True, kw_only=True):
    """The ceilings that hold for one device and one number of threads."""

    rates: dict[Unit, dict[str, float]]  # GMAC/s by precision
    levels: tuple[tuple[float | None, float], ...]  # (bytes that fit, GB/s), innermost first; memory has no end
    launch_ms: float = 0.0  # of each kernel; 0 where nothing is launched
    call_ms: float = 0.0  # of the whole

    def find_rate(self, unit: Unit, precision: str | None) -> float | None:
        """GMAC/s: of a precision without a ceiling, or that nobody knows, the highest of all.

        A convolution may be done as a product, never the other way round: Winograd's algorithm and its like do a 3x3
        convolution with fewer multiplications than are counted.
        """
        units: tuple[Unit, ...] = ("conv", "gemm") if unit == "conv" else ("gemm",)
        known = [self.rates[name] for name in units if self.rates.get(name)]
        own = [rates[precision] for rates in known if precision in rates] if precision else []
        return max(own or [rate for rates in known for rate in rates.values()], default=None)


def choose_limits(ceilings: Sequence[Ceiling], device: str, threads: int) -> Limits | None:
    """The limits of a device; of the CPU on so many threads. None where nothing was measured that could set them.

    More threads are never taken to be slower than fewer: the best of all numbers up to `threads` counts. If `threads`
    itself was not measured, the next larger number stands for it.
    """
    own = [one for one in ceilings if one.device == device]
    counts = sorted({one.threads for one in own if one.threads is not None})
    most = next((count for count in counts if count >= threads), None)
    if not own or (counts and most is None):
        return None
    usable = [one for one in own if one.threads is None or (most is not None and one.threads <= most)]
    rates: dict[Unit, dict[str, float]] = {}
    for unit in ("conv", "gemm"):
        for one in usable:
            if one.kind == unit and one.precision:
                held = rates.setdefault(unit, {})
                held[one.precision] = max(one.value, held.get(one.precision, 0.0))
    levels = tuple(filter(None, (_choose_level(usable, level) for level in LEVELS)))
    if not rates or not levels:
        return None
    on_gpu = device != "cpu"
    return Limits(
        rates=rates,
        levels=levels,
        launch_ms=_choose_cost(usable, "kernel") if on_gpu else 0.0,
        call_ms=_choose_cost(usable, "graph" if on_gpu else "call"),
    )


def _choose_level(ceilings: Iterable[Ceiling], level: CeilingKind) -> tuple[float | None, float] | None:
    own = [one for one in ceilings if one.kind == level]
    if not own:
        return None
    sizes = [one.capacity_bytes for one in own if one.capacity_bytes]
    return (max(sizes) if sizes else None), max(one.value for one in own)


def _choose_cost(ceilings: Iterable[Ceiling], kind: CeilingKind) -> float:
    return min((one.value for one in ceilings if one.kind == kind), default=0.0) / 1e3


def find_least_ms(count_bytes: float, limits: Limits) -> float:
    """Milliseconds in which so many bytes can move at best: what fits into a cache at its rate, the rest outside it.

    The caches are filled one after the other from the innermost, as if each held a part of its own: a working set that
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
    """The least time of nodes that are done together; None where they need not touch anything.

    Args:
        precision: in which they are computed; None: any.
        launches: kernels that it takes at least.
    """
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
    """Compulsory bytes of nodes that are done together: what enters, weights among it, and what leaves, once each."""
    made = {tensor for node in nodes for tensor in node.outputs}
    names = {node.name for node in nodes}
    wanted = {t for node in graph.nodes if node.name not in names for t in node.inputs} | set(graph.outputs)
    shares: dict[str, float] = {}
    for node in nodes:
        for tensor in node.inputs:
            if tensor not in made and not node.moves:
                shares[tensor] = max(shares.get(tensor, 0.0), node.read_shares.get(tensor, 1.0))
            elif tensor not in made:  # a view, or a conversion: whoever reads behind it reads this
                shares[tensor] = max(shares.get(tensor, 0.0), _share_behind(node, nodes))
    width = WIDTHS.get(precision or "") if precision else min(WIDTHS.values())
    inside = sum(share * _size(graph, tensor, width) for tensor, share in shares.items())
    return inside + sum(_size(graph, tensor, width) for tensor in made & wanted)


def _share_behind(node: NodeWork, nodes: Sequence[NodeWork]) -> float:
    """How much of what a moving node takes is read behind it: all, unless a single reader says less."""
    shares = [
        other.read_shares.get(tensor, 1.0) for tensor in node.outputs for other in nodes if tensor in other.inputs
    ]
    return max(shares, default=0.0)


def _size(graph: GraphWork, tensor: str, width: float | None) -> float:
    known = graph.tensors.get(tensor)
    return known.count_bytes(width) if known else 0.0


class BoundModel(Struct, frozen=True, kw_only=True):
    """A whole run of a model: its least time, and its layers with theirs."""

    bound: Bound
    layers: tuple[LayerTime, ...] = ()


def bound_layers(joining: Joining, graph: GraphWork, limits: Limits, precision: str | None) -> BoundModel:
    """The bounds of joined layers, and of the whole: their sum, that of nodes which no layer tells, and the call.

    Args:
        precision: of the row, for layers whose own record does not say theirs.
    """
    layers = tuple(_bound_layer(joined, graph, limits) for joined in joining.layers)
    left = bound_nodes(graph, joining.left, limits, None, launches=0)
    known = [layer.bound for layer in layers if layer.bound] + ([left] if left else [])
    if not known:
        return bound_whole(graph, limits, precision)
    return BoundModel(bound=replace(_add(known, limits), unmapped_share=joining.unmapped_share), layers=layers)


def _bound_layer(joined: JoinedLayer, graph: GraphWork, limits: Limits) -> LayerTime:
    layer = replace(joined.layer, onnx_nodes=joined.nodes)
    if joined.shares:
        return layer
    own = layer.precision if layer.precision in WIDTHS else None
    found = bound_nodes(graph, joined.nodes, limits, own)
    # What nobody tells may have been done elsewhere: the lower one of both bounds holds either way.
    alone = bound_nodes(graph, set(joined.nodes) - set(joined.absorbed), limits, own) if joined.absorbed else found
    lower = min((found, alone), key=lambda bound: bound.bound_ms) if found and alone else None
    return replace(layer, bound=lower)


def bound_whole(graph: GraphWork, limits: Limits, precision: str | None) -> BoundModel:
    """The least time of a graph of whose layers nothing is known: as if all of it were fused into one."""
    found = bound_nodes(graph, {node.name for node in graph.nodes}, limits, precision)
    return BoundModel(bound=_add([found] if found else [], limits))


def _add(bounds: Sequence[Bound], limits: Limits) -> Bound:
    """The bound of groups that run one after the other, and of the call; set by what sets most of it."""
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
