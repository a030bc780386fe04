"""The child's part of `sources`: what a run starts from, exported, taken from a file, or quantized."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from enginebench.core.aoti import is_package, read_package_record
from enginebench.core.commands import VERB
from enginebench.core.errors import (
    ArtifactError,
    BackendUnavailable,
    DependencyError,
    FeedError,
    ModelError,
    UsageError,
)
from enginebench.core.input_sets import EXAMPLES, GIVEN
from enginebench.core.names import PLAN_SUFFIXES
from enginebench.core.plan_notes import KEPT, read_note, write_note
from enginebench.core.protocols import Feeds
from enginebench.core.recipes import FEW_BITS, find_needs
from enginebench.core.records import Artifact, ModelSource, Normalize, TensorSpec
from enginebench.core.shapes import explain_own_batch, find_built_batch, find_own_batch, match_axes
from enginebench.core.store import bring_files, copy_file, derive, hash_files
from enginebench.engines.registry import find_entry
from enginebench.models.check_inputs import read_examples
from enginebench.models.onnx.input_sizes import find_batches, guess_sizes
from enginebench.models.samples import (
    SAMPLES,
    cut_entries,
    name_arrays,
    read_input_calls,
    read_samples,
    take_sizes,
    write_samples,
)
from enginebench.models.zoo import check_installed, packaged_onnx, resolve_model
from enginebench.runs.child.jobs import KeepCall, NoteCall, QuantizeJob, SourceJob, SourceResponse

if TYPE_CHECKING:
    from enginebench.models.precision.calibration import Calibration
    from enginebench.models.precision.calibration_data import CalibrationData

# As many as a configuration's check compares (`runs/checking.py: CHECK_SAMPLES`).
DATA_ENTRIES = 32
# Added to the niceness of a process: the largest there is. Source: nice(2).
LOWEST_PRIORITY = 19


def make_source(job: SourceJob, note: NoteCall, keep: KeepCall[SourceResponse]) -> SourceResponse:
    """The artifacts that a run starts from: the torch one and its checked ONNX export, or an ONNX file as it is.

    `keep` gets the torch one before the export begins, and returns once it may.
    """
    from enginebench.models.task import complete_normalize, hash_preprocess

    input_calls: Sequence[Feeds] | None = read_input_calls(job.source.inputs) if job.source.inputs is not None else None
    model, shapes = job.source.model, job.source.input_shapes
    no_graph = None
    wish = job.source.normalize
    normalize = None if wish is None else complete_normalize(wish, model, job.source.weights)
    pictures = [a for feeds in input_calls or () for n, a in feeds.items() if normalize and normalize.input in ("", n)]
    if other := next((str(array.dtype) for array in pictures if array.dtype != "uint8"), None):
        raise FeedError(f"--inputs has images of {other}, where --input-dtype says uint8; give bytes, 0 to 255")
    if Path(model).suffix.lower() in PLAN_SUFFIXES:
        if normalize is not None:
            raise UsageError(f"--input-dtype uint8: {model} is built already. Build it of a graph that takes bytes")
        artifacts: tuple[Artifact, ...] = (_take_plan(Path(model), Path(job.out_dir)),)
    elif resolve_model(model).kind == "pt2" and is_package(Path(model)):
        if normalize is not None or job.onnx_out or (job.onnx and job.needs_onnx):
            raise UsageError(f"{model} is a package of AOTInductor: it is compiled already and holds no graph")
        artifacts = (_take_package(Path(model), Path(job.out_dir)),)
    elif resolve_model(model).kind == "onnx":
        artifacts = take_file(Path(model), Path(job.out_dir), job.source.operator_libraries, normalize)
        input_calls = input_calls or draw_data(job, artifacts[-1])
        artifacts = tuple(size_inputs(a, shapes, input_calls) for a in artifacts)
    elif find_spec("torch") is not None:
        artifacts, no_graph = _make_from_torch(job, input_calls, note, keep, normalize)
    else:
        check_installed(resolve_model(model))
        shipped = packaged_onnx(model)
        assert shipped is not None  # else PyTorch would be needed
        (artifact,) = _take_onnx(shipped, Path(job.out_dir), normalize=normalize)
        prepared = hash_preprocess(model, inputs=artifact.inputs)
        artifacts = (replace(artifact, model=model, weights="trained", preprocess_sha256=prepared),)
    if normalize is not None and find_spec("onnx") is not None:
        from enginebench.models.onnx.bytes import warn_of_two_normalizations

        artifacts = warn_of_two_normalizations(artifacts, normalize)
    input_calls = input_calls or draw_data(job, artifacts[-1])
    if input_calls is not None and artifacts[-1].inputs:
        write_samples(input_calls, artifacts[-1].inputs, Path(job.out_dir) / SAMPLES)
    return SourceResponse(artifacts=artifacts, no_graph=no_graph)


def check_named_model(source: ModelSource) -> bool:
    """Return whether PyTorch is there to see that the model exists, and that weights fit it.

    A model of transformers may be large: its configuration is read, and it is not built.

    Raises:
        ModelError: there is no such model, or the weights are those of another one.
    """
    os.nice(LOWEST_PRIORITY)
    if find_spec("torch") is None:
        return False
    ref = resolve_model(source.model)
    if ref.kind == "hf":
        from enginebench.models.torch.hugging_face import check_configuration

        check_configuration(ref)
    else:
        from enginebench.models.torch.source import load_weights

        load_weights(source.model, Path(source.weights), source.input_size)
    return True


def size_inputs(
    artifact: Artifact, shapes: Mapping[str, tuple[int, ...]] | None, input_calls: Sequence[Feeds] | None
) -> Artifact:
    """Return the graph with lengths for its dynamic axes: from the user's inputs, the requested shapes, or trials.

    The axes stay dynamic: engines that compile for shapes use these lengths, others see them with their inputs.
    """
    if input_calls is not None and shapes:
        raise UsageError("--inputs bring their own shapes, and --input-shape names others; leave one of them out")
    if find_spec("onnx") is None:
        specs, batches = artifact.inputs, find_batches(artifact.inputs)
        if input_calls is None:
            return replace(artifact, inputs=guess_sizes(specs, match_axes(specs, shapes or {}, batches)))
        return replace(artifact, inputs=take_sizes(specs, name_arrays(input_calls[0], specs), batches))
    from enginebench.models.onnx.inputs import complete_inputs, guess_values

    if input_calls is None:
        return complete_inputs(artifact, shapes)
    specs = guess_values(artifact)
    return replace(artifact, inputs=take_sizes(specs, name_arrays(input_calls[0], specs), find_batches(specs)))


def cut_all(calls: Sequence[Feeds], inputs: Sequence[TensorSpec]) -> list[Feeds]:
    """The entries of all calls."""
    return [entry for arrays in calls for entry in cut_entries(arrays, inputs)]


def draw_data(job: SourceJob, artifact: Artifact) -> list[Feeds] | None:
    """Return the first entries of the user's data, for checks and timing; None if the user gave none."""
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.task import find_own_data

    source = job.source
    if job.data in (None, "fake", find_own_data(source.model)) or not artifact.inputs:
        return None
    data = open_data(
        str(job.data),
        model=source.model,
        inputs=artifact.inputs,
        n=DATA_ENTRIES,
        seed=source.seed,
        input_size=source.input_size,
        split="evaluate",
    )
    return [data.read(i, i + 1) for i in range(data.n)]


def _make_from_torch(
    job: SourceJob,
    input_calls: Sequence[Feeds] | None,
    note: NoteCall,
    keep: KeepCall[SourceResponse],
    normalize: Normalize | None,
) -> tuple[tuple[Artifact, ...], str | None]:
    """(the PyTorch artifact, and its graph if one is wanted; why there is no graph)."""
    try:
        from enginebench.models.task import take_bytes
        from enginebench.models.torch.source import make_torch_artifact
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"PyTorch is installed and cannot be imported ({error}). Reinstall it: {find_entry('pytorch').fix}"
        ) from error

    note("loading the model")
    source, first = job.source, input_calls[0] if input_calls else {}
    made = make_torch_artifact(
        source.model,
        Path(job.out_dir),
        weights=source.weights,
        seed=source.seed,
        input_size=source.input_size,
        batch=None if job.any_batch else job.batch,
        input_shapes=source.input_shapes,
        user_inputs={
            name: array.astype("float32") if normalize and normalize.input in ("", name) else array
            for name, array in first.items()
        },
    )
    if normalize is not None:
        made = take_bytes(made, normalize, source.input_size)
        shutil.rmtree(Path(job.out_dir) / EXAMPLES, ignore_errors=True)  # they are no bytes
    input_calls = input_calls or draw_data(job, made)  # what does not fit is refused before the export
    if not job.onnx:
        return (made,), None
    if input_calls is not None:
        write_samples(input_calls, made.inputs, Path(job.out_dir) / SAMPLES)
    keep(SourceResponse(artifacts=(made,)))
    note("exporting to ONNX")
    own_inputs: dict[str, Sequence[Feeds]] = {
        GIVEN: cut_all(input_calls or (), made.inputs),
        EXAMPLES: read_examples(Path(job.out_dir), made.inputs),
    }
    try:
        return (made, _export_graph(job, made, note, own_inputs)), None
    except (ModelError, DependencyError) as error:
        if job.needs_onnx:
            raise
        return (made,), str(error)


def _export_graph(
    job: SourceJob, made: Artifact, note: NoteCall, own_inputs: Mapping[str, Sequence[Feeds]]
) -> Artifact:
    """The graph, its batch open; or at the batch of the job, or that which the model fixes."""
    from enginebench.models.torch.export import UNTRANSLATED, FixesBatch, export_onnx

    own = find_own_batch(made)
    if job.onnx_out and own not in (None, job.batch) and not job.any_batch:
        raise ModelError(explain_own_batch(made.model, own, job.batch))
    batch = own or (find_built_batch(made) if job.any_batch else job.batch)
    out = Path(job.onnx_out) if job.onnx_out else Path(job.out_dir) / "model.onnx"
    export = partial(
        export_onnx,
        made,
        out,
        batch=batch,
        dynamic_axes=job.dynamic_axes,
        opset=job.opset,
        seed=job.source.seed,
        own_inputs=own_inputs,
    )
    if not job.dynamic_batch:
        return export(dynamic_batch=False)
    try:
        return export(dynamic_batch=True)
    except ModelError as error:
        if job.onnx_out and isinstance(error, FixesBatch):
            raise ModelError(f"{error}. Export it with --batch {batch}, without --dynamic-batch") from error
        if job.onnx_out or UNTRANSLATED in str(error):  # at any batch
            raise
        note(f"no graph with a dynamic batch, so one of batch {batch}: {error}")
        return export(dynamic_batch=False)


def _take_onnx(
    path: Path, out_dir: Path, libraries: Sequence[str] = (), normalize: Normalize | None = None
) -> tuple[Artifact, ...]:
    """The user's graph, brought into the run's folder so that the run can be continued and read anywhere."""
    from enginebench.models.onnx.bytes import prepend_normalize
    from enginebench.models.onnx.source import read_onnx

    graph = read_onnx(path)
    home = out_dir / "source"
    bring_files(graph.files, path.parent, home)
    copy = home / path.name
    if copy.suffix.lower() != ".onnx":  # by which some runtimes know a graph
        copy = copy.rename(home / f"{path.name}.onnx")
        graph = read_onnx(copy)
    operators = tuple(str(Path(text).absolute()) if Path(text).is_file() else text for text in libraries)
    taken = replace(graph, path=str(copy), model=path.name, operator_libraries=operators)
    return (taken if normalize is None else prepend_normalize(taken, normalize),)


def take_file(
    path: Path, out_dir: Path, libraries: Sequence[str] = (), normalize: Normalize | None = None
) -> tuple[Artifact, ...]:
    if path.suffix.lower() in PLAN_SUFFIXES:
        return (_take_plan(path, out_dir),)
    taken = _take_onnx(path, out_dir, libraries, normalize)
    if not all(artifact.inputs for artifact in taken):
        raise ArtifactError(
            f"{path}: the graph has no inputs; expected at least one, for calls to differ in. "
            "Export the model with what it computes on as an input"
        )
    return taken


def _take_plan(path: Path, out_dir: Path) -> Artifact:
    """Copy a finished plan into the run's folder; the engine that loads it reports its inputs and outputs."""
    if not path.is_file() or path.stat().st_size == 0:
        raise ArtifactError(f"{path} is not a plan: it is missing or empty. Build it again")
    home = out_dir.absolute() / "source" / path.name
    copy_file(path, home)
    sha256, files = hash_files([home], home.parent)
    note = read_note(path)
    plan = Artifact(
        kind="plan",
        model=path.name,
        path=str(home),
        sha256=sha256,
        files=files,
        inputs=(),
        outputs=(),
        precision=note.requested_precision if note else None,
        **{name: getattr(note, name) for name in KEPT if note},
    )
    if note is not None and path.resolve() != home.resolve():
        write_note(home, plan, note.requested_precision)
    return plan


def _take_package(path: Path, out_dir: Path) -> Artifact:
    """A package of AOTInductor, brought into the run's folder, as its record describes it; nothing of it is loaded."""
    try:
        recorded = msgspec.convert(read_package_record(path).get("artifact"), Artifact)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"{path} has a damaged record ({error}). Build it again") from error
    if recorded.kind != "aoti" or not recorded.inputs or recorded.operator_libraries:
        raise ArtifactError(f"{path} has a damaged record: it describes no package. Build it again")
    home = (out_dir.absolute() / "source" / path.name).with_suffix(".pt2")  # PyTorch opens no other names
    copy_file(path, home)
    return replace(derive(recorded, [home], home.parent), model=path.name, parent_sha256=recorded.parent_sha256)


def quantize_graph(job: QuantizeJob, note: NoteCall) -> Artifact:
    """The graph in another precision. Ranges are read back from the run's folder, or taken and kept there."""
    from enginebench.models.precision.calibration_data import open_data, use_samples
    from enginebench.models.precision.quantize import quantize

    VERB.set(job.verb)
    Path(job.out).parent.mkdir(parents=True, exist_ok=True)
    # A graph that holds Q/DQ nodes brings its ranges along, and goes through as it is.
    quantized_already = job.artifact.precision in FEW_BITS
    needs = "nothing" if quantized_already else find_needs(job.precision, job.recipe)
    data = None
    if needs != "nothing" and job.inputs is not None:
        data = use_samples(read_samples(job.inputs, job.n), job.artifact.inputs)
    elif needs != "nothing":
        data = open_data(
            job.data, model=job.model, inputs=job.artifact.inputs, n=job.n, seed=job.seed, input_size=job.input_size
        )
    if job.artifact.kind == "torch":
        from enginebench.models.torch.eight_bits import quantize_module

        assert data is not None
        note(f"to {job.precision}")
        return quantize_module(job.artifact, job.recipe, data, Path(job.out), job.method, job.threads)
    calibration = _find_ranges(job, data, note) if data is not None and needs == "ranges" else None
    note(f"to {job.precision}")
    return quantize(
        job.artifact,
        job.precision,
        job.recipe,
        Path(job.out),
        calibration=calibration,
        data=data,
        exclude=job.exclude,
        threads=job.threads,
    )


def _find_ranges(job: QuantizeJob, data: CalibrationData, note: NoteCall) -> Calibration:
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration import read_calibration, write_calibration

    path = Path(job.calibration_path)
    if path.exists():
        return read_calibration(path)
    note(f"ranges over {data.n} entries of {data.source}")
    calibration = calibrate(job.artifact, data, method=job.method, threads=job.threads)  # type: ignore[arg-type]
    write_calibration(calibration, path)
    return calibration
