"""8 bits where they pay: for each engine, the graph whose regions in 8 bits are those that were faster in 8 bits.

Proposed once for each engine, for its fastest setting with Q/DQ pairs, where 8 bits throughout gain little or lose. The
graph races like any other candidate.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.names import format_options, format_precision, name_mix, require_precision
from enginebench.core.recipes import find_needs
from enginebench.core.records import Artifact, EngineSpec, Estimate
from enginebench.core.store import encode, open_temporary, read_record, write_atomic
from enginebench.core.text import count_of, list_some
from enginebench.engines.registry import find_device, find_entry, read_engines, takes
from enginebench.features.tune.jobs import RegionsJob, RegionsResponse
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.space import Arm, Setting
from enginebench.features.tune.track import CandidatePlanner
from enginebench.models.precision.exclusion import write_exclusion
from enginebench.runs.child.isolate import run_child
from enginebench.runs.folder import RunFolder, check_inside
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.targets.sources import describe_graph, make_graph

REGIONS_SCHEMA = "enginebench.regions/1"
REGIONS_FILE = "regions.json"
# Fraction of the search's budget that comparing the regions of one engine may take.
SHARE = 0.2
# Where 8 bits throughout are more than so many times as fast as floats in the same engine, regions are not compared: a
# mix gained 2% where they are 2.2 times as fast, and 16 to 20% where they are 0.9 to 1.1 times (docs/tune.md).
GAINS_ENOUGH = 1.5
# Builds that a result needs at least: 8 bits throughout, floats throughout, and one mix of both.
LEAST_BUILDS = 3
# Of the process that compares: to start, and to finish the comparison that it is in.
MORE_TIME_S = 120.0


class RegionGraph(Struct, frozen=True, kw_only=True):
    """The result for one engine; `name` and `artifact` of the graph, if one was made, and `excluded` its FP32 nodes."""

    setting: Setting
    label: str
    response: RegionsResponse | None = field(default=None, name="answer")
    name: str = ""
    artifact: Artifact | None = None
    excluded: tuple[str, ...] = ()  # names of the exported graph's nodes
    reason: str | None = None  # why there is no graph


class RegionsDocument(Struct, frozen=True, kw_only=True):
    schema: str = REGIONS_SCHEMA
    engines: tuple[RegionGraph, ...] = ()


class RegionProposer:
    """Proposes one graph for each engine with 8 bits; `document` has the results."""

    name = "8 bits by region"

    def __init__(
        self,
        request: SearchRequest,
        arms: Iterable[Arm],
        configurations: CandidatePlanner,
        folder: RunFolder,
        reporter: Reporter,
    ) -> None:
        self._request, self._rows, self._folder, self._reporter = request, configurations, folder, reporter
        self._arms = [arm for arm in arms if takes(arm.engine) == "onnx"]
        self.document = read_regions(folder)
        for one in self.document.engines:
            if one.artifact is not None:
                configurations.graphs[one.name] = folder.open(one.artifact)

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        seen, proposals = {one.setting.name for one in tried}, list[Setting]()
        for arm in self._arms:
            setting = self._choose_setting(arm, tried) if arm.precision == "int8" else None
            if setting is None or len(proposals) == count:
                continue
            made = next((one for one in self.document.engines if one.setting.engine == setting.engine), None)
            made = made or self._save(self._compare(setting))
            graph = replace(made.setting, graph=made.name)
            if made.name and graph.name not in seen:
                proposals.append(graph)
        return proposals

    def describe(self, tried: Sequence[Tried]) -> tuple[str, ...]:
        return tuple(format_regions(one) for one in self.document.engines)

    def _choose_setting(self, arm: Arm, tried: Sequence[Tried]) -> Setting | None:
        """Choose the fastest setting of an engine that has Q/DQ pairs and keeps the outputs, if comparing regions is
        worthwhile."""
        ran = [one for one in tried if one.setting.engine == arm.engine and one.cost is not None]
        floats = [one.cost or 0.0 for one in ran if one.setting.precision != "int8"]
        pairs = [
            one
            for one in ran
            if one.setting.precision == "int8"
            and not one.setting.graph
            and find_needs("int8", one.setting.recipe) != "nothing"
        ]
        best = min(pairs, key=lambda one: one.cost or 0.0, default=None)
        if best is None or (floats and min(floats) > GAINS_ENOUGH * (best.cost or 0.0)):
            return None
        return best.setting

    def _save(self, graph: RegionGraph) -> RegionGraph:
        self.document = replace(self.document, engines=(*self.document.engines, graph))
        write_atomic(self._folder.root / REGIONS_FILE, encode(self.document, indent=2))
        return graph

    def _compare(self, setting: Setting) -> RegionGraph:
        """Compare the regions of a setting; if that fails, the reason is stored and the search continues."""
        measure, run = self._request.run.measure, self._request.run
        full = self._rows.plan(setting, measure)
        precision = format_precision(full.engine.precision, full.engine.recipe)
        label = f"{format_options(setting.engine, setting.options)} {precision}"
        region_graph, source = RegionGraph(setting=setting, label=label), self._rows.graph
        if full.skip or full.source is None or source is None:
            return replace(region_graph, reason=full.skip or "there is no graph")
        limit_s = min(SHARE * self._request.budget_s, self._rows.find_spare())
        if (build_s := self._rows.expect_build(setting.engine)) * LEAST_BUILDS > limit_s:
            builds = f"{LEAST_BUILDS} builds of about {build_s:.0f} s"
            return replace(region_graph, reason=f"comparing takes at least {builds}, and has {limit_s:.0f} s")
        self._reporter.step(f"{label}: one region at a time")
        job = RegionsJob(
            artifact=source,
            quantized=full.source,
            engine=full.engine,
            seed=measure.seed,
            out_dir=str(self._folder.artifacts / "regions"),
            time_limit_s=limit_s,
        )
        try:
            timeout_s = min(run.timeout_s + limit_s, self._rows.find_spare())
            response = run_child(job, timeout_s=timeout_s, on_note=report_steps(self._reporter, label))
            region_graph = replace(region_graph, response=response)
            if response.gain is None or not 0 < len(response.inside) < len(response.regions):
                return replace(region_graph, reason="no mix of both is faster")
            excluded = list_excluded(response)
            to, recipe = require_precision(full.engine.precision), full.engine.recipe
            graph = describe_graph(run, source, to, recipe, self._folder.artifacts, exclude=excluded)
            made = make_graph(run, graph, self._reporter)
        except EngineBenchError as error:
            self._reporter.say(f"{label}: no 8 bits by region: {error}")
            return replace(region_graph, reason=str(error))
        name = f"regions-{name_mix(excluded)}"
        self._rows.graphs[name] = made
        write_list(self._folder.root / f"{name}.txt", label, excluded)
        return replace(region_graph, name=name, artifact=self._folder.relative(made), excluded=excluded)


def check_region_engine(engine: str) -> tuple[str, dict[str, str]]:
    """Return (name, options) of the engine that --by-time names."""
    engines = read_engines(engine)
    if len(engines) != 1 or takes(engines[0][0]) != "onnx":
        raise UsageError(f"--by-time {engine!r}: expected one engine that runs ONNX graphs, such as ort or openvino")
    if find_entry(engines[0][0]).find_program is not None:
        raise UsageError(
            f"--by-time {engine!r}: it is a program that times itself, so that regions cannot be compared in one "
            "process. Name an engine that is loaded, such as ort, openvino or tensorrt"
        )
    return engines[0]


def exclude_slow_regions(artifact: Artifact, quantized: Artifact, engine: str, reporter: Reporter) -> tuple[str, ...]:
    """Return the names of the nodes of the FP32 graph that stay in FP32, as 8 bits do not make them faster on ENGINE.

    Raises:
        UsageError: not one engine that runs ONNX graphs.
        ArtifactError: no region is faster in 8 bits.
    """
    name, options = check_region_engine(engine)
    batch = next((spec.shape[0] for spec in artifact.inputs if spec.shape), 1)
    spec = EngineSpec(
        backend=name,
        options=options,
        precision="int8",
        recipe=quantized.recipe,
        device=find_device(name, "cpu"),
        batch=batch if isinstance(batch, int) else 1,
    )
    reporter.step(f"{Path(artifact.path).name}: one region at a time on {engine}")
    with open_temporary() as folder:
        job = RegionsJob(artifact=artifact, quantized=quantized, engine=spec, seed=0, out_dir=str(folder))
        timeout_s = job.time_limit_s + MORE_TIME_S
        response = run_child(job, timeout_s=timeout_s, on_note=report_steps(reporter, engine))
    label = f"{engine} int8" + (f"@{quantized.recipe}" if quantized.recipe else "")
    if not response.inside:
        raise ArtifactError(
            f"no region of {artifact.path} is faster in 8 bits on {engine}: 8 bits throughout are "
            f"{format_gain(response.throughout)} as fast. Use the FP32 graph, or leave out --by-time"
        )
    reporter.say(format_regions(RegionGraph(setting=Setting(engine=name), label=label, response=response, name="-")))
    return list_excluded(response)


def list_excluded(response: RegionsResponse) -> tuple[str, ...]:
    """List the names of the exported graph's nodes that stay in FP32."""
    outside = [region for i, region in enumerate(response.regions) if i not in response.inside]
    return tuple(name for region in outside for name in region.originals)


def write_list(path: Path, label: str, excluded: Sequence[str]) -> None:
    write_exclusion(
        path, excluded, [f"nodes that stay in FP32, as they are faster so, for {label}: `quantize --exclude`"]
    )


def format_regions(graph: RegionGraph) -> str:
    """Format which regions stay in 8 bits, and the gain."""
    if graph.name and graph.response is not None and graph.response.gain is None:
        return f"{graph.label}: 8 bits pay in every region: {format_gain(graph.response.throughout)} as fast as floats."
    if graph.response is None or graph.response.gain is None or not graph.name:
        return f"{graph.label}: no 8 bits by region: {graph.reason}."
    response, gain = graph.response, format_gain(graph.response.gain)
    names = list_some([response.regions[i].name for i in response.inside], 3)
    kept = f"{len(response.inside)} of {count_of(len(response.regions), 'regions')}"
    faster = "8 bits throughout" if response.throughout.value > 1 else "floats throughout"
    return (
        f"{graph.label}: 8 bits pay in {kept} (from {names}): {gain} as fast as {faster}, in one process; 8 bits "
        f"throughout are {format_gain(response.throughout)} as fast as floats."
    )


def format_gain(ratio: Estimate) -> str:
    """Format a ratio with its interval: 1.205x (1.183 to 1.228)."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.3f}x"
    return f"{ratio.value:.3f}x ({ratio.low:.3f} to {ratio.high:.3f})"


def read_regions(folder: RunFolder) -> RegionsDocument:
    """Read the results on regions; empty if the search has not begun."""
    path: Path = folder.root / REGIONS_FILE
    if not path.exists():
        return RegionsDocument()
    check_inside(folder.root, path)
    advice = "It is from another version of enginebench: begin the search anew in another folder"
    return read_record(path, RegionsDocument, REGIONS_SCHEMA, advice)
