"""Infer every tensor of an ONNX graph, for inputs of given shapes."""

import math
from collections.abc import Mapping

from enginebench.core.errors import ArtifactError, explaining, importing
from enginebench.core.shapes import TensorWork
from enginebench.models.precision.macs import Shape

with importing("{}", 'pip install "enginebench[ort]"'):
    import onnx
from onnx import ModelProto, TensorProto

# Operators whose output can be a view of the input, or be written in place by the node before: no byte need be moved.
MOVES = frozenset(
    (
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Transpose", "Slice", "Split", "Concat"),
        *("Expand", "Shape", "Size", "Constant", "ConstantOfShape", "Range", "Cast", "CastLike", "DepthToSpace"),
        *("SpaceToDepth", "Tile", "Pad"),
    )
)

# Bits of types that are not whole bytes.
_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
_FLOATS = frozenset((TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE))


def fix_inputs(model: ModelProto, shapes: Mapping[str, Shape], batch: int) -> ModelProto:
    """Return a copy whose inputs have these shapes, without the shapes stored for other tensors."""
    fixed = ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.value_info[:]
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in fixed.graph.input:
        tensor = value.type.tensor_type
        if value.name in constants or not tensor.HasField("shape"):
            continue
        shape = shapes.get(value.name, ())
        for index, axis in enumerate(tensor.shape.dim):
            usual = axis.dim_value or (1 if index else batch)
            axis.dim_value = shape[index] if index < len(shape) else usual
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed


def infer_tensors(model: ModelProto) -> dict[str, tuple[TensorWork, Shape]]:
    """Return every tensor whose type and shape can be inferred, with its shape.

    Raises:
        ArtifactError: shape inference fails.
    """
    with explaining(ArtifactError, "shapes of the graph cannot be inferred", describe=lambda e: str(e)[:300]):
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)  # one beyond 2 GB cannot be copied
    tensors: dict[str, tuple[TensorWork, Shape]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(axis.HasField("dim_value") for axis in kind.shape.dim):
            shape = tuple(axis.dim_value for axis in kind.shape.dim)
            tensors[value.name] = (_describe_tensor(kind.elem_type, shape), shape)
    for tensor in inferred.graph.initializer:
        shape = tuple(tensor.dims)
        tensors[tensor.name] = (_describe_tensor(tensor.data_type, shape), shape)
    return tensors


def _describe_tensor(kind: int, shape: Shape) -> TensorWork:
    bits = _BITS.get(TensorProto.DataType.Name(kind))
    try:
        bytes_each = bits / 8 if bits else float(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    except (KeyError, ValueError, TypeError):
        bytes_each = 0.0
    bytes_each = 2.0 if kind == TensorProto.BFLOAT16 else bytes_each
    return TensorWork(values=math.prod(shape), bytes_each=bytes_each, floating=kind in _FLOATS)
