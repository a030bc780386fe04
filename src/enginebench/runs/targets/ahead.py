"""Check what a command names, before anything is waited for: files by their headers, modules by their source.

Another run may be timed meanwhile, so one thread of the lowest priority does it: of the user's nothing is imported or
called, no engine and no PyTorch is loaded. What takes work is found out under the device's lock, as before.
"""

import contextvars
import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import psutil
from msgspec.structs import replace

from enginebench.core.aoti import is_package
from enginebench.core.array_files import ONLY
from enginebench.core.commands import format_command
from enginebench.core.errors import (
    ChildFailed,
    DependencyError,
    EngineBenchError,
    ModelError,
    TimedOut,
    UsageError,
    refuse_all,
)
from enginebench.core.names import PLAN_SUFFIXES
from enginebench.core.records import EngineSpec, ModelSource, TensorSpec
from enginebench.core.shapes import BATCH_AXIS, concrete_shape, explain_own_batch, free_batch, match_axes
from enginebench.core.store import is_bundle
from enginebench.engines.registry import takes
from enginebench.models.archives import (
    check_program,
    count_weights,
    explain_no_examples,
    read_program_batch,
    read_program_inputs,
    read_script_inputs,
)
from enginebench.models.downloads import check_hub_name
from enginebench.models.file_kind import check_weights_file
from enginebench.models.objects import FACTORY, METRIC, check_importable
from enginebench.models.onnx.input_sizes import find_batches, guess_sizes
from enginebench.models.precision.calibration_data import check_arrays, check_images, check_source, require_digits
from enginebench.models.samples import count_entries, list_input_files, read_file, read_heads, require_names
from enginebench.models.task import choose_preprocess
from enginebench.models.zoo import BUILTIN, ModelRef, check_hf_folder, check_installed, check_timm_name, resolve_model
from enginebench.runs.child.environments import require_available
from enginebench.runs.child.isolate import child_environment, run_child
from enginebench.runs.child.other_jobs import FitJob
from enginebench.runs.child.targets_file import match_targets, read_targets
from enginebench.runs.folder import OUTSIDE, RunRequest, Stored
from enginebench.runs.lock import is_any_held
from enginebench.runs.plan import NEEDS_MODULE, explain_unfit_batch, list_configuration_sizes, list_here
from enginebench.runs.targets.sides import Side, SideRequest, parse_side, refuse_differences
from enginebench.runs.targets.sources import COMPARED_ENTRIES, LABELLED_ENTRIES, QUICK_ENTRIES, choose_labelled
from enginebench.runs.traffic import settle_traffic
from enginebench.stats.alike import compare_specs

T = TypeVar("T")
# Models of these kinds name their dynamic axes themselves, or have none.
READ_AS_THEY_ARE = ("onnx", "pt2", "torchscript")
# Longer than an import of PyTorch and the largest built-in model take beside a run that keeps every CPU busy.
FIT_S = 120.0
# The lowest priority of a thread. Source: setpriority(2).
LOWEST = 19
# Bytes of a file of arrays that is read whole, so that damage is seen; of a larger one only the headers: a run takes
# longer to load it than to wait for the news.
WHOLE_BYTES = 32 << 20


def run_quietly(check: Callable[[], T]) -> T:
    """Run `check` in one thread of the lowest priority, where threads have priorities; its errors are raised here."""
    context = contextvars.copy_context()

    def step_back() -> None:
        if sys.platform == "linux":  # elsewhere it would be the whole process, for good
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)

    with ThreadPoolExecutor(max_workers=1, initializer=step_back) as pool:
        return pool.submit(context.run, check).result()


def check_ahead(requests: Iterable[RunRequest]) -> None:
    """Check everything in requests that costs no work to check; raise what would be raised under the lock."""
    for request in requests:
        run_quietly(partial(_check_all, request))


def check_compared_ahead(requests: Iterable[RunRequest]) -> None:
    """The same of sides that get the same inputs: their models must take these."""
    described: list[tuple[str, Sequence[TensorSpec]]] = []
    for request in requests:
        if specs := run_quietly(partial(_check_all, request)):
            # Sides at two batches have a message of their own, with the option that cures it.
            described.append((request.model, [replace(spec, shape=("batch", *spec.shape[1:])) for spec in specs]))
    _refuse_unlike(described)


def check_pictures_ahead(request: RunRequest) -> None:
    """The same of a model that is to take pictures."""

    def check() -> None:
        _check_pictures(request, _check_all(request))

    run_quietly(check)


def check_source_ahead(source: ModelSource) -> Sequence[TensorSpec]:
    """The same of a model with its weights and inputs, as the sides of a comparison have them.

    Returns the inputs that the model's file describes; empty where only the loaded model knows them.
    """
    return run_quietly(partial(_check_source_alone, source)) or ()


def parse_sides_ahead(
    texts: Iterable[str], request: SideRequest, targets: str | None = None, n: int = LABELLED_ENTRIES
) -> list[Side]:
    """Parse the sides of a comparison and check the same of them.

    Of a stored configuration or a bundle its own inputs say what `--inputs` must fit.

    Args:
        targets: of the inputs, of which at most `n` entries are taken.
    """
    sides = [run_quietly(partial(parse_side, text)) for text in texts]
    described: list[tuple[str, Sequence[TensorSpec]]] = []
    for side in sides:
        if side.stored is not None:
            specs = run_quietly(partial(_check_stored, side.stored, request.source.inputs))
        else:
            name, options = side.engine
            require_available(EngineSpec(backend=name, options=options, device=side.find_device(request.device)))
            source = replace(request.source, model=side.target)
            specs = check_source_ahead(source)
        if specs:
            described.append((side.text, specs))
        run_quietly(partial(_check_count, request.source, targets, specs, n))
    _refuse_unlike(described)
    return sides


def _refuse_unlike(described: Sequence[tuple[str, Sequence[TensorSpec]]]) -> None:
    for (first, specs), (second, others) in pairwise(described):
        refuse_differences(compare_specs("input", specs, others, (first, second)))


def check_labels_ahead(data: str | None, targets: str | None, metrics: Sequence[str], n: int, seed: int) -> None:
    """The same of labelled samples: images open, targets can be read, metrics stand in their modules."""

    def check() -> None:
        _check_labels(targets, metrics)
        path = check_source(data) if data is not None else None
        if path is not None and path.is_dir() and not _holds_arrays(path):
            check_images(path, min(n, LABELLED_ENTRIES), seed)
        elif path is not None and path.is_file() and targets is not None:
            _match_count(targets, len(next(iter(read_heads(path).values()))), n)

    run_quietly(check)


def _check_all(request: RunRequest) -> Sequence[TensorSpec] | None:
    _require_shapes(request.source)
    specs = _check_source(replace(request.source, input_shapes=None))
    sizes = [(batch, shapes or request.input_shapes or {}) for shapes, batch in list_configuration_sizes(request, ())]
    if request.traffic and specs and resolve_model(request.model).kind == "onnx":
        cells = settle_traffic(request.traffic, specs, find_batches(specs))
        sizes = [(cell.batch, cell.shapes) for cell in cells]
    for batch, shapes in sizes:
        check_memory(batch, shapes, specs or ())
    _check_any_shapes(request.buckets or (request.input_shapes or {},), request.source, specs)
    _check_batches(request, specs)
    _check_engines(request)
    _check_lengths(request, specs)
    _check_labels(request.targets, request.metrics)
    _check_count(request.source, request.targets, specs, LABELLED_ENTRIES)
    if request.data is not None:
        _check_data(request, request.data, specs)
    choose_labelled(request)
    return specs


def _check_engines(request: RunRequest) -> None:
    """Check that not every engine needs a module, where MODEL is a graph."""
    ref = _find_ref(request.source)
    if ref is not None and ref.kind == "onnx" and all(takes(name) == "torch" for name, _ in request.engines):
        raise refuse_all(f"{name} {NEEDS_MODULE}" for name, _ in request.engines)


def _check_batches(request: RunRequest, specs: Sequence[TensorSpec] | None) -> None:
    """Check that a graph or an exported program which fixes its batch takes one of those requested: the run skips the
    others, each with its reason."""
    ref = _find_ref(request.source)
    if ref is None or not specs or request.any_batch or request.traffic:
        return
    if ref.kind == "pt2" and (own := read_program_batch(ref.path)) and own not in request.batches:
        raise UsageError(explain_own_batch(request.model, own, request.batches[0]))
    if ref.kind != "onnx":
        return
    from enginebench.models.onnx.source import read_onnx_head

    head = read_onnx_head(ref.path)
    graph = replace(head, inputs=guess_sizes(head.inputs, {}))  # so that a length is not taken for a batch
    reasons = [explain_unfit_batch(graph, [batch]) for batch in request.batches]
    if reasons[0] is not None and all(reasons):
        raise UsageError(f"{request.model}: {reasons[0]}")


def _check_stored(stored: Stored, inputs: str | None) -> Sequence[TensorSpec]:
    """Check that files of inputs fit a stored configuration; return its inputs."""
    specs = free_batch(stored.chain[-1]).inputs
    if inputs is not None:
        _check_inputs(inputs, specs)
    return specs


def _check_count(source: ModelSource, targets: str | None, specs: Sequence[TensorSpec] | None, most: int) -> None:
    """Check that the entries of files of inputs, of which at most so many are taken, have as many targets.

    Where only the loaded model knows its inputs, the targets must fit one reading of the files at least: an entry
    each, or along the first axis of one of their arrays.
    """
    files = list_input_files(source.inputs) if source.inputs is not None else []
    if not files or targets is None or source.normalize is not None:
        return
    heads = [read_heads(file) for file in files]
    if specs:
        counts = [count_entries(arrays, specs) for arrays in heads]
        _match_count(targets, sum(1 if count is None else count for count in counts), most)
        return
    names = {name for arrays in heads for name, array in arrays.items() if array.shape}
    readings = {sum(arrays[name].shape[0] for arrays in heads) for name in names if all(name in a for a in heads)}
    faults: list[UsageError] = []
    for entries in sorted({*readings, len(files)}, reverse=True):
        try:
            _match_count(targets, entries, most)
        except UsageError as error:
            faults.append(error)
        else:
            return
    raise faults[0]


def _match_count(targets: str, entries: int, most: int) -> None:
    n = min(entries, most)
    match_targets(read_targets(Path(targets)), n, None, cut=n == most)


def _check_lengths(request: RunRequest, specs: Sequence[TensorSpec] | None) -> None:
    """Check that a mix has no lengths where a PyTorch model is exported with the batch as its only dynamic axis."""
    ref = _find_ref(request.source)
    if ref is None or ref.kind in READ_AS_THEY_ARE or request.dynamic_axes:
        return
    texts = [str(part.shape[0]) for part in request.traffic if len(part.shape) == 1]
    texts += [f"{axis}={n}" for part in request.traffic for axis, n in part.axes.items() if axis != BATCH_AXIS]
    if texts and any(takes(name) == "onnx" for name in list_here(request)):
        axis = f"{specs[0].name if specs else 'NAME'}:1"
        options = [("--dynamic-batch", None), ("--dynamic-axes", axis)]
        command = format_command("export", request.model, options=options)
        raise UsageError(
            f"--traffic {texts[0]}: {request.model} is exported with the batch as its only dynamic axis. Name the "
            f"input and the axis of this length, counted from 0: `{command}` writes a graph for every verb, and `run` "
            "takes --dynamic-axes, too"
        )


def check_memory(batch: int, shapes: Mapping[str, tuple[int, ...]], specs: Sequence[TensorSpec]) -> None:
    """Check that the inputs of one call fit into memory, at a byte a value, before their build finds that out."""
    values = sum(math.prod(shapes.get(spec.name) or concrete_shape(spec, batch)) for spec in specs)
    memory_bytes = psutil.virtual_memory().total
    if values > memory_bytes:
        raise UsageError(
            f"the inputs of a call with a batch of {batch} have {values:,} values, and this machine {memory_bytes:,} "
            "bytes of memory: give a smaller batch, or shorter lengths"
        )


def _check_source_alone(source: ModelSource) -> Sequence[TensorSpec] | None:
    _require_shapes(source)
    return _check_source(source)


def _require_shapes(source: ModelSource) -> None:
    """Check that a TorchScript archive, which holds no example inputs, is given with their shapes, or with arrays, of
    their names."""
    ref = _find_ref(source)
    inputs = read_script_inputs(ref.path) if ref is not None and ref.kind == "torchscript" else None
    if inputs is None:
        return
    if source.inputs is None and not source.input_shapes:
        raise UsageError(explain_no_examples(source.model, inputs))
    if unknown := [name for name in source.input_shapes or {} if name not in inputs.names]:
        raise UsageError(f"--input-shape names {', '.join(unknown)}; the inputs are {', '.join(inputs.names)}")
    for file in list_input_files(source.inputs) if source.inputs is not None else ():
        require_names(source.model, inputs.names, read_heads(file))


def _check_source(source: ModelSource) -> Sequence[TensorSpec] | None:
    """Check a model, its weights and its inputs; return the model's inputs if its file describes them."""
    specs = _check_model(source)
    if source.weights not in OUTSIDE["weights"]:
        _check_weights(source)
    if source.inputs is not None:
        _check_inputs(source.inputs, specs if source.normalize is None else None)
    _check_shapes(source.input_shapes or {}, source, specs)
    return specs


def _check_any_shapes(
    buckets: Sequence[Mapping[str, tuple[int, ...]]], source: ModelSource, specs: Sequence[TensorSpec] | None
) -> None:
    """Check that the model takes one of several shapes at least: the run skips the others, each with its reason."""
    faults: list[EngineBenchError] = []
    for shapes in buckets:
        try:
            _check_shapes(shapes, source, specs)
        except EngineBenchError as error:
            faults.append(error)
    if len(faults) == len(buckets):
        raise faults[0]


def _check_shapes(
    shapes: Mapping[str, tuple[int, ...]], source: ModelSource, specs: Sequence[TensorSpec] | None
) -> None:
    """Check the names, ranks and fixed axes of `--input-shape`; all axes of a built-in module are open."""
    if not specs or source.normalize is not None:
        return
    if resolve_model(source.model).kind == "builtin":
        specs = [replace(spec, shape=tuple(f"axis {i}" for i in range(len(spec.shape)))) for spec in specs]
    match_axes(specs, shapes, find_batches(specs))


def _find_ref(source: ModelSource) -> ModelRef | None:
    """Take a MODEL apart; None for an engine file, for a bundle, and where there is none."""
    path = Path(source.model)
    if not source.model or path.suffix.lower() in PLAN_SUFFIXES or is_bundle(path):
        return None
    return resolve_model(source.model)


def _check_model(source: ModelSource) -> Sequence[TensorSpec] | None:
    ref = _find_ref(source)
    if ref is None:
        return None
    packaged = ref.kind == "pt2" and is_package(ref.path)
    if ref.kind == "factory":
        check_importable(ref.name, ModelError, ref.text, FACTORY)
    if ref.kind == "timm":
        check_timm_name(ref)
    if ref.kind == "hf":
        check_hf_folder(ref)
        check_hub_name(ref)
    if not packaged:
        check_installed(ref)
    if ref.kind == "hf" and is_any_held():
        _check_in_child(source)
    if ref.kind == "onnx" and find_spec("onnx") is not None:
        from enginebench.models.onnx.source import check_onnx

        return check_onnx(ref.path).inputs
    if ref.kind == "pt2" and not packaged:
        check_program(ref.path, ref.text)
        return read_program_inputs(ref.path)
    card = BUILTIN.get(ref.name) if ref.kind == "builtin" else None
    if card is None or source.input_size is not None:
        return None
    return (TensorSpec(name=card.input_name, dtype="float32", shape=("batch", *card.input_shape)),)


def _check_weights(source: ModelSource) -> None:
    """Check a file of weights by its content, by its number of values, and by the module of a model that is known by
    its name alone.

    That module is built only if the run would have to wait: otherwise the run itself builds it at once. A factory of
    the user's is not called while another run is timed.
    """
    path = Path(source.weights)
    if not path.is_file():
        return
    check_weights_file(path)
    ref = _find_ref(source)
    card = BUILTIN.get(ref.name) if ref is not None and ref.kind == "builtin" else None
    count = count_weights(path)
    if card is not None and count not in (None, card.parameters):
        raise ModelError(
            f"weights of {path} do not fit the module: they have {count:,} values, and {card.name} {card.parameters:,}"
        )
    if ref is not None and ref.kind in ("builtin", "timm") and is_any_held():
        _check_in_child(source)


def _check_in_child(source: ModelSource) -> None:
    """Check what only the model's package knows, in a process of the lowest priority."""
    with suppress(ChildFailed, DependencyError, TimedOut):  # the run itself reports these
        run_child(FitJob(source=source), timeout_s=FIT_S, variables=child_environment(1))


def _check_inputs(text: str, specs: Sequence[TensorSpec] | None) -> None:
    files = list_input_files(text)
    if not files:
        check_importable(text, ModelError, f"--inputs {text}", FACTORY)
    for file in files:
        whole = file.is_file() and file.stat().st_size <= WHOLE_BYTES
        arrays = read_file(file) if whole else read_heads(file)
        if specs:
            count_entries(arrays, specs)


def _check_data(request: RunRequest, data: str, specs: Sequence[TensorSpec] | None) -> None:
    path = check_source(data)
    if path is None:
        if data == "digits":
            require_digits(request.model)
        return
    if path.is_dir() and not _holds_arrays(path):
        most = QUICK_ENTRIES if request.quick else COMPARED_ENTRIES
        labelled = choose_labelled(request)
        _check_pictures(request, specs)
        check_images(path, labelled.n if labelled is not None else most, request.measure.seed)
        return
    for file in list_input_files(data) if path.is_dir() else [path]:
        arrays = read_heads(file)
        if not specs or request.normalize is not None:
            continue
        if path.is_dir():
            count_entries(arrays, specs)
        elif len(specs) == 1 or ONLY not in arrays:
            check_arrays(file, {specs[0].name: arrays[ONLY]} if ONLY in arrays else arrays, specs)


def _check_pictures(request: RunRequest, specs: Sequence[TensorSpec] | None) -> None:
    """Check that a model takes pictures; axes that --input-shape may still choose are left to the run."""
    if specs and request.normalize is None and all(isinstance(n, int) for spec in specs for n in spec.shape[1:]):
        choose_preprocess(request.model, request.input_size, specs)


def _holds_arrays(folder: Path) -> bool:
    """Return whether a folder holds only arrays, by the rule of `open_data`."""
    suffixes = {file.suffix.lower() for file in folder.iterdir() if not file.name.startswith(".")}
    return suffixes in ({".npy"}, {".npz"})


def _check_labels(targets: str | None, metrics: Sequence[str]) -> None:
    for name in metrics:
        if ":" in name:
            check_importable(name, UsageError, f"--metric {name}", METRIC)
    if targets is not None and Path(targets).is_file() and Path(targets).stat().st_size <= WHOLE_BYTES:
        read_targets(Path(targets))
