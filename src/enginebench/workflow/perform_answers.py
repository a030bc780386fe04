"""The child's part of `infer`, `drift` and `accuracy`: what an engine answers to arrays and to labelled data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.preprocess import differ, shorten
from enginebench.core.protocols import Answering, Loadable
from enginebench.core.records import Artifact, TensorSpec
from enginebench.workflow.arrays import load_arrays, save_arrays
from enginebench.workflow.jobs import AnswerJob, InferAnswer, InferJob, LabelledAnswer, NoteCall, PrepareJob
from enginebench.workflow.opening import build_graph, open_for

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds


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


def run_feeds(engine: Engine, feeds: Sequence[Feeds]) -> dict[str, Array]:
    """The engine's outputs for all `feeds`, joined along the first axis."""
    import numpy as np

    rows = []
    for feed in feeds:
        engine.bind(feed)
        engine.run()
        rows.append(engine.fetch())
    return {name: np.concatenate([np.atleast_1d(row[name]) for row in rows]) for name in rows[0]}


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
