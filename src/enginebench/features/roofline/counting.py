"""What an ONNX graph has to do: multiply-accumulates and tensors of every node, shapes inferred for real inputs."""

import ast
import math
from collections.abc import Iterator, Mapping

from enginebench.core.errors import ArtifactError, explaining, importing
from enginebench.features.roofline.jobs import GraphWork, NodeWork, TensorWork
from enginebench.models.precision.macs import FACTORS, UNITS, Shape, count_node_macs

with importing("{}", 'pip install "enginebench[ort]"'):
    import onnx
from onnx import ModelProto, NodeProto, TensorProto

# Whose result can be a view of what goes in, or be written in place by whoever makes that: not a byte need be touched.
MOVES = frozenset(
    (
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Transpose", "Slice", "Split", "Concat"),
        *("Expand", "Shape", "Size", "Constant", "ConstantOfShape", "Range", "Cast", "CastLike", "DepthToSpace"),
        *("SpaceToDepth", "Tile", "Pad"),
    )
)
# Quantizing and its inverse are done by whoever makes the values, or takes them.
QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
_SCOPES = "pkg.torch.onnx.name_scopes"
# Bits of types that are not whole bytes.
_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))


def describe_work(model: ModelProto, shapes: Mapping[str, Shape], batch: int = 1) -> GraphWork:
    """The work of a graph. Nodes inside of branches and loops are not counted.

    An input that is not among `shapes` has `batch` on its first axis if that is open.

    Source of the counts: the operators' definitions in the ONNX specification; one multiply-accumulate for each product
    that the plain definition sums, whatever algorithm (Winograd, FFT) does with fewer.
    """
    known = infer_tensors(fix_inputs(model, shapes, batch))
    nodes = [_describe_node(node, known) for node in model.graph.node]
    counted = [node for node in model.graph.node if node.op_type not in MOVES]
    unknown = sum(any(name and name not in known for name in node.output) for node in counted)
    return GraphWork(
        nodes=tuple(nodes),
        tensors={name: tensor for name, (tensor, _) in known.items()},
        outputs=tuple(value.name for value in model.graph.output),
        unknown=unknown,
    )


def fix_inputs(model: ModelProto, shapes: Mapping[str, Shape], batch: int) -> ModelProto:
    """A copy whose inputs have these shapes, without what is known of others, and without large weights."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in fixed.graph.input:
        tensor = value.type.tensor_type
        if value.name in constants or not tensor.HasField("shape"):
            continue
        given = shapes.get(value.name, ())
        for index, axis in enumerate(tensor.shape.dim):
            usual = axis.dim_value or (1 if index else batch)
            axis.dim_value = given[index] if index < len(given) else usual
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed


def infer_tensors(model: ModelProto) -> dict[str, tuple[TensorWork, Shape]]:
    """Every tensor whose type and shape are known, with its shape."""
    with explaining(ArtifactError, "shapes of the graph cannot be inferred", tell=lambda e: str(e)[:300]):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)  # one beyond 2 GB cannot be copied
    found: dict[str, tuple[TensorWork, Shape]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(axis.HasField("dim_value") for axis in kind.shape.dim):
            shape = tuple(axis.dim_value for axis in kind.shape.dim)
            found[value.name] = (_describe_tensor(kind.elem_type, shape), shape)
    for tensor in inferred.graph.initializer:
        shape = tuple(tensor.dims)
        found[tensor.name] = (_describe_tensor(tensor.data_type, shape), shape)
    return found


def _describe_tensor(kind: int, shape: Shape) -> TensorWork:
    bits = _BITS.get(TensorProto.DataType.Name(kind))
    try:
        each = bits / 8 if bits else float(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, ValueError, TypeError):
        each = 0.0
    each = 2.0 if kind == TensorProto.BFLOAT16 else each
    return TensorWork(values=math.prod(shape), bytes_each=each, floating=kind in _FLOATS)


def _describe_node(node: NodeProto, known: Mapping[str, tuple[TensorWork, Shape]]) -> NodeWork:
    shapes = {tensor: shape for tensor, (_, shape) in known.items()}
    macs = count_node_macs(node, shapes)
    scopes = _read_scopes(node)
    return NodeWork(
        name=node.name or (node.output[0] if node.output else node.op_type),  # as runtimes call it
        op=node.op_type,
        inputs=tuple(filter(None, node.input)),
        outputs=tuple(filter(None, node.output)),
        macs=macs,
        unit=UNITS.get(node.op_type) if macs else None,
        moves=node.op_type in MOVES or node.op_type in QUANTIZERS,
        read_shares=dict(_list_read_shares(node, shapes)),
        scopes=tuple(scope for scope in scopes[:-1] if scope),
        operator=scopes[-1] if scopes else "",
    )


def _list_read_shares(node: NodeProto, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, float]]:
    """Inputs of which a part alone must be read: strides that leave rows out, rows that are picked."""
    output = shapes.get(node.output[0]) if node.output else None
    data = shapes.get(node.input[0]) if node.input else None
    if not data or output is None:
        return
    if node.op_type in ("Gather", "GatherElements", "GatherND", "TopK", "EmbeddingBag"):
        yield node.input[0], min(1.0, math.prod(output) / max(1, math.prod(data)))
    strides = _read_ints(node, "strides")
    if strides and node.op_type in ("Conv", "ConvInteger", "QLinearConv", "MaxPool", "AveragePool"):
        weights = shapes.get(node.input[FACTORS.get(node.op_type, (0, 1))[1]]) if len(node.input) > 1 else None
        kernel = _read_ints(node, "kernel_shape") or (list(weights[2:]) if weights else [])
        share = math.prod(min(1.0, k / s) for k, s in zip(kernel, strides, strict=False))
        if kernel and share < 1:
            yield node.input[0], share


def _read_scopes(node: NodeProto) -> tuple[str, ...]:
    """Paths of the modules around the operator that a node was exported from, outermost first.

    Source: what PyTorch's exporter (2.5 and newer) keeps in `metadata_props`; the last scope is the operator itself.
    """
    text = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    try:
        scopes = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return ()
    return tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()


def _read_ints(node: NodeProto, name: str) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [])
