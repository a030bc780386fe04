"""ONNX graphs that OpenVINO does not read as they are, in a form that it reads: same function, for one set of shapes.

Branches that shapes decide, or the value of a single number, are settled; what decides one is made a scalar; ONNX
Runtime's operators on eight bits become ONNX's own.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from enginebench.core.errors import importing
from enginebench.core.protocols import Array
from enginebench.engines.backends.openvino.graphs import list_graphs

with importing("{}", 'pip install "enginebench[openvino]"'):
    import onnx
    from onnxscript import optimizer
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, inliner, version_converter

# Operators on eight bits -> ONNX's on floats, and how many quantized inputs come first, each followed by its scale and
# zero point, as the output is. Source: ContribOperators.md of ONNX Runtime.
POINTWISE = {
    "QLinearAdd": ("Add", 2),
    "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QLinearAveragePool": ("AveragePool", 1),
}
# The same for products with weights: the indices of their bias, and of the output's scale.
PRODUCTS = {"QLinearConv": ("Conv", 8, 6), "QGemm": ("Gemm", 6, 7)}
# `DequantizeLinear` has an axis, which scales by channel need. Source: ONNX operator changelog.
AXIS_OPSET = 13
# What only ONNX Runtime's operators have; the layout that it stands for is the default one where it is 0.
CHANNELS_LAST = "channels_last"
INTEGERS = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL})


class Rewritable:
    """An ONNX file that can be written anew for the arrays of a call.

    Raises:
        Exception: as onnx does, of a file that it cannot read, weights included.
    """

    def __init__(self, path: Path) -> None:
        self._model = onnx.load(path)
        self.deciders = frozenset(find_deciders(self._model.graph))

    def read_values(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        """The values of the inputs that decide branches; a graph is right for these only."""
        return {name: int(feeds[name].reshape(-1)[0]) for name in sorted(self.deciders)}

    def rewrite(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]) -> bytes:
        """The graph for inputs of these shapes, where those in `values` have no other value.

        All inputs and outputs are still there. Raises as onnx and its optimizer do.
        """
        model = ModelProto()
        model.CopyFrom(self._model)
        if model.functions:
            model = inliner.inline_local_functions(model)
        if any(domain.domain == "" and domain.version < AXIS_OPSET for domain in model.opset_import):
            model = version_converter.convert_version(model, AXIS_OPSET)
        set_input_shapes(model.graph, shapes)
        # Every node takes these values instead of the inputs, which stay and are not used.
        for value in (value for value in model.graph.input if value.name in values):
            tensor, shape = value.type.tensor_type, [axis.dim_value for axis in value.type.tensor_type.shape.dim]
            fixed = helper.make_tensor(f"{value.name}/fixed", tensor.elem_type, shape, [values[value.name]])
            model.graph.initializer.append(fixed)
        for graph in list_graphs(model.graph):
            for node in graph.node:
                node.input[:] = [f"{name}/fixed" if name in values else name for name in node.input]
            replace_nodes(graph, expand_quantized)
            replace_nodes(graph, make_condition_scalar)
        settled: bytes = optimizer.optimize(model, onnx_shape_inference=True).SerializeToString()
        return settled


def find_deciders(graph: GraphProto) -> Iterator[str]:
    """The inputs of one integer or truth value that an `If` depends on."""
    nodes = [node for inner in list_graphs(graph) for node in inner.node]
    makers = {name: node for node in nodes for name in node.output}
    typed = {value.name: value.type.tensor_type for value in graph.input}
    single = {
        name
        for name, tensor in typed.items()
        if tensor.elem_type in INTEGERS and all(axis.dim_value == 1 for axis in tensor.shape.dim)
    }
    waiting = [node.input[0] for node in nodes if node.op_type == "If"]
    seen: set[str] = set()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            maker = makers.get(name)
            # How long something is does not depend on what its maker was fed with, but on shapes, which are settled.
            waiting += [] if maker is None or maker.op_type in ("Shape", "Size") else maker.input
    yield from single & seen - {tensor.name for tensor in graph.initializer}


def set_input_shapes(graph: GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Give the inputs these shapes, and remove the file's shapes of intermediate tensors, which may be wrong now."""
    for value in graph.input:
        if value.name in shapes:
            kind = value.type.tensor_type.elem_type
            value.type.CopyFrom(helper.make_tensor_type_proto(kind, shapes[value.name]))
    for inner in list_graphs(graph):
        inner.ClearField("value_info")


def replace_nodes(graph: GraphProto, replace: Callable[[NodeProto, GraphProto], list[NodeProto]]) -> None:
    """Replace each node by the nodes that `replace` makes of it."""
    nodes = [made for node in graph.node for made in replace(node, graph)]
    del graph.node[:]
    graph.node.extend(nodes)


def make_condition_scalar(node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """An `If` whose condition may have any number of axes: it has one element, as ONNX asks."""
    if node.op_type != "If":
        return [node]
    scalar, shape = f"{node.output[0]}/condition", f"{node.output[0]}/no_axes"
    graph.initializer.append(helper.make_tensor(shape, TensorProto.INT64, [0], []))
    reshape = helper.make_node("Reshape", [node.input[0], shape], [scalar], name=scalar)
    node.input[0] = scalar
    return [reshape, node]


def expand_quantized(node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """An operator on eight bits as the same one on floats, between `DequantizeLinear` and `QuantizeLinear`.

    Any other node stays as it is.
    """
    attributes = {a.name: a for a in node.attribute}
    last = attributes.pop(CHANNELS_LAST, None)
    if last is not None and last.i:
        return [node]
    if "alpha" in attributes and node.op_type == "QGemm" and attributes["alpha"].f != 1:
        return [node]  # its bias is in units of alpha, too
    if node.op_type in PRODUCTS:
        return _expand_product(node, attributes)
    if node.op_type not in POINTWISE:
        return [node]
    kind, count = POINTWISE[node.op_type]
    groups = [list(node.input[i : i + 3]) for i in range(0, 3 * count, 3)]
    before = [_dequantize(node, i, group) for i, group in enumerate(groups)]
    floats = f"{node.output[0]}/floats"
    middle = helper.make_node(kind, [made.output[0] for made in before], [floats], name=node.name)
    middle.attribute.extend(attributes.values())
    return [*before, middle, _quantize(node, floats, list(node.input[3 * count :]))]


def _expand_product(node: NodeProto, attributes: Mapping[str, onnx.AttributeProto]) -> list[NodeProto]:
    """A product with weights, which may have a scale for each output; the bias is in units of both scales."""
    kind, bias, result = PRODUCTS[node.op_type]
    rows = kind == "Conv" or ("transB" in attributes and bool(attributes["transB"].i))
    names = [*node.input, *[""] * (9 - len(node.input))]
    before = [_dequantize(node, 0, names[0:3]), _dequantize(node, 1, names[3:6], axis=0 if rows else 1)]
    inputs = [made.output[0] for made in before]
    if names[bias]:
        unit, whole, floats = (f"{node.output[0]}/{part}" for part in ("unit", "whole_bias", "bias"))
        before.append(helper.make_node("Mul", [names[1], names[4]], [unit], name=unit))
        before.append(helper.make_node("Cast", [names[bias]], [whole], name=whole, to=TensorProto.FLOAT))
        before.append(helper.make_node("Mul", [whole, unit], [floats], name=floats))
        inputs.append(floats)
    quantized = bool(names[result])
    made = f"{node.output[0]}/floats" if quantized else node.output[0]
    middle = helper.make_node(kind, inputs, [made], name=node.name)
    middle.attribute.extend(attributes.values())
    return [*before, middle, *([_quantize(node, made, names[result : result + 2])] if quantized else [])]


def _dequantize(node: NodeProto, index: int, group: list[str], axis: int | None = None) -> NodeProto:
    made = f"{node.output[0]}/input{index}"
    names = group if group[2:] and group[2] else group[:2]
    return helper.make_node("DequantizeLinear", names, [made], name=made, **({} if axis is None else {"axis": axis}))


def _quantize(node: NodeProto, floats: str, group: list[str]) -> NodeProto:
    names = [floats, *(group if group[1:] and group[1] else group[:1])]
    return helper.make_node("QuantizeLinear", names, [node.output[0]], name=f"{node.output[0]}/quantized")
