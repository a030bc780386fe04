"""The verb `bisect`: the first version of a package with which an engine is slower, or answers otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.compare import Comparison
from enginebench.analyze.metrics.scores import find_score, loses_too_much
from enginebench.analyze.versions.bisection import Judgement, bisect_versions
from enginebench.backends.registry import ENTRIES
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.records import Estimate, Result, Verdict
from enginebench.report.bench import describe_bench
from enginebench.report.numbers import format_range
from enginebench.workflow.child.places import OPTION, list_environments
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.stored import Side
from enginebench.workflow.verbs.bench import bench_sides
from enginebench.workflow.verbs.environments import list_versions, make_environment

By = Literal["time", "drift", "metric"]


class TriedVersion(Struct, frozen=True, kw_only=True):
    """One measurement of a version against the good one. `ratio` is good over candidate: below 1, slower."""

    version: str
    judgement: Judgement
    repetitions: int
    verdict: Verdict
    ratio: Estimate | None
    outputs_agree: bool | None
    metric_change: float | None = None  # candidate less good, in the metric's unit; None: not what is asked
    reasons: tuple[str, ...] = ()


class BisectDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `bisect`. `first_bad` is None where nothing is bad, or where `undecided` names several."""

    schema: str = "enginebench.bisect/1"
    package: str
    engine: str
    by: By
    metric: str | None = None  # that decides, where `by` is "metric"
    good: str
    bad: str
    first_bad: str | None
    last_good: str | None
    undecided: tuple[str, ...]
    verdict: Verdict
    ratio: Estimate | None
    changed: tuple[str, ...]  # what the engines' own records show otherwise in the first bad version
    tried: tuple[TriedVersion, ...]


class Hunt:
    """Versions of a package measured against the good one; environments are made as they are needed."""

    def __init__(
        self,
        request: RunRequest,
        package: str,
        ends: tuple[str, str],
        by: By,
        margin: float,
        root: Path,
        reporter: Reporter,
    ) -> None:
        self._request = request
        self._package = package
        self._good, self._last = ends
        self._by = by
        self._margin = margin
        self._root = root
        self._reporter = reporter
        self.tried: list[TriedVersion] = []
        self.results: dict[str, list[Result]] = {}  # version -> the good row and its own

    def judge(self, version: str, repetitions: int) -> Judgement:
        """The judgement on a version, measured in turns with the good one.

        Raises:
            EngineBenchError: the two cannot be compared, and it is the last version: without it there is no question.
        """
        try:
            return self._judge(version, repetitions)
        except UsageError:
            raise
        except EngineBenchError as error:
            if version == self._last:
                raise
            self._reporter.say(f"{error}; {version} is passed over")
            self.tried.append(
                TriedVersion(
                    version=version,
                    judgement="not_comparable",
                    repetitions=repetitions,
                    verdict="not_comparable",
                    ratio=None,
                    outputs_agree=None,
                    reasons=(str(error),),
                )
            )
            return "not_comparable"

    def _judge(self, version: str, repetitions: int) -> Judgement:
        """As `judge`, of any version.

        Raises:
            EngineBenchError: the version cannot be had, or the two cannot be compared.
        """
        results = self._measure(version, repetitions)
        document = describe_bench(results, margin=self._margin)
        comparison = document.comparison
        assert comparison is not None
        if self._by == "metric":
            found, change, why = judge_scores(
                results[0], results[1], self._request.metrics[0], self._request.max_metric_drop
            )
        else:
            found, change, why = judge_comparison(comparison, self._by), None, ""
        if found is None:
            why = why or "; ".join(comparison.reasons) or comparison.verdict
            raise MeasurementError(f"{self._package} {version} cannot be compared with {self._good}: {why}")
        self.results[version] = results
        self.tried.append(
            TriedVersion(
                version=version,
                judgement=found,
                repetitions=repetitions,
                verdict=comparison.verdict,
                ratio=comparison.ratio,
                outputs_agree=comparison.outputs_agree,
                metric_change=change,
                reasons=comparison.reasons,
            )
        )
        return found

    def _measure(self, version: str, repetitions: int) -> list[Result]:
        ((backend, options),) = self._request.engines
        base = (backend, {**options, OPTION: self.provide(self._good)})
        cand = (backend, {**options, OPTION: self.provide(version)})
        self._reporter.step(f"{self._package} {version} against {self._good}, {repetitions} processes each")
        measure = replace(self._request.measure, processes=repetitions)
        request = replace(self._request, engines=(cand,), measure=measure)
        side = Side(engine=base, target=request.model, precision=request.precisions[0])
        return bench_sides(request, side, self._root / f"{version}-{repetitions}", reporter=self._reporter)

    def provide(self, version: str) -> str:
        """The name of the environment with this version, made now if it is not there."""
        name = f"{self._package}-{version}"
        if name not in list_environments():
            make_environment(name, [f"{self._package}=={version}"], reporter=self._reporter)
        return name


def judge_comparison(comparison: Comparison, by: By) -> Judgement | None:
    """What a comparison with the good version says; None if the two cannot be compared."""
    if by == "drift":
        return None if comparison.outputs_agree is None else "good" if comparison.outputs_agree else "bad"
    if comparison.verdict == "not_comparable":
        return None
    if comparison.verdict == "not_shown":
        return "not_shown"
    return "bad" if comparison.verdict == "slower" else "good"


def judge_scores(
    base: Result, cand: Result, metric: str, max_drop: float | None
) -> tuple[Judgement | None, float | None, str]:
    """(the judgement by a metric, its change, "") or (None, None, why the two cannot be compared).

    The samples are the same each time, so that more repetitions would show nothing more: it is never `not_shown`.
    """
    before, now = (find_score(row.scores, metric) for row in (base, cand))
    if before is None or now is None:
        lacking = base if before is None else cand
        return None, None, f"{lacking.id} has no score by {metric}: {lacking.reason or lacking.status}"
    if before.value.n != now.value.n:
        return None, None, f"{metric} was measured on {before.value.n} samples and on {now.value.n}"
    change = now.value.value - before.value.value
    return "bad" if loses_too_much(before, now, max_drop) else "good", change, ""


def find_engine_of(package: str) -> str:
    """The first engine that a package is for.

    Raises:
        UsageError: it is for none.
    """
    for name, entry in ENTRIES.items():
        if package.lower() in entry.distributions:
            return name
    raise UsageError(f"no engine needs the package {package}; name the engine with --engine")


def bisect_package(
    request: RunRequest,
    package: str,
    good: str,
    bad: str,
    root: Path,
    *,
    by: By,
    margin: float,
    reporter: Reporter,
    find_versions: Callable[[str], list[str]] = list_versions,
) -> BisectDocument:
    """The first version that is bad, with the verdict on it.

    Args:
        request: one engine on one model; its processes are those of the first try at each version.
        package: distribution on the package index.
        good: a version that is good by definition.
        bad: a later one.
        root: folder of the measurements, one below it for each.
        by: time; drift: whether the answers agree; or metric: the first of the request, on its labelled samples.
        margin: of the verdicts.
        reporter: where progress goes.
        find_versions: the versions of a package, oldest first.

    Raises:
        UsageError: a version does not exist, or they are not in this order.
        BackendUnavailable: the index cannot be reached, or one of the two versions cannot be installed.
        MeasurementError: the two cannot be compared. Versions between them that cannot are passed over.
    """
    versions = cut_range(find_versions(package), package, good, bad)
    hunt = Hunt(request, package, (versions[0], versions[-1]), by, margin, root, reporter)
    found = bisect_versions(versions, hunt.judge, repetitions=request.measure.processes)
    ((backend, _),) = request.engines
    shown = find_shown(hunt.tried, found.first_bad if found and found.first_bad else versions[-1])
    return BisectDocument(
        package=package,
        engine=backend,
        by=by,
        metric=request.metrics[0] if by == "metric" else None,
        good=versions[0],
        bad=versions[-1],
        first_bad=found.first_bad if found else None,
        last_good=found.last_good if found else None,
        undecided=found.undecided if found else (),
        verdict=shown.verdict,
        ratio=shown.ratio,
        changed=tell_changes(*hunt.results[shown.version]),
        tried=tuple(hunt.tried),
    )


def state_outcome(document: BisectDocument) -> list[str]:
    """The outcome in sentences: the first bad version, how bad it is, and what its record shows otherwise."""
    package, bad = document.package, document.bad
    what = {"time": "is slower", "drift": "answers otherwise", "metric": f"is worse by {document.metric}"}[document.by]
    was = "does not" if document.by == "drift" else "is not"
    ratio = f" ({format_range(document.ratio, 'x')} as fast)" if document.ratio else ""
    if document.by == "drift":
        ratio = ""  # a ratio of times says nothing about answers
    if document.by == "metric" and document.tried:
        change = find_shown(document.tried, document.first_bad or document.bad).metric_change
        ratio = f" ({change:+.4g})" if change is not None else ""
    if document.first_bad:
        lines = [f"{package} {document.first_bad} is the first that {what}{ratio}; {document.last_good} {was}."]
    elif document.undecided:
        named = ", ".join(document.undecided)
        lines = [f"The first that {what} is among {named}: those between could not be told. Raise --processes."]
        lines += [
            f"{one.version}: {'; '.join(one.reasons)}." for one in document.tried if one.judgement == "not_comparable"
        ]
    elif document.by == "drift" and document.tried and find_shown(document.tried, bad).outputs_agree:
        lines = [f"The answers of {package} {bad} agree with those of {document.good}."]
    else:
        lines = [f"It was not shown that {package} {bad} {what}{ratio}: verdict {document.verdict.replace('_', ' ')}."]
    return [*lines, *(f"What the record shows otherwise: {line}." for line in document.changed)]


def choose_judge(drift: bool, metrics: Sequence[str]) -> By:
    """What makes a version bad.

    Raises:
        UsageError: two things are to.
    """
    if drift and metrics:
        raise UsageError("--drift and --metric both say what is bad; give one of them")
    return "metric" if metrics else "drift" if drift else "time"


def find_shown(tried: Sequence[TriedVersion], version: str) -> TriedVersion:
    """The last try at a version: that with the most repetitions."""
    return [one for one in tried if one.version == version][-1]


def cut_range(versions: Sequence[str], package: str, good: str, bad: str) -> list[str]:
    """The versions from the good one to the bad one; `1.24` stands for the newest 1.24.

    Raises:
        UsageError: one of them does not exist, or the bad one is not later.
    """
    first, last = (_find(versions, package, text) for text in (good, bad))
    if first >= last:
        raise UsageError(f"--bad {bad} is not a later version of {package} than --good {good}")
    return list(versions[first : last + 1])


def _find(versions: Sequence[str], package: str, text: str) -> int:
    if text in versions:
        return versions.index(text)
    series = [i for i, version in enumerate(versions) if re.match(rf"{re.escape(text)}\.", version)]
    if not series:
        left = len(versions) - 8
        rest = f" and {left} earlier ones" if left > 0 else ""
        raise UsageError(f"{package} {text} is not on the package index; there are {', '.join(versions[-8:])}{rest}")
    return series[-1]


def tell_changes(base: Result, cand: Result) -> tuple[str, ...]:
    """What the records of two rows show otherwise: shares of precision, layers that came or went, time by kind."""
    told = []
    mine, theirs = cand.effective_precision or {}, base.effective_precision or {}
    for name in sorted({*mine, *theirs}):
        if abs(mine.get(name, 0.0) - theirs.get(name, 0.0)) >= 0.05:
            told.append(f"{name}: {theirs.get(name, 0.0):.0%} of the time before, {mine.get(name, 0.0):.0%} now")
    if base.layers and cand.layers:
        if len(base.layers) != len(cand.layers):
            told.append(f"layers: {len(base.layers)} before, {len(cand.layers)} now")
        told += _compare_kinds(base, cand)
    return tuple(told)


def _compare_kinds(base: Result, cand: Result) -> list[str]:
    def sum_kinds(result: Result) -> dict[str, float]:
        sums: dict[str, float] = {}
        for layer in result.layers:
            sums[layer.kind or "other"] = sums.get(layer.kind or "other", 0.0) + layer.mean_ns / 1e6
        return sums

    before, now = sum_kinds(base), sum_kinds(cand)
    ranked = sorted({*before, *now}, key=lambda kind: -abs(now.get(kind, 0.0) - before.get(kind, 0.0)))
    return [f"{kind}: {before.get(kind, 0.0):.3g} ms before, {now.get(kind, 0.0):.3g} ms now" for kind in ranked[:3]]
