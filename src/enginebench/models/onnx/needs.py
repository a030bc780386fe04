"""Which part of each tensor of a graph must be computed, and read, for its outputs.

A graph may cut out of what it computes: the first token of a sentence, one of several maps. An engine may then compute
that part of a product alone, and read that part of an input. What a product itself needs is needed whole: none of the
engines goes back further. Compilers do fuse operators that work value by value with what follows, however many.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from onnx import AttributeProto, GraphProto, NodeProto

from enginebench.core.protocols import Array
from enginebench.models.onnx.tensors import MOVES
from enginebench.models.onnx.windows import measure_reading
from enginebench.models.precision.macs import Shape

# Reads every value of its inputs. Of others a part may do (Gather, Slice), or nobody knows.
_READS_ALL = frozenset(
    (
        *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Add", "Sub", "Div", "Relu", "Sigmoid", "Tanh"),
        *("Softmax", "LayerNormalization", "BatchNormalization", "GlobalAveragePool", "ReduceMean", "ReduceSum"),
        *("Conv", "ConvInteger", "QLinearConv"),
    )
)
_CONVOLUTIONS = frozenset(("Conv", "ConvInteger", "QLinearConv"))
# Leaves out what lies behind the ends of an axis, or between two steps along it.
_CUTS = frozenset(("Slice", "Resize", "Upsample", "Pad", "MaxPool", "AveragePool", "LpPool", "CenterCropPad"))
# Compute each value of the output from one value of each input, at the same place.
_VALUE_BY_VALUE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "And", "Or", "Not", "Equal", "Less", "Greater"),
        *("Relu", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Gelu", "Elu", "Selu"),
        *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sign", "Floor", "Ceil", "Round", "Clip", "Where"),
        *("QuantizeLinear", "DequantizeLinear", "BatchNormalization", "Mish", "Softplus", "Sin", "Cos"),
    )
)
# Hands out what goes in unless it changes its size: a scale of one, a sum of one value.
_RESIZES = frozenset(("Resize", "Upsample", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"))
# Changes nothing with this constant.
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


class NeededShares(Struct, frozen=True):
    """Tensor -> the share of it, above 0 and up to 1; what is not needed is missing."""

    computed: Mapping[str, float]
    read: Mapping[str, float]  # by an operator that cannot just hand it on


class GraphFacts(Struct, frozen=True):
    """What is known of the tensors of a graph."""

    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]  # the small ones


def find_needed_shares(nodes: Sequence[NodeProto], outputs: Iterable[str], facts: GraphFacts) -> NeededShares:
    """Walk from the outputs to the inputs."""
    computed, read = dict.fromkeys(outputs, 1.0), dict[str, float]()
    for node in reversed(nodes):
        share = max((computed.get(name, 0.0) for name in node.output), default=0.0)
        if share <= 0:
            continue
        if hands_on(node, facts):
            reading = max(read.get(name, 0.0) for name in node.output)
        else:
            reading = share if node.op_type in _READS_ALL else 0.0
        if node.op_type == "Concat" and reading < 1:
            reading = 0.0  # what is read may be of other inputs
        for name, part in _list_read_parts(node, computed, facts):
            passes = node.op_type in _VALUE_BY_VALUE | _CUTS | MOVES | {"Gather"}
            _raise_to(computed, name, part * share if passes else float(part > 0))
            _raise_to(read, name, part * reading)
    return NeededShares(computed, read)


def hands_on(node: NodeProto, facts: GraphFacts) -> bool:
    """Return whether the output can be the input, or a view of it."""
    if node.op_type in MOVES:
        return True
    before, after = (facts.shapes.get(next(iter(names), "")) for names in (node.input, node.output))
    if node.op_type in _RESIZES:
        return before is not None and after is not None and math.prod(before) == math.prod(after)
    neutral = _NEUTRAL.get(node.op_type)
    fixed = [facts.constants[name] for name in node.input if name in facts.constants]
    return neutral is not None and any(bool(np.all(array == neutral)) for array in fixed)


def list_read_tensors(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its branches and loops take from around them among them."""
    yield from node.input
    for body in _list_bodies(node):
        yield from _list_captured(body)


def _raise_to(shares: dict[str, float], name: str, share: float) -> None:
    if name and share > 0:
        shares[name] = max(shares.get(name, 0.0), share)


def _list_read_parts(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> Iterator[tuple[str, float]]:
    """Yield each tensor that a node reads, with the share that all of its output is made of."""
    data = node.input[0] if node.input else ""
    if node.op_type == "If":
        yield data, 1.0
        yield from ((name, 1.0) for name in _list_of_all_branches(node, computed, facts))
        return
    first = _measure_first(node, computed, facts)
    for place, name in enumerate(list_read_tensors(node)):
        chosen = _find_chosen(node, place, facts)
        yield name, first if place == 0 else chosen


def _measure_first(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> float:
    """Return the share of its data that a node reads."""
    data = node.input[0] if node.input else ""
    if node.op_type in _CONVOLUTIONS:
        return measure_reading(node, facts.shapes)
    if node.op_type in _CUTS:
        return _measure_cut(facts.shapes.get(data), facts.shapes.get(node.output[0]))
    if node.op_type == "Split":  # the share of all outputs is that of the one that is needed most
        most, whole = max(computed.get(name, 0.0) for name in node.output), _count_values(data, facts)
        kept = sum(computed.get(name, 0.0) * _count_values(name, facts) for name in node.output)
        return kept / whole / most if whole else 0.0
    if node.op_type == "Gather":
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        places, shape = facts.constants.get(node.input[1]), facts.shapes.get(data)
        picked = 1 if places is None else len(np.unique(places))
        return min(1.0, picked / shape[axis]) if shape else 0.0
    return 1.0


def _find_chosen(node: NodeProto, place: int, facts: GraphFacts) -> float:
    """Return the share of another input that is in the output: Where may leave out some, by a constant."""
    condition = facts.constants.get(node.input[0]) if node.op_type == "Where" else None
    if condition is None or place == 0:
        return 1.0
    let_through = float(np.mean(condition.astype(bool)))
    return let_through if place == 1 else 1 - let_through


def _list_of_all_branches(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> set[str]:
    """Return what every branch takes from around it, whichever is taken."""
    branches = []
    for body in _list_bodies(node):
        pairs = zip(body.output, node.output, strict=False)
        wanted = [inner.name for inner, outer in pairs if computed.get(outer)]
        branches.append(set(find_needed_shares(body.node, wanted, facts).computed))
    return set.intersection(*branches) if branches else set()


def _list_bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs


def _list_captured(body: GraphProto) -> set[str]:
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for node in body.node for name in node.output}
    read = {name for node in body.node for name in list_read_tensors(node)} | {output.name for output in body.output}
    return read - own


def _measure_cut(before: Shape | None, after: Shape | None) -> float:
    if before is None or after is None or len(before) != len(after):
        return 0.0
    return math.prod(min(1.0, new / old) for old, new in zip(before, after, strict=True) if old)


def _count_values(name: str, facts: GraphFacts) -> int:
    return math.prod(facts.shapes[name]) if name in facts.shapes else 0
