"""Precision by layer: which groups of nodes stay in FP32, and the graphs in mixed precision that join the race.

Of each engine with 8 bits: the harm of every group alone; the time that each saves by the engine's own profile; graphs
along the greedy line between them, each checked on samples that nothing was chosen by. The race says which is fastest.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import DependencyError, EngineBenchError, ParseError
from enginebench.core.names import format_options, format_precision, known, name_mix
from enginebench.core.records import Artifact, LayerProfile, Recipe
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.engines.registry import takes
from enginebench.features.tune.frontier import Cut, Part, cut_line, time_groups
from enginebench.features.tune.groups import GroupHarm, Harm
from enginebench.features.tune.harm import allow_noise
from enginebench.features.tune.held_out import Held, hold_out, hold_score
from enginebench.features.tune.jobs import SensitivityAnswer, SensitivityJob
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.rows import Rows
from enginebench.features.tune.space import Arm, Setting
from enginebench.models.samples import find_samples
from enginebench.runs.builds import cut_common
from enginebench.runs.child.arrays import load_answers
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import PrepareJob
from enginebench.runs.child.other_jobs import ProfileJob
from enginebench.runs.folder import RunFolder, check_inside
from enginebench.runs.plan import PlannedRow
from enginebench.runs.progress import Reporter
from enginebench.runs.scoring import Judged, score_file
from enginebench.runs.targets.sources import choose_data, describe_graph, make_graph
from enginebench.stats.drift import limits_between
from enginebench.stats.metrics.scores import find_drop

MIXED_SCHEMA = "enginebench.mixed/1"
MIXED_FILE = "mixed.json"
LISTS, BEST = "exclusions", "exclude.txt"
# Graphs along one line, by the noise that they are to have: around half of what is allowed.
GRAPHS = 8
# Samples that no range, sensitivity or cut was chosen by.
HELD_OUT = 64
# Fraction of the search's budget that the sensitivity of one recipe may take.
SENSITIVITY_SHARE = 0.2
# And the share after which no further graph of its line is made.
LINE_SHARE = 0.5
# NNCF's accuracy control as a candidate, and the least that it may take, in seconds: it ranks every quantizer.
CONTROLLED = "nncf-control"
REFERENCE = "reference"
LEAST_PATIENCE_S = 60.0
# An engine that takes so many times what the leader takes, in FP32 as well as in 8 bits, gets no line of graphs: one in
# between would have to be twice as fast as the faster of the two, and making the line takes minutes.
HOPELESS = 2.0
# Seconds of timed calls before each profile.
PROFILED_S = 0.5


class MixedGraph(Struct, frozen=True, kw_only=True):
    """One graph of the line. `noise` and `saved_ns` are what was to be expected of it, `held` what samples show."""

    name: str
    artifact: Artifact
    excluded: tuple[str, ...]  # names of the exported graph's nodes
    groups: int  # that stay in FP32
    noise: float
    saved_ns: float
    held: tuple[Held, ...]
    recipe: Recipe | None = None  # another than that of the line

    @property
    def kept(self) -> bool:
        """Whether all limits are kept by their values."""
        return all(one.kept for one in self.held)

    @property
    def shown(self) -> bool:
        """Whether all limits are kept by their whole intervals."""
        return all(one.shown for one in self.held)


class Layering(Struct, frozen=True, kw_only=True):
    """What was found out about one engine with one recipe."""

    engine: str
    setting: Setting
    precision: str
    allowed_noise: float | None = None
    groups: tuple[GroupHarm, ...] = ()
    together: Harm | None = None
    first: str | None = None  # the group with which the answers break, from the input on
    alone: tuple[str, ...] = ()  # groups that break them by themselves: these must stay in FP32
    saved_ns: dict[str, float] = {}  # group -> by the profiles in FP32 and in 8 bits; without, if the engine has none
    unmapped: float = 0.0  # share of the profiled time that belongs to no group
    samples: int = 0
    graphs: tuple[MixedGraph, ...] = ()
    reason: str | None = None  # why there are no graphs


class MixedDocument(Struct, frozen=True, kw_only=True):
    schema: str = MIXED_SCHEMA
    layerings: tuple[Layering, ...] = ()


class MixedProposer:
    """Proposes graphs in mixed precision, one line for each engine with 8 bits; `document` is what it found out."""

    name = "precision by layer"

    def __init__(
        self,
        request: SearchRequest,
        arms: Iterable[Arm],
        rows: Rows,
        folder: RunFolder,
        reporter: Reporter,
        judged: Judged | None = None,
    ) -> None:
        """Takes up what the folder holds.

        Args:
            judged: labelled samples, whose metric decides where the request has no limits of drift.
        """
        self._judged = judged
        self._request, self._rows, self._folder, self._reporter = request, rows, folder, reporter
        self._place = folder.artifacts
        self._settings = [a.default for a in arms if a.precision in ("int8", "fp8") and takes(a.engine) == "onnx"]
        self.document = read_mixed(folder)
        for graph in self._list_graphs():
            rows.graphs[graph.name] = folder.open(graph.artifact)

    def propose(self, count: int, tried: Sequence[Tried]) -> list[Setting]:
        """The graphs of every line that keep the limits and were not tried; they are made on the first call."""
        for setting in self._settings:
            if all(one.setting != setting for one in self.document.layerings):
                self._add(self._lay(setting, tried))
        seen = {one.setting.name for one in tried}
        found = [
            replace(layering.setting, graph=graph.name, recipe=graph.recipe or layering.setting.recipe)
            for layering in self.document.layerings
            for graph in layering.graphs
            if graph.kept
        ]
        return [setting for setting in found if setting.name not in seen][:count]

    def describe(self) -> tuple[str, ...]:
        return tuple(map(describe_layering, self.document.layerings))

    def write_best(self, tried: Sequence[Tried]) -> Path | None:
        """Writes `exclude.txt`, the list of the fastest graph that raced, and says where; None if none did."""
        graphs = {graph.name: graph for graph in self._list_graphs() if graph.excluded}  # NNCF's has no list
        raced = [one for one in tried if one.setting.graph in graphs and one.cost is not None]
        best = min(raced, key=lambda one: one.cost or 0.0, default=None)
        if best is None:
            return None
        graph = graphs[best.setting.graph]
        path = self._folder.root / BEST
        self._write_list(path, format_options(best.setting.engine, best.setting.options), graph.excluded)
        return path

    def _list_graphs(self) -> list[MixedGraph]:
        return [graph for layering in self.document.layerings for graph in layering.graphs]

    def _add(self, layering: Layering) -> None:
        self.document = replace(self.document, layerings=(*self.document.layerings, layering))
        write_atomic(self._folder.root / MIXED_FILE, encode(self.document, indent=2))

    def _lay(self, setting: Setting, tried: Sequence[Tried]) -> Layering:
        """The layering of one setting; one that fails says why, and costs the search nothing else."""
        measure = replace(self._request.run.measure, time_limit_s=PROFILED_S)
        base = self._rows.plan(replace(setting, precision="fp32", recipe=None, method=""), measure)
        full = self._rows.plan(setting, measure)
        precision = format_precision(full.engine.precision, full.engine.recipe)
        label = f"{format_options(setting.engine, setting.options)} {precision}"
        for row in (base, full):
            if row.skip is not None or row.source is None:
                return self._give_up(setting, label, row.skip or "there is no graph")
        if reason := explain_hopeless(setting, tried):
            self._reporter.say(f"{label}: no precision by layer: {reason}")
            return self._give_up(setting, label, reason)
        try:
            return self._follow(setting, label, base, full)
        except EngineBenchError as error:
            self._reporter.say(f"{label}: no precision by layer: {error}")
            return self._give_up(setting, label, str(error))

    def _give_up(self, setting: Setting, label: str, reason: str) -> Layering:
        return Layering(
            engine=format_options(setting.engine, setting.options),
            setting=setting,
            precision=label.rpartition(" ")[2],
            reason=reason,
        )

    def _follow(self, setting: Setting, label: str, base: PlannedRow, full: PlannedRow) -> Layering:
        """Sensitivity, profiles, the line, and its graphs checked."""
        end_s = time.monotonic() + LINE_SHARE * self._request.budget_s
        limits = dict(self._request.limits or limits_between("fp32", "int8", self._request.run.task))
        allowed = allow_noise(limits)
        found = self._ask_sensitivity(label, base, full, allowed)
        saved, unmapped = self._profile(label, base, full, found)
        by_labels = self._request.limits is None and self._judged is not None
        held = {} if by_labels else limits
        parts = [_make_part(one, saved, by_labels=by_labels) for one in found.groups]
        cuts = cut_line(parts, math.inf if by_labels else allowed, GRAPHS)
        cuts.sort(
            key=lambda cut: cut.noise > allowed
        )  # those that should keep the limit first, the fastest of them first
        alone = [one.group.name for one in found.groups if one.harm and one.harm.noise > allowed]
        self._tell(label, found, alone, len(cuts))
        return Layering(
            engine=format_options(setting.engine, setting.options),
            setting=setting,
            precision=label.rpartition(" ")[2],
            allowed_noise=allowed if math.isfinite(allowed) else None,
            groups=found.groups,
            together=found.together,
            first=found.first,
            alone=tuple(alone),
            saved_ns=saved,
            unmapped=unmapped,
            samples=found.samples,
            graphs=tuple(self._make_graphs(label, base, full, cuts, found, held, end_s)),
        )

    def _tell(self, label: str, found: SensitivityAnswer, alone: Sequence[str], graphs: int) -> None:
        first = f"from the input on, {found.first} is the first to break them" if found.first else "they do not break"
        must = f", and by itself {', '.join(alone[:3])}" if alone else ""
        self._reporter.say(f"{label}: outputs by {len(found.groups)} groups: {first}{must}; {graphs} graphs to check")

    def _ask_sensitivity(self, label: str, base: PlannedRow, full: PlannedRow, allowed: float) -> SensitivityAnswer:
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
            allowed_noise=allowed if math.isfinite(allowed) else None,
            logits=run.task in (None, "classification"),
            time_limit_s=SENSITIVITY_SHARE * self._request.budget_s,
            input_size=run.input_size,
            inputs=find_samples(self._place) if run.inputs is not None else None,
        )
        return run_child(
            job,
            timeout_s=min(run.timeout_s + job.time_limit_s, self._rows.find_left()),
            on_note=lambda text: self._reporter.step(f"{label}: {text}"),
        )

    def _profile(
        self, label: str, base: PlannedRow, full: PlannedRow, found: SensitivityAnswer
    ) -> tuple[dict[str, float], float]:
        """(group -> nanoseconds that 8 bits save, the larger fraction of time that belongs to no group)."""
        times, shares = [], []
        for row in (base, full):
            self._reporter.step(f"{label}: profile in {row.engine.precision}")
            try:
                layers = self._ask_profile(row)
            except DependencyError as error:
                self._reporter.say(f"{label}: no time by layer, so that the noise alone decides: {error}")
                return {}, 1.0
            found_times, lost = time_groups(layers.layers, found.homes)
            times.append(found_times)
            shares.append(lost)
        known = times[0].keys() & times[1].keys()
        return {name: times[0][name] - times[1][name] for name in known}, max(shares)

    def _ask_profile(self, row: PlannedRow) -> LayerProfile:
        assert row.source is not None
        answer = run_child(
            ProfileJob(
                model=row.model,
                artifact=row.source,
                engine=row.engine,
                measure=row.measure,
                out_dir=str(self._place.absolute()),
                inputs=find_samples(self._place),
            ),
            timeout_s=min(self._request.run.timeout_s, self._rows.find_left()),
        )
        return answer.profile

    def _make_graphs(
        self,
        label: str,
        base: PlannedRow,
        full: PlannedRow,
        cuts: Sequence[Cut],
        found: SensitivityAnswer,
        limits: Mapping[str, float],
        end_s: float,
    ) -> Iterator[MixedGraph]:
        """The graphs of a line, each with what held-out samples show; after `end_s` no more of them."""
        reference = self._answer(base, REFERENCE)
        originals = {one.group.name: one.group.originals for one in found.groups}
        for i, cut in enumerate(cuts):
            if time.monotonic() > end_s:
                self._reporter.say(f"{label}: no time left for {len(cuts) - i} more graphs")
                return
            excluded = tuple(name for group in cut.excluded for name in originals[group])
            graph = self._make_graph(full, excluded)
            name = self._enter(graph, excluded)
            self._write_list(self._folder.root / LISTS / f"{name}.txt", label, excluded)
            row = replace(full, source=graph, engine=replace(full.engine, mix=name_mix(excluded)))
            held = self._hold(reference, row, name, limits)
            self._reporter.say(f"{name}: {len(cut.excluded)} groups in FP32; {describe_held(held)}")
            yield MixedGraph(
                name=name,
                artifact=self._folder.relative(graph),
                excluded=excluded,
                groups=len(cut.excluded),
                noise=cut.noise,
                saved_ns=cut.saved_ns,
                held=held,
            )
        if time.monotonic() < end_s:
            yield from self._ask_nncf(full, reference, limits)

    def _ask_nncf(
        self, full: PlannedRow, reference: Mapping[str, object], limits: Mapping[str, float]
    ) -> Iterator[MixedGraph]:
        """The graph of NNCF's accuracy control, a row to beat: if it is installed and has a cosine to keep."""
        least, given = limits.get("centred_cosine"), self._rows.graph
        if least is None or given is None or find_spec("nncf") is None:
            return
        run = self._request.run
        patience_s = max(SENSITIVITY_SHARE * self._request.budget_s, LEAST_PATIENCE_S)
        run = replace(run, timeout_s=min(run.timeout_s, patience_s, self._rows.find_left()))
        self._reporter.step(f"{run.model}: NNCF's accuracy control")
        try:
            place = self._place / CONTROLLED
            job = describe_graph(run, given, "int8", "nncf", self._place, out=place, keep_cosine=least)
            graph = make_graph(run, job, self._reporter)
            row = replace(full, source=graph, engine=replace(full.engine, recipe="nncf"))
            held = self._hold(reference, row, CONTROLLED, limits)
        except EngineBenchError as error:
            self._reporter.say(f"no graph of NNCF's accuracy control: {error}")
            return
        self._rows.graphs[CONTROLLED] = graph
        self._reporter.say(f"{CONTROLLED}: {describe_held(held)}")
        yield MixedGraph(
            name=CONTROLLED,
            artifact=self._folder.relative(graph),
            excluded=(),
            groups=0,
            noise=0.0,
            saved_ns=0.0,
            held=held,
            recipe="nncf",
        )

    def _make_graph(self, full: PlannedRow, excluded: tuple[str, ...]) -> Artifact:
        given = self._rows.graph
        assert given is not None
        recipe: Recipe | None = full.engine.recipe
        run = self._request.run
        job = describe_graph(run, given, known(full.engine.precision), recipe, self._place, exclude=excluded)
        return make_graph(run, job, self._reporter)

    def _enter(self, graph: Artifact, excluded: tuple[str, ...]) -> str:
        """Makes the graph known to the rows, under a name of its own."""
        name = f"mix-{name_mix(excluded)}"
        known = self._rows.graphs.get(name)
        if known is not None and known.sha256 != graph.sha256:  # the same nodes by another recipe
            name = f"{name}-{graph.recipe}"
        self._rows.graphs[name] = graph
        return name

    def _write_list(self, path: Path, label: str, excluded: Sequence[str]) -> None:
        from enginebench.models.precision.exclusion import write_exclusion

        remarks = [f"nodes that stay in FP32, for {label}: quantize --exclude"]
        write_exclusion(path, excluded, remarks)

    def _hold(
        self, reference: Mapping[str, object], row: PlannedRow, name: str, limits: Mapping[str, float]
    ) -> tuple[Held, ...]:
        """What held-out samples show of a row: each limit of drift, and the metric where there are labels."""
        drift = hold_out(*cut_common(reference, self._answer(row, name)), limits, self._request.run.task)
        if self._judged is None:
            return drift
        paths = [self._name_answers(one, labelled=True) for one in (name, REFERENCE)]
        scores, base = score_file(self._judged.metrics, *paths), score_file(self._judged.metrics, paths[1], paths[1])
        if not scores or not base:
            return drift
        return (*drift, hold_score(scores[0], find_drop(base[0], self._request.run.max_metric_drop)))

    def _name_answers(self, name: str, *, labelled: bool = False) -> Path:
        return self._place / "held-out" / f"{name}{'.labelled' if labelled else ''}.npz"

    def _answer(self, row: PlannedRow, name: str) -> Mapping[str, object]:
        """The answers of a row to samples with another seed than that of the ranges; of the user's inputs, those."""
        assert row.source is not None
        path = self._name_answers(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        run_child(
            PrepareJob(
                model=row.asked_as,
                artifact=row.source,
                engine=row.engine,
                out_dir=str(self._place.absolute()),
                outputs_path=str(path.absolute()),
                samples=HELD_OUT,
                seed=row.measure.seed + 1,
                prove=False,
                labelled=self._judged.labelled if self._judged else None,
                answers_path=str(self._name_answers(name, labelled=True).absolute()),
                inputs=find_samples(self._place) if self._request.run.inputs is not None else None,
            ),
            timeout_s=min(self._request.run.timeout_s, self._rows.find_left()),
        )
        return load_answers(path)[0]


def _make_part(one: GroupHarm, saved_ns: Mapping[str, float], *, by_labels: bool) -> Part:
    """A group as the line sees it: where labels decide, the divergence of the probabilities counts, if there is one."""
    harm = one.harm
    weight = None if harm is None else harm.kl_nats if by_labels and harm.kl_nats is not None else harm.noise
    return Part(name=one.group.name, noise=weight, saved_ns=saved_ns.get(one.group.name))


def explain_hopeless(setting: Setting, tried: Sequence[Tried]) -> str:
    """Why no graph between FP32 and 8 bits can be expected to win; empty where one can, or nobody knows.

    Args:
        tried: what was found out so far. A setting that broke a limit has no cost: in between there may be a fast one.
    """
    costs: dict[str, list[float]] = {"fp32": [], setting.precision: []}
    for one in tried:
        known = costs.get(one.setting.precision)
        if known is not None and one.setting.engine == setting.engine and one.cost is not None:
            known.append(one.cost)
    if not all(costs.values()) or (best := min(map(min, costs.values()))) < HOPELESS:
        return ""
    return (
        f"FP32 and 8 bits both take at least {best:.1f} times what the leader takes. To see its layers all the same, "
        f"search {setting.engine} alone"
    )


def describe_layering(layering: Layering) -> str:
    label = f"{layering.engine} {layering.precision}"
    if layering.reason is not None:
        return f"{label}: no precision by layer: {layering.reason}."
    unknown = sum(1 for one in layering.groups if one.harm is None)
    late = f" Time ran out before {unknown} of {len(layering.groups)} groups; they stay in FP32." if unknown else ""
    if layering.first is None:
        return f"{label}: no node breaks the outputs.{late}"
    alone = f" By themselves {', '.join(layering.alone)} break them." if layering.alone else ""
    return f"{label}: {layering.first} is the first node to break the outputs, from the input on.{alone}{late}"


def describe_held(held: Sequence[Held]) -> str:
    """What held-out samples show of each limit, in words."""
    parts = []
    for one in held:
        seen = "no figure" if one.value is None else f"{one.value.value:.4g}"
        if one.value is not None and one.value.low is not None and one.value.high is not None:
            seen += f" ({one.value.low:.4g} to {one.value.high:.4g})"
        verdict = "kept" if one.shown else "kept, but not significantly" if one.kept else "broken"
        parts.append(f"{one.limit} {seen}, limit {one.bound:g} {verdict}")
    return "; ".join(parts)


def read_mixed(folder: RunFolder) -> MixedDocument:
    """What a search has found out about precision by layer; nothing, if it has not begun."""
    path: Path = folder.root / MIXED_FILE
    if not path.exists():
        return MixedDocument()
    check_inside(folder.root, path)
    document = read_record(path, MixedDocument)
    if document.schema != MIXED_SCHEMA:
        raise ParseError(path, "$.schema", repr(document.schema), repr(MIXED_SCHEMA), "Upgrade enginebench")
    return document
