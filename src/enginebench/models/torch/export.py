"""PyTorch to ONNX, checked against PyTorch."""

import ast
import contextlib
import copy
import logging
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from enginebench.core.blame import find_line
from enginebench.core.errors import (
    ArtifactError,
    MissingDependency,
    ModelError,
    UsageError,
    explaining,
    importing,
    list_causes,
)
from enginebench.core.feeds import random_feeds
from enginebench.core.input_sets import EXAMPLES, GIVEN, MASKS, SET_NAMES
from enginebench.core.names import require_precision
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, ExportCheck, InputsCheck, ResultWarning, TensorSpec
from enginebench.core.shapes import concrete_shape, find_batch_axes, find_own_batch, format_shape, takes_whole
from enginebench.core.store import explain_writing, open_partial
from enginebench.core.text import first_line
from enginebench.core.warnings import make_warning

with importing("{}, which export needs,", 'pip install "enginebench[torch]"'):
    import onnx
    import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import PackedSequence

from enginebench.models.check_inputs import make_check_sets
from enginebench.models.onnx.reference import EVALUATOR, GraphReference, open_reference_session
from enginebench.models.onnx.source import describe_origin, load_graph, read_onnx
from enginebench.models.precision.graph import load_whole_graph, read_versions, write_graph
from enginebench.models.precision.lowering import lower_model
from enginebench.models.samples import group_samples, join_samples
from enginebench.models.torch.flat import NOT_SCRIPTED, Flat, holds_script
from enginebench.models.torch.source import load_module

BATCH_AXIS = "batch"
# {input: {axis: name}} of what stays open.
Axes: TypeAlias = dict[str, dict[int, str]]
# {`given` or `examples`: entries, of a batch of one}.
OwnInputs: TypeAlias = Mapping[str, Sequence[Mapping[str, Array]]]
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
# A graph is right if it is no farther from PyTorch in FP64 (in FP32, of a module that runs in that alone) than so many
# times what PyTorch in FP32 is, or what the noise of rounding on weights and layers makes of it: two orders of sums
# round independently, and the larger of a few errors is seldom ten times another. PyTorch's own error alone may be
# small by chance, where gates (HardSigmoid) amplify errors: it was 0.0002 to 0.006 of the largest output by the number
# of threads, and that of a right graph 0.09.
ROUNDING_FACTOR = 10.0
# Of a weight or a layer's output: 17 times the rounding of FP32, as of a sum of 280 products that are each rounded.
ROUNDING_NOISE = 1e-6
ROUNDING_DRAWS = 3
# Beside the seeded inputs, others are compared until so many seconds are over; an export takes about as long itself.
CHECK_S = 30.0
# The types in which ONNX Runtime lacks operators on a CPU.
UNUSUAL = {onnx.TensorProto.BFLOAT16: "BF16", onnx.TensorProto.DOUBLE: "FP64"}
UNTRANSLATED = "has no ONNX translation"
FIXED = "it fixes the batch itself"
STILL_RUNS = "The PyTorch engines still run it"
# The dynamo exporter's translations are written for opset 18; older graphs are made from those of 18.
TRANSLATED_OPSET = 18
SMALLEST_OPSET = 13
# The exporter's note on the modules of a node. Source: PyTorch 2.13,
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
    own_inputs: OwnInputs | None = None,
) -> Artifact:
    """The `onnx` artifact of a `torch` artifact: valid by ONNX's checker, its outputs compared with PyTorch's.

    The graph is run as it is written, nothing of it optimized, on seeded inputs (three batch sizes where the batch is
    dynamic, two inputs of the one batch size where it is static; `export_check.batches` says which), on the user's,
    and on made-up ones that reach further (`models/check_inputs.py`).

    Args:
        out: the file to write; weights beyond 2 GB go to `out` + ".data" beside it.
        dynamic_batch: leave axis 0 open, under the name "batch".
        dynamic_axes: input name to further axes that stay open; axes that are equally long share one name.
        opset: version of the operator set; None is the exporter's own choice. Below 18 the graph is lowered from 18.
        own_inputs: `given` (the user's inputs) and `examples` (those of the user's module) -> entries.

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
    batches = CHECKED_BATCHES if dynamic_batch else (batch, batch)
    opened = name_dynamic_axes(artifact.inputs, dynamic_axes or {})
    inputs = _lengthen(set_batch_axes(artifact.inputs, batches[0]), opened)
    with _sibling_folder(out) as folder:
        made = folder / out.name
        written = opset and max(opset, TRANSLATED_OPSET)
        _write_graph(module, artifact, inputs, made, add_batch(inputs, opened) if dynamic_batch else opened, written)
        if opset is not None and opset < TRANSLATED_OPSET:
            write_graph(lower_model(load_whole_graph(made), opset), made)
        _check_graph(made, opset, artifact.model)
        check, warnings = compare_with_torch(
            module, made, artifact.inputs, batches, seed, artifact.model, opened, own_inputs
        )
        for file in sorted(folder.iterdir(), reverse=True):  # F.onnx.data before F.onnx
            file.replace(out.parent / file.name)
    return _describe(artifact, out, check, warnings)


def set_batch_axes(inputs: Sequence[TensorSpec], batch: int) -> tuple[TensorSpec, ...]:
    """The inputs with every axis at its length, and `batch` on axis 0, where that axis is the batch."""
    batched = find_batch_axes(inputs)
    shapes = [concrete_shape(spec, batch) for spec in inputs]
    return tuple(
        msgspec.structs.replace(spec, shape=shape if batched[spec.name] is None else (batch, *shape[1:]), sizes=())
        for spec, shape in zip(inputs, shapes, strict=True)
    )


def name_dynamic_axes(inputs: Sequence[TensorSpec], requested: Mapping[str, Sequence[int]]) -> Axes:
    """{input: {axis: name}} of the axes that are to stay open; equally long ones share the name of the first."""
    shapes, batched = {spec.name: concrete_shape(spec, 1) for spec in inputs}, find_batch_axes(inputs)
    names: dict[int, str] = {}
    opened: Axes = {}
    for name, axes in requested.items():
        for axis in axes:
            text = f"--dynamic-axes {name}:{axis}"
            if name not in shapes:
                raise UsageError(f"{text}: no such input; the inputs are {', '.join(shapes)}")
            if not 0 <= axis < len(shapes[name]):
                raise UsageError(f"{text}: {name} has the shape {format_shape(shapes[name])}; axes count from 0")
            if batched[name] == axis:
                raise UsageError(f"{text}: that is the batch; `run` and --dynamic-batch make it dynamic")
            symbol = names.setdefault(shapes[name][axis], re.sub(r"\W", "_", f"{name}_{axis}"))
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
        with open_partial(out) as folder:
            yield folder


def _write_graph(
    module: nn.Module, artifact: Artifact, inputs: Sequence[TensorSpec], path: Path, opened: Axes, opset: int | None
) -> None:
    examples = to_tensors(random_feeds(inputs, 1, seed=0), inputs)
    # What the graph is to say of itself; what is empty is left out.
    entries = describe_origin(
        require_precision(artifact.precision),
        artifact.recipe,
        parent_sha256=artifact.sha256,
        preprocess_sha256=artifact.preprocess_sha256,
        warnings=artifact.warnings,
    )
    entries = {key: value for key, value in entries.items() if value}
    if holds_script(module):
        from enginebench.models.torch.scripted import write_scripted_graph

        try:
            with quiet_exporter():
                names = [spec.name for spec in artifact.inputs], [spec.name for spec in artifact.outputs]
                write_scripted_graph(module, examples, path, names, opened, opset or TRANSLATED_OPSET, entries)
        except OSError:
            raise
        except Exception as error:  # the exporter has a dozen kinds, and the model's own code others
            raise ModelError(
                f"{artifact.model} cannot be exported: PyTorch's exporter for TorchScript, which it is or holds, fails "
                f"({first_line(error)}). The PyTorch engines run it. For a graph, {NOT_SCRIPTED}"
            ) from error
        return
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
            program.model.metadata_props.update(entries)
            program.save(path, external_data=sum(t.nbytes for t in module.state_dict().values()) > SINGLE_FILE_BYTES)
    except ModuleNotFoundError as error:
        raise MissingDependency(error.name or "onnxscript", 'pip install "enginebench[torch]"') from error
    except OSError:
        raise
    except Exception as error:  # the exporter has a dozen kinds, most of them private
        text = format_export_error(error, artifact.model, bool(opened))
        if FIXED in text:
            raise FixesBatch(text) from error
        raise ModelError(text) from error


def _drop_wrapper(model: Any, child: str) -> None:
    """Rename weights and scopes of a graph in place: `fc.weight` for `module.fc.weight`.

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
    """Explain a failed export in one sentence; name an operator without a translation, and the line that calls it."""
    text = "\n".join(str(link) for link in list_causes(error))
    line = find_line(error)
    where = f" ({line})" if line else ""
    if match := re.search(r"No ONNX function found for (?:<OpOverload\(op='([^']+)'|(\S+))", text):
        name = match[1] or match[2]
        return f"{model} cannot be exported: operator {name} {UNTRANSLATED}{where}. Replace it in the model"
    if dynamic_batch and re.search(r"Constraints violated|specialized|Not all values of", text):
        return f"{model} cannot be exported with a dynamic batch: {FIXED}{where}"
    if _packs_sequences(error):
        return (
            f"{model} cannot be exported: it packs sequences (pack_padded_sequence), whose lengths are the values of a "
            f"tensor{where}. Give the layer the padded batch, and mask what lies behind each length. {STILL_RUNS}"
        )
    if "data-dependent" in text:
        if re.search(r"\b[uz]\d+\b", text):  # PyTorch's names of lengths that only values tell
            return (
                f"{model} cannot be exported: a shape or a branch depends on the values of a tensor{where}. Avoid it, "
                f"with torch.where or a mask, or do that part outside of the model. {STILL_RUNS}"
            )
        return (
            f"{model} cannot be exported: it branches on the values of a tensor{where}. Use torch.where or torch.cond "
            f"there. {STILL_RUNS}"
        )
    if match := re.search(r"Error when translating node .*?call_function\[target=([^\]]+)\]", text):
        reason = first_line(list(list_causes(error))[-1])
        return f"{model} cannot be exported: operator {match[1]}{where} cannot be translated: {reason}"
    return f"{model} cannot be exported{where}: {first_line(list(list_causes(error))[-1])}"


def _packs_sequences(error: BaseException) -> bool:
    """Whether an error arose where a packed sequence was made, or was an argument."""
    frames = (frame for link in list_causes(error) for frame, _ in traceback.walk_tb(link.__traceback__))
    return any(
        frame.f_code.co_name == "pack_padded_sequence"
        or any(isinstance(value, PackedSequence) for value in frame.f_locals.values())
        for frame in frames
    )


def _check_graph(path: Path, opset: int | None, model: str) -> None:
    refusals = onnx.checker.ValidationError, onnx.shape_inference.InferenceError
    with explaining(ModelError, f"{model} was exported to a graph that ONNX's checker refuses", *refusals):
        onnx.checker.check_model(str(path), full_check=True)
    written = {o.domain: o.version for o in load_graph(path).opset_import}.get("")
    if opset is not None and written != opset:
        raise ModelError(f"{model} cannot be written in opset {opset}: the exporter made opset {written}")


class _Call(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One comparison of module and graph; `where` says on what, as errors name it."""

    inputs: str  # "" of seeded ones; else `given`, or a set of `core/input_sets.py`
    where: str
    feeds: dict[str, Array]

    @property
    def extreme(self) -> bool:
        """Whether the inputs are ones that nobody gave, and that a module may refuse."""
        return self.inputs not in ("", GIVEN, EXAMPLES)


class _Difference(msgspec.Struct, frozen=True, kw_only=True):
    absolute: float
    relative: float  # the largest absolute one of an output over its largest absolute value
    limit: float


def compare_with_torch(
    module: nn.Module,
    path: Path,
    inputs: Sequence[TensorSpec],
    batches: Sequence[int],
    seed: int,
    model: str,
    opened: Axes | None = None,
    own_inputs: OwnInputs | None = None,
) -> tuple[ExportCheck, tuple[ResultWarning, ...]]:
    """Largest differences between module and graph, and the warnings: over a seeded input for each of `batches`, the
    user's entries, and made-up ones that reach further.

    The graph runs as it is written. Where ONNX Runtime's optimizer then changes its outputs, a warning says so.

    Args:
        own_inputs: `given` (the user's) and `examples` -> entries, of a batch of one.
    """
    reference = GraphReference(path)
    optimized = _open_optimized(path)
    seeded = _make_seeded(inputs, batches, seed, opened or {})
    others = _make_others(inputs, batches[0], seed, own_inputs or {})
    differences_by_set: dict[str, list[list[_Difference]]] = {}  # set -> those of each call
    warnings: dict[str, ResultWarning] = {}
    deadline, late = time.monotonic() + CHECK_S, 0
    for call in (*seeded, *others):
        if call.inputs and time.monotonic() > deadline:
            late += 1
            continue
        expected = _ask_module(module, call, model, batches)
        if expected is None:
            continue
        outputs = _ask_graph(reference, call, model, batches)
        differences = _compare(expected, outputs, call, model)
        worst = max(differences, key=lambda difference: difference.relative / difference.limit, default=None)
        if worst is not None and worst.relative > worst.limit:
            before = seeded[: seeded.index(call)] if call in seeded else []
            agreed = [done.where for done in before if done.where != call.where]
            cause = f". They agree {', '.join(agreed)}: the module branches on the batch" if agreed else ""
            warnings.setdefault("rounding", _explain_mismatch(module, call, expected, outputs, worst, model, cause))
        differences_by_set.setdefault(call.inputs, []).append(differences)
        if (
            optimized is not None
            and "optimizer" not in warnings
            and (share := _measure_optimizer(optimized, call, outputs))
        ):
            warnings["optimizer"] = make_warning("optimizer_changes.export", share=share, where=call.where)
    if reference.tool == EVALUATOR:
        warnings["evaluator"] = _explain_evaluator(path, reference)
    if late:
        what, total = "the export was checked, for as long as a check may take,", len(seeded) + len(others)
        warnings["late"] = make_warning("partly_compared", what=what, n=total - late, asked=total)
    largest = _check_inputs("", differences_by_set.pop("", []))
    check = ExportCheck(
        batches=tuple(batches),
        seed=seed,
        max_abs_diff=largest.max_abs_diff,
        max_rel_diff=largest.max_rel_diff,
        others=tuple(_check_inputs(name, calls) for name, calls in differences_by_set.items()),
    )
    return check, tuple(warnings.values())


def _check_inputs(name: str, calls: Sequence[Sequence[_Difference]]) -> InputsCheck:
    """Return the largest differences over the calls with one set of inputs."""
    differences = [difference for outputs in calls for difference in outputs]
    return InputsCheck(
        inputs=name,
        n=len(calls),
        max_abs_diff=max((difference.absolute for difference in differences), default=0.0),
        max_rel_diff=max((difference.relative for difference in differences), default=0.0),
    )


def _make_seeded(inputs: Sequence[TensorSpec], batches: Sequence[int], seed: int, opened: Axes) -> list[_Call]:
    calls = []
    for i, batch in enumerate(batches):
        specs = _lengthen(set_batch_axes(inputs, batch), opened, by=i)  # open axes have another length each time
        calls.append(_Call(inputs="", where=f"at batch {batch}", feeds=random_feeds(specs, batch, seed + i)))
    return calls


def _make_others(inputs: Sequence[TensorSpec], batch: int, seed: int, own_inputs: OwnInputs) -> list[_Call]:
    """Return calls of `batch` entries each: the user's own, then the made-up sets."""
    specs, calls = set_batch_axes(inputs, batch), []
    sets = {**own_inputs, **make_check_sets(inputs, seed)}
    for name, entries in sets.items():
        if name not in SET_NAMES:
            continue
        where = f"on {SET_NAMES[name]}"
        for indices in group_samples(entries, batch, specs):
            feeds = join_samples([entries[i] for i in indices], specs, batch)
            calls.append(_Call(inputs=name, where=where, feeds=feeds))
    return calls


def _run_module(module: nn.Module, feeds: Mapping[str, Array], double: bool = False) -> list[Array]:
    """Return the outputs, in order; with `double` those of a module converted to FP64."""
    with torch.inference_mode():
        tensors = [torch.from_numpy(array.copy()) for array in feeds.values()]
        returned = module(*(t.double() if double and t.is_floating_point() else t for t in tensors))
        return [tensor.numpy() for tensor in ((returned,) if isinstance(returned, torch.Tensor) else returned)]


def _ask_module(module: nn.Module, call: _Call, model: str, batches: Sequence[int]) -> list[Array] | None:
    """Return PyTorch's outputs; None if it refuses made-up inputs."""
    try:
        return _run_module(module, call.feeds)
    except Exception as error:  # the model's own code
        if call.extreme:
            return None
        kind = FixesBatch if len(set(batches)) > 1 and not call.inputs else ModelError
        subject = call.where.removeprefix("at ") if not call.inputs else f"the module {call.where}"
        raise kind(f"{model} was exported, but {subject} fails: {first_line(error)}") from error


def _ask_graph(reference: GraphReference, call: _Call, model: str, batches: Sequence[int]) -> list[Any]:
    try:
        return list(reference.run(call.feeds).values())
    except ArtifactError as error:
        kind = FixesBatch if len(set(batches)) > 1 and not call.inputs else ModelError
        raise kind(f"{model} was exported, but {call.where} {error}") from error


def _open_optimized(path: Path) -> Any:
    """Open the session that `ort` runs; None if it cannot be opened: the configuration of `ort` reports why."""
    try:
        return open_reference_session(str(path), optimize=True)
    except MissingDependency:
        raise
    except Exception:  # ONNX Runtime has a class of its own for every kind of failure
        return None


def _measure_optimizer(session: Any, call: _Call, outputs: Sequence[Any]) -> float | None:
    """By what share of the largest value the optimized graph differs, where that is no rounding; else None."""
    if call.extreme and call.inputs != MASKS:
        return None  # large values make an exponential infinite in one order of sums, and not in the other
    try:
        optimized = session.run(None, dict(call.feeds))
    except Exception:  # as above; the configuration of `ort` fails with its reason
        return None
    pairs = [(a, np.asarray(b)) for a, b in zip(map(np.asarray, outputs), optimized, strict=True)]
    if any(a.shape != b.shape or not np.array_equal(find_finite(a), find_finite(b)) for a, b in pairs):
        return 1.0
    differences = [_measure_difference(a, b) for a, b in pairs]
    return max(
        (difference.relative for difference in differences if difference.relative > difference.limit), default=None
    )


def find_finite(array: Array) -> NDArray[np.bool_]:
    return np.isfinite(array) if array.dtype.kind == "f" else np.ones(array.shape, bool)


def _compare(expected: Sequence[Array], outputs: Sequence[Any], call: _Call, model: str) -> list[_Difference]:
    """The difference of each output; over what is finite on both sides where the inputs are extreme."""
    differences = []
    for torch_output, graph_output in zip(expected, map(np.asarray, outputs), strict=True):
        if torch_output.shape != graph_output.shape:
            raise ModelError(
                f"{model} {call.where}: the exported graph gives shape {graph_output.shape}, "
                f"PyTorch {torch_output.shape}"
            )
        if not call.extreme and not np.array_equal(find_finite(torch_output), find_finite(graph_output)):
            raise ModelError(f"{model} {call.where}: PyTorch and the exported graph differ in which values are finite")
        differences.append(_measure_difference(torch_output, graph_output))
    return differences


def _measure_difference(expected: Array, actual: Array) -> _Difference:
    both = find_finite(expected) & find_finite(actual)
    limit = GROSS_DIFFERENCE.get(str(expected.dtype), GROSS_DIFFERENCE_HALF)
    if expected.dtype.kind not in "fiub":
        differs = float(not np.array_equal(expected, actual))
        return _Difference(absolute=differs, relative=differs, limit=limit)
    a, b = (np.where(both, array, 0).astype(np.float64) for array in (expected, actual))
    absolute, largest = float(np.max(np.abs(a - b), initial=0.0)), float(np.max(np.abs(a), initial=0.0))
    return _Difference(absolute=absolute, relative=absolute / largest if largest else absolute, limit=limit)


def _explain_mismatch(
    module: nn.Module,
    call: _Call,
    expected: Sequence[Array],
    outputs: Sequence[Any],
    worst: _Difference,
    model: str,
    cause: str,
) -> ResultWarning:
    """The warning that rounding explains the difference; raises ModelError, with the cause if it is established."""
    lead = (
        f"{model} {call.where}: the exported graph's outputs differ from PyTorch's by {worst.absolute:.3g} absolute, "
        f"{worst.relative:.2g} relative to the largest value; expected at most {worst.limit:g} of it"
    )
    again = [_measure_difference(a, b) for a, b in zip(expected, _run_module(module, call.feeds), strict=True)]
    if (varies := max((difference.relative for difference in again), default=0.0)) > worst.limit:
        cause = (
            "draws random numbers" if _is_seeded(module, call) else "keeps a state, or draws random numbers of its own"
        )
        raise ModelError(
            f"{lead}. The module {cause}: two calls with the same inputs differ by {varies:.2g}, so that no graph can "
            "be checked against it. Take that out of forward"
        )
    in_double = _run_again(module, call, double=True)
    double = in_double is not None and all(a.shape == b.shape for a, b in zip(in_double, expected, strict=True))
    # Code of its own may name FP32: the noise of rounding is measured in that.
    exact: Sequence[Array] = in_double if in_double is not None and double else expected
    sides = (
        [_measure_difference(e, np.asarray(a)) for e, a in zip(exact, side, strict=True)]
        for side in (expected, outputs)
    )
    torch_error, graph_error = (max(difference.relative for difference in side) for side in sides)
    rounding = max(torch_error, _measure_rounding(module, call, exact, double))
    if graph_error <= ROUNDING_FACTOR * rounding:
        return make_warning("rounding_dominates", where=call.where, own=rounding, share=worst.relative)
    if double:
        lead += (
            f". PyTorch in FP64 is {torch_error:.2g} from PyTorch, and {graph_error:.2g} from the graph, so that the "
            "graph is wrong"
        )
    raise ModelError(lead + cause)


def _is_seeded(module: nn.Module, call: _Call) -> bool:
    """Whether two calls have the same outputs if PyTorch's generator begins alike: what differs else is drawn of it."""
    outputs = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            torch.manual_seed(0)
            outputs.append(_run_module(module, call.feeds))
    return all(np.array_equal(a, b) for a, b in zip(*outputs, strict=True))


def _run_again(module: nn.Module, call: _Call, double: bool, noise_seed: int | None = None) -> list[Array] | None:
    """The outputs of a copy, in FP64 with `double`; None of a module that does not run in it.

    Args:
        noise_seed: weights, and what each layer returns, are changed by the noise of rounding, drawn from this seed;
            None: as they are. An even picture is one after every convolution, whatever its weights: a normalization
            divides what is left of it by nothing but the rounding of layers.
    """
    try:
        again = copy.deepcopy(module)
        again = again.double() if double else again
        if noise_seed is not None:
            generator = torch.Generator().manual_seed(noise_seed)

            def disturb(tensor: torch.Tensor) -> torch.Tensor:
                noise = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype) * 2 - 1
                return tensor.mul_(1 + ROUNDING_NOISE * noise)

            def disturb_output(_: nn.Module, __: object, output: object) -> object:
                if isinstance(output, torch.Tensor) and output.is_floating_point():
                    return disturb(output.clone())
                return output

            with torch.no_grad():
                for weight in filter(torch.is_floating_point, again.parameters()):
                    disturb(weight)
            for layer in again.modules():
                if not any(layer.children()):
                    layer.register_forward_hook(disturb_output)
        return _run_module(again, call.feeds, double)
    except Exception:  # the model's own code, which may name a type
        return None


def _measure_rounding(module: nn.Module, call: _Call, exact: Sequence[Array], double: bool) -> float:
    """The largest share of an output's largest value by which the noise of rounding changes it."""
    noisy = [_run_again(module, call, double, seed) or () for seed in range(ROUNDING_DRAWS)]
    pairs = [pair for outputs in noisy for pair in zip(exact, outputs, strict=False)]
    return max((_measure_difference(a, b).relative for a, b in pairs if a.shape == b.shape), default=0.0)


def _explain_evaluator(path: Path, reference: GraphReference) -> ResultWarning:
    """The warning that ONNX Runtime cannot run the graph on a CPU, and why."""
    refusal = str(reference.refusal)
    match = re.search(r"Could not find an implementation for (\w+)\(\d+\) node with name", refusal)
    types = {info.type.tensor_type.elem_type for info in load_graph(path).graph.value_info}
    lacking = [name for code, name in UNUSUAL.items() if code in types]
    if match and lacking:
        return make_warning("checked_by_evaluator", why=f"it has no {match[1]} in {lacking[0]}")
    return make_warning("checked_by_evaluator", why=first_line(reference.refusal or Exception()))


def _describe(parent: Artifact, out: Path, check: ExportCheck, warnings: Sequence[ResultWarning]) -> Artifact:
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
        warnings=(*parent.warnings, *warnings),
    )


def _carry(parents: Sequence[TensorSpec], made: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The graph's inputs, with the values of the module's, and as long on open axes as those are."""
    parent_specs = {spec.name: spec for spec in parents}
    whole = parents[0] if takes_whole(parents) else None

    def carry(spec: TensorSpec) -> TensorSpec:
        if whole is not None and spec.name == whole.name:  # its first axis is no batch here either
            spec = msgspec.structs.replace(spec, shape=(*whole.shape[:1], *spec.shape[1:]))
        lengths = concrete_shape(parent_specs[spec.name], 1)
        sizes = tuple(
            n if isinstance(axis, str) and axis != BATCH_AXIS else 0
            for axis, n in zip(spec.shape, lengths, strict=True)
        )
        return msgspec.structs.replace(
            spec,
            values=parent_specs[spec.name].values,
            widest=parent_specs[spec.name].widest,
            sizes=sizes if any(sizes) else (),
        )

    return tuple(carry(spec) if spec.name in parent_specs else spec for spec in made)
