"""Check the outputs of configurations: compare them with those of the reference, and score them."""

from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from enginebench.core.commands import advise_inputs
from enginebench.core.errors import ArtifactError, EngineBenchError
from enginebench.core.input_sets import CELL
from enginebench.core.records import Drift, Result, Task
from enginebench.core.shapes import BATCH_AXIS, find_size, name_cells
from enginebench.core.warnings import make_warning
from enginebench.models.samples import list_samples
from enginebench.models.task import find_own_data
from enginebench.runs.building import ConfigurationBuilder
from enginebench.runs.builds import cut_common
from enginebench.runs.child.arrays import (
    count_values,
    holds_arrays,
    limit_calls,
    load_outputs,
    load_sets,
    reduce_outputs,
)
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.references import KINDS, Reference, References
from enginebench.runs.results import (
    ResultStore,
    add_warnings,
    has_changed,
    has_outputs,
    label,
    list_open_outputs,
    report_failure,
)
from enginebench.runs.scoring import Scoring, score_file
from enginebench.stats.alike import compare_inputs, fill_lengths
from enginebench.stats.drift import limits_between, list_unlike, measure_drift, refuse_drift
from enginebench.stats.further import add_further, measure_further
from enginebench.stats.ranking import Rules

# Outputs are compared over this many samples; enough to see a wrong engine, cheap enough for a slow one.
CHECK_SAMPLES = 32
# The same for `--quick`, which makes no claims: half as many, so that there is time for the outputs of the unchanged
# graph. With fewer than ten, a single decision near a tie would break the limit of 8 bits, nine in ten.
QUICK_SAMPLES = 16


class OutputCheck:
    """Compares the outputs of every configuration with the reference of its model, batch and shapes."""

    def __init__(
        self,
        results: ResultStore,
        builder: ConfigurationBuilder,
        references: References,
        *,
        reporter: Reporter,
        rules: Rules,
        scoring: Scoring | None,
        task: Task | None,
        samples: int,
    ) -> None:
        self._results, self._builder, self._references = results, builder, references
        self._reporter, self._rules = reporter, rules
        self._scoring, self._task, self._samples = scoring, task, samples

    def compare(self) -> None:
        """Measure the drift of every configuration from the reference of its model, batch and shapes.

        If the reference is a configuration, all of its outputs are kept, since others may be built later; the others
        keep a few. A drift from the same reference that was measured before is kept: it does not depend on
        interruptions.
        """
        for configurations in self._results.list_alike():
            comparable = [
                r
                for r in configurations
                if has_outputs(self._results.current[r.id]) and holds_arrays(self._results.folder.outputs_path(r.id))
            ]
            new = [configuration for configuration in comparable if self._lacks_comparison(configuration, comparable)]
            if not new:
                continue
            reference = self._references.find(configurations, comparable)
            for configuration in comparable:
                self._results.save_if_new(self.add_drift(self._results.current[configuration.id], reference))
                if configuration.id != reference.result.id:
                    reduce_outputs(self._results.folder.outputs_path(configuration.id))
            self._explain_export(
                [configuration for configuration in new if configuration.id in self._builder.fresh], reference
            )
        self._builder.fresh.clear()

    def _lacks_comparison(
        self, configuration: PlannedConfiguration, comparable: Sequence[PlannedConfiguration]
    ) -> bool:
        """Return whether its outputs are new, or were compared with a configuration that has no outputs any more."""
        drift = self._results.current[configuration.id].drift
        if drift is None or configuration.id in self._builder.fresh:
            return True
        return (
            not drift.elsewhere and configuration.graph is None and all(one.id != drift.reference for one in comparable)
        )

    def _explain_export(self, configurations: Sequence[PlannedConfiguration], reference: Reference) -> None:
        """Add to engines whose outputs deviate from PyTorch's whether the engine or the export changed them."""
        base = reference.result
        exported = [
            configuration
            for configuration in configurations
            if configuration.source is not None
            and configuration.source.kind == "onnx"
            and configuration.source.precision == base.requested_precision
        ]
        changed = [configuration for configuration in exported if has_changed(self._results.current[configuration.id])]
        if base.engine.backend != "pytorch" or not changed:
            return
        graph = self._references.compute_graph(changed)
        if graph is None:
            return
        export_agrees = self.agrees(graph.result, graph.outputs, reference)
        for configuration in changed:
            figures = {"engine": label(configuration), "tool": KINDS[graph.kind]}
            warning = make_warning("outputs_differ.engine" if export_agrees else "outputs_differ.export", **figures)
            self._results.save(add_warnings(self._results.current[configuration.id], warning))

    def agrees(self, result: Result, outputs: Mapping[str, Any], reference: Reference) -> bool:
        """Return whether outputs are within the limits of the reference."""
        try:
            return self._measure_drift(result, outputs, None, reference).passed
        except ArtifactError:
            return False

    def add_drift(self, result: Result, reference: Reference) -> Result:
        configuration, base = self._results.configurations[result.id], reference.result
        old = result.drift if result.id not in self._builder.fresh else None
        if old is not None and (old.elsewhere or old.reference == base.id):
            return result  # compared before, with more outputs than have been kept
        if configuration.graph is not None:
            return result  # compared with its graph already
        outputs, calls = load_outputs(self._results.folder.outputs_path(configuration.id))
        try:
            drift = self._measure_drift(result, outputs, calls, reference)
        except ArtifactError as error:
            return report_failure(result, "when its outputs were compared", error, self._reporter)
        warnings = [warning for warning in base.warnings if warning.code == "outputs_vary"]
        if (
            why := self._references.explain_no_graph(configuration)
        ) is not None and reference.result.engine.backend != "pytorch":
            warnings.append(make_warning("outputs_not_compared.unoptimized", reference=base.id, why=why))
        real = self._results.inputs is not None or find_own_data(configuration.inputs_model) is not None
        if not drift.unlike and not real and result.requested_precision not in (None, "fp32"):
            # The errors of a shorter precision depend on the inputs, and random ones are unlike those of its use.
            warnings.append(make_warning("random_inputs", seed=result.measure.seed, cure=advise_inputs()))
        return add_warnings(replace(result, drift=drift), *warnings)

    def _measure_drift(
        self, result: Result, outputs: Mapping[str, Any], calls: int | None, reference: Reference
    ) -> Drift:
        """Measure the drift of a configuration's outputs, made by so many calls, from the reference."""
        base, configuration = reference.result, self._results.configurations.get(result.id)
        opened = {name for side in (base, result) for name in list_open_outputs(side)}
        expected, compared = cut_common(*fill_lengths(reference.outputs, outputs, opened))
        unlike: list[str] = []
        if (
            configuration is not None and configuration.inputs_of is not None
        ):  # perhaps two models, which need not have like inputs
            unlike = compare_inputs(base, result) or list_unlike(expected, compared)
        elif reference.kind == "onnx_evaluator":  # it may interpret a graph differently from engines
            unlike = list_unlike(expected, compared)
        if unlike:
            return replace(refuse_drift(base.id, unlike), reference_kind=reference.kind, elsewhere=reference.apart)
        limits = self._rules.limits
        if limits is None:
            limits = limits_between(
                base.requested_precision,
                result.requested_precision,
                (*self._rules.requested, *self._results.list_precisions()),
            )
        requested = self._count_requested(result, outputs, calls)
        drift = measure_drift(expected, compared, limits, n_requested=requested, task=self._task)
        pair = base.requested_precision, result.requested_precision
        expected, compared = (load_sets(self._results.folder.further_path(side.id)) for side in (base, result))
        further = measure_further(expected, compared, pair, limits=self._rules.limits, task=self._task)
        compared_cells = {one.inputs for one in further}
        lacking = [name for name in name_cells(result.engine.traffic)[1:] if CELL + name not in compared_cells]
        if lacking:
            return refuse_drift(base.id, [f"outputs of {', '.join(lacking)} could not be compared"])
        drift = add_further(drift, further)
        return replace(drift, reference=base.id, reference_kind=reference.kind, elsewhere=reference.apart)

    def _count_requested(self, result: Result, outputs: Mapping[str, Any], calls: int | None) -> int | None:
        """Return the number of samples that were to be compared; None if an output's first axis is not the batch.

        There are fewer if outputs are large.
        """
        labelled, batch = self._scoring.labelled if self._scoring else None, result.engine.batch
        firsts = [spec.shape[:1] for spec in result.artifacts[-1].outputs]
        if not firsts or any(not first or first[0] not in (BATCH_AXIS, batch) for first in firsts):
            return None
        pictures = labelled.n if labelled is not None and labelled.unlabelled else None
        requested = pictures or -(-self._samples // batch) * batch
        available: Sized = range(requested)
        if self._results.inputs is not None and pictures is None:
            available = list_samples(self._results.inputs)
        most = -(-len(available) // batch)
        if calls:
            most = limit_calls(most, count_values(outputs) // calls)
        return min(requested, most * batch)

    def score(self) -> None:
        """Score the labelled outputs of every configuration, always anew, against the first of its batch and shapes."""
        references: dict[tuple[str, int, str], Path] = {}
        for configuration_id, result in list(self._results.current.items()):
            path = self._results.folder.labelled_path(configuration_id)
            if self._scoring is None or not has_outputs(result) or not holds_arrays(path):
                continue
            reference = references.setdefault((result.model, *find_size(result.engine)), path)
            try:
                scored = replace(result, scores=score_file(self._scoring.metrics, path, reference))
            except EngineBenchError as error:
                if path == reference and self._scoring.requested:
                    raise
                self._reporter.say(f"{label(result)} has no score: {error}")
                scored = add_warnings(replace(result, scores=()), make_warning("no_score", reason=str(error)))
            self._results.save_if_new(scored)
