"""Load, prepare, inspect, run, check and write ONNX graphs for a change of precision."""

import contextlib
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError, explaining, importing
from enginebench.core.feeds import random_feeds
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import TensorSpec
from enginebench.core.store import open_temporary, write_atomic
from enginebench.core.sums import keep_sums_exact, open_cpu_session
from enginebench.models.onnx import source
from enginebench.models.onnx.reference import keeps_outputs
from enginebench.models.onnx.source import (
    LARGEST_PROTOBUF_BYTES,
    QUANTIZED_OPS,
    find_external_data,
    load_external_data,
    load_graph,
    read_opset,
)
from enginebench.models.onnx.source import read_graphs as read_graphs

with importing("{}", 'pip install "enginebench[ort]"'):
    import onnx
    import onnxruntime
    from onnxruntime.quantization import quant_pre_process
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

# Per-channel scales: the attribute `axis` of QuantizeLinear came with 13. Source: ONNX operator changelog.
SMALLEST_OPSET = 13
# Entries per call of a graph: for efficientnet_b0, 8 images stay below 300 MB.
STEP = 8
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


def load_whole_graph(path: Path) -> ModelProto:
    """Load the model with its weights, also those in external data."""
    model = load_graph(path)
    size = path.stat().st_size + sum(p.stat().st_size for p in find_external_data(model, path))
    if size > LARGEST_PROTOBUF_BYTES:
        raise ArtifactError(
            f"{path} has {size / 1e9:.1f} GB of weights; graphs up to 2.1 GB can be changed here. "
            "Quantize it with the tool that made it: a graph with Q/DQ nodes is used as it is"
        )
    load_external_data(model, path)
    return model


# Whether folding keeps the outputs of a graph, by the hash of its file and by its inputs: calibrating and rewriting
# prepare the same graph, and running both forms takes as long as the rest.
_KEPT: dict[tuple[bytes, tuple[TensorSpec, ...]], bool] = {}


def prepare_graph(model: ModelProto, libraries: Sequence[str] = (), inputs: Sequence[TensorSpec] = ()) -> ModelProto:
    """Return an equivalent graph to calibrate and rewrite: BatchNorm and constants folded, types inferred.

    Calibration and rewriting both start from it, so that the names of tensors agree. ONNX Runtime's optimizer does the
    folding; where that changes the outputs of the graph, nothing is folded.

    Args:
        libraries: of its custom operators; with any, nothing is folded, as the optimizer does not know them.
        inputs: of the graph, for made-up ones on which both forms are compared.
    """
    failing = explaining(ArtifactError, "the graph cannot be prepared")
    with failing, open_temporary() as folder, quiet_logging():
        original, prepared_file = folder / "given.onnx", folder / "prepared.onnx"
        data = raise_opset(_fix_constants(model), SMALLEST_OPSET).SerializeToString()
        original.write_bytes(data)
        quant_pre_process(original, prepared_file, skip_symbolic_shape=True, skip_optimization=bool(libraries))
        key = hashlib.sha256(data).digest(), tuple(inputs)
        prepared = onnx.load(prepared_file)
        if inputs and not libraries and key not in _KEPT:
            _KEPT[key] = _computes_alike(onnx.load_from_string(data), prepared) or keeps_outputs(
                original, prepared_file, random_feeds(inputs, 1, seed=0)
            )
        if not _KEPT.get(key, True):
            quant_pre_process(original, prepared_file, skip_symbolic_shape=True, skip_optimization=True)
            prepared = onnx.load(prepared_file)
    # Every domain that has a node, once, ONNX's own first. ONNX Runtime adds its own, which other parsers refuse; it
    # does not take one that is listed twice (by skl2onnx), and NNCF takes the first one's version for that of ONNX.
    used, opsets = {node.domain for node in walk_nodes(prepared)} | {""}, list_opsets(prepared)
    del prepared.opset_import[:]
    prepared.opset_import.extend(onnx.helper.make_opsetid(name, opsets[name]) for name in sorted(opsets.keys() & used))
    _restore_hard_swishes(prepared, model)
    _rename_added_constants(prepared, model)
    name_nodes(prepared)
    return prepared


def _computes_alike(model: ModelProto, prepared: ModelProto) -> bool:
    """Return whether nothing was folded: the same nodes on the same constants, whatever the names of nodes."""
    return list_opsets(model).items() <= list_opsets(prepared).items() and all(
        list(map(describe, ours)) == list(map(describe, theirs))
        for describe, ours, theirs in (
            (_describe_node, model.graph.node, prepared.graph.node),
            (_describe_constant, model.graph.initializer, prepared.graph.initializer),
        )
    )


def _describe_node(node: NodeProto) -> tuple[object, ...]:
    attributes = sorted(attribute.SerializeToString(deterministic=True) for attribute in node.attribute)
    return node.op_type, node.domain, list(node.input), list(node.output), attributes


def _describe_constant(tensor: TensorProto) -> tuple[object, ...]:
    is_text = tensor.data_type == TensorProto.STRING
    values = list(tensor.string_data) if is_text else numpy_helper.to_array(tensor).tobytes()
    return tensor.name, tensor.data_type, list(tensor.dims), values


def _rename_added_constants(prepared: ModelProto, model: ModelProto) -> None:
    """Give the constants that ONNX Runtime's optimizer added other names than it gives itself.

    It gives the same names again when it optimizes the graph once more, and fails if new nodes can be fused by then:
    BERT by int8@nncf ended with "Attempt to replace the existing tensor", after SmoothQuant had added products.
    """
    own = {tensor.name for tensor in model.graph.initializer}
    own.update(name for node in walk_nodes(model) for name in node.output)
    added = {tensor.name: f"prepared/{tensor.name}" for tensor in prepared.graph.initializer if tensor.name not in own}
    for tensor in prepared.graph.initializer:
        tensor.name = added.get(tensor.name, tensor.name)
    for node in walk_nodes(prepared):
        for i, name in enumerate(node.input):
            node.input[i] = added.get(name, name)


def _restore_hard_swishes(prepared: ModelProto, model: ModelProto) -> None:
    """Put back every HardSwish of the model that ONNX Runtime's optimizer wrote out as HardSigmoid and Mul.

    OpenVINO fuses a HardSwish into the convolution before it, but not the two: mobilenet_v3_small by int8@tensorrt took
    1.8 times as long with them (Xeon with AMX, one thread), 19 of them in a reference kernel.
    """
    producers, consumers = make_producers(prepared), make_consumers(prepared)
    for node in model.graph.node:
        product = producers.get(node.output[0]) if node.op_type == "HardSwish" else None
        if product is None or product.op_type != "Mul":
            continue
        gates = [producers[name] for name in product.input if name in producers]
        gate = next((one for one in gates if one.op_type == "HardSigmoid" and one.input[0] in product.input), None)
        if gate is not None and len(consumers[gate.output[0]]) == 1:
            product.CopyFrom(onnx.helper.make_node("HardSwish", gate.input, product.output, node.name))
            prepared.graph.node.remove(gate)


def _fix_constants(model: ModelProto) -> ModelProto:
    """Return the model without the inputs that only list its constants, as old exporters wrote them.

    Version 3 of the file format requires every constant as an input, also those that folding and quantizing add. In
    later versions a caller may replace a constant that is an input, so that it cannot be folded. Ranges and rounded
    weights hold for the stored values alone.
    """
    stored = {tensor.name for tensor in model.graph.initializer}
    if stored.isdisjoint(value.name for value in model.graph.input):
        return model
    fixed = ModelProto()
    fixed.CopyFrom(model)
    del fixed.graph.input[:]
    fixed.graph.input.extend(value for value in model.graph.input if value.name not in stored)
    fixed.ir_version = max(fixed.ir_version, onnx.IR_VERSION_2019_1_22)  # the first without that rule
    return fixed


def _correct_outputs(model: ModelProto) -> None:
    """Correct the number of axes of each output where an exporter declared another, which the checker refuses."""
    bare = ModelProto()
    bare.CopyFrom(model)
    for value in bare.graph.output:
        value.type.tensor_type.ClearField("shape")
    inferred = {value.name: value.type.tensor_type for value in onnx.shape_inference.infer_shapes(bare).graph.output}
    for value in model.graph.output:
        tensor, actual = value.type.tensor_type, inferred[value.name]
        if actual.HasField("shape") and tensor.HasField("shape") and len(actual.shape.dim) != len(tensor.shape.dim):
            tensor.shape.CopyFrom(actual.shape)


@contextlib.contextmanager
def quiet_logging() -> Iterator[None]:
    """Silence other packages' logs below `critical`: failures are reported by our own errors."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    onnxruntime.set_default_logger_severity(3)  # errors; its tools open sessions with the defaults
    try:
        yield
    finally:
        logging.disable(before)
        onnxruntime.set_default_logger_severity(2)


def raise_opset(model: ModelProto, smallest: int) -> ModelProto:
    """Return the model, converted to this version of the operator set if its own is older."""
    opset = read_opset(model)
    if opset is None or opset >= smallest:
        return model
    try:
        return onnx.version_converter.convert_version(model, smallest)
    except Exception as error:  # a RuntimeError of C++ or any of protobuf
        reason = str(error).partition("\n")[0]
        raise ArtifactError(
            f"opset {opset} cannot be converted to {smallest}, which this precision needs: {reason}. "
            f"Export the model again with --opset {smallest} or newer"
        ) from error


def name_nodes(model: ModelProto) -> None:
    """Give a unique name to every node without one, and to those that share one."""
    names = FreeNames({node.name for node in walk_nodes(model)})
    used: set[str] = set()
    for node in walk_nodes(model):
        if not node.name or node.name in used:
            base = node.name or node.op_type
            node.name = names.number(base)
        used.add(node.name)


class FreeNames:
    """Makes names that a graph does not have yet, each only once."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)
        # The last number given to a base. Names are never freed: starting from 1 each time would only
        # pass the same ones again, which takes minutes where 20,000 nodes have one base.
        self._last: Counter[str] = Counter()

    def take(self, base: str) -> str:
        """Return `base` if it is free, else `base` with a number."""
        if base in self._taken:
            return self.number(base)
        self._taken.add(base)
        return base

    def number(self, base: str) -> str:
        """Return `base` with the lowest free number."""
        while True:
            self._last[base] += 1
            name = f"{base}_{self._last[base]}"
            if name not in self._taken:
                self._taken.add(name)
                return name


def walk_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Yield every node, also those in branches and loops."""
    return source.walk_nested_nodes(model.graph.node)


def list_opsets(model: ModelProto) -> dict[str, int]:
    """Return {domain: version of its operator set}; ONNX's own domain is ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}


def has_quantizers(model: ModelProto) -> bool:
    """Return whether the graph holds quantized nodes of any form."""
    return any(node.op_type.startswith("QLinear") or node.op_type in QUANTIZED_OPS for node in walk_nodes(model))


def count_quantizers(model: ModelProto) -> tuple[int, int]:
    """Return (number of QuantizeLinear nodes, number of DequantizeLinear nodes)."""
    types = [node.op_type for node in walk_nodes(model)]
    return types.count("QuantizeLinear"), types.count("DequantizeLinear")


# The most nodes between a mean or sum and the square root that makes a deviation of it.
NORMALIZING_STEPS = 8


def is_transformer(model: ModelProto) -> bool:
    """Return whether the graph has layer normalization, as one operator or several, or a product of two activations."""
    constants = {tensor.name for tensor in model.graph.initializer}
    if any(
        node.op_type == "LayerNormalization" or (node.op_type == "MatMul" and not constants.intersection(node.input))
        for node in walk_nodes(model)
    ):
        return True
    # A square root of a mean or sum over an axis, as in a normalization that is written out.
    producers = make_producers(model)
    nodes = [node for node in model.graph.node if node.op_type == "Sqrt"]
    for _ in range(NORMALIZING_STEPS):
        nodes = [producers[name] for node in nodes for name in node.input if name in producers]
        if any(node.op_type in ("ReduceMean", "ReduceSum") for node in nodes):
            return True
    return False


def hash_weights(model: ModelProto) -> str:
    """Return the SHA-256 over the floating-point weights, whatever their order and names.

    The same network exported with another batch, by another name or in another opset has the same hash: scalars, which
    come from the definitions of operators, do not count.
    """
    hashes = sorted(
        hashlib.sha256(numpy_helper.to_array(tensor).tobytes()).hexdigest()
        for tensor in model.graph.initializer
        if tensor.data_type in FLOATS and tensor.dims
    )
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def write_graph(model: ModelProto, out: Path) -> None:
    """Check the graph against the specification, types included, and write it as one file."""
    with explaining(ArtifactError, "the rewritten graph is not valid ONNX", describe=lambda e: str(e)[:500]):
        try:
            onnx.checker.check_model(model, full_check=True)
        except onnx.shape_inference.InferenceError:
            _correct_outputs(model)
            onnx.checker.check_model(model, full_check=True)
    write_atomic(out, model.SerializeToString())


def make_producers(model: ModelProto | GraphProto) -> dict[str, NodeProto]:
    """Return {tensor name: the node that makes it}."""
    graph = model.graph if isinstance(model, ModelProto) else model
    return {name: node for node in graph.node for name in node.output if name}


def make_consumers(model: ModelProto | GraphProto) -> dict[str, list[NodeProto]]:
    """Return {tensor name: the nodes that read it}."""
    graph = model.graph if isinstance(model, ModelProto) else model
    consumers: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            if name:
                consumers.setdefault(name, []).append(node)
    return consumers


def remove_where(items: Any, removed: Callable[[Any], bool]) -> None:
    """Remove the elements of a repeated field that are to be removed; its own `remove` compares with every element."""
    for index in reversed([i for i, item in enumerate(items) if removed(item)]):
        del items[index]


def drop_unused_constants(model: ModelProto) -> None:
    """Remove initializers that no node reads."""
    used = {name for node in model.graph.node for name in node.input} | {v.name for v in model.graph.output}
    has_branches = any(a.g.node or a.graphs for node in model.graph.node for a in node.attribute)
    if not has_branches:  # a branch may read them by name
        remove_where(model.graph.initializer, lambda tensor: tensor.name not in used)


def sort_nodes(model: ModelProto) -> None:
    """Move every node behind those whose tensors it reads; otherwise keep the order.

    A node that stands before one that it reads goes behind all that need not wait, and so do those that read it.
    """
    nodes = list(model.graph.node)
    available = {"", *(t.name for t in model.graph.initializer), *(v.name for v in model.graph.input)}
    # Names of an outer graph, or read inside a branch, are in neither set; only what this graph makes can wait.
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name not in available}
    waits_for = [{makers[name] for name in _reads(node) if name in makers} for node in nodes]
    readers: dict[int, list[int]] = {}
    for i, before in enumerate(waits_for):
        for maker in before:
            readers.setdefault(maker, []).append(i)
    passes = [0] * len(nodes)  # how often each is put behind the others
    left = [len(before) for before in waits_for]
    ready = [i for i, count in enumerate(left) if not count]
    for maker in ready:  # grows as it is walked
        for i in readers.get(maker, ()):
            passes[i] = max(passes[i], passes[maker] + (i < maker))
            left[i] -= 1
            if not left[i]:
                ready.append(i)
    if len(ready) < len(nodes):
        stuck = next(node for node, count in zip(nodes, left, strict=True) if count)
        raise ArtifactError(f"node {stuck.name!r} reads its own result; the graph has a cycle")
    order = sorted(range(len(nodes)), key=lambda i: passes[i])  # stable
    sorted_nodes = [NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
    del model.graph.node[:]
    model.graph.node.extend(sorted_nodes)


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for graph in read_graphs(node):
        for inner in graph.node:
            yield from _reads(inner)


def read_versions(tools: Sequence[str]) -> dict[str, str]:
    """Return the version of each package; that of onnxruntime from its module, which several distributions install."""
    return {tool: onnxruntime.__version__ if tool == "onnxruntime" else version(tool) for tool in tools}


def run_graph(model: ModelProto, feeds: Feeds, threads: int, libraries: Sequence[str] = ()) -> dict[str, Array]:
    """Run a graph in ONNX Runtime and return its float outputs by name, with 8-bit kernels where there are any."""
    options = onnxruntime.SessionOptions()
    register_operators(options, libraries)
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    keep_sums_exact(options)  # what the rounding of nodes costs, and not what the processor's sums do
    with explaining(ArtifactError, "a graph with a part of its nodes quantized does not run"):
        session = open_cpu_session(model.SerializeToString(), options)
        fixed = session.get_inputs()[0].shape[0]
        step = fixed if isinstance(fixed, int) else STEP
        n = min(len(array) for array in feeds.values())
        parts = [
            session.run(None, {name: array[start : start + step] for name, array in feeds.items()})
            for start in range(0, n - n % step if isinstance(fixed, int) else n, step)
        ]
    names = [output.name for output in session.get_outputs()]
    joined = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return {name: array for name, array in zip(names, joined, strict=True) if array.dtype.kind == "f"}
