"""Find the part of each tensor of a graph that must be computed, and read, for its outputs.

A graph may use only a part of what it computes: the first token of a sentence, one of several maps. An engine may then
compute only that part of a product, and read only that part of an input. The inputs of the product itself count as
needed whole: no engine goes back further. Element-wise operators are different: compilers fuse any number of them with
the operator that follows.
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

# Operators that read every value of their inputs. Others need a part (Gather, Slice), or it is not known.
_READS_ALL = frozenset(
    (
        *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Add", "Sub", "Div", "Relu", "Sigmoid", "Tanh"),
        *("Softmax", "LayerNormalization", "BatchNormalization", "GlobalAveragePool", "ReduceMean", "ReduceSum"),
        *("Conv", "ConvInteger", "QLinearConv"),
    )
)
_CONVOLUTIONS = frozenset(("Conv", "ConvInteger", "QLinearConv"))
# Operators that leave out values at the ends of an axis, or between two steps along it.
_CUTS = frozenset(("Slice", "Resize", "Upsample", "Pad", "MaxPool", "AveragePool", "LpPool", "CenterCropPad"))
# Operators that compute each value of the output from one value of each input, at the same position.
_VALUE_BY_VALUE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "And", "Or", "Not", "Equal", "Less", "Greater"),
        *("Relu", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Gelu", "Elu", "Selu"),
        *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sign", "Floor", "Ceil", "Round", "Clip", "Where"),
        *("QuantizeLinear", "DequantizeLinear", "BatchNormalization", "Mish", "Softplus", "Sin", "Cos"),
    )
)
# Operators whose output is their input if the size stays the same: a scale of one, a sum of one value.
_RESIZES = frozenset(("Resize", "Upsample", "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd"))
# Operators that repeat the values of their first input, put zeros around them, or one 1 among zeros for each. What a
# product makes of an output is known from the values before.
_GROWS = frozenset(("Expand", "Tile", "Pad", "Resize", "Upsample", "OneHot"))
# Operators that change nothing with this constant.
_NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}


class NeededShares(Struct, frozen=True):
    """The needed fraction of each tensor, above 0 and up to 1; tensors that are not needed are missing."""

    computed: Mapping[str, float]
    read: Mapping[str, float]  # by an operator that does more than pass it on


class GraphFacts(Struct, frozen=True):
    """The shapes of a graph's tensors as far as they are known, and its small constants."""

    shapes: Mapping[str, Shape]
    constants: Mapping[str, Array]  # the small ones


def find_needed_shares(nodes: Sequence[NodeProto], outputs: Iterable[str], facts: GraphFacts) -> NeededShares:
    """Return the needed fraction of each tensor, from the outputs back to the inputs."""
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
            reading = 0.0  # the part that is read may belong to other inputs
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
    if node.op_type == "Gather":  # PyTorch gives a view for one place
        return node.input[1] in facts.constants and facts.constants[node.input[1]].size == 1
    neutral = _NEUTRAL.get(node.op_type)
    fixed = [facts.constants[name] for name in node.input if name in facts.constants]
    return neutral is not None and any(bool(np.all(array == neutral)) for array in fixed)


def find_grown_shares(nodes: Iterable[NodeProto], facts: GraphFacts) -> dict[str, float]:
    """Return, of each tensor that repeats values or holds zeros around them, the fraction that the values before are.

    A product with it needs no more than this fraction of its multiplications.
    """
    values: dict[str, int] = {}  # from which the tensor is made
    for node in nodes:
        first, *others = node.input or ("",)
        alone = all(math.prod(facts.shapes.get(name, (0,))) == 1 for name in others if name)
        if node.op_type in _GROWS | MOVES - {"Concat"} or (node.op_type in _VALUE_BY_VALUE and alone):
            before = values.get(first, _count_values(first, facts))
            values |= {name: before for name in node.output if before < _count_values(name, facts)}
    return {name: before / _count_values(name, facts) for name, before in values.items()}


def list_read_tensors(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, with those of the outer graph that its branches and loops read."""
    yield from node.input
    for body in _list_bodies(node):
        yield from _list_captured(body)


def _raise_to(shares: dict[str, float], name: str, share: float) -> None:
    if name and share > 0:
        shares[name] = max(shares.get(name, 0.0), share)


def _list_read_parts(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> Iterator[tuple[str, float]]:
    """Yield each tensor that a node reads, with the fraction of it from which the whole output is computed."""
    data = node.input[0] if node.input else ""
    if node.op_type == "If":
        yield data, 1.0
        yield from ((name, 1.0) for name in _list_of_all_branches(node, computed, facts))
        return
    # The body of a loop may never run.
    tensors = node.input if node.op_type == "Loop" else list_read_tensors(node)
    first = _measure_first(node, computed, facts)
    for index, name in enumerate(tensors):
        chosen = _find_chosen(node, index, facts)
        yield name, first if index == 0 else chosen


def _measure_first(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> float:
    """Return the fraction of its data that a node reads."""
    data = node.input[0] if node.input else ""
    if node.op_type in _CONVOLUTIONS:
        return measure_reading(node, facts.shapes)
    if node.op_type in _CUTS:
        return _measure_cut(facts.shapes.get(data), facts.shapes.get(node.output[0]))
    if node.op_type == "Split":  # the share of all outputs is that of the one that is needed most
        largest_share, data_values = max(computed.get(name, 0.0) for name in node.output), _count_values(data, facts)
        kept = sum(computed.get(name, 0.0) * _count_values(name, facts) for name in node.output)
        return kept / data_values / largest_share if data_values else 0.0
    if node.op_type == "Gather":
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        indices, shape = facts.constants.get(node.input[1]), facts.shapes.get(data)
        picked = 1 if indices is None else len(np.unique(indices))
        return min(1.0, picked / shape[axis]) if shape else 0.0
    return 1.0


def _find_chosen(node: NodeProto, index: int, facts: GraphFacts) -> float:
    """Return the fraction of another input that is in the output: a constant condition of Where may leave out some."""
    condition = facts.constants.get(node.input[0]) if node.op_type == "Where" else None
    if condition is None or index == 0:
        return 1.0
    let_through = float(np.mean(condition.astype(bool)))
    return let_through if index == 1 else 1 - let_through


def _list_of_all_branches(node: NodeProto, computed: Mapping[str, float], facts: GraphFacts) -> set[str]:
    """Return the tensors of the outer graph that every branch needs, so that they are needed whichever is taken."""
    branches = []
    for body in _list_bodies(node):
        pairs = zip(body.output, node.output, strict=False)
        needed = [inner.name for inner, outer in pairs if computed.get(outer)]
        branches.append(set(find_needed_shares(body.node, needed, facts).computed))
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
