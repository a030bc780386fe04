"""Add configurations that were not requested: where outputs changed, or where another recipe may be better.

`Alternatives` builds and checks them; `NextRecipes` proposes a second recipe where little of an INT8 configuration ran
in INT8.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import configuration_id, format_engine, show_engine
from enginebench.core.recipes import BF16
from enginebench.core.records import Artifact, EngineSpec, Result
from enginebench.core.warnings import make_warning
from enginebench.engines.registry import find_entry
from enginebench.measure.machine import read_instructions
from enginebench.runs.building import ConfigurationBuilder
from enginebench.runs.checking import OutputCheck
from enginebench.runs.child.arrays import load_outputs, reduce_outputs
from enginebench.runs.families import is_attentive
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.references import References, list_exact_engines, list_lower_engines, runs_own_graph
from enginebench.runs.results import ResultStore, add_warnings, has_changed, has_outputs, label
from enginebench.runs.targets.sources import describe_graph, make_graph
from enginebench.stats.compare import Comparison, compare

Propose: TypeAlias = Callable[[PlannedConfiguration, Result], PlannedConfiguration | None]
# Below this fraction of the time in INT8 another recipe is tried. Source: docs/which-precision.md. Networks that `nncf`
# or `tensorrt` suits spend 72% or more in INT8 on AMX (all but ViT in ONNX Runtime), the others 59% or less. `cpu` was
# not among these.
SUITED_SHARE = 0.6
# The same for a transformer in OpenVINO on a CPU that multiplies in BF16, where the rest gains, too: ViT-tiny by `nncf`
# spends 86% in INT8 on an EPYC with VNNI, and took 1.18 times as long as by `tensorrt` beside BF16.
SUITED_BESIDE_BF16 = 0.9
# Which default of ONNX Runtime changed the outputs, by the setting that keeps them; else it is the optimizer.
CAUSES = {"sums": "saturating 8-bit sums change", "accuracy_level": "8-bit activations change"}


class Alternatives:
    """Adds a configuration beside one that was built and checked, if its outputs are within the limits."""

    def __init__(
        self,
        results: ResultStore,
        builder: ConfigurationBuilder,
        references: References,
        check: OutputCheck,
        *,
        reporter: Reporter,
    ) -> None:
        self._results, self._builder, self._references, self._check = results, builder, references, check
        self._reporter = reporter

    def add_lower_levels(self) -> None:
        """Add, for ONNX Runtime if its defaults change the outputs, what does not: exact products, or a lower level.

        Of a graph that was made in few bits here, only exact products: with less optimization it is as far from FP32.
        """
        for configurations in self._results.list_alike():
            for configuration in configurations:
                result = self._results.current[configuration.id]
                if configuration.inputs_of is not None or not has_outputs(result) or not has_changed(result):
                    continue
                if not runs_own_graph(configuration):
                    self._add_first_kept(configuration, list_exact_engines(configuration.engine), configurations)
                elif self._blames_optimizer(result):
                    self._add_first_kept(configuration, list_lower_engines(configuration.engine), configurations)

    def _blames_optimizer(self, result: Result) -> bool:
        """Return whether less optimization may mend changed outputs: the unchanged graph itself has the right ones."""
        if result.drift is not None and result.drift.reference_kind != "configuration":
            return True
        return any(warning.template == "outputs_differ.engine" for warning in result.warnings)

    def _add_first_kept(
        self,
        configuration: PlannedConfiguration,
        engines: Sequence[EngineSpec],
        configurations: Sequence[PlannedConfiguration],
    ) -> None:
        """Add the first of these engines that keeps the outputs."""
        tried = [
            replace(
                configuration,
                engine=e,
                id=configuration_id(e, configuration.requested_precision, configuration.measure),
            )
            for e in engines
        ]
        # A level that was stored, perhaps by the run that this one continues, agreed then: it is tried first.
        for lower in sorted(tried, key=lambda one: not self._results.folder.configuration_path(one.id).exists()):
            if lower.id not in self._results.current:
                self._try_level(lower, configurations)
            kept = self._results.current.get(lower.id)
            if kept is not None and has_outputs(kept) and kept.drift is not None and kept.drift.passed:
                added = lower.engine.options.keys() - configuration.engine.options.keys()
                cause = next((CAUSES[key] for key in CAUSES if key in added), "optimizer changes")
                warning = make_warning("outputs_differ.optimizer", cause=cause, kept=format_engine(lower.engine))
                self._results.save_if_new(add_warnings(self._results.current[configuration.id], warning))
                return

    def add_proposed(self, propose: Propose) -> None:
        """Add the configuration that is proposed beside each one, if its outputs are within the limits."""
        for configurations in self._results.list_alike():
            for configuration in configurations:
                result = self._results.current[configuration.id]
                if result.status not in ("ok", "partial"):
                    continue
                try:
                    proposed = propose(configuration, result)
                except EngineBenchError as error:
                    self._reporter.say(f"{label(configuration)}: no other recipe was tried: {error}")
                    continue
                if proposed is not None and proposed.id not in self._results.current:
                    self._try_level(proposed, configurations)

    def _try_level(self, configuration: PlannedConfiguration, configurations: Sequence[PlannedConfiguration]) -> None:
        """Add a configuration that was not requested, if the continued run stored it, or if its outputs agree."""
        if self._results.folder.read_result(configuration.id) is not None:
            self._results.configurations[configuration.id] = configuration
            self._results.restore()
            if configuration.id in self._results.current:
                self._results.added.add(configuration.id)
                return
            del self._results.configurations[configuration.id]
        comparable = [one for one in configurations if has_outputs(self._results.current[one.id])]
        reference = self._references.find(configurations, comparable)
        try:
            response = self._builder.run(configuration, self._builder.describe_job(configuration))
        except EngineBenchError as error:
            self._reporter.say(f"{label(configuration)} was not tried in its place: {error}")
            return
        prepared = self._builder.describe_built(
            configuration, self._results.begin(configuration, status="partial"), response, 0
        )
        outputs = load_outputs(path := self._results.folder.outputs_path(configuration.id))[0]
        if not self._check.agrees(prepared, outputs, reference):
            path.unlink(missing_ok=True)
            return
        self._results.added.add(configuration.id)
        self._results.add([configuration])
        self._builder.fresh.add(configuration.id)
        self._results.save(prepared)
        self._results.save_if_new(self._check.add_drift(prepared, reference))
        self._builder.fresh.discard(configuration.id)
        reduce_outputs(path)
        self._check.score()


class NextRecipes:
    """Further configurations, for those of a run whose recipe did not suit the model."""

    def __init__(self, request: RunRequest, sources: Sequence[Artifact], folder: RunFolder, reporter: Reporter) -> None:
        self._request, self._sources, self._folder, self._reporter = request, sources, folder, reporter
        self._tried: dict[str, str] = {}  # id of a configuration -> id of the one with the next recipe

    def propose(self, configuration: PlannedConfiguration, result: Result) -> PlannedConfiguration | None:
        """The configuration with the engine's next recipe; None if its own suits, was requested, or is the last.

        For a transformer on a CPU with BF16, in an engine that computes the rest in it, it is int8@tensorrt so, if it
        is not.
        """
        shares, spec = result.effective_precision, configuration.engine
        graph = next((artifact for artifact in self._sources if artifact.kind == "onnx"), None)
        named = (configuration.requested_precision, spec.recipe) in self._request.precisions
        if configuration.requested_precision != "int8" or named:
            return None
        if not shares or configuration.source is None or graph is None:
            return None
        others = find_entry(spec.backend).other_recipes
        beside = others.beside_bf16
        may_gain = not beside.items() <= spec.options.items() and not BF16.isdisjoint(read_instructions())
        beside_bf16 = bool(beside) and may_gain and is_attentive(graph)
        suited = SUITED_BESIDE_BF16 if beside_bf16 else SUITED_SHARE
        if shares.get("int8", 0.0) >= suited or graph.precision != "fp32" or spec.device != "cpu":
            return None
        if beside_bf16:
            engine = replace(spec, recipe="tensorrt", options={**spec.options, **beside})
        elif spec.recipe is not None and spec.recipe in others.next:
            engine = replace(spec, recipe=others.next[spec.recipe])
        else:
            return None
        proposed_id = configuration_id(engine, configuration.requested_precision, configuration.measure)
        proposed = replace(configuration, engine=engine, id=proposed_id)
        self._tried[configuration.id] = proposed.id
        if engine.recipe == spec.recipe:
            return proposed
        source = self._make_source(graph, proposed)
        return replace(
            proposed,
            source=source,
            chain=(*configuration.chain[: configuration.chain.index(configuration.source)], source),
        )

    def _make_source(self, graph: Artifact, configuration: PlannedConfiguration) -> Artifact:
        """The graph in the recipe of a configuration: as stored by the run that this one continues, or made now."""
        stored = self._folder.read_result(configuration.id)
        for artifact in stored.artifacts if stored is not None else ():
            if artifact.kind == "onnx" and artifact.recipe == configuration.engine.recipe:
                return self._folder.open(artifact)
        path = Path(self._folder.artifacts)
        job = describe_graph(self._request, graph, "int8", configuration.engine.recipe, path)
        return make_graph(self._request, job, self._reporter)

    def describe(self, results: dict[str, Result]) -> list[str]:
        """For each recipe that did not suit: the next one that was tried, and which of the two is kept, and why."""
        notes = []
        for own_id, other_id in self._tried.items():
            own, other = results.get(own_id), results.get(other_id)
            if own is None:
                continue
            share = (own.effective_precision or {}).get("int8", 0.0)
            begin = f"{_show(own)}: {share:.0%} of the time in INT8"
            if other is None:
                notes.append(f"{begin}; the next recipe was tried, and its outputs are beyond the limits or it failed")
            elif own.measurements and other.measurements:
                comparison = compare(own.measurements, other.measurements)
                ratio = comparison.ratio
                kept = other if ratio is not None and ratio.value > 1 else own
                notes.append(f"{begin}; also tried {_show(other)}, {_format_ratio(comparison)}: kept {_show(kept)}")
        return notes


def _format_ratio(comparison: Comparison) -> str:
    ratio = comparison.ratio
    if ratio is None:
        return f"not compared, as {'; '.join(comparison.reasons)}"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}x as fast (one trial: no interval)"
    return f"{ratio.value:.2f}x as fast ({ratio.low:.2f} to {ratio.high:.2f})"


def _show(result: Result) -> str:
    engine, spec = result.engine.backend, result.engine
    if spec.options:
        engine += ":" + ",".join(f"{key}={value}" for key, value in sorted(spec.options.items()))
    return show_engine(engine, result.requested_precision, spec.recipe)
