"""PyTorch to ONNX, checked against PyTorch."""

import ast
import contextlib
import logging
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from enginebench.core.blame import find_line
from enginebench.core.errors import MissingDependency, ModelError, UsageError, explaining, importing, list_causes
from enginebench.core.feeds import random_feeds
from enginebench.core.names import known
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, ExportCheck, TensorSpec
from enginebench.core.shapes import concrete_shape, find_batch_axes, find_own_batch, format_shape, takes_whole
from enginebench.core.store import explain_writing
from enginebench.core.text import first_line

with importing("{}, which export needs,", 'pip install "enginebench[torch]"'):
    import onnx
    import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from enginebench.models.onnx.source import describe_origin, load_graph, read_onnx
from enginebench.models.precision.graph import load_whole_graph, read_versions, write_graph
from enginebench.models.precision.lowering import lower_model
from enginebench.models.torch.flat import NOT_SCRIPTED, Flat, holds_script
from enginebench.models.torch.source import load_module

BATCH_AXIS = "batch"
# {input: {axis: name}} of what stays open.
Axes: TypeAlias = dict[str, dict[int, str]]
# Bytes of weights up to which the model is one file: protobuf ends at 2 GiB, and the graph needs room beside them.
SINGLE_FILE_BYTES = 2_000_000_000
# torch.export turns lengths of 0 and 1 into constants, so that a dynamic axis needs an example of at least 2.
SMALLEST_DYNAMIC_EXAMPLE = 2
# The batches of the numeric check: 5 is odd and prime, so that no reshape fits it by chance; on 1 modules branch, and
# squeeze it away, which a trace of 2 does not show.
CHECKED_BATCHES = (SMALLEST_DYNAMIC_EXAMPLE, 5, 1)
# A difference above this share of the largest output is a wrong graph, not rounding. FP32 networks differ by 1e-7 to
# 3e-5 (the built-in ones, of which resnet50 differs most); half precision has 2^13 times the rounding step.
GROSS_DIFFERENCE = {"float32": 1e-3, "float64": 1e-3}
GROSS_DIFFERENCE_HALF = 5e-2
# The types in which ONNX Runtime lacks operators on a CPU.
UNUSUAL = {onnx.TensorProto.BFLOAT16: "BF16", onnx.TensorProto.DOUBLE: "FP64"}
UNTRANSLATED = "has no ONNX translation"
FIXED = "it fixes the batch itself"
# The dynamo exporter's translations are written for opset 18; older graphs are made from those of 18.
TRANSLATED_OPSET = 18
SMALLEST_OPSET = 13
# Where the exporter says of a node in which modules it stands. Source: PyTorch 2.13,
# torch/onnx/_internal/exporter/_core.py; "namespace" reads `: root.Class/fc: torch.nn.Linear/addmm: aten.addmm`.
_SCOPES = "pkg.torch.onnx.name_scopes"
_CLASSES = "pkg.torch.onnx.class_hierarchy"
_NAMESPACE = "namespace"
_TRACED = "pkg.torch.onnx.fx_node"


class FixesBatch(ModelError):
    """The batch axis of a graph cannot stay open: the model runs with one batch."""


def export_onnx(
    artifact: Artifact,
    out: Path,
    *,
    batch: int = 1,
    dynamic_batch: bool = False,
    dynamic_axes: Mapping[str, Sequence[int]] | None = None,
    opset: int | None = None,
    seed: int = 0,
) -> Artifact:
    """The `onnx` artifact of a `torch` artifact: valid by ONNX's checker, its answers compared with PyTorch's.

    The comparison runs in ONNX Runtime on two seeded inputs: three batch sizes where the batch is dynamic, two inputs
    of the one batch size where it is static; `export_check.batches` says which.

    Args:
        out: the file to write; weights beyond 2 GB go to `out` + ".data" beside it.
        dynamic_batch: leave axis 0 open, under the name "batch".
        dynamic_axes: input name to further axes that stay open; axes that are equally long share one name.
        opset: version of the operator set; None is the exporter's own choice. Below 18 the graph is lowered from 18.

    Raises:
        FixesBatch: a batch that was to stay open cannot.
    """
    newest = onnx.defs.onnx_opset_version()
    if batch < 1:
        raise UsageError(f"batch {batch} must be at least 1")
    if opset is not None and not SMALLEST_OPSET <= opset <= newest:
        raise UsageError(f"opset {opset} cannot be written; expected {SMALLEST_OPSET} to {newest}")
    if dynamic_batch and (own := find_own_batch(artifact)):
        raise FixesBatch(f"{artifact.model} cannot be exported with a dynamic batch: it takes a batch of {own} only")
    if dynamic_batch and takes_whole(artifact.inputs):
        raise FixesBatch(f"{artifact.model} has no batch axis that could be dynamic: its example is run as it is")
    module = load_module(artifact)
    if holds_script(module):
        raise ModelError(
            f"{artifact.model} cannot be exported: it is a scripted or traced module (TorchScript), or holds one, and "
            f"torch.export does not read these. The engine pytorch runs it. For a graph, {NOT_SCRIPTED}"
        )
    batches = CHECKED_BATCHES if dynamic_batch else (batch, batch)
    opened = name_axes(artifact.inputs, dynamic_axes or {})
    inputs = _lengthen(set_batch_axes(artifact.inputs, batches[0]), opened)
    with _sibling_folder(out) as folder:
        made = folder / out.name
        written = opset and max(opset, TRANSLATED_OPSET)
        _write_graph(module, artifact, inputs, made, add_batch(inputs, opened) if dynamic_batch else opened, written)
        if opset is not None and opset < TRANSLATED_OPSET:
            write_graph(lower_model(load_whole_graph(made), opset), made)
        _check_graph(made, opset, artifact.model)
        check = compare_with_torch(module, made, artifact.inputs, batches, seed, artifact.model, opened)
        for file in sorted(folder.iterdir(), reverse=True):  # F.onnx.data before F.onnx
            file.replace(out.parent / file.name)
    return _describe(artifact, out, check)


def set_batch_axes(inputs: Sequence[TensorSpec], batch: int) -> tuple[TensorSpec, ...]:
    """The inputs with every axis at its length, and `batch` on axis 0, where that axis is the batch."""
    batched = find_batch_axes(inputs)
    shapes = [concrete_shape(spec, batch) for spec in inputs]
    return tuple(
        msgspec.structs.replace(spec, shape=shape if batched[spec.name] is None else (batch, *shape[1:]), sizes=())
        for spec, shape in zip(inputs, shapes, strict=True)
    )


def name_axes(inputs: Sequence[TensorSpec], asked: Mapping[str, Sequence[int]]) -> Axes:
    """{input: {axis: name}} of the axes that are to stay open; equally long ones share the name of the first."""
    known, batched = {spec.name: concrete_shape(spec, 1) for spec in inputs}, find_batch_axes(inputs)
    names: dict[int, str] = {}
    opened: Axes = {}
    for name, axes in asked.items():
        for axis in axes:
            text = f"--dynamic-axes {name}:{axis}"
            if name not in known:
                raise UsageError(f"{text}: no such input; the inputs are {', '.join(known)}")
            if not 0 <= axis < len(known[name]):
                raise UsageError(f"{text}: {name} has the shape {format_shape(known[name])}; axes count from 0")
            if batched[name] == axis:
                raise UsageError(f"{text}: that is the batch; `run` and --dynamic-batch make it dynamic")
            symbol = names.setdefault(known[name][axis], re.sub(r"\W", "_", f"{name}_{axis}"))
            opened.setdefault(name, {})[axis] = symbol
    return opened


def _lengthen(inputs: Sequence[TensorSpec], opened: Axes, by: int = 0) -> tuple[TensorSpec, ...]:
    """The inputs with their open axes long enough to be traced as such; `by` makes them another length."""

    def change(spec: TensorSpec) -> TensorSpec:
        axes = opened.get(spec.name, {})
        shape = tuple(max(SMALLEST_DYNAMIC_EXAMPLE, int(n)) + by if i in axes else n for i, n in enumerate(spec.shape))
        return msgspec.structs.replace(spec, shape=shape)

    return tuple(map(change, inputs))


def add_batch(inputs: Sequence[TensorSpec], opened: Axes) -> Axes:
    firsts: Axes = {name: {0: BATCH_AXIS} if axis == 0 else {} for name, axis in find_batch_axes(inputs).items()}
    return {name: first | opened.get(name, {}) for name, first in firsts.items()}


@contextlib.contextmanager
def _sibling_folder(out: Path) -> Iterator[Path]:
    """A folder on the disk of `out`: files are complete before they get their name, and failures leave none."""
    with explain_writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".export-", suffix=".tmp") as folder:
            yield Path(folder)


def _write_graph(
    module: nn.Module, artifact: Artifact, inputs: Sequence[TensorSpec], path: Path, opened: Axes, opset: int | None
) -> None:
    examples = to_tensors(random_feeds(inputs, 1, seed=0), inputs)
    try:
        # In PyTorch 2.13 a trace of a fused attention kernel has strides that the decomposed graph then lacks.
        with quiet_exporter(), sdpa_kernel(SDPBackend.MATH):
            program: Any = torch.onnx.export(
                module,
                examples,
                dynamo=True,
                verbose=False,
                opset_version=opset,
                input_names=[spec.name for spec in artifact.inputs],
                output_names=[spec.name for spec in artifact.outputs],
                dynamic_shapes=describe_dynamic(module, inputs, opened) if opened else None,
            )
            for node in program.model.graph.all_nodes():  # stack traces hold paths of this machine
                node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
            if isinstance(module, Flat):
                _drop_wrapper(program.model, module.enginebench_wraps)
            # What the graph is to say of itself; what is empty is left out.
            entries = describe_origin(
                known(artifact.precision),
                artifact.recipe,
                parent_sha256=artifact.sha256,
                preprocess_sha256=artifact.preprocess_sha256,
                caveats=artifact.caveats,
            )
            program.model.metadata_props.update({key: value for key, value in entries.items() if value})
            program.save(path, external_data=sum(t.nbytes for t in module.state_dict().values()) > SINGLE_FILE_BYTES)
    except ModuleNotFoundError as error:
        raise MissingDependency(error.name or "onnxscript", 'pip install "enginebench[torch]"') from error
    except OSError:
        raise
    except Exception as error:  # the exporter has a dozen kinds, most of them private
        text = format_export_error(error, artifact.model, bool(opened))
        raise (FixesBatch if FIXED in text else ModelError)(text) from error


def _drop_wrapper(model: Any, child: str) -> None:
    """Renames weights and scopes of a graph in place: `fc.weight` for `module.fc.weight`.

    A name that something else in the graph has already stays as it is.
    """
    graph = model.graph
    taken = {value.name for node in graph.all_nodes() for value in node.outputs} | {v.name for v in graph.inputs}
    for old, value in list(graph.initializers.items()):
        new = old.removeprefix(f"{child}.")
        if new != old and new not in taken and new not in graph.initializers:
            value.name = new
            # Newer versions of onnx_ir keep the tensor's name and the graph's table in step, older ones do not.
            if value.const_value is not None:
                value.const_value.name = new
            if graph.initializers.get(old) is value:
                graph.initializers[new] = graph.initializers.pop(old)
    for node in graph.all_nodes():
        props = node.metadata_props
        for key, change in ((_SCOPES, _drop_scope), (_CLASSES, lambda classes, _: classes[len(classes) > 2 :])):
            if key in props:
                props[key] = str(change(_read_list(props[key]), child))
        # `: net.Net/fc: torch.nn.Linear/addmm: aten.addmm`, behind the wrapper
        if inside := props.get(_NAMESPACE, "").partition(f"/{child}: ")[2]:
            props[_NAMESPACE] = ": " + inside.replace(f"/{child}.", "/")
        if _TRACED in props:  # parameters and buffers are its arguments
            props[_TRACED] = re.sub(rf"%([pb])_{child}_", r"%\1_", props[_TRACED])


def _read_list(text: str) -> list[str]:
    try:
        return list(map(str, ast.literal_eval(text)))
    except (ValueError, SyntaxError, TypeError):
        return []


def _drop_scope(scopes: list[str], child: str) -> list[str]:
    """`['', 'fc', 'addmm']` for `['', 'module', 'module.fc', 'addmm']`; what the wrapper does itself stays in it."""
    if scopes[1:2] != [child]:
        return scopes
    *around, operator = scopes[1:]
    return [*(scope.removeprefix(child).removeprefix(".") for scope in around), operator]


def to_tensors(feeds: dict[str, Array], specs: Sequence[TensorSpec]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(feeds[spec.name].copy()) for spec in specs)


def describe_dynamic(module: nn.Module, inputs: Sequence[TensorSpec], opened: Axes) -> Any:
    symbols = dict.fromkeys(name for axes in opened.values() for name in axes.values())
    dims = {name: torch.export.Dim(name) for name in symbols}
    shapes = tuple({i: dims[name] for i, name in opened.get(spec.name, {}).items()} for spec in inputs)
    return (shapes,) if isinstance(module, Flat) else shapes  # *inputs is one argument to torch.export


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """The exporter's progress goes to stderr; its warnings and its logs, which hold whole graphs, nowhere.

    What nn.TransformerEncoder fuses into one operator is exported layer by layer: a recipe finds them so.
    """
    disabled, fuses = logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled()
    logging.disable(logging.CRITICAL)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        torch.backends.mha.set_fastpath_enabled(fuses)


def format_export_error(error: BaseException, model: str, dynamic_batch: bool) -> str:
    """One sentence for a failed export; names the operator where one has no translation, and the line that calls it."""
    text = "\n".join(str(link) for link in list_causes(error))
    place = find_line(error)
    where = f" ({place})" if place else ""
    if found := re.search(r"No ONNX function found for (?:<OpOverload\(op='([^']+)'|(\S+))", text):
        name = found[1] or found[2]
        return f"{model} cannot be exported: operator {name} {UNTRANSLATED}{where}. Replace it in the model"
    if dynamic_batch and re.search(r"Constraints violated|specialized|Not all values of", text):
        return f"{model} cannot be exported with a dynamic batch: {FIXED}{where}"
    if "data-dependent" in text:
        return (
            f"{model} cannot be exported: it branches on the values of a tensor{where}. Use torch.where or torch.cond "
            "there"
        )
    if found := re.search(r"Error when translating node .*?call_function\[target=([^\]]+)\]", text):
        reason = first_line(list(list_causes(error))[-1])
        return f"{model} cannot be exported: operator {found[1]}{where} cannot be translated: {reason}"
    return f"{model} cannot be exported{where}: {first_line(list(list_causes(error))[-1])}"


def _check_graph(path: Path, opset: int | None, model: str) -> None:
    refusals = onnx.checker.ValidationError, onnx.shape_inference.InferenceError
    with explaining(ModelError, f"{model} was exported to a graph that ONNX's checker refuses", *refusals):
        onnx.checker.check_model(str(path), full_check=True)
    written = {o.domain: o.version for o in load_graph(path).opset_import}.get("")
    if opset is not None and written != opset:
        raise ModelError(f"{model} cannot be written in opset {opset}: the exporter made opset {written}")


def compare_with_torch(
    module: nn.Module,
    path: Path,
    inputs: Sequence[TensorSpec],
    batches: Sequence[int],
    seed: int,
    model: str,
    opened: Axes | None = None,
) -> ExportCheck:
    """Largest differences between module and graph over one seeded input for each entry of `batches`.

    The relative difference of an output is its largest absolute difference over its largest absolute value.
    """
    session = _open_session(path, model)
    differences = []
    for i, batch in enumerate(batches):
        specs = _lengthen(set_batch_axes(inputs, batch), opened or {}, by=i)  # open axes have another length each time
        feeds = random_feeds(specs, batch, seed + i)
        try:
            with torch.inference_mode():
                answer = module(*to_tensors(feeds, specs))
            expected = [tensor.numpy() for tensor in ((answer,) if isinstance(answer, torch.Tensor) else answer)]
            found = session.run(None, feeds)
        except Exception as error:  # the model's own code, or one of the runtime's kinds
            kind = FixesBatch if len(set(batches)) > 1 else ModelError
            raise kind(f"{model} was exported, but batch {batch} fails: {first_line(error)}") from error
        differences += [_compare(e, f, f"{model} at batch {batch}") for e, f in zip(expected, found, strict=True)]
    return ExportCheck(
        batches=tuple(batches),
        max_abs_diff=max(absolute for absolute, _ in differences),
        max_rel_diff=max(relative for _, relative in differences),
        seed=seed,
    )


def _open_session(path: Path, model: str) -> Any:
    with importing("onnxruntime, which checks exports,", 'pip install "enginebench[ort]"'):
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; warnings about unused initializers concern nobody here
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # one of the runtime's kinds; most often it lacks an operator for BF16 or FP64
        found = re.search(r"Could not find an implementation for (\w+)\(\d+\) node with name", str(error))
        checker = f"{model} was exported, but ONNX Runtime, which checks the export,"
        types = {info.type.tensor_type.elem_type for info in load_graph(path).graph.value_info}
        if found and (lacking := [name for code, name in UNUSUAL.items() if code in types]):
            raise ModelError(
                f"{checker} has no {found[1]} in {lacking[0]} on a CPU. Give the model in FP32 (module.float(), no "
                f"casts to {lacking[0]}); graphs in other precisions are made of that, with --precisions"
            ) from error
        raise ModelError(f"{checker} cannot open it: {first_line(error)}") from error


def _compare(expected: Array, found: Array, model: str) -> tuple[float, float]:
    """(largest absolute, largest relative) difference of one output."""
    if expected.shape != found.shape:
        raise ModelError(f"{model}: the exported graph gives shape {found.shape}, PyTorch {expected.shape}")
    if not np.array_equal(np.isfinite(expected), np.isfinite(found)):
        raise ModelError(f"{model}: PyTorch and the exported graph differ in which values are finite")
    want, have = (np.where(np.isfinite(a), a, 0).astype(np.float64) for a in (expected, found))
    absolute = float(np.max(np.abs(want - have), initial=0.0))
    largest = float(np.max(np.abs(want), initial=0.0))
    relative = absolute / largest if largest else absolute
    limit = GROSS_DIFFERENCE.get(str(expected.dtype), GROSS_DIFFERENCE_HALF)
    if relative > limit:
        raise ModelError(
            f"{model}: the exported graph's outputs differ from PyTorch's by {absolute:.3g}, {relative:.2g} of the "
            f"largest value; expected at most {limit:g} of it. Does it draw random numbers, keep a state that is no "
            "buffer, or branch on the batch?"
        )
    return absolute, relative


def _describe(parent: Artifact, out: Path, check: ExportCheck) -> Artifact:
    made = read_onnx(out)
    return msgspec.structs.replace(
        made,
        inputs=_carry(parent.inputs, made.inputs),
        model=parent.model,
        weights=parent.weights,
        parent_sha256=parent.sha256,
        preprocess_sha256=parent.preprocess_sha256,
        normalize=parent.normalize,
        made_by={"torch": str(torch.__version__), **read_versions(("onnx", "onnxscript", "onnxruntime"))},
        export_check=check,
        caveats=parent.caveats,
    )


def _carry(parents: Sequence[TensorSpec], made: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The graph's inputs, with the values of the module's, and as long on open axes as those are."""
    known = {spec.name: spec for spec in parents}
    whole = parents[0] if takes_whole(parents) else None

    def carry(spec: TensorSpec) -> TensorSpec:
        if whole is not None and spec.name == whole.name:  # its first axis is no batch here either
            spec = msgspec.structs.replace(spec, shape=(*whole.shape[:1], *spec.shape[1:]))
        lengths = concrete_shape(known[spec.name], 1)
        sizes = tuple(
            n if isinstance(axis, str) and axis != BATCH_AXIS else 0
            for axis, n in zip(spec.shape, lengths, strict=True)
        )
        return msgspec.structs.replace(spec, values=known[spec.name].values, sizes=sizes if any(sizes) else ())

    return tuple(carry(spec) if spec.name in known else spec for spec in made)
