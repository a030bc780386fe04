"""Find inputs that an ONNX graph accepts: values for its operators, and lengths for its dynamic axes.

Both are read from the graph first (embeddings, comparisons, recurrent states, names), then tried on the CPU until every
operator accepts them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import ModelProto, NodeProto, TensorProto

from enginebench.core.feeds import random_feeds
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array
from enginebench.core.records import TEXT, Artifact, TensorSpec
from enginebench.core.shapes import concrete_shape, format_shapes, match_axes
from enginebench.core.text import first_line
from enginebench.core.warnings import make_warning
from enginebench.models.onnx.input_sizes import Sizes, find_batches, list_knobs, list_sizes, set_sizes, split_words
from enginebench.models.onnx.source import load_graph, read_metadata, walk_nested_nodes

Values = tuple[float, float]

# Operators that pass the values of their first input on, in another shape or type.
PASSING = frozenset(
    {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose", "Slice", "Expand", "Tile", "Split"}
)
RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
# {input of indices: input of the table}. Source: ONNX operators, and those of ONNX Runtime (com.microsoft).
INDEXED = {"Gather": {1: 0}, "GatherElements": {1: 0}, "EmbedLayerNormalization": {0: 2, 1: 4}}
# Operators that are not defined for every number.
PARTIAL = frozenset({"Log", "Sqrt", "Pow", "Reciprocal", "Div", "Acos", "Asin", "Acosh", "Atanh"})
STATE_WORDS = frozenset({"state", "states", "h", "c", "h0", "c0", "hn", "cn", "cell", "past", "cache"})
LENGTHS = frozenset({"length", "lengths", "len", "lens"})
RATE_WORDS = frozenset({"sr", "rate", "samplerate"})
SAMPLE_RATE = 16000  # of speech: that of nearly every model with a rate as input
# Of single floats, which are 1 beside other inputs: a scale, a strength.
AROUND_ONE: Values = (0.5, 2.0)
# Ranges for floats of which nothing is known, after standard normal ones gave outputs that are not finite.
TAMER: tuple[Values, ...] = ((0.0, 1.0), (0.01, 1.0), (1.0, 2.0))
# Ranges for integers of which nothing is known, after 0 to 99 were out of a table's bounds.
SMALLER: tuple[Values, ...] = ((0, 1), (0, 0))
# Trying ends after this long: a graph that needs seconds for each call has been seen to run by then.
TRIED_S = 60.0
ONLY_ERRORS = 4  # log only fatal errors: refusals are expected here


class _Tried(Struct, frozen=True, kw_only=True):
    """The outputs of one call, or the reason why it failed."""

    outputs: dict[str, Array] = {}
    refusal: str = ""

    @property
    def finite(self) -> bool:
        return all(np.isfinite(a).all() for a in self.outputs.values() if a.dtype.kind == "f")


def complete_inputs(artifact: Artifact, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Artifact:
    """Return the artifact with values and lengths for made-up inputs; a warning names each chosen length."""
    model = load_graph(Path(artifact.path))
    reader = _Reader(model)
    specs = reader.guess_all(artifact.inputs)
    batches = find_batches(specs)
    fixed_axes = match_axes(artifact.inputs, shapes or {}, batches)
    states = any(spec.values == (0, 0) for spec in specs)
    # Height and width that the exporter of a detector noted. Source: ultralytics, metadata `imgsz`.
    noted = [int(n) for n in re.findall(r"\d+", read_metadata(model).get("imgsz", ""))]
    knobs = list_knobs(
        [replace(s, shape=tuple(fixed_axes.get(str(axis), axis) for axis in s.shape)) for s in specs],
        batches,
        imgsz=(noted[0], noted[-1]) if noted and min(noted) > 0 else None,
        classifies=[len(spec.shape) for spec in artifact.outputs] == [2],
        streams=states,
    )
    candidates = [fixed_axes | sizes for sizes in list_sizes(knobs)] or [fixed_axes]
    # Made-up inputs could be refused by the graph, or give outputs that are not finite.
    unknown = any(spec.values is None and not spec.dtype.startswith(("float", "bfloat")) for spec in specs)
    if not knobs and not fixed_axes and not unknown and not reader.operators & PARTIAL:
        return replace(artifact, inputs=specs)
    accepted, attempt = _try_sizes(artifact, specs, batches, candidates)
    outputs = _mend_outputs(artifact.outputs, accepted, attempt)
    knob_axes = {axis for knob in knobs for axis in knob.axes}
    chosen = {spec.name: concrete_shape(spec, 1) for spec in accepted if not knob_axes.isdisjoint(spec.shape)}
    warnings = list(artifact.warnings)
    if chosen:
        listed = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in chosen.items())
        option = format_shapes(chosen)
        if attempt is not None and attempt.refusal:
            warnings.append(make_warning("chosen_shapes.refused", shapes=listed, option=option, why=attempt.refusal))
        else:
            warnings.append(make_warning("chosen_shapes", source="dynamic axes", shapes=listed, option=option))
    return replace(artifact, inputs=accepted, outputs=outputs, warnings=tuple(warnings))


def guess_values(artifact: Artifact) -> tuple[TensorSpec, ...]:
    """Return the inputs of a graph with the ranges of values read from it; nothing is tried."""
    return _Reader(load_graph(Path(artifact.path))).guess_all(artifact.inputs)


def _try_sizes(
    artifact: Artifact, specs: tuple[TensorSpec, ...], batches: Mapping[str, int | None], candidates: Sequence[Sizes]
) -> tuple[tuple[TensorSpec, ...], _Tried | None]:
    """Return the specs of the first candidate that the graph accepts, and its outputs; None if nothing can be tried."""
    sized = [_fill_lengths(set_sizes(specs, batches, sizes)) for sizes in candidates]
    session = _open_session(artifact)
    if session is None:
        return sized[0], None
    deadline, first = time.monotonic() + TRIED_S, None
    for candidate in sized:
        for spec_set in _vary(candidate):
            attempt = _call(session, spec_set)
            if not attempt.refusal and attempt.finite:
                return spec_set, attempt
            first = first or (candidate, attempt)
            # Other values may help: an index was too large, or an output is not finite.
            curable = not attempt.refusal or re.search(r"out of (data )?(bounds|range)|indices", attempt.refusal)
            if not curable or all(spec.values is not None for spec in candidate) or time.monotonic() > deadline:
                break
        if not attempt.refusal:
            return candidate, attempt  # it runs; none of the tried values makes its outputs finite
        if time.monotonic() > deadline:
            break
    assert first is not None
    return first


def _vary(specs: tuple[TensorSpec, ...]) -> Iterator[tuple[TensorSpec, ...]]:
    """Yield the specs as they are; then with smaller ranges for the inputs of which nothing is known."""
    yield specs
    for floats, whole in zip(TAMER, (*SMALLER, SMALLER[-1]), strict=True):
        unknown = {s.name for s in specs if s.values is None and s.dtype != "bool"}
        tamer = ((spec, floats if spec.dtype.startswith("float") else whole) for spec in specs)
        yield tuple(replace(spec, values=values) if spec.name in unknown else spec for spec, values in tamer)


def _open_session(artifact: Artifact) -> Any:
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ONLY_ERRORS
    try:
        register_operators(options, artifact.operator_libraries)
        return onnxruntime.InferenceSession(artifact.path, options, providers=["CPUExecutionProvider"])
    except Exception:  # an operator that this runtime lacks; each configuration will report it
        return None


def _call(session: Any, specs: Sequence[TensorSpec]) -> _Tried:
    try:
        outputs = session.run(None, random_feeds(specs, 1, seed=0))
    except Exception as error:  # a class of its own for every kind of failure
        return _Tried(refusal=first_line(error)[:200])
    names = [output.name for output in session.get_outputs()]
    return _Tried(outputs={n: a for n, a in zip(names, outputs, strict=True) if isinstance(a, np.ndarray)})


def _fill_lengths(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """Return the specs, with inputs that hold a length set to that of the longest axis among the other inputs."""
    longest = [concrete_shape(spec, 1)[1] for spec in specs if len(spec.shape) in (2, 3) and spec.values != (0, 0)]
    if not longest:
        return specs

    def fill(spec: TensorSpec) -> TensorSpec:
        whole = spec.values is None and spec.dtype.startswith(("int", "uint")) and len(spec.shape) <= 1
        named = not LENGTHS.isdisjoint(split_words(spec.name))
        return replace(spec, values=(min(longest), min(longest))) if whole and named else spec

    return tuple(map(fill, specs))


def _mend_outputs(
    outputs: tuple[TensorSpec, ...], inputs: Sequence[TensorSpec], attempt: _Tried | None
) -> tuple[TensorSpec, ...]:
    """Return the outputs with new names for axes whose declared name contradicts the length of the actual output."""
    if attempt is None or attempt.refusal:
        return outputs
    lengths = {axis: n for s in inputs for axis, n in zip(s.shape, concrete_shape(s, 1), strict=True)}

    def mend(spec: TensorSpec) -> TensorSpec:
        output = attempt.outputs.get(spec.name)
        if output is None or output.ndim != len(spec.shape):
            return spec
        pairs = enumerate(zip(spec.shape, output.shape, strict=True))
        wrong = {i for i, (axis, n) in pairs if isinstance(axis, str) and lengths.get(axis, n) != n}
        shape = (f"{spec.name}_axis{i}" if i in wrong else axis for i, axis in enumerate(spec.shape))
        return replace(spec, shape=tuple(shape))

    return tuple(map(mend, outputs))


class _Reader:
    """Follows the values of a graph by name; an inner graph uses the names of the outer one that are visible in it."""

    def __init__(self, model: ModelProto) -> None:
        nodes = list(walk_nested_nodes(model.graph.node))
        self.operators = {node.op_type for node in nodes}
        self._stored = {tensor.name: tensor for tensor in _list_stored(model, nodes)}
        self._made = {name: node for node in nodes for name in node.output if name}
        self._used: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in nodes:
            for index, name in enumerate(node.input):
                self._used.setdefault(name, []).append((node, index))

    def guess_all(self, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        guessed = [replace(spec, values=self._guess_values(spec)) for spec in specs]
        if all(spec.values is not None and spec.values[0] == spec.values[1] for spec in guessed):
            # All samples would be equal, and so would be their outputs, whatever an engine does.
            guessed = [
                replace(s, values=AROUND_ONE) if not s.shape and s.dtype.startswith("float") else s for s in guessed
            ]
        return tuple(guessed)

    def _guess_values(self, spec: TensorSpec) -> Values | None:
        """Return the lowest and highest value that an input should have; None where any will do."""
        uses = list(self._follow(spec.name))
        words, whole = {*split_words(spec.name)}, spec.dtype.startswith(("int", "uint"))
        rows = [n for node, index in uses if (n := self._count_rows(node, index)) is not None]
        if rows:
            return 0, max(min(rows) - 1, 0)
        single = all(axis == 1 for axis in spec.shape) or len(spec.shape) <= 1
        compared = [node.input[1 - index] for node, index in uses if node.op_type == "Equal"]
        operands = map(self._read, compared if single and spec.dtype != TEXT else [])
        compared_with = [float(values.reshape(-1)[0]) for values in operands if values is not None and values.size == 1]
        if compared_with:  # a single number that it is compared with
            return (SAMPLE_RATE, SAMPLE_RATE) if SAMPLE_RATE in compared_with else (compared_with[0], compared_with[0])
        if single and words & RATE_WORDS:
            return SAMPLE_RATE, SAMPLE_RATE
        recurrent = any(node.op_type in RECURRENT and index in (5, 6) for node, index in uses)
        state = bool(words & STATE_WORDS) and "hidden" not in words and len(spec.shape) >= 2
        if not whole and spec.dtype != "bool" and (recurrent or state):
            return 0, 0
        if "mask" in words or "mask" in spec.name.lower():
            return 1, 1
        if spec.dtype == "bool":
            return (0, 0) if single else None
        if spec.dtype == "uint8":
            return 0, 255
        if not whole and not spec.shape:
            return (0.5, 0.5) if words & {"threshold", "iou", "score", "conf"} else (1, 1)
        return (1, 1) if "scale" in words and len(spec.shape) <= 2 else None

    def _follow(self, name: str) -> Iterator[tuple[NodeProto, int]]:
        """Yield the nodes that get the values of `name`, directly or through nodes that only pass them on."""
        seen, waiting = {name}, [name]
        while waiting:
            for node, index in self._used.get(waiting.pop(), []):
                yield node, index
                if (node.op_type in PASSING and index == 0) or node.op_type == "Concat":
                    fresh = [out for out in node.output if out and out not in seen]
                    seen.update(fresh)
                    waiting += fresh

    def _count_rows(self, node: NodeProto, index: int) -> int | None:
        """Return the number of entries of the table that this input of a node indexes; None if it is not an index."""
        if node.op_type == "OneHot" and index == 0:
            depth = self._read(node.input[1])
            return None if depth is None else int(depth.reshape(-1)[0])
        table = INDEXED.get(node.op_type, {}).get(index)
        dims = self._find_dims(node.input[table]) if table is not None and table < len(node.input) else None
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return dims[axis] if dims else None

    def _find_dims(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a stored tensor, also behind a cast or a dequantization; None for other values."""
        while name not in self._stored:
            node = self._made.get(name)
            if node is None or node.op_type not in ("Identity", "Cast", "DequantizeLinear"):
                return None
            name = node.input[0]
        return tuple(self._stored[name].dims)

    def _read(self, name: str) -> Array | None:
        tensor = self._stored.get(name)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        values: Array = onnx.numpy_helper.to_array(tensor)
        return values


def _list_stored(model: ModelProto, nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    """Yield the initializers of all graphs, and constants under the name of their output."""
    yield from model.graph.initializer
    for node in nodes:
        for attribute in node.attribute:
            yield from attribute.g.initializer
            if node.op_type == "Constant" and attribute.name == "value":
                tensor = TensorProto()
                tensor.CopyFrom(attribute.t)
                tensor.name = node.output[0]
                yield tensor
