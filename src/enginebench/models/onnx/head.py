"""Inputs, outputs and precision of an ONNX file, read without the onnx package: in milliseconds, weights untouched.

A dry run, and a container that holds TensorRT and little else, need no more than this. Weights are looked for among
the graph's initializers only; apart from that `source` says the same, and a test holds the two together.

Source: onnx/onnx.proto (IR version 13) and the protocol buffers wire format (protobuf.dev, "Encoding").
"""

from __future__ import annotations

import math
import mmap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ParseError
from enginebench.core.records import TEXT, Artifact, Caveat, Precision, Recipe, TensorSpec
from enginebench.core.shapes import name_axes
from enginebench.models.onnx.origin import Origin, choose_float, read_origin, read_recipe

# Field numbers of onnx.proto.
MODEL_GRAPH, MODEL_OPSET, MODEL_METADATA = 7, 8, 14
OPSET_DOMAIN, OPSET_VERSION = 1, 2
ENTRY_KEY, ENTRY_VALUE = 1, 2
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_INPUT, GRAPH_OUTPUT = 1, 5, 11, 12
NODE_OP_TYPE = 4
TENSOR_DIMS, TENSOR_DATA_TYPE, TENSOR_NAME = 1, 2, 8
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, TYPE_SEQUENCE, TYPE_MAP, TYPE_OPTIONAL = 1, 4, 5, 9
# Where the type of what is inside stands: in a sequence or an optional value, and in a map, whose keys come first.
INNER_ELEMENT, INNER_MAP_VALUE = 1, 2
TENSOR_ELEMENT, TENSOR_SHAPE, SHAPE_DIM, DIM_VALUE, DIM_NAME = 1, 2, 1, 1, 2

# TensorProto.DataType
DTYPES = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    8: TEXT,
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    16: "bfloat16",
}
FLOAT8 = (17, 18, 19, 20)
QUANTIZED = {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "DynamicQuantizeLinear"}

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Bytes: TypeAlias = memoryview
Field: TypeAlias = tuple[int, int | Bytes]


class OnnxHead(Struct, frozen=True, kw_only=True):
    """What a graph takes and gives, and the precision that it is written in."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: Precision
    recipe: Recipe | None = None
    preprocess_sha256: str | None = None
    excluded: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    opset: int | None = None


def read_onnx_head(path: Path) -> OnnxHead:
    """The head of an ONNX file.

    Raises:
        ParseError: the file is missing, empty, no ONNX model, or with metadata of ours that is damaged.
    """
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # closed when its last view is gone
        return _read_model(memoryview(data), path)
    except (OSError, ValueError, IndexError, RecursionError) as error:
        reason = "an empty file" if isinstance(error, ValueError) and "empty" in str(error) else str(error)
        raise ParseError(path, "", reason or type(error).__name__, "an ONNX model") from None


def _read_model(data: Bytes, path: Path) -> OnnxHead:
    graphs, metadata = [], {}
    opset = None
    for number, value in _read_fields(data):
        if number == MODEL_GRAPH and not isinstance(value, int):
            graphs.append(value)
        elif number == MODEL_OPSET:
            entry = _as_fields(value)
            if _read_text(entry.get(OPSET_DOMAIN, 0)) in ("", "ai.onnx"):
                opset = entry.get(OPSET_VERSION)
        elif number == MODEL_METADATA:
            entry = _as_fields(value)
            metadata[_read_text(entry.get(ENTRY_KEY, 0))] = _read_text(entry.get(ENTRY_VALUE, 0))
    if not graphs:
        raise ValueError("no graph in it")
    origin = read_origin(metadata, path)
    head = _read_graph(graphs[-1], metadata, origin)
    return replace(head, opset=opset) if isinstance(opset, int) else head


def _read_graph(data: Bytes, metadata: Mapping[str, str], origin: Origin) -> OnnxHead:
    inputs, outputs = [], []
    operators: set[str] = set()
    weights: dict[str, tuple[int, int]] = {}
    for number, value in _read_fields(data):
        if isinstance(value, int):
            continue
        if number == GRAPH_INPUT:
            inputs.append(_read_value(value))
        elif number == GRAPH_OUTPUT:
            outputs.append(_read_value(value))
        elif number == GRAPH_NODE:
            operators.update(_read_text(v) for n, v in _read_fields(value) if n == NODE_OP_TYPE)
        elif number == GRAPH_INITIALIZER:
            name, kind, size = _read_weight(value)
            weights[name] = kind, size
    dtypes = [spec.dtype for spec in (*inputs, *outputs)]
    precision, doubts = _choose_precision(operators, list(weights.values()), dtypes, metadata)
    explicit = "DequantizeLinear" in operators
    return OnnxHead(
        inputs=tuple(spec for spec in inputs if spec.name not in weights),
        outputs=tuple(outputs),
        precision=precision,
        recipe=(read_recipe(metadata, precision) if explicit else "qat") if operators & QUANTIZED else None,
        preprocess_sha256=origin.preprocess_sha256,
        excluded=origin.excluded,
        caveats=tuple(dict.fromkeys((*origin.caveats, *doubts))),
    )


def _read_weight(data: Bytes) -> tuple[str, int, int]:
    """(name, element type, number of elements) of an initializer; its values are not touched."""
    name, kind, size = "", 0, 1
    for number, value in _read_fields(data):
        if number == TENSOR_NAME:
            name = _read_text(value)
        elif number == TENSOR_DATA_TYPE and isinstance(value, int):
            kind = value
        elif number == TENSOR_DIMS:
            size *= value if isinstance(value, int) else math.prod(_read_packed(value))
    return name, kind, size


def _read_packed(data: Bytes) -> Iterator[int]:
    position = 0
    while position < len(data):
        value, position = _read_varint(data, position)
        yield value


def _choose_precision(
    operators: set[str], weights: list[tuple[int, int]], dtypes: list[str], metadata: Mapping[str, str]
) -> tuple[Precision, tuple[Caveat, ...]]:
    """As `source.read_precision` and `source.read_onnx` say: Q/DQ nodes decide, else `choose_float`."""
    if operators & QUANTIZED:
        return ("fp8" if any(kind in FLOAT8 for kind, _ in weights) else "int8"), ()
    sizes: Counter[int] = Counter()
    for kind, size in weights:
        sizes[kind] += size
    ends = [kind for dtype in dtypes for kind in DTYPES if DTYPES[kind] == dtype]
    return choose_float(sizes, ends, metadata, operators)


def _read_value(data: Bytes) -> TensorSpec:
    fields = dict(_read_fields(data))
    kind = _as_fields(fields.get(VALUE_TYPE))
    tensor = _find_tensor(kind)
    element = tensor.get(TENSOR_ELEMENT, 0)
    shape = tensor.get(TENSOR_SHAPE)
    name = _read_text(fields.get(VALUE_NAME, 0))
    axes = [] if shape is None or isinstance(shape, int) else [v for n, v in _read_fields(shape) if n == SHAPE_DIM]
    plain = TYPE_TENSOR in kind
    return TensorSpec(
        name=name,
        dtype=DTYPES.get(element if isinstance(element, int) else 0, "unknown"),
        shape=name_axes(name, [_read_axis(axis) for axis in axes]) if plain else ("batch", f"{name}_values"),
    )


def _find_tensor(kind: Mapping[int, int | Bytes]) -> dict[int, int | Bytes]:
    """The type of the tensors in a value: as `source`."""
    for outer, inner in (
        (TYPE_SEQUENCE, INNER_ELEMENT),
        (TYPE_OPTIONAL, INNER_ELEMENT),
        (TYPE_MAP, INNER_MAP_VALUE),
    ):
        if outer in kind:
            return _find_tensor(_as_fields(_as_fields(kind[outer]).get(inner)))
    return _as_fields(kind.get(TYPE_TENSOR))


def _read_axis(data: int | Bytes) -> int | str:
    fields = _as_fields(data)
    value = fields.get(DIM_VALUE)
    if isinstance(value, int) and value > 0:
        return value
    return _read_text(fields.get(DIM_NAME, 0))


def _as_fields(data: int | Bytes | None) -> dict[int, int | Bytes]:
    return {} if data is None or isinstance(data, int) else dict(_read_fields(data))


def _read_text(data: int | Bytes) -> str:
    return "" if isinstance(data, int) else bytes(data).decode("utf-8", "replace")


def _read_fields(data: Bytes) -> Iterator[Field]:
    """(field number, value) of a message, in order; the value is a number or the bytes of what lies inside."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, position = _read_varint(data, position)
            yield number, value
        elif wire in (FIXED64, FIXED32):
            position += 8 if wire == FIXED64 else 4
        elif wire == BYTES:
            length, position = _read_varint(data, position)
            if position + length > end:
                raise ValueError(f"a field of {length} bytes where {end - position} are left")
            yield number, data[position : position + length]
            position += length
        else:
            raise ValueError(f"wire type {wire}, which no ONNX file has")


def _read_varint(data: Bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def take_head(onnx: Path) -> Artifact:
    """The artifact of an ONNX file as far as its head tells: not hashed, weights not looked at."""
    head = read_onnx_head(onnx)
    inputs: tuple[TensorSpec, ...] = head.inputs
    return Artifact(
        kind="onnx",
        model=onnx.name,
        path=str(onnx),
        sha256="",
        files=(),
        inputs=inputs,
        outputs=head.outputs,
        precision=head.precision,
        recipe=head.recipe,
        preprocess_sha256=head.preprocess_sha256,
        excluded=head.excluded,
        caveats=head.caveats,
        opset=head.opset,
    )
