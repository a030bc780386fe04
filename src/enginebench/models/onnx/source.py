"""Any ONNX file to an artifact: its inputs and outputs, its precision read from the graph, every file hashed.

Where a graph comes from is written into its own metadata: a file may leave the run that made it.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import msgspec
from msgspec.structs import replace

from enginebench.core.engine_api import UNKNOWN_RANK
from enginebench.core.errors import ArtifactError, ParseError, explaining, importing
from enginebench.core.names import format_precision
from enginebench.core.protocols import Array
from enginebench.core.recipes import RECIPES
from enginebench.core.records import TEXT, Artifact, Precision, Recipe, ResultWarning, TensorSpec
from enginebench.core.shapes import name_axes
from enginebench.core.store import explain_access, explain_reading, hash_files, parsing, refuse_pointer
from enginebench.core.warnings import make_warning

with importing("onnx", 'pip install "enginebench[ort]"'):
    from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper
    from onnx.helper import tensor_dtype_to_np_dtype
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from enginebench.models.task import hash_preprocess
from enginebench.models.zoo import packaged_onnx

# A protobuf message cannot be larger; larger models keep their weights in a second file.
# Source: https://protobuf.dev/programming-guides/encoding/#size-limit
LARGEST_PROTOBUF_BYTES = 2**31 - 1

QUANTIZED_OPS = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"),
        "DynamicQuantizeLinear",
    )
)
FLOAT8_TYPES = {TensorProto.DataType.Value(f"FLOAT8{kind}") for kind in ("E4M3FN", "E4M3FNUZ", "E5M2", "E5M2FNUZ")}
PRECISION_KEY = "enginebench.precision"
PREPROCESS_KEY = "enginebench.preprocess_sha256"
WARNINGS_KEY = "enginebench.caveats"
PARENT_KEY = "enginebench.parent_sha256"
CALIBRATION_KEY = "enginebench.calibration"
KEPT_KEY = "enginebench.kept_fp32"
EXCLUDED_KEY = "enginebench.excluded"

# TensorProto.DataType
FLOATS: dict[int, Precision] = {1: "fp32", 10: "fp16", 16: "bf16"}
FP64 = 11
# ONNX Runtime's operators on weights of few bits, several to a byte; what they take and give are floats.
# Source: onnxruntime, docs/ContribOperators.md.
PACKED = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "MatMulFpQ4", "QMoE"})
# A hash, or the word for an array that the user prepared.
_PREPROCESS = re.compile(r"[0-9a-f]{64}|external")


def describe_origin(
    precision: Precision,
    recipe: Recipe | None,
    *,
    parent_sha256: str,
    preprocess_sha256: str | None,
    warnings: tuple[ResultWarning, ...] = (),
    kept_fp32: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
    calibration: str = "",
) -> dict[str, str]:
    """The entries of a graph's metadata, empty ones included: they take the place of what stood there before."""
    return {
        PRECISION_KEY: format_precision(precision, recipe),
        PARENT_KEY: parent_sha256,
        KEPT_KEY: "\n".join(kept_fp32),
        EXCLUDED_KEY: "\n".join(excluded),
        CALIBRATION_KEY: calibration,
        PREPROCESS_KEY: preprocess_sha256 or "",
        WARNINGS_KEY: msgspec.json.encode(warnings).decode() if warnings else "",
    }


def read_onnx(path: Path) -> Artifact:
    """The artifact of an ONNX file, external data included. The weights themselves are hashed, not loaded."""
    model = load_graph(path)
    sha256, files = hash_files([path, *find_external_data(model, path)], path.parent)
    made = _describe_graph(model, path)
    maker = {model.producer_name: model.producer_version} if model.producer_name else {}
    return replace(made, sha256=sha256, files=files, weights="in-graph", made_by=maker)


def read_onnx_head(path: Path) -> Artifact:
    """The artifact of an ONNX file as its graph describes it: nothing is hashed, external data need not be there."""
    return _describe_graph(load_graph(path), path)


def check_onnx(path: Path) -> Artifact:
    """Check a graph like `read_onnx_head`, once the files of its weights are known to exist and to be long enough."""
    model = load_graph(path)
    find_external_data(model, path)
    return _describe_graph(model, path)


def _describe_graph(model: ModelProto, path: Path) -> Artifact:
    precision, recipe = read_precision(model)
    of_floats = () if recipe else _read_floats(model)[1]
    origin = read_metadata(model)
    calibration, preprocess = origin.get(CALIBRATION_KEY), origin.get(PREPROCESS_KEY, "")
    with parsing(path, "warnings as JSON", where=WARNINGS_KEY, advice="Quantize or export it again"):
        stored = msgspec.json.decode(origin.get(WARNINGS_KEY) or "[]", type=tuple[ResultWarning, ...])
    return Artifact(
        kind="onnx",
        model=str(path),
        path=str(path),
        sha256="",
        files=(),
        inputs=_read_inputs(model.graph, path),
        outputs=tuple(_describe_value(value, path) for value in model.graph.output),
        precision=precision,
        recipe=recipe,
        preprocess_sha256=preprocess if _PREPROCESS.fullmatch(preprocess) else None,
        excluded=tuple(origin.get(EXCLUDED_KEY, "").splitlines()),
        made_with={"calibration": calibration} if calibration else {},
        warnings=tuple(dict.fromkeys((*stored, *of_floats))),
        opset=read_opset(model),
    )


def read_packaged_onnx(name: str) -> Artifact:
    """The artifact of a built-in model's packaged ONNX file, batch axis open. It needs no PyTorch."""
    path = packaged_onnx(name)
    if path is None:
        raise ArtifactError(f"{name} does not ship as ONNX; digits-cnn and digits-mlp do. Install enginebench[torch]")
    made = read_onnx(path)
    return replace(made, model=name, weights="trained", preprocess_sha256=hash_preprocess(name))


def load_graph(path: Path) -> ModelProto:
    """The model without its external data."""
    data = _read_file(path)
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise ParseError(
            path, f"{len(data)} bytes", "no complete protobuf message", "an ONNX model", "Copy or export it again"
        ) from error
    # Random bytes can be a protobuf message by chance; a model has operators, and outputs that come from somewhere.
    graph = model.graph
    needed = {"IR version": model.ir_version, "operator set": model.opset_import, "output": graph.output}
    if missing := [name for name, present in needed.items() if not present]:
        raise ParseError(path, "", f"no {' and no '.join(missing)}", "an ONNX model", "Copy or export it again")
    _require_text(path, (model.producer_name, model.producer_version))
    names = {name for node in graph.node for name in node.output}
    names |= {value.name for value in graph.input} | _initializer_names(graph)
    if orphans := [value.name for value in graph.output if value.name not in names]:
        raise ParseError(path, f"output {orphans[0]!r}", "no node that makes it", "a complete graph")
    if not _is_sorted(graph):
        try:  # OpenVINO reads a cycle until the memory of the machine is full
            TopologicalSorter({name: node.input for node in graph.node for name in node.output if name}).prepare()
        except CycleError as error:
            raise ParseError(
                path, f"tensor {error.args[1][0]!r}", "that it is computed from itself", "a graph without a cycle"
            ) from error
    return model


def _is_sorted(graph: GraphProto) -> bool:
    """Whether every node stands behind those whose tensors it reads, as ONNX requires: then there is no cycle."""
    pending = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        if not pending.isdisjoint(node.input):
            return False
        pending.difference_update(node.output)
    return True


def _read_file(path: Path) -> bytes:
    with explain_access(f"{path} cannot be read", "Check the path; `export` makes such a file"):
        if path.exists() and not path.is_file():
            raise ArtifactError(f"{path} is not a regular file; expected an ONNX file")
        refuse_pointer(path)
        size = path.stat().st_size
        if size > LARGEST_PROTOBUF_BYTES:
            raise ParseError(
                path, "", f"{size} bytes", "at most 2 GiB", "Larger models keep their weights in external data"
            )
        data = path.read_bytes()
    if not data:
        raise ParseError(path, "", "an empty file", "an ONNX model")
    return data


def _require_text(path: Path, strings: Iterable[object]) -> None:
    """Protobuf hands out bytes where a string of the file is not UTF-8."""
    for string in strings:
        if not isinstance(string, str):
            raise ParseError(path, "", f"a name that is not UTF-8 ({string!r:.80})", "text", "Copy or export it again")


def _initializer_names(graph: GraphProto) -> set[str]:
    return {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def _read_inputs(graph: GraphProto, path: Path) -> tuple[TensorSpec, ...]:
    """The inputs that a caller must feed: initializers, which old files list too, are none."""
    names, specs = _initializer_names(graph), []
    for value in graph.input:
        if value.name in names:
            continue
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ArtifactError(f"{path}, input {value.name!r}: {_name_kind(kind)}; expected a tensor")
        specs.append(_describe_value(value, path))
        if UNKNOWN_RANK in specs[-1].shape:
            raise ArtifactError(
                f"{path}, input {value.name!r}: no shape; expected one. Run shape inference on the file"
            )
    return tuple(specs)


def _describe_value(value: ValueInfoProto, path: Path) -> TensorSpec:
    _require_text(path, (value.name, *(axis.dim_param for axis in value.type.tensor_type.shape.dim)))
    kind = value.type.WhichOneof("value")
    tensor = _find_tensor(value.type)
    if tensor is None:
        raise ArtifactError(f"{path}, {value.name!r}: {_name_kind(kind)}; expected a tensor, or several")
    try:
        dtype = TEXT if tensor.elem_type == TensorProto.STRING else tensor_dtype_to_np_dtype(tensor.elem_type).name
    except (KeyError, ValueError) as error:
        raise ParseError(path, repr(value.name), f"element type {tensor.elem_type}", "a type of ONNX") from error
    if kind != "tensor_type":  # as an engine returns it in one array: a row of values for each sample
        return TensorSpec(name=value.name, dtype=dtype, shape=("batch", f"{value.name}_values"))
    if not tensor.HasField("shape"):
        return TensorSpec(name=value.name, dtype=dtype, shape=(UNKNOWN_RANK,))
    axes = [axis.dim_value if axis.dim_value > 0 else axis.dim_param for axis in tensor.shape.dim]
    return TensorSpec(name=value.name, dtype=dtype, shape=name_axes(value.name, axes))


def _find_tensor(kind: Any) -> Any | None:
    """The type of the tensors in a value: a tensor itself, those of a sequence or map, or that of an optional value."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return kind.tensor_type
        case "sequence_type":
            return _find_tensor(kind.sequence_type.elem_type)
        case "map_type":
            return _find_tensor(kind.map_type.value_type)
        case "optional_type":
            return _find_tensor(kind.optional_type.elem_type)
    return None


def _name_kind(kind: str | None) -> str:
    return f"{kind.removesuffix('_type').replace('_', ' ')} type" if kind else "no type"


def read_opset(model: ModelProto) -> int | None:
    """The version of ONNX's own operator set, or None if the model uses none of it."""
    return next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), None)


def read_precision(model: ModelProto) -> tuple[Precision, Recipe | None]:
    """The precision that the graph asks for: "int8", "fp8" or "int4" with Q/DQ nodes, else that of `choose_float`.

    A graph that was quantized here names its recipe in its metadata; any other with quantized nodes has "qat".
    """
    nodes = list(_walk_all(model))
    if any(node.op_type in QUANTIZED_OPS for node in nodes):
        types = {t.data_type for t in _walk_tensors(model, nodes)}
        precision: Precision = "int8"
        if types & FLOAT8_TYPES:
            precision = "fp8"
        elif TensorProto.INT4 in types:
            precision = "int4"
        explicit = any(node.op_type in ("DequantizeLinear", "DynamicQuantizeLinear") for node in nodes)
        named = read_metadata(model).get(PRECISION_KEY) if explicit else None
        return precision, next((r for r in RECIPES if f"{precision}@{r}" == named), "qat")
    return _read_floats(model)[0], None


def _read_floats(model: ModelProto) -> tuple[Precision, tuple[ResultWarning, ...]]:
    """(the precision of a graph without quantized nodes, the warnings that it does not tell all).

    It is the type of most weights, else that of most inputs and outputs. Where these tell nothing shorter than FP32,
    it is what the file says that it was made as: a transform may leave inputs and outputs as they were.
    """
    sizes: Counter[int] = Counter()
    nodes = list(_walk_all(model))
    for tensor in _walk_tensors(model, nodes):
        sizes[tensor.data_type] += math.prod(tensor.dims)
    ends = [value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)]
    float_sizes = Counter({kind: size for kind, size in sizes.items() if kind in FLOATS})
    counted = float_sizes or Counter(kind for kind in ends if kind in (*FLOATS, FP64))
    precision: Precision = next((FLOATS[kind] for kind, _ in counted.most_common() if kind in FLOATS), "fp32")
    if not float_sizes and precision == "fp32":
        declared = read_metadata(model).get(PRECISION_KEY)
        precision = next((p for p in FLOATS.values() if p == declared), precision)
    doubles = sizes[FP64] + counted.pop(FP64, 0)
    double = make_warning("unnamed_precision", what="most floats of the model are FP64", precision=precision)
    warnings = [double] if doubles > counted.total() else []
    if packed := sorted(PACKED.intersection(node.op_type for node in nodes)):
        what = f"{', '.join(packed)} read weight-only quantized weights (with accuracy_level=4 they multiply in 8 bits)"
        warnings.append(make_warning("unnamed_precision", what=what, precision=precision))
    return precision, tuple(warnings)


def read_metadata(model: ModelProto) -> dict[str, str]:
    """The entries of the model's metadata that are text."""
    return {p.key: p.value for p in model.metadata_props if isinstance(p.key, str) and isinstance(p.value, str)}


def _walk_all(model: ModelProto) -> Iterator[NodeProto]:
    yield from walk_nested_nodes(model.graph.node)
    for function in model.functions:
        yield from walk_nested_nodes(function.node)


def walk_nested_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, each followed by those of its own graphs."""
    for node in nodes:
        yield node
        if node.attribute:  # most of a large graph have none
            for graph in read_graphs(node):
                yield from walk_nested_nodes(graph.node)


def read_graphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node runs: branches, the body of a loop."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _walk_tensors(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Every stored tensor: initializers of all graphs, and constants in attributes."""
    yield from _stored_tensors(model.graph)
    for node in nodes:
        if not node.attribute:
            continue
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for graph in read_graphs(node):
            yield from _stored_tensors(graph)


def _stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)


def find_external_data(model: ModelProto, path: Path) -> list[Path]:
    """The files beside the model that hold its weights, sorted; each is there and long enough."""
    needed: dict[str, int] = {}
    for tensor in _external_tensors(model):
        location, offset, length = _read_location(tensor, path)
        needed[location] = max(offset + length, needed.get(location, 0))
    return [_check_data_file(path, location, end) for location, end in sorted(needed.items())]


def load_external_data(model: ModelProto, path: Path) -> None:
    """Put the weights that lie beside the model into it; `find_external_data` has passed them.

    Read here, not by `onnx`: since 1.23 it refuses a file that has several links, as every copy by `cp --link`, a
    backup or a data version control has, although its content is in order.
    """
    for tensor in _external_tensors(model):
        tensor.raw_data = _read_external(tensor, path)
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def read_tensor_values(tensor: TensorProto, path: Path | None) -> "Array | None":
    """Return the values of a tensor of the model at `path`; None where they lie beside it and no path is given.

    Raises:
        ArtifactError: external data is missing, too short, or outside the model's folder.
    """
    whole = tensor
    if tensor.data_location == TensorProto.EXTERNAL:
        if path is None:
            return None
        location, offset, length = _read_location(tensor, path)
        _check_data_file(path, location, offset + length)
        whole = TensorProto(name=tensor.name, dims=tensor.dims, data_type=tensor.data_type)
        whole.raw_data = _read_external(tensor, path)
    with explaining(ArtifactError, f"the values of tensor {tensor.name!r} cannot be read", ValueError, TypeError):
        values: Array = numpy_helper.to_array(whole)
        return values


def _read_external(tensor: TensorProto, path: Path) -> bytes:
    location, offset, length = _read_location(tensor, path)
    sibling = path.parent / location
    with explain_reading(sibling), sibling.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    if len(data) < length:
        end = offset + len(data)
        raise ArtifactError(f"{sibling} ends at byte {end}; expected {offset + length}. Copy it again")
    return data


def _external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    tensors = _walk_tensors(model, _walk_all(model))
    return (tensor for tensor in tensors if tensor.data_location == TensorProto.EXTERNAL)


def _read_location(tensor: TensorProto, path: Path) -> tuple[str, int, int]:
    """(file name, first byte, number of bytes) of a tensor in external data."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    _require_text(path, (tensor.name, *entries, *entries.values()))
    location = entries.get("location", "")
    where, what = f"tensor {tensor.name!r}", f"external data {entries}"
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or _count_bytes(tensor))
    except (ValueError, KeyError) as error:
        raise ParseError(path, where, what, "numbers for offset and length") from error
    if not location or offset < 0 or length < 0:
        raise ParseError(path, where, what, "a file and a range in it")
    return location, offset, length


def _count_bytes(tensor: TensorProto) -> int:
    return int(tensor_dtype_to_np_dtype(tensor.data_type).itemsize * math.prod(tensor.dims))


def _check_data_file(path: Path, location: str, end: int) -> Path:
    data = path.parent / location
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    # By the rules of either family of systems.
    climbs = posix.is_absolute() or bool(windows.anchor) or ".." in (*posix.parts, *windows.parts) or "\0" in location
    refusal = f"{path}: external data {location[:80]!r} cannot be accessed"
    with explaining(ArtifactError, refusal, OSError, RuntimeError):  # RuntimeError: a link that leads to itself
        if climbs or not data.resolve().is_relative_to(path.parent.resolve()):
            raise ArtifactError(
                f"{path}: external data {location!r} lies outside the model's folder; expected a file in it. "
                "Copy model and data into one folder, without links"
            )
        # A link that leads to itself is no file since Python 3.13, and raises before.
        size = data.stat().st_size if data.is_file() or data.is_symlink() else None
    if size is None:
        raise ArtifactError(f"{path}: external data file {data} is missing. Copy it beside the model")
    if size < end:
        refuse_pointer(data)
        raise ArtifactError(
            f"{path}: external data file {data} has {size} bytes; expected at least {end}. Copy it again"
        )
    return data
