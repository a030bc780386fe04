"""The outputs of an engine for arrays and labelled data: for checks, and for `infer`, `drift` and `accuracy`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.preprocess import EXTERNAL, differ, shorten
from enginebench.core.protocols import Array, Engine, Feeds, Loadable
from enginebench.core.records import Artifact, EngineSpec, ResultWarning, TensorSpec
from enginebench.core.shapes import find_open_outputs, format_input_shapes
from enginebench.core.text import first_line
from enginebench.engines.abilities import ComputesOutputs
from enginebench.engines.refusals import explaining_refusal
from enginebench.models.samples import find_batch, group_samples, join_samples, read_entries
from enginebench.runs.child.arrays import CHECKED_VALUES, FEWEST_CALLS, count_values, limit_calls, save_arrays
from enginebench.runs.child.collecting import Collector
from enginebench.runs.child.jobs import Labelled, LabelledJob, LabelledResponse, NoteCall, PrepareJob
from enginebench.runs.child.opening import build_graph, open_for
from enginebench.runs.child.targets_file import match_targets, read_targets
from enginebench.stats.metrics.metric import Targets


def run_entries(
    call: Callable[[Feeds], Mapping[str, Array]], entries: Sequence[Feeds], specs: Sequence[TensorSpec], step: int
) -> dict[str, Array]:
    """Compute the outputs for every entry, in their order, `step` of one shape at a time.

    A step with fewer entries is padded, since a graph's batch may be fixed. With a step of one entry, an output without
    a batch axis is taken as the output of that entry.
    """
    outputs_by_entry: dict[int, Mapping[str, Array]] = {}
    for indices in group_samples(entries, step, specs):
        outputs = call(join_samples([entries[i] for i in indices], specs, step))
        separated = {name: _take_rows(name, array, step, step) for name, array in outputs.items()}
        for i, index in enumerate(indices):
            outputs_by_entry[index] = {name: array[i : i + 1] for name, array in separated.items()}
    return join_rows(outputs_by_entry[i] for i in range(len(entries)))


def join_rows(outputs: Iterable[Mapping[str, Array]], apart: Collection[str] = ()) -> dict[str, Array]:
    """Join the outputs of several calls along the first axis; other axes are padded with zeros or "".

    The outputs named in `apart` get a new first axis, one index a call: their length is not the number of entries.
    """
    rows = list(outputs)
    joined = {}
    for name in rows[0]:
        arrays = [row[name][None] if name in apart else np.atleast_1d(row[name]) for row in rows]
        ranks = max(array.ndim for array in arrays)
        arrays = [array if array.ndim == ranks else array[None] for array in arrays]
        longest = [max(lengths) for lengths in zip(*(array.shape[1:] for array in arrays), strict=True)]
        for i, array in enumerate(arrays):
            gaps = [(0, want - have) for want, have in zip(longest, array.shape[1:], strict=True)]
            if any(gap for _, gap in gaps):
                arrays[i] = np.pad(array, [(0, 0), *gaps], constant_values=array.dtype.type())
        joined[name] = np.concatenate(arrays)
    return joined


def run_sets(
    call: Callable[[Feeds], Mapping[str, Array]],
    sets: Mapping[str, Sequence[Feeds]],
    specs: Sequence[TensorSpec],
    step: int,
) -> tuple[dict[str, dict[str, Array]], dict[str, str]]:
    """Compute (outputs by set of inputs, reasons by set that the engine refuses): made-up inputs may not fit."""
    outputs: dict[str, dict[str, Array]] = {}
    refused: dict[str, str] = {}
    for name, entries in sets.items():
        try:
            outputs[name] = run_entries(call, entries, specs, step)
        except Exception as error:  # a class of its own for every engine
            refused[name] = first_line(error)
    return outputs, refused


def run_engine(engine: Engine, feeds: Feeds) -> dict[str, Array]:
    shapes = format_input_shapes({name: array.shape for name, array in feeds.items()})
    with explaining_refusal(f"the engine cannot run the graph on these inputs ({shapes})"):
        engine.bind(feeds)
        engine.run()
    return engine.fetch()


def measure_variation(first: dict[str, Array], again: dict[str, Array]) -> float:
    """The largest difference of two outputs for the same inputs, as a fraction of the largest value; 1 for texts."""
    shares = [0.0]
    for name, array in first.items():
        if array.shape != again[name].shape or array.dtype.kind not in "fiub":
            shares.append(float(not np.array_equal(array, again[name])))
        else:
            one, other = (np.nan_to_num(a.astype(np.float64), posinf=0.0, neginf=0.0) for a in (array, again[name]))
            largest = np.max(np.abs(one), initial=0.0)
            shares.append(float(np.max(np.abs(one - other), initial=0.0) / (largest or 1.0)))
    return max(shares)


def run_feeds(engine: Engine, feeds: Sequence[Feeds]) -> dict[str, Array]:
    """Compute the outputs for all `feeds`, joined along the first axis."""
    outputs = [run_engine(engine, feed) for feed in feeds]
    entries = {len(array) for feed in feeds for array in feed.values() if array.ndim}
    opened = find_open_outputs(engine.inputs, engine.outputs)
    apart = []  # whose length is not that of the entries: it differs, or is known to depend on the values
    for name in outputs[0]:
        lengths = {len(output[name]) if output[name].ndim else 1 for output in outputs}
        if len(lengths) > 1 or (name in opened and not lengths <= entries):
            apart.append(name)
    return join_rows(outputs, apart)


class Entries(Struct, frozen=True, kw_only=True, eq=False):
    """Labelled samples: their number, how they are grouped into calls, and the inputs of a call."""

    n: int
    group: Callable[[int], Iterable[Sequence[int]]]  # entries of a call -> the indices of the samples of each call
    feed: Callable[[Sequence[int], int], Feeds]  # (indices, entries of a call) -> its inputs, padded
    preprocess_sha256: str | None
    label: Callable[[int | None], Array] | None = None  # number of classes -> the labels that the data bring
    names: tuple[str, ...] | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


def open_labelled(job: PrepareJob | LabelledJob) -> Entries:
    """Open the labelled samples of a job: the user's inputs, or data after the model's preprocessing."""
    from enginebench.models.precision.calibration import explain_external

    assert job.labelled is not None
    if job.labelled.data is not None:
        return _open_data(job, job.labelled, job.labelled.data)
    assert job.inputs is not None
    specs = job.artifact.inputs
    samples = read_entries(job.inputs, specs)[: job.labelled.n]
    return Entries(
        n=len(samples),
        group=lambda step: group_samples(samples, step, specs),
        feed=lambda indices, step: join_samples([samples[i] for i in indices], specs, step),
        preprocess_sha256=EXTERNAL,
        warnings=(explain_external(f"inputs come from {job.inputs}"),),
    )


def _open_data(job: PrepareJob | LabelledJob, labelled: Labelled, text: str) -> Entries:
    from enginebench.models.precision.calibration_data import open_data

    data = open_data(
        text,
        model=job.model,
        inputs=job.artifact.inputs,
        n=labelled.n,
        seed=job.seed,
        input_size=labelled.input_size,
        split="evaluate",
    )
    check_prepared_alike(job.artifact, data.preprocess_sha256)

    def feed(indices: Sequence[int], step: int) -> Feeds:
        arrays = data.read(indices[0], indices[-1] + 1)
        return {name: np.resize(array, (step, *array.shape[1:])) for name, array in arrays.items()}

    return Entries(
        n=data.n,
        group=lambda step: [range(i, min(i + step, data.n)) for i in range(0, data.n, step)],
        feed=feed,
        label=data.read_labels,
        preprocess_sha256=data.preprocess_sha256,
        names=data.names,
        warnings=data.warnings,
    )


class OutputSource(NamedTuple):
    """A function that computes outputs, the entries of one call, and the seconds for all calls (None: no limit).

    With a limit the order of the calls is drawn from `seed`, so that those within the limit represent all data; at
    least one call is made.
    """

    call: Callable[[Feeds], Mapping[str, Array]]
    step: int
    seconds: float | None = None
    seed: int = 0
    clock: Callable[[], float] = time.monotonic


def make_loaded_source(engine: Engine, batch: int) -> OutputSource:
    return OutputSource(partial(run_engine, engine), find_batch(engine.inputs, batch))


def make_tool_source(
    tool: ComputesOutputs, artifact: Artifact, spec: EngineSpec, seconds: float | None = None, seed: int = 0
) -> OutputSource:
    """Make the caller of a tool that starts anew for each call."""
    step = find_batch(artifact.inputs, spec.batch)
    return OutputSource(lambda feeds: tool.compute_outputs(artifact, spec, [feeds]), step, seconds, seed)


def collect_outputs(source: OutputSource, entries: Entries, labelled: Labelled) -> tuple[dict[str, Array], int]:
    """Collect (arrays that the metrics need, number of samples with non-finite outputs)."""
    collector: Collector | None = None
    nonfinite = 0
    for indices, outputs in _run_calls(source, entries):
        if collector is None:
            targets = find_targets(entries, labelled, next(iter(outputs.values())))
            collector = Collector(labelled.metrics, targets, entries.n, labelled.task)
        collector.add(indices, outputs)
        whole = [np.isfinite(a).all(axis=tuple(range(1, a.ndim))) for a in outputs.values() if a.dtype.kind == "f"]
        nonfinite += int((~np.logical_and.reduce(whole)).sum()) if whole else 0
    assert collector is not None  # there is at least one sample
    return collector.collect(), nonfinite


def _run_calls(source: OutputSource, entries: Entries) -> Iterator[tuple[Sequence[int], dict[str, Array]]]:
    """Yield (indices of the samples of a call, their outputs)."""
    calls, until = entries.group(source.step), math.inf
    if source.seconds is not None:
        listed = list(calls)
        calls = [listed[i] for i in np.random.default_rng(source.seed).permutation(len(listed))]
        until = source.clock() + source.seconds
    for indices in calls:
        outputs = source.call(entries.feed(indices, source.step))
        yield indices, {name: _take_rows(name, array, len(indices), source.step) for name, array in outputs.items()}
        if source.clock() >= until:
            return


def run_pictures(engine: Engine, job: PrepareJob, budget_s: float = math.inf) -> tuple[dict[str, Array], int]:
    """Compute (outputs for pictures without labels, number of calls); fewer if large, or beyond `budget_s`."""
    rows: list[dict[str, Array]] = []
    most = FEWEST_CALLS
    start = time.perf_counter()
    for _, outputs in _run_calls(make_loaded_source(engine, job.engine.batch), open_labelled(job)):
        most = most if rows else limit_calls(CHECKED_VALUES, count_values(outputs))
        rows.append(outputs)
        late = time.perf_counter() - start > budget_s and len(rows) >= FEWEST_CALLS
        if len(rows) >= most or late:
            break
    return join_rows(rows), len(rows)


def _take_rows(name: str, array: Array, count: int, step: int) -> Array:
    """The outputs for the first `count` samples of a step, with a first axis also if the step has one entry."""
    if array.ndim and len(array) == step:
        return array[:count]
    if step > 1:
        raise UsageError(f"output {name!r} has no batch axis; its samples cannot be separated")
    return array[None]


def find_targets(entries: Entries, labelled: Labelled, first: Array) -> Targets:
    """Find the targets of the samples: those of the file, else the labels of the data."""
    if labelled.targets is not None:
        targets = read_targets(Path(labelled.targets))
        return match_targets(targets, entries.n, entries.names, cut=entries.n == labelled.n)
    if entries.label is None:
        raise UsageError("--inputs have no labels; give them with --targets")
    return Targets(values=entries.label(first.shape[1] if first.ndim == 2 else None))


def check_prepared_alike(artifact: Artifact, data_hash: str | None) -> None:
    """Check that the graph was made for the preprocessing with the hash `data_hash`, if both are known."""
    graph_hash = artifact.preprocess_sha256
    if differ(graph_hash, data_hash):
        raise ArtifactError(
            f"{artifact.path or artifact.model} was made for another preprocessing ({shorten(graph_hash)}) than the "
            f"data go through ({shorten(data_hash)}). Name the model that it belongs to with --model, or its "
            "--input-size"
        )


def run_labelled(job: LabelledJob, note: NoteCall) -> LabelledResponse:
    backend = open_for(job.engine, job.out_dir)
    artifact = build_graph(backend, job.artifact, job.engine, job.out_dir, note)
    note(f"scoring {job.labelled.data or job.inputs}")
    entries = open_labelled(job)
    if isinstance(backend, ComputesOutputs):
        kept, nonfinite = collect_outputs(make_tool_source(backend, artifact, job.engine), entries, job.labelled)
    elif isinstance(backend, Loadable):
        with backend.load(artifact, job.engine) as engine:
            kept, nonfinite = collect_outputs(make_loaded_source(engine, job.engine.batch), entries, job.labelled)
    else:
        raise UsageError(f"{job.engine.backend} times itself and hands out no outputs; accuracy needs another engine")
    save_arrays(Path(job.labelled_path), kept)
    return LabelledResponse(
        n=entries.n, nonfinite=nonfinite, preprocess_sha256=entries.preprocess_sha256, warnings=entries.warnings
    )
