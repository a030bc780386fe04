"""`infer`: the outputs of an engine for the arrays of a file."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Array, Feeds, Loadable
from enginebench.core.records import Artifact, TensorSpec
from enginebench.engines.abilities import Answering
from enginebench.models.samples import cut_entries, name_only, resolve_given
from enginebench.runs.child.arrays import save_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import build_graph, open_for, pass_notes
from enginebench.runs.child.other_jobs import InferJob
from enginebench.runs.child.perform.answers import ask_engine, join_rows, run_entries


def infer_arrays(job: InferJob, note: NoteCall) -> tuple[TensorSpec, ...]:
    given = resolve_given(job.inputs_path)
    backend = open_for(job.engine, job.out_dir)
    pass_notes(backend, note)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    calls = [name_only(arrays, artifact.inputs) for arrays in given]
    if isinstance(backend, Answering):
        save_arrays(Path(job.outputs_path), _ask_tool(backend, artifact, job, calls))
        return artifact.outputs
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; infer needs another engine")
    with backend.load(artifact, job.engine) as engine:
        ask = partial(ask_engine, engine)
        arrays = join_rows(map(ask, calls)) if job.step is None else run_steps(ask, calls, engine.inputs, job.step)
    save_arrays(Path(job.outputs_path), arrays)
    return tuple(TensorSpec(name=k, dtype=str(a.dtype), shape=a.shape) for k, a in arrays.items())


def _ask_tool(backend: Answering, artifact: Artifact, job: InferJob, calls: Sequence[Feeds]) -> Mapping[str, Array]:
    if job.step is None:
        return backend.answer(artifact, job.engine, calls)
    return run_steps(lambda feeds: backend.answer(artifact, job.engine, [feeds]), calls, artifact.inputs, job.step)


def run_steps(
    ask: Callable[[Feeds], Mapping[str, Array]], calls: Sequence[Feeds], specs: Sequence[TensorSpec], step: int
) -> dict[str, Array]:
    """As `run_entries`, for every entry of `calls`."""
    return run_entries(ask, [entry for arrays in calls for entry in cut_entries(arrays, specs)], specs, step)
