"""Precision by layer: the groups of nodes that harm the outputs most in 8 bits stay in FP32, as few as the limits
allow.

For each engine whose 8 bits break the limits: measure the harm of every group alone, then try graphs with the 1, 2, 4,
... worst groups in FP32, then bisect between those that broke the limits and those that kept them. They race like other
candidates.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_options, format_precision, name_mix, require_precision
from enginebench.core.records import Artifact
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.core.text import count_of
from enginebench.engines.registry import takes
from enginebench.features.tune.jobs import GroupHarm, SensitivityJob, SensitivityResponse
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import CandidatePlanner
from enginebench.models.samples import find_samples
from enginebench.runs.child.isolate import run_child
from enginebench.runs.folder import RunFolder, check_inside
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.targets.sources import choose_data, describe_graph, make_graph

MIXED_SCHEMA = "enginebench.mixed/2"
MIXED_FILE = "mixed.json"
LISTS, BEST = "exclusions", "exclude.txt"
# Graphs of one engine at most, and how many of them before any has kept the limits are made at a time.
MOST_GRAPHS, AT_ONCE = 8, 4
# Fraction of the search's budget that the sensitivity of one recipe may take.
SENSITIVITY_SHARE = 0.2
# Groups that are named in a line.
SHOWN = 5


class MixedGraph(Struct, frozen=True, kw_only=True):
    name: str
    artifact: Artifact
    excluded: tuple[str, ...]  # names of the exported graph's nodes
    groups: int  # that stay in FP32: the worst


class Layering(Struct, frozen=True, kw_only=True):
    """The results for one engine with one recipe."""

    engine: str
    setting: Setting
    precision: str
    groups: tuple[GroupHarm, ...] = ()  # the worst first; those that there was no time to measure come last
    samples: int = 0
    graphs: tuple[MixedGraph, ...] = ()
    reason: str | None = None  # why there are no graphs


class MixedDocument(Struct, frozen=True, kw_only=True):
    schema: str = MIXED_SCHEMA
    layerings: tuple[Layering, ...] = ()


def choose_counts(groups: int, kept: Mapping[int, bool]) -> list[int]:
    """Choose how many of the worst groups stay in FP32 in the next graphs; none if they are settled.

    `kept`: number of groups in FP32 -> whether that graph kept the limits; 8 bits throughout did not.
    """
    fewest = min((count for count, fine in kept.items() if fine), default=None)
    if fewest is None:
        counts = [1 << i for i in range(groups.bit_length()) if 1 << i < groups and 1 << i not in kept][:AT_ONCE]
    else:
        most_broken = max((count for count in kept if count < fewest), default=0)
        counts = [(most_broken + fewest) // 2] if fewest - most_broken > 1 else []
    return counts[: max(0, MOST_GRAPHS - len(kept))]


class MixedProposer:
    """Proposes graphs in mixed precision for each engine with 8 bits; `document` has the results."""

    name = "precision by layer"

    def __init__(
        self,
        request: SearchRequest,
        arms: Iterable[Arm],
        configurations: CandidatePlanner,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self._request, self._rows, self._folder, self._reporter = request, configurations, folder, reporter
        self._artifacts = folder.artifacts
        self._settings = [a.default for a in arms if a.precision in ("int8", "fp8") and takes(a.engine) == "onnx"]
        self.document = read_mixed(folder)
        for graph in self._list_graphs():
            configurations.graphs[graph.name] = folder.open(graph.artifact)

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """Return the next graphs of each engine whose 8 bits broke the limits, by the results of the earlier ones."""
        costs = {one.setting.name: one.cost for one in tried}
        settings = [setting for setting in self._settings if setting.name in costs]
        proposals = [
            self._propose_graphs(self._find_layering(setting, costs[setting.name]), costs) for setting in settings
        ]
        return [one for graphs in proposals for one in graphs][:count]

    def describe(self, tried: Sequence[Tried]) -> tuple[str, ...]:
        costs = {one.setting.name: one.cost for one in tried}
        return tuple(format_layering(one, list_kept(one, costs)) for one in self.document.layerings)

    def write_best(self, tried: Sequence[Tried]) -> Path | None:
        """Write `exclude.txt`, the list of the fastest graph that raced, and return its path; None if none raced."""
        graphs = {graph.name: graph for graph in self._list_graphs()}
        raced = [one for one in tried if one.setting.graph in graphs and one.cost is not None]
        best = min(raced, key=lambda one: one.cost or 0.0, default=None)
        if best is None:
            return None
        label = format_options(best.setting.engine, best.setting.options)
        return _write_list(self._folder.root / BEST, label, graphs[best.setting.graph].excluded)

    def _list_graphs(self) -> list[MixedGraph]:
        return [graph for layering in self.document.layerings for graph in layering.graphs]

    def _save(self, layering: Layering) -> Layering:
        others = tuple(one for one in self.document.layerings if one.setting != layering.setting)
        self.document = replace(self.document, layerings=(*others, layering))
        write_atomic(self._folder.root / MIXED_FILE, encode(self.document, indent=2))
        return layering

    def _find_layering(self, setting: Setting, cost: float | None) -> Layering:
        """Return the layering of one setting; if it fails, the reason is stored and the search continues."""
        if stored := [one for one in self.document.layerings if one.setting == setting]:
            return stored[0]
        measure = self._request.run.measure
        base = self._rows.plan(replace(setting, precision="fp32", recipe=None, method=""), measure)
        full = self._rows.plan(setting, measure)
        engine = format_options(setting.engine, setting.options)
        precision = format_precision(full.engine.precision, full.engine.recipe)
        layering, label = Layering(engine=engine, setting=setting, precision=precision), f"{engine} {precision}"
        try:
            reason = "8 bits throughout keep the limits" if cost is not None else base.skip or full.skip
            if reason is None and (base.source is None or full.source is None):
                reason = "there is no graph"
            if reason is not None:
                return self._save(replace(layering, reason=reason))
            harms = self._measure_harms(label, base, full)
        except EngineBenchError as error:
            self._reporter.say(f"{label}: no precision by layer: {error}")
            return self._save(replace(layering, reason=str(error)))
        groups = sorted(harms.groups, key=lambda one: -1.0 if one.noise is None else one.noise, reverse=True)
        return self._save(replace(layering, groups=tuple(groups), samples=harms.samples))

    def _measure_harms(self, label: str, base: PlannedConfiguration, full: PlannedConfiguration) -> SensitivityResponse:
        assert base.source is not None and full.source is not None
        run = self._request.run
        self._reporter.step(f"{label}: one group at a time")
        job = SensitivityJob(
            model=base.source.model,
            artifact=base.source,
            quantized=full.source,
            data=choose_data(run) or "fake",
            seed=run.measure.seed,
            threads=full.engine.threads,
            time_limit_s=SENSITIVITY_SHARE * self._request.budget_s,
            input_size=run.input_size,
            inputs=find_samples(self._artifacts) if run.inputs is not None else None,
        )
        timeout_s = min(run.timeout_s + job.time_limit_s, self._rows.find_spare())
        return run_child(job, timeout_s=timeout_s, on_note=report_steps(self._reporter, label))

    def _propose_graphs(self, layering: Layering, costs: Mapping[str, float | None]) -> list[Setting]:
        """Return the next graphs of one engine, and make those that do not exist yet."""
        settings: list[Setting] = []
        if layering.reason:
            return settings
        for count in choose_counts(len(layering.groups), list_kept(layering, costs)):
            try:
                layering, graph = self._find_graph(layering, count)
            except EngineBenchError as error:
                self._reporter.say(f"{layering.engine} {layering.precision}: no more precision by layer: {error}")
                break
            settings.append(replace(layering.setting, graph=graph.name))
        return settings

    def _find_graph(self, layering: Layering, count: int) -> tuple[Layering, MixedGraph]:
        if stored := [graph for graph in layering.graphs if graph.groups == count]:
            return layering, stored[0]
        excluded = tuple(name for one in layering.groups[:count] for name in one.group.originals)
        source, run = self._rows.graph, self._request.run
        assert source is not None
        full = self._rows.plan(layering.setting, run.measure).engine
        job = describe_graph(
            run, source, require_precision(full.precision), full.recipe, self._artifacts, exclude=excluded
        )
        made = make_graph(run, job, self._reporter)
        name = f"mix-{name_mix(excluded)}"
        if name in self._rows.graphs and self._rows.graphs[name].sha256 != made.sha256:  # by another recipe
            name = f"{name}-{made.recipe}"
        self._rows.graphs[name] = made
        _write_list(self._folder.root / LISTS / f"{name}.txt", f"{layering.engine} {layering.precision}", excluded)
        graph = MixedGraph(name=name, artifact=self._folder.relative(made), excluded=excluded, groups=count)
        return self._save(replace(layering, graphs=(*layering.graphs, graph))), graph


def _write_list(path: Path, label: str, excluded: Sequence[str]) -> Path:
    from enginebench.models.precision.exclusion import write_exclusion

    write_exclusion(path, excluded, [f"nodes that stay in FP32, for {label}: `quantize --exclude`"])
    return path


def list_kept(layering: Layering, costs: Mapping[str, float | None]) -> dict[int, bool]:
    """Return number of groups in FP32 -> whether that graph kept the limits, for the graphs that were tried."""
    names = {replace(layering.setting, graph=graph.name).name: graph.groups for graph in layering.graphs}
    return {count: costs[name] is not None for name, count in names.items() if name in costs}


def format_layering(layering: Layering, kept: Mapping[int, bool]) -> str:
    """Format which layers stay in FP32, and how much each harms the outputs by itself in 8 bits."""
    label = f"{layering.engine} {layering.precision}"
    if layering.reason is not None:
        return f"{label}: no precision by layer: {layering.reason}."
    total = count_of(len(layering.groups), "groups")
    fewest = min((count for count, fine in kept.items() if fine), default=None)
    if fewest is None:
        return f"{label}: no graph with groups in FP32 keeps the limits ({len(kept)} tried, of {total})."
    worst = layering.groups[:fewest]
    listed = [f"{one.group.name} ({'not measured' if one.noise is None else f'{one.noise:.2g}'})" for one in worst]
    more = f" and {fewest - SHOWN} more" if fewest > SHOWN else ""
    return (
        f"{label}: the limits are kept with {fewest} of {total} in FP32 (noise over signal in 8 bits alone): "
        f"{', '.join(listed[:SHOWN])}{more}."
    )


def read_mixed(folder: RunFolder) -> MixedDocument:
    """Read the results on precision by layer; empty if the search has not begun."""
    path: Path = folder.root / MIXED_FILE
    if not path.exists():
        return MixedDocument()
    check_inside(folder.root, path)
    advice = "It is from another version of enginebench: begin the search anew in another folder"
    return read_record(path, MixedDocument, MIXED_SCHEMA, advice)
