"""What a child does for each kind of job: the only place where models, backends and the loop meet."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import ArtifactError
from enginebench.core.protocols import Answering, LayerProfiler, Loadable, PlanProfiler, PlanProof, PrecisionProof
from enginebench.core.records import Artifact, Caveat, EngineSpec, LayerProfile, LayerTime
from enginebench.workflow.arrays import save_arrays
from enginebench.workflow.jobs import (
    Answer,
    AnswerJob,
    BuildAnswer,
    BuildJob,
    InferJob,
    Job,
    MeasureJob,
    NoteCall,
    PrepareAnswer,
    PrepareJob,
    ProbeAnswer,
    ProbeJob,
    ProfileJob,
    QuantizeJob,
    SourceJob,
    StagesJob,
)
from enginebench.workflow.opening import build_graph, open_for, pass_notes
from enginebench.workflow.perform_answers import answer_data, answer_labelled, infer_arrays, run_feeds
from enginebench.workflow.perform_measure import measure_repetition
from enginebench.workflow.perform_sources import make_source, quantize_graph, take_file

if TYPE_CHECKING:
    from enginebench.core.protocols import Array


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


def _check_inputs(job: PrepareJob, artifact: Artifact) -> list[dict[str, Array]]:
    from enginebench.models.task import sample_feeds

    count = -(-job.samples // job.engine.batch)
    return sample_feeds(artifact.inputs, job.model, job.engine.batch, job.seed, count)


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


def probe_engine(job: ProbeJob) -> ProbeAnswer:
    """Whether an engine can run here, found out by importing its runtime."""
    from enginebench.backends.registry import probe

    return ProbeAnswer(availability=probe(job.engine))
