"""Cast a graph to FP16 or BF16, branches and loops included; nodes that cannot be cast stay in FP32, and are named."""

from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from enginebench.models.precision.calibration import TensorRange
from enginebench.models.precision.graph import FreeNames, list_opsets, name_nodes, raise_opset, read_graphs, walk_nodes

FP16_MAX = float(np.finfo(np.float16).max)
FP16_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
# Other inputs may give values twice as large as those observed before anything overflows: one bit of the exponent.
HEADROOM = 2.0
# Convolution, pooling and resizing take bfloat16 from here on. Source: ONNX operator changelog, opset 22.
BF16_OPSET = 22
BF16, FP16, FP32 = TensorProto.BFLOAT16, TensorProto.FLOAT16, TensorProto.FLOAT
SUFFIXES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
TYPES = {BF16: "tensor(bfloat16)", FP16: "tensor(float16)"}
ALL_FP32 = "tensor(float)"
# Arithmetic by which a graph computes lengths and indices: between a cast from integers and one back to them.
ARITHMETIC = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Floor", "Ceil", "Round", "Neg", "Abs", "Sqrt", "Pow", "Min", "Max", "Mod"),
        *("Range", "Concat", "Slice", "Gather", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Where", "Expand"),
        "ReduceProd",
    )
)


def find_overflowing(model: ModelProto, ranges: Mapping[str, TensorRange]) -> list[str]:
    """Return the names of nodes that read or make a value which FP16 cannot hold, with headroom for other inputs.

    Readers are among them: a cast between maker and reader would overflow, too.
    """
    large = {name for name, tensor_range in ranges.items() if tensor_range.largest > FP16_MAX / HEADROOM}
    for tensor in model.graph.initializer:  # constants are exact: they need no headroom
        values = numpy_helper.to_array(tensor) if tensor.data_type == FP32 else np.zeros(0)
        if np.any(np.isfinite(values) & (np.abs(values) > FP16_MAX)):
            large.add(tensor.name)
    return [node.name for node in model.graph.node if large.intersection((*node.input, *node.output))]


def cast_to_fp16(model: ModelProto, blocked: Iterable[str], keep_io: bool) -> tuple[ModelProto, list[str]]:
    """Return (the graph in FP16, names of the nodes that stay in FP32).

    Args:
        blocked: names of nodes to leave in FP32; those whose operator is unsafe or unknown in FP16 are added.
        keep_io: leave inputs and outputs in FP32, with casts behind and before them.
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    names = set(blocked)
    names |= {node.name for node in walk_nodes(model) if node.op_type in DEFAULT_OP_BLOCK_LIST}
    return _cast(model, FP16, names, keep_io)


def cast_to_bf16(model: ModelProto, blocked: Iterable[str], keep_io: bool) -> tuple[ModelProto, list[str]]:
    """Return (the graph in BF16, names of the nodes that stay in FP32).

    BF16 has the range of FP32: nothing overflows.
    """
    return _cast(raise_opset(model, BF16_OPSET), BF16, set(blocked), keep_io)


def _cast(model: ModelProto, to: int, blocked: set[str], keep_io: bool) -> tuple[ModelProto, list[str]]:
    cast = onnx.shape_inference.infer_shapes(model)  # of branches, too
    name_nodes(cast)
    graphs = list(walk_graphs(cast.graph))
    arithmetic = {name for graph in graphs for name in find_index_arithmetic(graph)}
    # Nodes that read or make a value of unknown type, as behind a custom operator, or a sequence or an optional value,
    # whose elements have the type that their producer names.
    untyped = set()
    for graph in graphs:
        values = (*graph.input, *graph.value_info, *graph.output)
        typed = {value.name for value in values if value.type.HasField("tensor_type")} | {""}
        unknown = {name for node in graph.node for name in node.output} - typed
        untyped |= {node.name for node in graph.node if unknown.intersection((*node.input, *node.output))}
    caster = _Caster(cast, to, blocked | arithmetic | untyped)
    caster.cast(cast.graph, {}, {}, to, FP32 if keep_io else to)
    for graph in walk_graphs(cast.graph):
        del graph.value_info[:]
    return onnx.shape_inference.infer_shapes(cast), [name for name in caster.kept if name not in arithmetic]


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graph, and those of its branches and loops."""
    yield graph
    for node in graph.node:
        for inner in read_graphs(node):
            yield from walk_graphs(inner)


def find_index_arithmetic(graph: GraphProto) -> set[str]:
    """Return the names of nodes that compute with integers as floats, as many exporters do with lengths and indices.

    FP16 holds integers up to 2,048 and BF16 up to 256: beyond, the next operator would get another length.
    """
    floats = find_floats(graph)
    constants = {tensor.name for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    whole: set[str] = set()
    for node in graph.node:
        operands = [name for name in node.input if name in floats and name not in constants]
        from_integers = node.op_type == "Cast" and not operands
        if from_integers or (node.op_type in ARITHMETIC and operands and whole.issuperset(operands)):
            whole.update(name for name in node.output if name in floats)
    back = [node for node in graph.node if node.op_type == "Cast" and node.output[0] not in floats]
    pending = [node for node in back if whole.intersection(node.input)]
    names = {node.name for node in pending}  # themselves, too: they would be handed a rounded copy
    while pending:
        node = pending.pop()
        for name in node.input:
            maker = makers.get(name)
            if name in whole and maker is not None and maker.name not in names:
                names.add(maker.name)
                pending.append(maker)
    return names


def find_floats(graph: GraphProto) -> set[str]:
    """Return the names of the FP32 tensors of a graph, without those of its branches."""
    names = {t.name for t in graph.initializer if t.data_type == FP32}
    values = (*graph.input, *graph.value_info, *graph.output)
    return names | {v.name for v in values if v.type.tensor_type.elem_type == FP32}


def list_types(graph: GraphProto) -> dict[str, TypeProto]:
    """Return the current type of each value of a graph, as far as it is known, without those of its branches."""
    types = {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = TypeProto()
        types[value.name].CopyFrom(value.type)
    return types


class _Value(NamedTuple):
    """The current name and type of a float value of the original graph."""

    name: str
    kind: int


class _Caster:
    """Casts a graph from inputs to outputs; each value has one type, and a cast copy where it is read in the other."""

    def __init__(self, model: ModelProto, to: int, blocked: set[str]) -> None:
        self.kept: list[str] = []
        self._to = to
        self._blocked = blocked
        self._opsets, self._opset_import, self._ir_version = list_opsets(model), model.opset_import, model.ir_version
        self._choices: dict[tuple[str, int], tuple[list[int], list[int]]] = {}  # by name of the node
        self._by_schema: dict[tuple[object, ...], tuple[list[int], list[int]] | None] = {}
        taken = {name for node in walk_nodes(model) for name in (*node.input, *node.output, node.name)}
        taken |= {value.name for value in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
        self._names = FreeNames(taken)

    def cast(
        self, graph: GraphProto, outside: Mapping[str, _Value], outer_types: Mapping[str, TypeProto], to: int, ends: int
    ) -> None:
        """Cast a graph in place.

        Args:
            outside: values of the outer graphs that are visible in a branch.
            outer_types: original types of these values.
            to: FP32 for a branch whose node is blocked: it gets all its inputs in FP32.
            ends: the type of its inputs and outputs.
        """
        floats, types = find_floats(graph), ChainMap(list_types(graph), dict(outer_types))
        values = dict(outside)
        stored, nodes = {t.name for t in graph.initializer}, list(graph.node)
        del graph.node[:]
        for value in graph.input:
            if value.name in floats and value.name not in stored:
                value.type.tensor_type.elem_type = ends
                values[value.name] = _Value(value.name, ends)
        self._place_constants(graph, nodes, types, values, to, ends)
        casts: dict[tuple[str, int], str] = {}
        ending = {value.name for value in graph.output}

        def read(name: str, kind: int) -> str:
            value = values[name]
            if value.kind == kind:
                return value.name
            if (name, kind) not in casts:
                casts[name, kind] = self._make_name(name, kind)
                graph.node.append(self._make_cast(value.name, casts[name, kind], kind))
            return casts[name, kind]

        for node in nodes:
            inward, outward = self._choose_types(node, types, to)
            if to != FP32 and any(n in values or n in floats for n in (*node.input, *node.output)):
                kinds = zip((*inward, *outward), (*node.input, *node.output), strict=True)
                if all(kind == FP32 for kind, name in kinds if name in floats or name in values):
                    self.kept.append(node.name)
            for i, name in enumerate(node.input):
                if name in values:
                    node.input[i] = read(name, inward[i])
            inside = to if to in (*inward, *outward) else FP32
            for inner in read_graphs(node):
                self.cast(inner, values, types, inside, inside)
            for i, name in enumerate(node.output):
                if name in floats:
                    kind = outward[i]
                    other = name in ending and kind != ends
                    values[name] = _Value(self._make_name(name, kind) if other else name, kind)
                    node.output[i] = values[name].name
                    _rewrite_type(node, kind)
            graph.node.append(node)
        for value in graph.output:
            if value.name in values and value.name in floats:
                value.type.tensor_type.elem_type = ends
                if (made := values[value.name].name) != value.name:  # in another type
                    graph.node.append(self._make_cast(made, value.name, ends))

    def _place_constants(
        self,
        graph: GraphProto,
        nodes: list[NodeProto],
        types: Mapping[str, TypeProto],
        values: dict[str, _Value],
        to: int,
        ends: int,
    ) -> None:
        """Round the constants that are never read in FP32; the others stay, and get a cast where one is needed."""
        demands: defaultdict[str, set[int]] = defaultdict(set)
        self._collect_demands(nodes, types, to, demands)
        for value in graph.output:
            demands[value.name].add(ends)
        listed = {value.name: value for value in graph.input}
        for tensor in list(graph.initializer):
            if tensor.data_type != FP32:
                continue
            rounded = to != FP32 and demands[tensor.name] <= {to}
            if rounded:
                tensor.CopyFrom(round_tensor(tensor, to))
            kind = to if rounded else FP32
            if tensor.name in listed:  # old files list constants as inputs
                listed[tensor.name].type.tensor_type.elem_type = kind
            values[tensor.name] = _Value(tensor.name, kind)

    def _collect_demands(
        self, nodes: Iterable[NodeProto], types: Mapping[str, TypeProto], to: int, demands: defaultdict[str, set[int]]
    ) -> None:
        for node in nodes:
            inward, outward = self._choose_types(node, types, to)
            for name, kind in zip(node.input, inward, strict=True):
                demands[name].add(kind)
            inside = to if to in (*inward, *outward) else FP32
            for inner in read_graphs(node):
                self._collect_demands(inner.node, ChainMap(list_types(inner), dict(types)), inside, demands)
                for value in inner.output:  # a branch may hand out a constant of the graph around it
                    demands[value.name].add(inside)

    def _choose_types(self, node: NodeProto, types: Mapping[str, TypeProto], to: int) -> tuple[list[int], list[int]]:
        """Return the type of each float input and output of a node; the same in every call.

        The operator's schema decides: inputs that it takes in the new type are cast, and type inference gives the
        types of the outputs. Where that refuses the new types, the node stays in FP32.
        """
        key = node.name, to
        if key not in self._choices:
            in_fp32 = [FP32] * len(node.input), [FP32] * len(node.output)
            # Other domains' operators compute in the type that they were made for.
            foreign = node.domain not in ("", "ai.onnx")
            stays = to == FP32 or foreign or node.name in self._blocked
            self._choices[key] = (None if stays else self._look_up_schema(node, types)) or in_fp32
        return self._choices[key]

    def _look_up_schema(self, node: NodeProto, types: Mapping[str, TypeProto]) -> tuple[list[int], list[int]] | None:
        """Return what `_choose_by_schema` does, once for all nodes that differ in names alone.

        Type inference takes 0.2 ms a node, and large graphs repeat a few: of 20,000 nodes, 3 s of 10.
        """
        names = [*node.input, *node.output]
        key = (
            node.op_type,
            *(attribute.SerializeToString() for attribute in node.attribute),
            len(node.input),
            *(names.index(name) for name in names),
            *(types[name].SerializeToString() if name in types else name == "" for name in names),
        )
        if key not in self._by_schema:
            self._by_schema[key] = self._choose_by_schema(node, types)
        return self._by_schema[key]

    def _choose_by_schema(self, node: NodeProto, types: Mapping[str, TypeProto]) -> tuple[list[int], list[int]] | None:
        """Return the types like `_choose_types`; None where the operator does not take the new type."""
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get("", 1), "")
        except onnx.defs.SchemaError:
            return None
        allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}

        def choose(operands: Any, count: int) -> list[int]:
            kinds = []
            for i in range(count):
                operand = operands[min(i, len(operands) - 1)]  # the last may stand for several
                types_allowed = allowed.get(operand.type_str, {operand.type_str})
                kinds.append(FP32 if ALL_FP32 in types_allowed and TYPES[self._to] not in types_allowed else self._to)
            return kinds

        inward, outward = choose(schema.inputs, len(node.input)), choose(schema.outputs, len(node.output))
        if any(read_graphs(node)) or any(name and name not in types for name in node.input):
            return inward, outward
        rewritten = NodeProto()
        rewritten.CopyFrom(node)
        if any(is_fp32(types.get(name)) for name in node.output):
            _rewrite_type(rewritten, self._to)
        operands = dict(zip(node.input, inward, strict=True))
        values = [
            helper.make_value_info(name, _replace_float(types[name], operands[name])) for name in operands if name
        ]
        alone = ModelProto(
            ir_version=self._ir_version,
            opset_import=self._opset_import,
            graph=helper.make_graph([rewritten], node.name, values, []),
        )
        try:
            # Of operators that the specification defines by others, their definition is checked, too.
            inferred = onnx.shape_inference.infer_shapes(alone, check_type=True, strict_mode=True)
        except onnx.shape_inference.InferenceError:
            return None
        made = list_types(inferred.graph)
        return inward, [
            FP32 if is_fp32(made.get(name)) else kind for name, kind in zip(node.output, outward, strict=True)
        ]

    def _make_cast(self, source: str, target: str, kind: int) -> NodeProto:
        return helper.make_node("Cast", [source], [target], self._make_name(f"cast_{target}"), to=kind)

    def _make_name(self, base: str, kind: int | None = None) -> str:
        return self._names.take(base if kind is None else f"{base}_{SUFFIXES[kind]}")


def is_fp32(kind: TypeProto | None) -> bool:
    """Return whether a type is known to be that of FP32 tensors."""
    return kind is not None and kind.tensor_type.elem_type == FP32


def _replace_float(original: TypeProto, kind: int) -> TypeProto:
    """Return the type with its elements in `kind` if they are FP32."""
    replaced = TypeProto()
    replaced.CopyFrom(original)
    if is_fp32(original):
        replaced.tensor_type.elem_type = kind
    return replaced


def _rewrite_type(node: NodeProto, kind: int) -> None:
    """Rewrite the type of its output in a node's attributes, if it is there: constants, `to`, `dtype`."""
    if kind == FP32:
        return
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type == FP32:
            attribute.t.CopyFrom(round_tensor(attribute.t, kind))
        if attribute.name in ("to", "dtype") and attribute.i == FP32:
            attribute.i = kind
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            rounded = round_tensor(numpy_helper.from_array(np.array(values, np.float32)), kind)
            attribute.CopyFrom(helper.make_attribute("value", rounded))
    if node.op_type == "ConstantOfShape" and not node.attribute:  # zero in FP32, where nothing is given
        zero = round_tensor(numpy_helper.from_array(np.zeros(1, np.float32)), kind)
        node.attribute.append(helper.make_attribute("value", zero))


def round_tensor(tensor: TensorProto, to: int) -> TensorProto:
    """Return an FP32 tensor in BF16 or FP16, rounded to nearest, ties to even.

    Values that FP16 would round to zero become its smallest number, as they may be divisors; values beyond its largest
    number become that, as in the mask of an attention in a branch.

    Source: IEEE 754 roundTiesToEven; BFloat16 is float32 without the lower 16 bits of the significand, so half of the
        lower half's range is added first.
    """
    values = np.ascontiguousarray(numpy_helper.to_array(tensor), np.float32)
    if to == FP16:
        tiny = (np.abs(values) < FP16_SMALLEST) & (values != 0)
        held = np.where(np.isfinite(values), np.clip(values, -FP16_MAX, FP16_MAX), values)
        halves = np.where(tiny, np.copysign(np.float32(FP16_SMALLEST), held), held).astype(np.float16)
        return numpy_helper.from_array(halves.reshape(tuple(tensor.dims)), tensor.name)  # a scalar has no axis
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    # Rounding would carry a NaN of low payload into infinity.
    rounded = np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
    return helper.make_tensor(tensor.name, BF16, list(tensor.dims), rounded.tobytes(), raw=True)
