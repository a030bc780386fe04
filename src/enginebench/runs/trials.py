"""Run the trials of configurations, interleaved: A B C, C B A, and so on, each in a fresh process and timed alone."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from statistics import fmean
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError, MeasurementError, TimedOut
from enginebench.core.records import Artifact, LeastWork, Result, Status, TrafficCell
from enginebench.core.shapes import concrete_shape, list_cells, size_artifact
from enginebench.engines.registry import is_simulated
from enginebench.report.numbers import format_alone, format_significant
from enginebench.runs.building import describe_preload, make_build_folder, proves_when_timed
from enginebench.runs.builds import can_wait
from enginebench.runs.child.environments import find_environment
from enginebench.runs.child.isolate import Child, child_environment, run_child
from enginebench.runs.child.jobs import LeastWorkJob, MeasureJob, Neighbour
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import Reporter
from enginebench.runs.results import (
    BEFORE_EXPORT,
    ENDLESS,
    FIRST_LOOK,
    ResultStore,
    apply_proof,
    has_outputs,
    label,
    list_trials,
    report_failure,
)
from enginebench.stats.assessment import find_setting
from enginebench.stats.compare import list_open
from enginebench.stats.least_time import warn_implausible
from enginebench.stats.quantiles import median
from enginebench.stats.ranking import Rules, list_relevant_pairs

T = TypeVar("T")


class ScheduledTrial(Struct, frozen=True):
    """One trial of one configuration, and its position in the run."""

    configuration: PlannedConfiguration
    number: int
    order: int

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(self.configuration.engine.threads, max(self.number, 0))


class TrialRunner:
    """Runs trials, and ends the configurations whose verdicts cannot change any more."""

    def __init__(
        self, results: ResultStore, *, timeout_s: Callable[[], float], reporter: Reporter, rules: Rules, at_once: int
    ) -> None:
        """Take what is measured; nothing is done yet.

        Args:
            at_once: number of children that may have imported their engine at a time.
        """
        self._results = results
        self._timeout_s, self._reporter, self._rules = timeout_s, reporter, rules
        self._children_at_once = at_once
        # An import beside others takes longer than alone.
        self._times_starts = rules.for_calls is not None or "first-output" in rules.needs
        self._medians: dict[str, list[float]] = {}  # of the trials in this process, in ns
        self._timed_s: list[float] = []  # seconds that each trial in this process took, with its start
        self._works: dict[tuple[str, str], LeastWork | None] = {}  # of a graph and cells; None: unknown

    def is_measured(self, configuration_id: str, trial: int) -> bool:
        return any(m.trial == trial for m in self._results.current[configuration_id].measurements)

    def run(self, trials: Sequence[ScheduledTrial]) -> None:
        """Run the trials in groups, whose children import before their trials begin."""
        group: list[ScheduledTrial] = []
        for trial in trials:
            result = self._results.current[trial.configuration.id]
            if self.is_measured(trial.configuration.id, trial.number) or result.look is not None:
                self._advance(trial.configuration)
            elif result.status == "partial":
                group.append(trial)
            if len(group) >= self._children_at_once:
                self.run_group(group)
                group = []
        self.run_group(group)

    def end_settled(self, trials: int) -> None:
        """End the configurations whose comparisons with others of their setting cannot change after so many trials."""
        groups: dict[tuple[object, ...], list[Result]] = {}
        for result in self._results.current.values():
            if result.measure.settle is not None and result.status in ("ok", "partial"):
                groups.setdefault((result.measure.settle, *find_setting(result)), []).append(result)
        for configurations in groups.values():
            if len(configurations) < 2:
                continue
            requested = (*self._rules.requested, *self._results.list_precisions())
            rules = replace(self._rules, requested=requested)
            still = list_open(
                configurations,
                trials,
                configurations[0].measure.settle or 0.0,
                list_relevant_pairs(configurations, trials, rules),
            )
            for result in configurations:
                if result.look is None and len(result.measurements) == trials and result.id not in still:
                    self._results.save(replace(result, status="ok", look=trials))

    def run_group(self, trials: Sequence[ScheduledTrial]) -> None:
        """Run trials one after another, once every child that was started ahead has imported: each is timed alone."""
        start = time.monotonic()
        with ExitStack() as stack:
            ahead: dict[int, Child] = {}
            for trial in trials:
                if len(trials) > 1 and can_wait(trial.configuration.engine) and not self._times_starts:
                    ahead[trial.order] = stack.enter_context(Child(trial.environment))
                    job = describe_preload(
                        self._results.folder,
                        trial.configuration,
                        self._results.current[trial.configuration.id].artifacts[-1],
                    )
                    ahead[trial.order].ask_to_preload(replace(job, pin=True))
            deadline = time.monotonic() + self._timeout_s()
            for child in ahead.values():
                child.wait_until_ready(deadline)
            for trial in trials:
                result = self._results.current[trial.configuration.id]
                if result.status == "partial":  # it may have failed in an earlier trial
                    self._results.save(self.measure(trial, result, ahead.get(trial.order)))
                    self._advance(trial.configuration)
                    self._reporter.show(list(self._results.current.values()))
        if trials:
            self._timed_s += [(time.monotonic() - start) / len(trials)] * len(trials)

    def _advance(self, configuration: PlannedConfiguration) -> None:
        if configuration.id not in self._results.added:
            self._reporter.advance()

    def measure(self, scheduled: ScheduledTrial, result: Result, waiting: Child | None) -> Result:
        configuration, trial = scheduled.configuration, scheduled.number
        self._reporter.step(" · ".join([label(configuration), *self._format_progress(configuration, trial)]))
        build = trial % len(result.builds) if result.builds else None
        if why := self._explain_no_neighbour(configuration):
            return report_failure(result, f"in {format_trial(trial)}", MeasurementError(why), self._reporter)
        job = MeasureJob(
            model=configuration.inputs_model,
            artifact=result.artifacts[-1] if build is None else result.builds[build].artifact,
            engine=configuration.engine,
            measure=configuration.measure,
            out_dir=make_build_folder(self._results.folder, configuration, build or 0),
            trial=trial,
            order=scheduled.order,
            last_level_cache_bytes=self._results.machine.last_level_cache_bytes,
            prove=proves_when_timed(configuration) and lacks_proof(result),
            inputs=self._results.inputs,
            recheck_path=self._find_recheck(result),
            beside=self._describe_neighbour(configuration),
        )
        # A child that ended before it got a job is no failure of the configuration: another one is started.
        usable = waiting if waiting and waiting.alive else None
        job = replace(job, imported_ahead=usable is not None)
        try:
            with usable or Child(scheduled.environment, find_environment(configuration.engine)) as child:
                response = child.perform(job, timeout_s=self._timeout_s())
        except EngineBenchError as error:
            if isinstance(error, TimedOut) and self._timeout_s() < 1:
                return result  # the time of the whole run was over: no failure of the configuration
            return report_failure(result, f"in {format_trial(trial)}", error, self._reporter)
        self._medians.setdefault(configuration.id, []).append(median(response.measurement.latency_ns))
        # The first look is dropped unless it is the only trial: configurations built later have none beside it.
        counted = [m for m in list_trials(result) if m.trial != FIRST_LOOK or configuration.measure.processes == 1]
        measurements = (*counted, replace(response.measurement, build=build))
        finished = trial != BEFORE_EXPORT and len(measurements) >= configuration.measure.processes
        machine, gpu = result.machine, response.measurement.gpu
        status: Status = "ok" if finished else "partial"
        measured = replace(
            result,
            measurements=measurements,
            machine=replace(machine, gpus=(gpu,)) if machine and gpu and not machine.gpus else machine,
            status=status,
            shapes=response.shapes
            or {spec.name: concrete_shape(spec, configuration.engine.batch) for spec in result.artifacts[-1].inputs},
        )
        measured = apply_proof(measured, response.proof) if response.proof else measured
        return warn_implausible(replace(measured, work=measured.work or self._count_work(measured)))

    def _explain_no_neighbour(self, configuration: PlannedConfiguration) -> str | None:
        """Return why there is nothing to be timed beside: the other configuration does not run; None if it does."""
        other = self._results.current[configuration.beside[0]] if configuration.beside else None
        if other is None or has_outputs(other):
            return None
        return f"{label(self._results.configurations[other.id])}, the other one, is not run: {other.reason}"

    def _describe_neighbour(self, configuration: PlannedConfiguration) -> Neighbour | None:
        if configuration.beside is None:
            return None
        other, placing = configuration.beside
        planned, result = self._results.configurations[other], self._results.current[other]
        return Neighbour(
            model=planned.inputs_model,
            artifact=result.artifacts[-1],
            engine=planned.engine,
            out_dir=make_build_folder(self._results.folder, planned),
            seed=planned.measure.seed,
            placing=placing,
            inputs=self._results.inputs,
        )

    def _find_recheck(self, result: Result) -> str:
        """Return the file of the outputs that a trial must reproduce; "" if they differ from call to call anyway."""
        path = self._results.folder.recheck_path(result.id)
        varies = any(c.code == "outputs_vary" and c.figures.get("row") == result.id for c in result.warnings)
        return str(path.absolute()) if path.exists() and not varies else ""

    def _count_work(self, result: Result) -> LeastWork | None:
        """Count the work of one call, or of the mean request of a mix, by a graph of the same model; None if that of
        any cell is unknown.

        A simulated engine, which only waits, does no work.
        """
        configuration = self._results.configurations[result.id]
        chains = [
            configuration.chain,
            *(r.chain for r in self._results.configurations.values() if r.inputs_model == configuration.inputs_model),
        ]
        graph = next((a for chain in chains for a in chain if a.kind == "onnx"), None)
        if graph is None or is_simulated(result.engine.backend):
            return None
        cells = _list_sized_cells(result, graph)
        key = graph.path, repr(cells)
        if key not in self._works:
            try:
                self._works[key] = run_child(LeastWorkJob(path=graph.path, cells=cells), timeout_s=self._timeout_s())
            except EngineBenchError as error:
                self._works[key] = None
                self._reporter.say(f"the least time of {result.model} is not known: {error}")
        return self._works[key]

    def _format_progress(self, configuration: PlannedConfiguration, trial: int) -> Iterator[str]:
        """Yield `trial 4 of 10`, `2.29 ms (7.2x)`, `at most 40 s left`.

        The time is that of the trials so far, the ratio to the first configuration of the setting.
        """
        of = f" of {configuration.measure.processes}" if configuration.measure.processes < ENDLESS else ""
        yield format_trial(trial) + (of if trial >= 0 else "")
        if own := self._medians.get(configuration.id):
            setting = find_setting(self._results.current[configuration.id])
            first = next(
                r.id for r in self._results.current.values() if r.id in self._medians and find_setting(r) == setting
            )
            ratio = median(self._medians[first]) / median(own)
            factor = "" if first == configuration.id else f" ({format_significant(ratio, 2)}x)"
            yield f"{format_alone(median(own) / 1e6)}{factor}"
        configurations = [
            self._results.configurations[r.id] for r in self._results.current.values() if r.status == "partial"
        ]
        left = sum(one.measure.processes - len(list_trials(self._results.current[one.id])) for one in configurations)
        if left and self._timed_s and configuration.measure.processes < ENDLESS:
            yield f"at most {format_significant(left * fmean(self._timed_s), 2)} s left"


def _list_sized_cells(result: Result, graph: Artifact) -> tuple[TrafficCell, ...]:
    """Return what a configuration serves, one cell or those of its mix, with the shapes of all inputs of the graph."""
    engine = result.engine
    if engine.traffic:
        sizes = [(c.batch, size_artifact(graph, c).inputs) for c in list_cells(engine)]
        shapes = [{spec.name: concrete_shape(spec, batch) for spec in inputs} for batch, inputs in sizes]
        return tuple(replace(cell, shapes=own) for cell, own in zip(engine.traffic, shapes, strict=True))
    own = dict(result.shapes)
    if own.keys() != {spec.name for spec in graph.inputs} and len(own) == len(graph.inputs):
        # A module's inputs have names of their own, in the order of the graph's.
        own = {spec.name: shape for spec, shape in zip(graph.inputs, own.values(), strict=True)}
    return (TrafficCell(weight=1.0, batch=engine.batch, shapes=own),)


def order_trials(configurations: Sequence[PlannedConfiguration]) -> list[ScheduledTrial]:
    """Return every trial of a run, in order: A B C, then C B A, and so on.

    The order depends on the plan alone, not on configurations that fail or are resumed.
    """
    rounds = max((configuration.measure.processes for configuration in configurations), default=0)
    builds = max((configuration.measure.builds for configuration in configurations), default=1)
    pairs: list[tuple[PlannedConfiguration, int]] = []
    for trial in range(rounds):
        taking_part = [configuration for configuration in configurations if trial < configuration.measure.processes]
        pairs += [(configuration, trial) for configuration in order_round(taking_part, trial, builds)]
    return [ScheduledTrial(configuration, trial, order) for order, (configuration, trial) in enumerate(pairs)]


def order_round(items: Sequence[T], number: int, builds: int = 1) -> Sequence[T]:
    """Return the items in the order of this round: every other round is backwards.

    So a machine that becomes slower and slower favours none: over two rounds each has the same mean position. If
    engines are built several times, trial i times build i modulo their number, and each build gets rounds in both
    directions, too.
    """
    backwards = (number % builds + number // builds) % 2 == 1
    return items[::-1] if backwards else items


def format_trial(trial: int) -> str:
    names = {FIRST_LOOK: "the first look", BEFORE_EXPORT: "the trial before the export"}
    return names.get(trial, f"trial {trial + 1}")


def lacks_proof(result: Result) -> bool:
    """Return whether the next trial must make the record: the first does, and the second if that failed."""
    failed = any(warning.code == "failed_proof" for warning in result.warnings)
    return not result.measurements or (failed and len(result.measurements) == 1)
