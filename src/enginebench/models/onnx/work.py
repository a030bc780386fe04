"""Count the work of an ONNX graph that no correct engine can leave out.

Not counted is all work that an engine may leave out: nodes whose outputs are not used, nodes that depend on constants
and on shapes alone, a node that repeats another one, values that are cut off later, and multiplications by repeated
values, by padding and by weights that are zero. Unknown work counts as zero, so that the count is never too high.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from enginebench.core.protocols import Array
from enginebench.core.records import LeastWork
from enginebench.core.shapes import TensorWork
from enginebench.models.onnx.densities import ZERO_POINTS, Densities
from enginebench.models.onnx.needs import GraphFacts, find_grown_shares, find_needed_shares, hands_on, list_read_tensors
from enginebench.models.onnx.source import read_tensor_values
from enginebench.models.onnx.tensors import fix_inputs, infer_tensors
from enginebench.models.onnx.windows import measure_products
from enginebench.models.precision.macs import FACTORS, UNITS, Shape, count_node_macs

# Operators whose outputs differ from call to call.
RANDOM = frozenset(
    (*("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), *("Multinomial", "Bernoulli"))
)
# Operators whose outputs depend on shapes alone, which are the same in every call.
_OF_SHAPES = frozenset(("Shape", "Size"))
# The input with the lengths of sequences: steps behind the end of a sequence need not be computed.
_LENGTHS = {"LSTM": 4, "GRU": 4, "RNN": 4}
# Operators of other domains may have the same names and do something else.
_KNOWN_DOMAINS = ("", "ai.onnx", "com.microsoft")
# The most values of a constant that is read: masks of attention have some thousands.
SMALL = 1 << 20
# A causal mask leaves half of the products of queries and keys, and of their weights and values.
_CAUSAL = 0.5


def count_least_work(
    model: ModelProto, shapes: Mapping[str, Shape], batch: int = 1, path: Path | None = None
) -> LeastWork:
    """Count the work of one call with inputs of these shapes; an open first axis of another input is the batch.

    Args:
        path: of the file, beside which weights may lie; without it products with such weights are not counted.

    Raises:
        ArtifactError: the shapes of the graph cannot be inferred, or external data is missing or too short.
    """
    graph, tensors = model.graph, infer_tensors(fix_inputs(model, shapes, batch))
    constants = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    varying = _drop_constant(graph.node, constants, tensors)
    nodes = list(_drop_repeated(varying, [output.name for output in graph.output]))
    tensor_shapes = {name: shape for name, (_, shape) in tensors.items()}
    outputs = {output.name for output in graph.output}
    facts = GraphFacts(tensor_shapes, _read_small(graph, tensors))
    needs = find_needed_shares(nodes, outputs, facts)
    grown = find_grown_shares(nodes, facts)
    densities = Densities(graph, lambda tensor: read_tensor_values(tensor, path))
    macs = {"conv": 0.0, "gemm": 0.0}
    for node in nodes:
        unit = UNITS.get(node.op_type)
        share = max((needs.computed.get(name, 0.0) for name in node.output), default=0.0)
        if unit is not None and share and node.domain in _KNOWN_DOMAINS:
            share *= measure_products(node, tensor_shapes) if unit == "conv" else 1.0
            share *= _find_needed_share(node, densities, constants)
            share *= math.prod(grown.get(name, 1.0) for name in node.input)
            macs[unit] += share * count_node_macs(node, tensor_shapes)
    sizes = {name: tensor.count_bytes() for name, (tensor, _) in tensors.items()}
    inputs = {value.name for value in graph.input} - constants
    computed = {name for node in nodes if not hands_on(node, facts) for name in node.output}
    return LeastWork(
        conv_macs=macs["conv"],
        gemm_macs=macs["gemm"],
        read_bytes=sum(sizes.get(name, 0.0) * needs.read.get(name, 0.0) for name in inputs),
        written_bytes=sum(sizes.get(name, 0.0) for name in outputs & computed),
    )


def _read_small(graph: GraphProto, inferred: Mapping[str, tuple[TensorWork, Shape]]) -> dict[str, Array]:
    """Return the small constants, such as indices, conditions and factors."""
    nodes = [node for node in graph.node if node.op_type == "Constant"]
    tensors = {node.output[0]: a.t for node in nodes for a in node.attribute if a.name == "value"}
    tensors |= {tensor.name: tensor for tensor in graph.initializer}
    small = {name: tensor for name, tensor in tensors.items() if math.prod(tensor.dims) <= SMALL}
    return {name: array for name, tensor in small.items() if (array := read_tensor_values(tensor, None)) is not None}


def _drop_constant(
    nodes: Iterable[NodeProto], constants: set[str], tensors: Mapping[str, tuple[TensorWork, Shape]]
) -> Iterator[NodeProto]:
    """Yield the nodes that depend on the inputs of the graph; add the outputs of all others to `constants`."""
    for node in nodes:
        needed = {name for name in list_read_tensors(node) if name}
        of_shapes = node.op_type in _OF_SHAPES and node.input[0] in tensors
        if node.op_type not in RANDOM and (of_shapes or needed <= constants):
            constants.update(node.output)
        else:
            yield node


def _drop_repeated(nodes: Iterable[NodeProto], outputs: Sequence[str]) -> Iterator[NodeProto]:
    """Yield the nodes, without those that repeat an earlier one; inputs are renamed accordingly."""
    first: dict[bytes, NodeProto] = {}
    names: dict[str, str] = {}
    for node in nodes:
        renamed = NodeProto()
        renamed.CopyFrom(node)
        renamed.input[:] = [names.get(name, name) for name in node.input]
        key = NodeProto()
        key.CopyFrom(renamed)
        for field in ("name", "output", "doc_string", "metadata_props"):
            key.ClearField(field)
        earlier = first.setdefault(key.SerializeToString(deterministic=True), renamed)
        branches = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
        if earlier is renamed or node.op_type in RANDOM or branches or set(node.output) & set(outputs):
            yield renamed
        else:
            names.update(zip(node.output, earlier.output, strict=False))


def _find_needed_share(node: NodeProto, densities: Densities, constants: set[str]) -> float:
    """Return the fraction of a node's products without a zero weight as a factor."""
    lengths = _LENGTHS.get(node.op_type)
    if lengths is not None and len(node.input) > lengths and node.input[lengths]:
        return 0.0
    if node.op_type == "Attention":
        return _CAUSAL
    indices = (1, 2) if lengths is not None else FACTORS.get(node.op_type, (0, 1))
    zero_points = ZERO_POINTS.get(node.op_type, {})
    shares = []
    for index in indices:
        if index < len(node.input) and node.input[index] in constants:
            zero = zero_points.get(index, len(node.input))
            shares.append(densities.measure(node.input[index], node.input[zero] if zero < len(node.input) else ""))
    return min(shares, default=_CAUSAL)
