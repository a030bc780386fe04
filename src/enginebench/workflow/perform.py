"""What a child does for each kind of job: the only place where models, backends and the loop meet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import ArtifactError
from enginebench.core.protocols import Answering, Loadable
from enginebench.core.records import Artifact, EngineSpec
from enginebench.workflow.arrays import save_arrays
from enginebench.workflow.jobs import (
    Answer,
    AnswerJob,
    BuildAnswer,
    BuildJob,
    InferJob,
    Job,
    KeepCall,
    MeasureJob,
    NoteCall,
    PrepareAnswer,
    PrepareJob,
    ProbeAnswer,
    ProbeJob,
    ProfileJob,
    Proof,
    QuantizeJob,
    SourceJob,
    StagesJob,
)
from enginebench.workflow.opening import build_graph, open_for, pass_notes
from enginebench.workflow.perform_answers import answer_data, answer_labelled, infer_arrays, run_feeds
from enginebench.workflow.perform_measure import measure_repetition
from enginebench.workflow.perform_sources import make_source, quantize_graph, take_file
from enginebench.workflow.proving import prove_engine, prove_plan, prove_precision

if TYPE_CHECKING:
    from enginebench.core.protocols import Array


def perform(job: Job, note: NoteCall, keep: KeepCall = lambda answer: None) -> Answer:
    """The answer to `job`, worked out in this process; `keep` gets times as soon as they are taken."""
    if isinstance(job, SourceJob):
        return make_source(job, note)
    if isinstance(job, QuantizeJob):
        return quantize_graph(job, note)
    if isinstance(job, PrepareJob):
        return prepare_engine(job, note)
    if isinstance(job, MeasureJob):
        return measure_repetition(job, note, keep)
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
    """Builds the engine, saves its outputs for the check inputs, and asks it for its record."""
    backend = open_for(job.engine, job.out_dir)
    note("building")
    pass_notes(backend, note)
    start = time.perf_counter()
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    if job.artifact.kind == "plan":
        check_batch(artifact, job.engine)
    feeds = _check_inputs(job, artifact)
    proof: Proof | None = None
    if isinstance(backend, Loadable):
        with backend.load(artifact, job.engine) as engine:
            build_s = time.perf_counter() - start
            note("checking outputs")
            save_arrays(Path(job.outputs_path), run_feeds(engine, feeds))
            if job.data is not None:
                note(f"answering {job.data}")
                save_arrays(Path(job.logits_path), answer_data(engine, job))
            if job.prove:
                note("asking which precisions ran")
                proof = prove_engine(engine)
    else:
        build_s = time.perf_counter() - start
        if isinstance(backend, Answering):
            note("checking outputs")
            save_arrays(Path(job.outputs_path), backend.answer(artifact, job.engine, feeds))
        proof = prove_plan(backend, artifact, job.engine, note)
    return PrepareAnswer(
        artifact=artifact,
        engine_version=backend.probe().version,
        build_s=build_s,
        size_bytes=sum(f.size_bytes for f in artifact.files) or None,
        samples=len(feeds) * job.engine.batch,
        proof=proof,
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
