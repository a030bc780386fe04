"""A second recipe where little of an INT8 configuration ran in INT8: chosen, made, compared."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.names import configuration_id, show_engine
from enginebench.core.recipes import BF16
from enginebench.core.records import Artifact, Result
from enginebench.engines.registry import find_entry
from enginebench.measure.machine import read_instructions
from enginebench.runs.families import is_attentive
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.sources import describe_graph, make_graph
from enginebench.stats.compare import Comparison, compare

# Below this fraction of the time in INT8 another recipe is tried. Source: docs/which-precision.md. Networks that `nncf`
# or `tensorrt` suits spend 72% or more in INT8 on AMX (all but ViT in ONNX Runtime), the others 59% or less. `cpu` was
# not among these.
SUITED_SHARE = 0.6
# The same for a transformer in OpenVINO on a CPU that multiplies in BF16, where the rest gains, too: ViT-tiny by `nncf`
# spends 86% in INT8 on an EPYC with VNNI, and took 1.18 times as long as by `tensorrt` beside BF16.
SUITED_BESIDE_BF16 = 0.9


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
