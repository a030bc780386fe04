"""From settings to rows that can be built and measured: each finds its graph, which is made when it is first needed."""

import math
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.names import format_precision, slug
from enginebench.core.recipes import find_start
from enginebench.core.records import Artifact, MeasureSpec
from enginebench.engines.registry import takes
from enginebench.features.tune.space import Setting
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import PlannedRow, plan_rows, with_suffix
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.sources import Sources, describe_graph, make_graph
from enginebench.runs.trust import trust_engine


class Rows:
    """The rows of the settings of one search. `graphs` holds graphs that a proposer made, by the names it gave them."""

    def __init__(self, request: RunRequest, sources: Sources, place: Path, reporter: Reporter) -> None:
        self._request, self._place, self._reporter = request, place, reporter
        self._artifacts = list(sources.artifacts)
        self._problems = dict(sources.problems)
        self._others: dict[tuple[str, str], Artifact] = {}  # (PRECISION, method) -> graph
        self.graphs: dict[str, Artifact] = {}
        self.find_left: Callable[[], float] = lambda: math.inf  # seconds that making a graph may take

    @property
    def graph(self) -> Artifact | None:
        """The model's own graph in FP32; None if it has none."""
        return next((a for a in self._artifacts if a.kind == "onnx" and a.precision == "fp32"), None)

    def plan(self, setting: Setting, measure: MeasureSpec, suffix: str = "") -> PlannedRow:
        """The row of a setting; one whose graph cannot be made is skipped, with the reason."""
        trust_engine(setting.engine, setting.options, "the stored search")
        asked = replace(
            self._request,
            engines=((setting.engine, setting.options),),
            precisions=((setting.precision, setting.recipe),),
            threads=setting.threads,
            measure=measure,
        )
        artifacts, problem = self._choose(setting)
        found = plan_rows(asked, artifacts, problems=self._problems)
        if len(found) != 1:
            raise UsageError(f"a search is about one batch and one set of shapes, not {len(found)}; name one")
        row = found[0] if problem is None else replace(found[0], skip=problem)
        parts = [part for part in (setting.method, slug(setting.graph) if setting.graph else "", suffix) if part]
        return with_suffix(row, "-".join(parts)) if parts else row

    def _choose(self, setting: Setting) -> tuple[list[Artifact], str | None]:
        """(the artifacts that the row may start from, why there is none for it)."""
        if setting.graph:
            if setting.graph not in self.graphs:
                raise ArtifactError(f"the stored search names the graph {setting.graph!r}, which it has not made")
            return [a for a in self._artifacts if a.kind == "torch"] + [self.graphs[setting.graph]], None
        recipe = find_start(setting.engine, setting.recipe)
        label = format_precision(setting.precision, recipe)
        have = any((a.precision, a.recipe) == (setting.precision, recipe) for a in self._artifacts)
        if takes(setting.engine) == "torch" or self.graph is None or (have and not setting.method):
            return self._artifacts, None
        if setting.precision in ("fp32", "tf32") or label in self._problems:
            return self._artifacts, None
        try:
            made = self._make(replace(setting, recipe=recipe), label)
        except EngineBenchError as error:
            self._problems[label] = str(error)
            return self._artifacts, f"no graph in {label}: {error}"
        return [a for a in self._artifacts if (a.precision, a.recipe) != (made.precision, made.recipe)] + [made], None

    def _make(self, setting: Setting, label: str) -> Artifact:
        """The graph with this recipe and these ranges; another method has a folder of its own, and its own ranges."""
        key = (label, setting.method)
        if key not in self._others:
            assert self.graph is not None
            method = setting.method or self._request.calibration_method
            left_s = min(self._request.timeout_s, self.find_left())
            request = replace(self._request, calibration_method=method, timeout_s=left_s)
            out = self._place / setting.method if setting.method else None
            job = describe_graph(request, self.graph, setting.precision, setting.recipe, self._place, out=out)
            self._others[key] = make_graph(request, job, self._reporter)
        return self._others[key]
