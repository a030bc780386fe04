"""Collect from outputs, call by call, what the metrics need, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.blame import explain
from enginebench.core.errors import FeedError, MissingDependency, UsageError
from enginebench.core.protocols import Array
from enginebench.core.records import Score, Task
from enginebench.core.text import name_type
from enginebench.models.objects import METRIC, import_named
from enginebench.runs.child.arrays import COUNTS, FAILURE, OUTPUTS, PLACES, find_common, load_arrays
from enginebench.runs.child.jobs import MetricsJob, ScoreJob
from enginebench.runs.child.targets_file import read_targets
from enginebench.stats.metrics.metric import (
    Facts,
    Metric,
    Outputs,
    ScorePicks,
    Targets,
    count_samples,
    pick_samples,
    widen_counts,
)
from enginebench.stats.metrics.scores import score_whole
from enginebench.stats.metrics.tasks import BUILTIN, read_task_outputs

if TYPE_CHECKING:
    from enginebench.stats.metrics.metric import Floats, Picks


EXPECTED = "expected a number, or one number for each sample"


class UserMetric(Struct, frozen=True, kw_only=True, eq=False):
    """`package.module:function`, and whether more of it is better: its attribute `higher_is_better`."""

    text: str
    function: Callable[[Any, Any], Any]
    higher_is_better: bool = True

    def call(self, outputs: Outputs, targets: Targets) -> float | Floats:
        """Call the function for these samples: one number, or one for each."""
        arrays = next(iter(outputs.values())) if len(outputs) == 1 else dict(outputs)
        n = count_samples(outputs)
        try:
            returned = self.function(arrays, targets.values)
        except Exception as error:  # user code: anything can come out of it
            raise UsageError(f"--metric {self.text} raised {explain(error)}") from error
        if isinstance(returned, str | bytes | Mapping) or returned is None:
            shown = repr(returned) if isinstance(returned, str) else name_type(returned)
            raise UsageError(f"--metric {self.text} returned {shown}; {EXPECTED}")
        try:
            values = np.asarray(returned, np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"--metric {self.text} returned {name_type(returned)} ({error}); {EXPECTED}") from error
        if values.ndim == 0:
            return float(values)
        if values.shape != (n,):
            raise UsageError(f"--metric {self.text} returned shape {list(values.shape)} for {n} samples; {EXPECTED}")
        return values

    def as_whole(self) -> Metric:
        def prepare(outputs: Outputs, targets: Targets) -> ScorePicks:
            def score_picks(indices: Picks) -> float:
                values = self.call(pick_samples(outputs, indices), targets.pick(indices))
                return values if isinstance(values, float) else float(values.mean())

            return score_picks

        return Metric(name=self.text, higher_is_better=self.higher_is_better, share=False, prepare=prepare)

    def as_counted(self) -> Metric:
        def count(outputs: Outputs, targets: Targets) -> Floats:
            values = self.call(outputs, targets)
            if isinstance(values, float):
                raise UsageError(f"--metric {self.text} returned a number for some samples, and one for each before")
            if wrong := [i for i, value in enumerate(values) if not math.isfinite(value)]:
                raise UsageError(
                    f"--metric {self.text} returned {values[wrong[0]]} for {len(wrong)} of {len(values)} samples; "
                    "expected finite numbers"
                )
            return np.stack([values, np.ones_like(values)], axis=1)

        return Metric(name=self.text, higher_is_better=self.higher_is_better, share=False, count=count)


def load_metric(text: str) -> UserMetric:
    """The function that `package.module:function` names, from the user's folder."""
    function = import_named(text, UsageError, f"--metric {text}", METRIC)
    higher = getattr(function, "higher_is_better", True)
    if not isinstance(higher, bool):
        raise UsageError(f"--metric {text}: higher_is_better is {higher!r}; expected True or False")
    return UserMetric(text=text, function=function, higher_is_better=higher)


TARGETS = "targets"


def open_metric(name: str, targets: Targets) -> Metric | UserMetric:
    return BUILTIN[name](targets) if name in BUILTIN else load_metric(name)


class Collector:
    """Take the outputs for labelled samples, and keep what each metric needs of them.

    A metric that counts sample by sample keeps its counts; outputs are kept, as small as the task makes them, only for
    a metric over all samples together. Which of the two a user's function is shows in what it returns for the first
    samples; one that fails for a few is called with all.
    """

    def __init__(self, names: Sequence[str], targets: Targets, n: int, task: Task | None) -> None:
        self._metrics = {name: open_metric(name, targets) for name in names}
        self._targets, self._n, self._task = targets, n, task
        self._indices: list[int] = []
        self._counts: dict[str, Floats] = {}
        self._rows: dict[int, Outputs] = {}
        self._failures: dict[str, str] = {}
        self._dropped: set[str] = set()

    def add(self, indices: Sequence[int], outputs: Mapping[str, Any]) -> None:
        targets = self._targets.pick(np.asarray(indices, np.int64))
        self._indices += indices
        for name in list(self._metrics):
            if name not in self._failures and name not in self._dropped:
                self._take(name, indices, outputs, targets)
        if any(isinstance(metric, Metric) and metric.prepare for metric in self._metrics.values()):
            reduced = read_task_outputs(outputs, self._task, targets)
            self._rows |= {p: {name: values[i] for name, values in reduced.items()} for i, p in enumerate(indices)}

    def _take(self, name: str, indices: Sequence[int], outputs: Outputs, targets: Targets) -> None:
        metric = self._metrics[name]
        if isinstance(metric, UserMetric):  # it returns a value for each sample, or one for all
            try:
                of_all = isinstance(metric.call(read_task_outputs(outputs, self._task, targets), targets), float)
            except UsageError:  # a few samples may lack what it needs, for example a class
                of_all = True
            metric = self._metrics[name] = metric.as_whole() if of_all else metric.as_counted()
        if metric.count is None:
            return
        passed = read_task_outputs(outputs, self._task, targets) if name not in BUILTIN else outputs
        try:
            counts = metric.count(passed, targets)
        except (UsageError, FeedError) as error:  # perhaps only this engine's outputs are too many for it
            self._failures[name] = str(error) if name not in BUILTIN else f"--metric {name}: {error}"
            self._counts.pop(name, None)
            return
        if counts is None:
            self._dropped.add(name)
        else:
            table = self._counts.get(name, np.zeros((self._n, 0)))
            table, counts = widen_counts(table, counts)
            table[list(indices)] = counts
            self._counts[name] = table

    def collect(self) -> dict[str, Array]:
        if len(self._dropped) == len(self._metrics):
            raise UsageError(f"--metric {', '.join(self._dropped)} cannot be wrong about so few classes; name another")
        indices = np.array(sorted(self._indices), np.int64)
        arrays: dict[str, Array] = {COUNTS + name: table[indices] for name, table in self._counts.items()}
        arrays |= {FAILURE + name: np.array(text) for name, text in self._failures.items()}
        whole = len(indices) == self._n
        arrays |= {} if whole else {PLACES: indices}
        if not self._rows:
            return arrays
        for name in next(iter(self._rows.values())):
            arrays |= _pack(OUTPUTS + name, [self._rows[index][name] for index in indices.tolist()])
        return arrays | _pack_targets(self._targets if whole else self._targets.pick(indices))


def _pack(name: str, outputs: list[Any]) -> dict[str, Array]:
    """The outputs of the samples: one array, or one each if their shapes differ."""
    if isinstance(outputs[0], str):
        return {name: np.array(outputs)}
    arrays = [np.asarray(output) for output in outputs]
    if len({array.shape for array in arrays}) == 1:
        return {name: np.stack(arrays)}
    return {f"{name}/{i:06}": array for i, array in enumerate(arrays)}


def unpack_outputs(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs in a file that `collect` made, as they were before `_pack`."""
    outputs: dict[str, Any] = {}  # an array, or a list of them where their shapes differ
    for key in sorted(arrays):
        if key.startswith(OUTPUTS):
            name, _, index = key.removeprefix(OUTPUTS).rpartition("/")
            if name and index.isdecimal() and len(index) == 6:
                outputs.setdefault(name, []).append(arrays[key])
            else:
                outputs[key.removeprefix(OUTPUTS)] = arrays[key]
    return outputs


def describe_metrics(job: MetricsJob) -> tuple[Facts, ...]:
    """Read the facts of a job's metrics; raises an error if its targets cannot be read."""
    if job.targets is not None:
        read_targets(Path(job.targets))
    return tuple(map(describe_metric, job.metrics))


def describe_metric(name: str) -> Facts:
    """The facts of a metric, known without outputs: a wrong name is refused before anything is built."""
    if name not in BUILTIN:
        return load_metric(name).as_whole().facts
    needed = {"map": "pycocotools", "wer": "jiwer", "cer": "jiwer"}.get(name)
    if needed and find_spec(needed) is None:
        raise MissingDependency(f"{needed}, which --metric {name} needs,", 'pip install "enginebench[metrics]"')
    return BUILTIN[name](Targets(values=[])).facts


def score_outputs(job: ScoreJob) -> Score:
    """Score by a metric over all samples together, with the difference from the reference."""
    arrays = load_arrays(Path(job.labelled_path))
    targets, outputs = _unpack_targets(arrays), unpack_outputs(arrays)
    metric = open_metric(job.metric, targets)
    metric = metric.as_whole() if isinstance(metric, UserMetric) else metric
    assert metric.prepare is not None  # others leave counts
    facts, own, n = describe_metric(job.metric), metric.prepare(outputs, targets), count_samples(outputs)
    if job.reference_path is None:
        return score_whole(facts, own, n)
    reference_arrays = load_arrays(Path(job.reference_path))
    others, common = unpack_outputs(reference_arrays), find_common(arrays, reference_arrays)
    if common is None:
        return score_whole(facts, own, n, metric.prepare(others, targets))
    score, (here, there) = score_whole(facts, own, n), common
    if not len(here):
        return score
    alike = metric.prepare(pick_samples(outputs, here), targets.pick(here))
    paired = score_whole(facts, alike, len(here), metric.prepare(pick_samples(others, there), targets.pick(here)))
    return replace(score, delta=paired.delta)


def _pack_targets(targets: Targets) -> dict[str, Array]:
    values = targets.values
    if isinstance(values, dict):
        return {f"{TARGETS}/{name}": array for name, array in values.items()}
    return {TARGETS: values if isinstance(values, np.ndarray) else np.array(json.dumps(values))}


def _unpack_targets(arrays: Mapping[str, Any]) -> Targets:
    if TARGETS not in arrays:
        return Targets(values={k.partition("/")[2]: v for k, v in arrays.items() if k.startswith(TARGETS)})
    values = arrays[TARGETS]
    return Targets(values=json.loads(str(values)) if values.dtype.kind == "U" and values.ndim == 0 else values)
