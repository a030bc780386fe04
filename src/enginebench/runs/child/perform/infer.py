"""`infer`: the outputs of an engine for the arrays of a file."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Array, Feeds, Loadable
from enginebench.core.records import Artifact, TensorSpec
from enginebench.engines.abilities import ComputesOutputs
from enginebench.models.samples import (
    cut_entries,
    group_samples,
    join_samples,
    name_arrays,
    read_input_calls,
    read_samples,
)
from enginebench.runs.child.arrays import save_arrays, save_sets
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import build_graph, open_for, pass_notes
from enginebench.runs.child.other_jobs import InferJob, InferResponse
from enginebench.runs.child.perform.outputs import join_rows, measure_variation, run_engine, run_entries, run_sets


def infer_arrays(job: InferJob, note: NoteCall) -> InferResponse:
    input_calls = read_input_calls(job.inputs_path)
    backend = open_for(job.engine, job.out_dir)
    pass_notes(backend, note)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    calls = [name_arrays(arrays, artifact.inputs) for arrays in input_calls]
    if isinstance(backend, ComputesOutputs):
        save_arrays(Path(job.outputs_path), _ask_tool(backend, artifact, job, calls))
        return InferResponse(outputs=artifact.outputs)  # it starts anew for each call: usual inputs have to do
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; infer needs another engine")
    varies, refused = None, dict[str, str]()
    with backend.load(artifact, job.engine) as engine:
        ask = partial(run_engine, engine)
        if job.step is None:
            arrays = join_rows(map(ask, calls))
        else:
            entries = cut_calls(calls, engine.inputs)
            arrays = run_entries(ask, entries, engine.inputs, job.step)
            first = [entries[i] for i in group_samples(entries, job.step, engine.inputs)[0]]
            feeds = join_samples(first, engine.inputs, job.step)
            varies = measure_variation(ask(feeds), ask(feeds))
            sets = {name: read_samples(folder) for name, folder in job.further.items()}
            further_outputs, refused = run_sets(ask, sets, engine.inputs, job.step)
            if sets:
                save_sets(Path(job.further_path), further_outputs)
    save_arrays(Path(job.outputs_path), arrays)
    outputs = tuple(TensorSpec(name=k, dtype=str(a.dtype), shape=a.shape) for k, a in arrays.items())
    return InferResponse(outputs=outputs, varies=varies, refused=refused)


def cut_calls(calls: Sequence[Feeds], specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """The entries of all calls, in their order."""
    return [entry for arrays in calls for entry in cut_entries(arrays, specs)]


def _ask_tool(
    backend: ComputesOutputs, artifact: Artifact, job: InferJob, calls: Sequence[Feeds]
) -> Mapping[str, Array]:
    if job.step is None:
        return backend.compute_outputs(artifact, job.engine, calls)
    entries = cut_calls(calls, artifact.inputs)
    return run_entries(
        lambda feeds: backend.compute_outputs(artifact, job.engine, [feeds]), entries, artifact.inputs, job.step
    )
