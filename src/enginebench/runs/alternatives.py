"""Add configurations that were not requested: where outputs changed, or where another recipe may be better."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import configuration_id as make_id
from enginebench.core.names import format_engine
from enginebench.core.records import Result
from enginebench.core.warnings import make_warning
from enginebench.runs.building import ConfigurationBuilder
from enginebench.runs.checking import OutputCheck
from enginebench.runs.child.arrays import load_outputs, reduce_outputs
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.references import References, list_lower_engines, runs_own_graph
from enginebench.runs.results import ResultStore, add_warnings, has_changed, has_outputs, label

Propose: TypeAlias = Callable[[PlannedConfiguration, Result], PlannedConfiguration | None]


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
        """Add, for ONNX Runtime if its optimizer changes the outputs, the highest level that does not."""
        for configurations in self._results.list_alike():
            for configuration in configurations:
                result = self._results.current[configuration.id]
                own = runs_own_graph(configuration) and configuration.inputs_of is None and has_outputs(result)
                if own and has_changed(result) and self._blames_optimizer(result):
                    self._add_lower_level(configuration, configurations)

    def _blames_optimizer(self, result: Result) -> bool:
        """Return whether less optimization may mend changed outputs: the unchanged graph itself has the right ones."""
        if result.drift is not None and result.drift.reference_kind != "configuration":
            return True
        return any(warning.template == "outputs_differ.engine" for warning in result.warnings)

    def _add_lower_level(
        self, configuration: PlannedConfiguration, configurations: Sequence[PlannedConfiguration]
    ) -> None:
        engines = list_lower_engines(configuration.engine)
        tried = [
            replace(configuration, engine=e, id=make_id(e, configuration.requested_precision, configuration.measure))
            for e in engines
        ]
        # A level that was stored, perhaps by the run that this one continues, agreed then: it is tried first.
        for lower in sorted(tried, key=lambda one: not self._results.folder.configuration_path(one.id).exists()):
            if lower.id not in self._results.current:
                self._try_level(lower, configurations)
            kept = self._results.current.get(lower.id)
            if kept is not None and has_outputs(kept) and kept.drift is not None and kept.drift.passed:
                warning = make_warning("outputs_differ.optimizer", kept=format_engine(lower.engine))
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
