"""The child's part of `infer`, `drift` and `accuracy`: an engine opened, and asked for arrays or labelled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Loadable
from enginebench.core.records import Artifact, TensorSpec
from enginebench.engines.abilities import Answering
from enginebench.models.samples import cut_entries, name_only, resolve_given
from enginebench.runs.child.arrays import save_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import build_graph, open_for, pass_notes
from enginebench.runs.child.other_jobs import AnswerJob, InferAnswer, InferJob, LabelledAnswer
from enginebench.runs.child.perform.answers import ask_engine, collect_answers, join_rows, open_labelled, run_entries

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds


def infer_arrays(job: InferJob, note: NoteCall) -> InferAnswer:
    given = resolve_given(job.inputs_path)
    backend = open_for(job.engine, job.out_dir)
    pass_notes(backend, note)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    calls = [name_only(arrays, artifact.inputs) for arrays in given]
    if isinstance(backend, Answering):
        save_arrays(Path(job.outputs_path), _ask_tool(backend, artifact, job, calls))
        return InferAnswer(outputs=artifact.outputs)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; infer needs another engine")
    with backend.load(artifact, job.engine) as engine:
        ask = partial(ask_engine, engine)
        arrays = join_rows(map(ask, calls)) if job.step is None else run_steps(ask, calls, engine.inputs, job.step)
    save_arrays(Path(job.outputs_path), arrays)
    outputs = tuple(TensorSpec(name=k, dtype=str(a.dtype), shape=a.shape) for k, a in arrays.items())
    return InferAnswer(outputs=outputs)


def _ask_tool(backend: Answering, artifact: Artifact, job: InferJob, calls: Sequence[Feeds]) -> Mapping[str, Array]:
    if job.step is None:
        return backend.answer(artifact, job.engine, calls)
    return run_steps(lambda feeds: backend.answer(artifact, job.engine, [feeds]), calls, artifact.inputs, job.step)


def run_steps(
    ask: Callable[[Feeds], Mapping[str, Array]], calls: Sequence[Feeds], specs: Sequence[TensorSpec], step: int
) -> dict[str, Array]:
    """The outputs for every entry of `calls`, in their order, `step` of one shape at a time."""
    entries = [entry for arrays in calls for entry in cut_entries(arrays, specs)]
    return run_entries(ask, entries, specs, step)


def answer_labelled(job: AnswerJob, note: NoteCall) -> LabelledAnswer:
    backend = open_for(job.engine, job.out_dir)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; accuracy needs another engine")
    note(f"answering {job.labelled.data or job.inputs}")
    with backend.load(artifact, job.engine) as engine:
        entries = open_labelled(job)
        answers, nonfinite = collect_answers(engine, job.engine.batch, entries, job.labelled)
    save_arrays(Path(job.answers_path), answers)
    return LabelledAnswer(
        n=entries.n, nonfinite=nonfinite, preprocess_sha256=entries.preprocess_sha256, caveats=entries.caveats
    )
