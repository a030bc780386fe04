"""The outputs of a loaded engine for arrays and for labelled data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.preprocess import EXTERNAL, differ, shorten
from enginebench.core.records import Artifact, Caveat, TensorSpec
from enginebench.core.shapes import find_open_outputs
from enginebench.engines.refusals import explain_refusal
from enginebench.models.samples import cut_entries, find_batch, group_samples, join_samples, resolve_given
from enginebench.runs.child.arrays import CHECKED_VALUES, FEWEST_CALLS, count_values, limit_calls
from enginebench.runs.child.collecting import Collector
from enginebench.runs.child.jobs import Labelled, PrepareJob
from enginebench.runs.child.targets_file import match_targets, read_targets
from enginebench.stats.metrics.metric import Targets

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Engine, Feeds


def run_entries(
    ask: Callable[[Feeds], Mapping[str, Array]], entries: Sequence[Feeds], specs: Sequence[TensorSpec], step: int
) -> dict[str, Array]:
    """The outputs for every entry, in their order, `step` of one shape at a time.

    A step that has fewer is filled up, since a graph's batch may be fixed. An output without a row for each entry
    counts as one row where a step is one entry.
    """
    rows: dict[int, Mapping[str, Array]] = {}
    for places in group_samples(entries, step, specs):
        answer = ask(join_samples([entries[i] for i in places], specs, step))
        for i, place in enumerate(places):
            rows[place] = {name: _take_rows(name, array, step, step)[i : i + 1] for name, array in answer.items()}
    return join_rows(rows[i] for i in range(len(entries)))


def join_rows(answers: Iterable[Mapping[str, Array]], apart: Collection[str] = ()) -> dict[str, Array]:
    """The answers joined along the first axis; where other axes differ, shorter ones are filled up with zeros or "".

    Those of the outputs `apart` get a first axis of their own: their lengths say nothing about entries.
    """
    import numpy as np

    rows = list(answers)
    joined = {}
    for name in rows[0]:
        arrays = [row[name][None] if name in apart else np.atleast_1d(row[name]) for row in rows]
        ranks = max(array.ndim for array in arrays)
        arrays = [array if array.ndim == ranks else array[None] for array in arrays]
        longest = [max(lengths) for lengths in zip(*(array.shape[1:] for array in arrays), strict=True)]
        padded = [
            np.pad(
                a,
                [(0, 0), *((0, want - have) for want, have in zip(longest, a.shape[1:], strict=True))],
                constant_values=a.dtype.type(),
            )
            if list(a.shape[1:]) != longest
            else a
            for a in arrays
        ]
        joined[name] = np.concatenate(padded)
    return joined


def ask_engine(engine: Engine, feeds: Feeds) -> dict[str, Array]:
    engine.bind(feeds)
    try:
        engine.run()
    except (EngineBenchError, MemoryError):
        raise
    except Exception as error:  # every runtime has classes of its own
        raise explain_refusal("the engine cannot run the graph on these inputs", error) from error
    return engine.fetch()


def run_feeds(engine: Engine, feeds: Sequence[Feeds]) -> dict[str, Array]:
    """The engine's outputs for all `feeds`, joined along the first axis."""
    answers = [ask_engine(engine, feed) for feed in feeds]
    entries = {len(array) for feed in feeds for array in feed.values() if array.ndim}
    opened = find_open_outputs(engine.inputs, engine.outputs)
    return join_rows(answers, [name for name in answers[0] if _stands_apart(name, answers, entries, name in opened)])


def _stands_apart(name: str, answers: Sequence[Mapping[str, Array]], entries: Collection[int], is_open: bool) -> bool:
    """Whether the length of an output is not that of the entries: it differs, or is known to depend on the values."""
    lengths = {len(answer[name]) if answer[name].ndim else 1 for answer in answers}
    return len(lengths) > 1 or (is_open and not lengths <= set(entries))


class Entries(Struct, frozen=True, kw_only=True, eq=False):
    """Labelled samples: how many, which go into one call together, and what that call is fed."""

    n: int
    group: Callable[[int], Iterable[Sequence[int]]]  # entries of a call -> the places of each call's samples
    feed: Callable[[Sequence[int], int], Feeds]  # of these samples, filled up to as many entries
    label: Callable[[int | None], Array]  # number of classes -> the labels that the data have themselves
    preprocess_sha256: str | None
    names: tuple[str, ...] | None = None
    caveats: tuple[Caveat, ...] = ()


class LabelledJob(Protocol):
    """A job that has labelled samples answered."""

    @property
    def model(self) -> str: ...
    @property
    def artifact(self) -> Artifact: ...
    @property
    def labelled(self) -> Labelled | None: ...
    @property
    def inputs(self) -> str | None: ...
    @property
    def seed(self) -> int: ...


def open_labelled(job: LabelledJob) -> Entries:
    """The labelled samples of a job: the user's inputs, or data that go through the model's preprocessing."""
    assert job.labelled is not None
    if job.labelled.data is not None:
        return _open_data(job, job.labelled, job.labelled.data)
    from enginebench.models.precision.calibration import explain_external

    assert job.inputs is not None
    specs = job.artifact.inputs
    samples = [entry for arrays in resolve_given(job.inputs) for entry in cut_entries(arrays, specs)][: job.labelled.n]
    return Entries(
        n=len(samples),
        group=lambda step: group_samples(samples, step, specs),
        feed=lambda places, step: join_samples([samples[i] for i in places], specs, step),
        label=_refuse_labels,
        preprocess_sha256=EXTERNAL,
        caveats=(explain_external(f"inputs come from {job.inputs}"),),
    )


def _refuse_labels(_: int | None) -> Array:
    raise UsageError("--inputs have no labels; give them with --targets")


def _open_data(job: LabelledJob, labelled: Labelled, text: str) -> Entries:
    import numpy as np

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

    def feed(places: Sequence[int], step: int) -> Feeds:
        arrays = data.read(places[0], places[-1] + 1)
        return {name: np.resize(array, (step, *array.shape[1:])) for name, array in arrays.items()}

    return Entries(
        n=data.n,
        group=lambda step: [range(i, min(i + step, data.n)) for i in range(0, data.n, step)],
        feed=feed,
        label=data.read_labels,
        preprocess_sha256=data.preprocess_sha256,
        names=data.names,
        caveats=data.caveats,
    )


def collect_answers(engine: Engine, batch: int, entries: Entries, labelled: Labelled) -> tuple[dict[str, Array], int]:
    """What the metrics need of the engine's answers, and the number of samples with a value that is not finite.

    The last call is filled up, and its answers cut again.
    """
    collector: Collector | None = None
    nonfinite = 0
    for places, rows in _answer_entries(engine, batch, entries):
        if collector is None:
            targets = find_targets(entries, labelled, next(iter(rows.values())))
            collector = Collector(labelled.metrics, targets, entries.n, labelled.task)
        collector.add(places, rows)
        nonfinite += count_nonfinite(rows.values())
    assert collector is not None  # there is at least one sample
    return collector.collect(), nonfinite


def _answer_entries(engine: Engine, batch: int, entries: Entries) -> Iterator[tuple[Sequence[int], dict[str, Array]]]:
    """(places of the samples of a call, the outputs for them)."""
    step = find_batch(engine.inputs, batch)
    for places in entries.group(step):
        answer = ask_engine(engine, entries.feed(places, step))
        yield places, {name: _take_rows(name, array, len(places), step) for name, array in answer.items()}


def answer_pictures(engine: Engine, job: PrepareJob) -> tuple[dict[str, Array], int]:
    """(the outputs for pictures without labels, of how many calls); of large answers there are fewer."""
    rows: list[dict[str, Array]] = []
    most = FEWEST_CALLS
    for _, found in _answer_entries(engine, job.engine.batch, open_labelled(job)):
        most = most if rows else limit_calls(CHECKED_VALUES, count_values(found))
        rows.append(found)
        if len(rows) >= most:
            break
    return join_rows(rows), len(rows)


def count_nonfinite(arrays: Iterable[Array]) -> int:
    """How many samples, along the first axis, have a value in any of the arrays that is not finite."""
    import numpy as np

    whole = [np.isfinite(a).all(axis=tuple(range(1, a.ndim))) for a in arrays if a.dtype.kind == "f"]
    return int((~np.logical_and.reduce(whole)).sum()) if whole else 0


def _take_rows(name: str, array: Array, count: int, step: int) -> Array:
    """The outputs for `count` samples of a step; an output without a row for each counts as one where a step is one."""
    if array.ndim and len(array) == step:
        return array[:count]
    if step > 1:
        raise UsageError(f"output {name!r} has no batch axis; its samples cannot be separated")
    return array[None]


def find_targets(entries: Entries, labelled: Labelled, first: Array) -> Targets:
    """The targets of the samples: those of the file, else the labels of the data."""
    if labelled.targets is None:
        return Targets(values=entries.label(first.shape[1] if first.ndim == 2 else None))
    targets = read_targets(Path(labelled.targets))
    return match_targets(targets, entries.n, entries.names, cut=entries.n == labelled.n)


def check_prepared_alike(artifact: Artifact, found: str | None) -> None:
    """Checks that the graph was made for inputs that are prepared as the data are, or nobody can know.

    Args:
        found: hash of the preprocessing that the data go through.
    """
    known = artifact.preprocess_sha256
    if differ(known, found):
        raise ArtifactError(
            f"{artifact.path or artifact.model} was made for another preprocessing ({shorten(known)}) than the data go "
            f"through ({shorten(found)}). Name the model that it belongs to with --model, or its --input-size"
        )
