"""Run candidates: build and check each once, then measure it in one fresh process a round."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.names import format_precision, slug
from enginebench.core.recipes import find_graph_precision, find_start
from enginebench.core.records import Artifact, Drift, MeasureSpec, Precision, Result, ResultWarning, Validity
from enginebench.core.shapes import PAD
from enginebench.engines.registry import takes
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.space import Setting
from enginebench.runs.campaign import Campaign
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import PlannedConfiguration, plan_configurations, resolve, with_suffix
from enginebench.runs.progress import Reporter
from enginebench.runs.results import ENDLESS, has_changed, has_outputs
from enginebench.runs.targets.sources import Sources, describe_graph, make_graph
from enginebench.runs.trust import trust_engine
from enginebench.stats.alike import PADDING_CHANGES, apply_usual_limits, assess_outputs, is_reduced, list_invented
from enginebench.stats.assessment import add_ratio_validity, is_steered
from enginebench.stats.compare import Comparison
from enginebench.stats.drift import format_broken, keeps_limits
from enginebench.stats.metrics.scores import find_drop, find_score, loses_too_much, measure_loss
from enginebench.stats.needs import explain_excesses
from enginebench.stats.quantiles import median
from enginebench.stats.validity import assess_samples, explain_implausible


class CandidatePlanner:
    """The planned configurations of one search. `graphs` holds graphs that a proposer made, by their names."""

    def __init__(self, request: RunRequest, sources: Sources, folder: Path, reporter: Reporter) -> None:
        self._request, self._folder, self._reporter = request, folder, reporter
        self._artifacts = list(sources.artifacts)
        self._problems = dict(sources.problems)
        self._others: dict[tuple[str, str], Artifact] = {}  # (PRECISION, method) -> graph
        self.graphs: dict[str, Artifact] = {}
        self.find_left: Callable[[], float] = lambda: math.inf  # seconds that making a graph may take
        self.find_spare: Callable[[], float] = lambda: math.inf  # of these, what the final does not need
        self.expect_build: Callable[[str], float] = lambda engine: 0.0  # seconds that a build of an engine took

    @property
    def graph(self) -> Artifact | None:
        """The model's own graph in FP32; None if it has none."""
        return next((a for a in self._artifacts if a.kind == "onnx" and a.precision == "fp32"), None)

    def plan(self, setting: Setting, measure: MeasureSpec, suffix: str = "") -> PlannedConfiguration:
        """Plan the configuration of a setting; if its graph cannot be made it is skipped, with the reason."""
        trust_engine(setting.engine, setting.options, "the stored search")
        request = replace(
            self._request,
            engines=((setting.engine, setting.options),),
            precisions=((setting.precision, setting.recipe),),
            threads=setting.threads,
            measure=measure,
        )
        artifacts, problem = self._choose(setting)
        configurations = plan_configurations(resolve(request, artifacts), artifacts, problems=self._problems)
        if len(configurations) != 1:
            raise UsageError(f"a search is about one batch and one set of shapes, not {len(configurations)}; name one")
        configuration = configurations[0] if problem is None else replace(configurations[0], skip=problem)
        parts = [part for part in (setting.method, slug(setting.graph) if setting.graph else "", suffix) if part]
        return with_suffix(configuration, "-".join(parts)) if parts else configuration

    def _choose(self, setting: Setting) -> tuple[list[Artifact], str | None]:
        """Return (the artifacts that the configuration may start from, why there is none for it)."""
        if setting.graph:
            if setting.graph not in self.graphs:
                raise ArtifactError(f"the stored search names the graph {setting.graph!r}, which it has not made")
            return [a for a in self._artifacts if a.kind == "torch"] + [self.graphs[setting.graph]], None
        recipe = find_start(setting.engine, setting.recipe)
        label = format_precision(setting.precision, recipe)
        have = any((a.precision, a.recipe) == (setting.precision, recipe) for a in self._artifacts)
        if takes(setting.engine) == "torch" or self.graph is None or (have and not setting.method):
            return self._artifacts, None
        if find_graph_precision(setting.engine, setting.precision) == "fp32" or label in self._problems:
            return self._artifacts, None
        try:
            made = self._make(replace(setting, recipe=recipe), label)
        except EngineBenchError as error:
            self._problems[label] = str(error)
            return self._artifacts, f"no graph in {label}: {error}"
        return [a for a in self._artifacts if (a.precision, a.recipe) != (made.precision, made.recipe)] + [made], None

    def _make(self, setting: Setting, label: str) -> Artifact:
        """Make the graph with this recipe and these ranges; another method has a folder of its own, and its own
        ranges."""
        key = (label, setting.method)
        if key not in self._others:
            assert self.graph is not None
            method = setting.method or self._request.calibration_method
            left_s = min(self._request.timeout_s, self.find_left())
            request = replace(self._request, calibration_method=method, timeout_s=left_s)
            out = self._folder / setting.method if setting.method else None
            job = describe_graph(request, self.graph, setting.precision, setting.recipe, self._folder, out=out)
            self._others[key] = make_graph(request, job, self._reporter)
        return self._others[key]


def find_refusal(
    result: Result,
    reference: Result | None,  # that its outputs were compared with
    *,
    scored: Result | None = None,  # that its score is held against; None: the reference's
    max_drop: float | None = None,  # of the metric; None: the usual
    limits: Mapping[str, float] | None = None,  # of drift; None: the usual ones
    requested: Collection[Precision | None] = (),  # precisions of the search, whose reduced ones have the same limits
) -> str | None:
    """Return why a configuration may not race; None if it may.

    If the reference has a score, the score decides, as for the recommended configuration of a run; limits of drift that
    the user named apply as well, and those of FP32 and TF32 always do. Else the drift decides. With random weights and
    inputs only gross errors are refused.
    """
    if not has_outputs(result):
        return result.reason or result.status
    apart = reference is None and result.drift is not None and result.drift.elsewhere  # FP32 that does not race
    if reference is None and not apart:
        return "its outputs could not be compared with the reference's"
    if reference is not None and result.id == reference.id:
        return None
    first = scored or reference
    base = find_score(first.scores) if first and "weights" not in list_invented(result) else None
    if base is not None:
        score = find_score(result.scores, base.metric)
        if score is None:
            return f"it has no {base.metric}"
        if loses_too_much(base, score, max_drop):
            return (
                f"{base.metric} {score.value.value:.4g} against {base.value.value:.4g}: "
                f"it loses {measure_loss(base, score):.3g}, and may lose {find_drop(base, max_drop):.3g}"
            )
    configurations = [reference, result] if reference is not None else [result]
    held = apply_usual_limits(configurations, limits, requested)[-1]
    return _find_drift(held, limits, requested, by_score=base is not None and is_reduced(result))


def _find_drift(
    result: Result, limits: Mapping[str, float] | None, requested: Collection[Precision | None], *, by_score: bool
) -> str | None:
    drift = result.drift
    if drift is None:
        return None
    if drift.unlike:
        return f"its outputs cannot be compared: {'; '.join(drift.unlike)}"
    if any(output.broken for output in drift.outputs):
        return "its outputs are not finite"
    if limits is not None:
        kept = all(keeps_limits(output, limits) for output in drift.outputs)
        held = limits
    else:
        kept = by_score or assess_outputs(result, is_reference=False, requested=requested)[0] != "changed"
        held = drift.limits
    why = f"; {PADDING_CHANGES}" if result.engine.options.get(PAD) else ""
    return None if kept else f"its outputs differ too much: {_describe(drift, held)}{why}"


def _describe(drift: Drift, limits: Mapping[str, float]) -> str:
    """Format the limits that an output breaks, with the figure for each."""
    broken = [(output, format_broken(output, limits)) for output in drift.outputs]
    several = len(drift.outputs) > 1
    texts_of_limits = [f"{o.name}: {text}" if several else text for o, texts in broken for text in texts.values()]
    if any("centred_cosine" in texts for _, texts in broken):
        return ", ".join(texts_of_limits)
    centred = [o.centred_cosine_mean for o in drift.outputs if o.centred_cosine_mean is not None]
    seen = f" (centred cosine {min(centred):.4f})" if centred else ""
    return f"{', '.join(texts_of_limits) or 'the limits'}{seen}"


# Seconds of timed calls in a process of the race: ten blocks of 100 ms. The final takes what the user asks for.
RACE_TIME_S = 1.0
RACE = "race"
# Needs whose figures are known before a trial.
KNOWN_AHEAD = {"size", "build"}


class Trial(Struct, frozen=True, kw_only=True):
    cost: float | None = None
    reason: str = ""


class Track(Protocol):
    """Builds, checks and measures settings. Nothing is measured twice."""

    def check(self, settings: Sequence[Setting]) -> Mapping[str, str | None]:
        """Return name of each setting -> why it may not race; None if it may."""

    def holds(self, setting: Setting, round_number: int, *, final: bool = False) -> bool:
        """Whether this trial was run before."""

    def run(self, group: Sequence[Setting], round_number: int, *, final: bool = False) -> Iterable[Trial]:
        """Run a fresh process of each, timed one after another; they may import side by side."""

    def find_result(self, setting: Setting, *, final: bool = False) -> Result | None:
        """Return the current result of a setting; None before it was built."""

    def count_laps(self, setting: Setting) -> int:
        """Count the trials of the race that a setting has run."""

    def assess_trials(self, setting: Setting, *, final: bool = False) -> tuple[Validity, tuple[ResultWarning, ...]]:
        """Return (validity, warnings) of the trials that a setting has run."""

    def assess_ratio(self, base: Setting, candidate: Setting, comparison: Comparison) -> Comparison:
        """Add the validity of the ratio to a comparison of two finalists."""

    def close(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """End the final, and return the ids of its configurations, finished."""


class TimedTrack:
    """The track of the goal `latency`: each trial is a process of a campaign; its cost is the median time."""

    def __init__(self, request: SearchRequest, configurations: CandidatePlanner, campaign: Campaign) -> None:
        self._request, self._rows, self._campaign = request, configurations, campaign
        measure = request.run.measure
        self._race = replace(measure, processes=ENDLESS, time_limit_s=min(RACE_TIME_S, measure.time_limit_s))
        self._final = replace(measure, processes=ENDLESS)
        self._planned: dict[tuple[str, bool], PlannedConfiguration] = {}

    def check(self, settings: Sequence[Setting]) -> Mapping[str, str | None]:
        planned = {setting.name: self._plan(setting) for setting in settings}
        self._campaign.add(list(planned.values()))
        self._campaign.restore(with_failed=True)
        self._campaign.check()
        results, drop, limits = self._campaign.results, self._request.run.max_metric_drop, self._request.limits
        requested, needs = self._request.run.list_requested(), self._request.run.needs
        refusals: dict[str, str | None] = {}
        for name, configuration in planned.items():
            result = results[configuration.id]
            # The configuration that its outputs were compared with, perhaps itself; None if they were not compared.
            reference = results.get(result.drift.reference or "") if result.drift else None
            refusals[name] = find_refusal(
                result, reference, scored=self._find_scored(), max_drop=drop, limits=limits, requested=requested
            ) or _find_excess(result, {name: limit for name, limit in needs.items() if name in KNOWN_AHEAD})
        return refusals

    def _find_scored(self) -> Result | None:
        """Return the configuration with which the others' scores are compared: the first one that has any."""
        return next((result for result in self._campaign.results.values() if result.scores), None)

    def holds(self, setting: Setting, round_number: int, *, final: bool = False) -> bool:
        if final:
            self._add_final(setting)
        result = self.find_result(setting, final=final)
        return result is not None and any(m.trial == round_number for m in result.measurements)

    def run(self, group: Sequence[Setting], round_number: int, *, final: bool = False) -> Iterable[Trial]:
        if final:
            for setting in group:
                self._add_final(setting)
        results, names = self._campaign.results, [self._plan(setting, final=final).id for setting in group]
        self._campaign.measure([name for name in names if results[name].status == "partial"], round_number)
        needs = self._request.run.needs
        return [measure_trial(self._campaign.results[name], round_number, needs) for name in names]

    def count_laps(self, setting: Setting) -> int:
        result = self.find_result(setting)
        return len(result.measurements) if result else 0

    def assess_trials(self, setting: Setting, *, final: bool = False) -> tuple[Validity, tuple[ResultWarning, ...]]:
        result = self.find_result(setting, final=final)
        if result is None or not result.measurements:
            return "valid", ()
        validity, warnings = assess_samples(result.measurements)
        return validity, tuple(dict.fromkeys([*(c for m in result.measurements for c in m.warnings), *warnings]))

    def assess_ratio(self, base: Setting, candidate: Setting, comparison: Comparison) -> Comparison:
        a, b = (self.find_result(setting, final=True) for setting in (base, candidate))
        if a is None or b is None:
            return comparison
        return add_ratio_validity(
            comparison, a.measurements, b.measurements, (base.name, candidate.name), steered=is_steered(a)
        )

    def is_changed(self, setting: Setting) -> bool:
        """Whether a setting was built, and has other outputs than the reference."""
        result = self.find_result(setting)
        return result is not None and has_outputs(result) and has_changed(result)

    def find_result(self, setting: Setting, *, final: bool = False) -> Result | None:
        return self._campaign.results.get(self._plan(setting, final=final).id)

    def _plan(self, setting: Setting, *, final: bool = False) -> PlannedConfiguration:
        key = setting.name, final
        if key not in self._planned:
            measure, suffix = (self._final, "") if final else (self._race, RACE)
            self._planned[key] = self._rows.plan(setting, measure, suffix)
        return self._planned[key]

    def _add_final(self, setting: Setting) -> None:
        """Give a setting the configuration that a run would give it, unmeasured; it is built and checked already."""
        configuration = self._plan(setting, final=True)
        if configuration.id not in self._campaign.results:
            self._campaign.add([configuration])
            self._campaign.restore(with_failed=True)
        if configuration.id not in self._campaign.results:
            self._campaign.adopt(configuration, self._campaign.results[self._plan(setting).id])

    def close(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        names = {self._plan(setting).id: self._plan(setting, final=True).id for setting in settings}
        names = {raced: name for raced, name in names.items() if name in self._campaign.results}
        self._campaign.finish(names)
        return tuple(names.values())


def _find_excess(result: Result, needs: Mapping[str, float]) -> str | None:
    """Return why a configuration does not meet the needs: `it takes 612 MB of memory; needed: 512 MB`."""
    reasons = explain_excesses(result, needs)
    return f"it {'; it '.join(reasons)}" if reasons else None


def measure_trial(result: Result, round_number: int, needs: Mapping[str, float] = {}) -> Trial:
    """Return the median time of a sample, in ns, if it was timed by our clock: no other compares with it.

    A configuration that does not meet what is needed has none.
    """
    timed = next((m for m in result.measurements if m.trial == round_number), None)
    if timed is None:
        return Trial(reason=result.reason or result.status)
    if why := explain_implausible([timed]):
        return Trial(reason=f"its times are implausible: {why}")
    if excess := _find_excess(result, needs):
        return Trial(reason=excess)
    if timed.clock == "host":
        return Trial(cost=median(timed.latency_ns) / result.engine.batch)
    return Trial(reason=f"its times are by the clock {timed.clock}; a race compares times of the host's clock")
