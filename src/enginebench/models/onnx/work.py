"""Count the work of an ONNX graph that no correct engine can leave out.

Left out is whatever an engine may leave out: nodes whose outputs nobody reads, nodes that depend on constants and on
shapes alone, a node that repeats another one, and multiplications by weights that are zero. Everything that is not
known counts as nothing, so that the count is never too high.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from enginebench.core.records import LeastWork
from enginebench.core.tensors import TensorWork
from enginebench.models.onnx.tensors import MOVES, fix_inputs, infer_tensors
from enginebench.models.precision.macs import FACTORS, UNITS, Shape, count_node_macs

# Their outputs differ from call to call, whatever goes in.
_RANDOM = frozenset(
    (*("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), *("Multinomial", "Bernoulli"))
)
# What they give depends on shapes alone, which are the same in every call.
_OF_SHAPES = frozenset(("Shape", "Size"))
# The input with the lengths of sequences: steps behind the end of a sequence need not be computed.
_LENGTHS = {"LSTM": 4, "GRU": 4, "RNN": 4}
# Hands all of its first input on: whoever reads the output whole reads the input whole.
_HANDS_ON = frozenset(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Cast", "QuantizeLinear"))
# Reads every value of its inputs. Of others a part may do (Gather, Slice), or nobody knows.
_READS_ALL = frozenset(
    (
        *("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Add", "Sub", "Div", "Relu", "Sigmoid", "Tanh"),
        *("Softmax", "LayerNormalization", "BatchNormalization", "GlobalAveragePool", "ReduceMean", "ReduceSum"),
    )
)
_CONVOLUTIONS = frozenset(("Conv", "ConvInteger", "QLinearConv", "ConvTranspose"))
# A causal mask leaves half of the products of queries and keys, and of their weights and values.
_CAUSAL = 0.5


def count_least_work(model: ModelProto, shapes: Mapping[str, Shape], batch: int = 1) -> LeastWork:
    """Count the work of one call with inputs of these shapes; an open first axis of another input is the batch.

    Raises:
        ArtifactError: the shapes of the graph cannot be inferred.
    """
    graph, known = model.graph, infer_tensors(fix_inputs(model, shapes, batch))
    constants = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    nodes = list(_drop_repeated(_drop_constant(graph.node, constants, known), [output.name for output in graph.output]))
    live = _keep_live(nodes, {output.name for output in graph.output})
    tensor_shapes = {name: shape for name, (_, shape) in known.items()}
    weights = _Weights(graph, constants)
    macs = {"conv": 0.0, "gemm": 0.0}
    for node in live:
        if unit := UNITS.get(node.op_type):
            macs[unit] += count_node_macs(node, tensor_shapes) * _find_needed_share(node, weights)
    sizes = {name: tensor.count_bytes() for name, (tensor, _) in known.items()}
    whole = _list_whole_reads(live, tensor_shapes)
    inputs = {value.name for value in graph.input} - constants
    outputs = {output.name for output in graph.output}
    computed = {name for node in live if node.op_type not in MOVES for name in node.output}
    return LeastWork(
        conv_macs=macs["conv"],
        gemm_macs=macs["gemm"],
        read_bytes=sum(sizes.get(name, 0.0) for name in inputs & whole),
        written_bytes=sum(sizes.get(name, 0.0) for name in outputs & computed),
    )


def _drop_constant(
    nodes: Iterable[NodeProto], constants: set[str], known: Mapping[str, tuple[TensorWork, Shape]]
) -> Iterator[NodeProto]:
    """Yield the nodes that depend on the inputs of the graph; outputs of all others join `constants`."""
    for node in nodes:
        needed = {name for name in _list_needed(node) if name}
        of_shapes = node.op_type in _OF_SHAPES and node.input[0] in known
        if node.op_type not in _RANDOM and (of_shapes or needed <= constants):
            constants.update(node.output)
        else:
            yield node


def _list_needed(node: NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, those that its branches and loops take from around them among them."""
    yield from node.input
    for attribute in node.attribute:
        bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
        for body in bodies:
            yield from _list_captured(body)


def _list_captured(body: GraphProto) -> set[str]:
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for node in body.node for name in node.output}
    read = {name for node in body.node for name in _list_needed(node)} | {output.name for output in body.output}
    return read - own


def _drop_repeated(nodes: Iterable[NodeProto], outputs: Sequence[str]) -> Iterator[NodeProto]:
    """Yield the nodes with their inputs renamed, without those that compute once more what an earlier one does."""
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
        known = first.setdefault(key.SerializeToString(deterministic=True), renamed)
        branches = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
        if known is renamed or node.op_type in _RANDOM or branches or set(node.output) & set(outputs):
            yield renamed
        else:
            names.update(zip(node.output, known.output, strict=False))


def _keep_live(nodes: Sequence[NodeProto], wanted: set[str]) -> list[NodeProto]:
    """Return the nodes that an output of the graph depends on."""
    wanted, live = set(wanted), []
    for node in reversed(nodes):
        if wanted & set(node.output):
            live.append(node)
            wanted.update(_list_needed(node))
    return live[::-1]


class _Weights:
    """The constant tensors of a graph, and how much of each is not zero."""

    def __init__(self, graph: GraphProto, constants: set[str]) -> None:
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        handing = [node for node in graph.node if node.op_type in _HANDS_ON | {"DequantizeLinear"}]
        self._origins = {node.output[0]: node.input[0] for node in handing}
        self.constants = constants

    def measure_density(self, name: str) -> float:
        """Return the fraction of values that are not zero; 1 of a tensor whose values are not in the file."""
        while name not in self._tensors and name in self._origins:
            name = self._origins[name]
        tensor = self._tensors.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return 1.0
        values: int = math.prod(tensor.dims)
        return int(np.count_nonzero(numpy_helper.to_array(tensor))) / values if values else 1.0


def _find_needed_share(node: NodeProto, weights: _Weights) -> float:
    """Return the part of a node's products that must be computed."""
    lengths = _LENGTHS.get(node.op_type)
    if lengths is not None and len(node.input) > lengths and node.input[lengths]:
        return 0.0
    if node.op_type == "Attention":
        return _CAUSAL
    factors = [node.input[place] for place in FACTORS.get(node.op_type, (0, 1)) if place < len(node.input)]
    fixed = [name for name in factors if name in weights.constants]
    return min((weights.measure_density(name) for name in fixed), default=_CAUSAL)


def _list_whole_reads(nodes: Sequence[NodeProto], shapes: Mapping[str, Shape]) -> set[str]:
    """Return the tensors of which every value is read."""
    whole: set[str] = set()
    for node in reversed(nodes):
        reads_all = node.op_type in _READS_ALL or (node.op_type in _CONVOLUTIONS and _covers_input(node, shapes))
        if reads_all:
            whole.update(node.input)
        elif node.op_type in _HANDS_ON and node.output[0] in whole:
            whole.add(node.input[0])
    return whole


def _covers_input(node: NodeProto, shapes: Mapping[str, Shape]) -> bool:
    """Return whether the kernel of a convolution leaves no value out between two of its steps."""
    weights = shapes.get(node.input[FACTORS.get(node.op_type, (0, 1))[1]], ())
    strides = next((list(a.ints) for a in node.attribute if a.name == "strides"), [])
    return all(kernel >= stride for kernel, stride in zip(weights[2:], strides, strict=False))
