"""Measure the configurations of a run: build and check each once, then run trials A B C, C B A, and so on.

Each trial is a fresh process. A configuration's file is rewritten after each of its trials, so that nothing measured is
lost, however the run ends.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from enginebench.core.limits import LEVELS
from enginebench.core.records import Machine, Result, Task
from enginebench.runs.alternatives import Alternatives, Propose
from enginebench.runs.building import Begun, ConfigurationBuilder
from enginebench.runs.builds import builds_slowly, count_at_once, count_builds
from enginebench.runs.checking import CHECK_SAMPLES, OutputCheck
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.progress import PartTimes, Reporter
from enginebench.runs.references import References
from enginebench.runs.results import (
    BEFORE_EXPORT,
    ENDLESS,
    FIRST_LOOK,
    ResultStore,
    is_first_look,
    list_trials,
    note_kept,
)
from enginebench.runs.scoring import Scoring
from enginebench.runs.trials import ScheduledTrial, TrialRunner, order_trials
from enginebench.stats.ranking import USUAL, Rules, rank_results


class Campaign:
    """All configurations of a run in progress: built, checked, then measured."""

    def __init__(
        self,
        folder: RunFolder,
        configurations: Sequence[PlannedConfiguration],
        machine: Machine,
        *,
        timeout_s: float | Callable[[], float],
        reporter: Reporter,
        scoring: Scoring | None = None,
        task: Task | None = None,
        rules: Rules = USUAL,
        checks_graph: bool = True,
        samples: int = CHECK_SAMPLES,
        propose: Propose | None = None,
    ) -> None:
        """Take the configurations of a run; nothing is done yet.

        Args:
            checks_graph: compare outputs with those of the unchanged graph, not of the first configuration.
            samples: number of samples over which outputs are compared.
            propose: returns one more configuration to measure beside one that was built and checked, or None.
        """
        limit_s = timeout_s if callable(timeout_s) else lambda: timeout_s
        self._reporter, self._rules = reporter, rules
        self._checks_graph, self._propose, self._parts = checks_graph, propose, PartTimes()
        self._at_once = at_once = count_at_once(machine)
        self._results = results = ResultStore(folder, configurations, machine)
        self._builder = builder = ConfigurationBuilder(
            results, timeout_s=limit_s, reporter=reporter, scoring=scoring, samples=samples, at_once=at_once
        )
        references = References(results, builder, timeout_s=limit_s, reporter=reporter, checks_graph=checks_graph)
        self._check = OutputCheck(
            results, builder, references, reporter=reporter, rules=rules, scoring=scoring, task=task, samples=samples
        )
        self._alternatives = Alternatives(results, builder, references, self._check, reporter=reporter)
        self._trials = TrialRunner(results, timeout_s=limit_s, reporter=reporter, rules=rules, at_once=at_once)

    @property
    def results(self) -> dict[str, Result]:
        """The current result of each configuration that was begun, in the order of the plan."""
        return self._results.current

    def add(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Add configurations after those that it has."""
        self._results.add(configurations)

    def adopt(self, configuration: PlannedConfiguration, prepared: Result) -> None:
        """Add a configuration that was built and checked under another id, to measure it again."""
        self._results.adopt(configuration, prepared)

    def finish(self, ids: Mapping[str, str]) -> None:
        """End configurations as measured often enough.

        Args:
            ids: the id under which a configuration was built and compared -> its id here.
        """
        self._results.finish(ids)

    def restore(self, *, with_failed: bool = False) -> None:
        """Restore the configurations that an earlier, interrupted run stored."""
        self._results.restore(with_failed=with_failed)

    def run(self, parts: PartTimes | None = None) -> list[Result]:
        """Prepare, check and measure every configuration until no verdict can change; one that fails has a reason.

        Args:
            parts: gets the seconds that building and timing take.
        """
        self._parts = parts or self._parts
        try:
            return self._run()
        except KeyboardInterrupt as error:
            note_kept(error, self._results.current.values(), self._results.folder.root)
            raise

    def _run(self) -> list[Result]:
        wanted = [
            configuration for configuration in self._results.configurations.values() if configuration.skip is None
        ]
        early = self._list_early(wanted)
        # Those of the first look count once more when the others are built.
        steps = sum(count_builds(configuration) + configuration.measure.processes for configuration in wanted)
        self._reporter.begin(steps + 2 * len(early))
        if early:
            self._parts.begin("builds")
            self._builder.prepare(early)
            self._look_first(early)
        self.check()
        self._reopen_leaders()
        if self._checks_graph:
            self._alternatives.add_lower_levels()
        if self._propose is not None:
            self._alternatives.add_proposed(self._propose)
        self._parts.begin("trials")
        trials = order_trials(list(self._results.configurations.values()))
        for start, end in pairwise((0, *LEVELS, ENDLESS)):
            self._trials.run([trial for trial in trials if start <= trial.number < end])
            self._trials.end_settled(end)
        return list(self._results.current.values())

    def _list_early(self, configurations: Sequence[PlannedConfiguration]) -> list[PlannedConfiguration]:
        """Return the configurations to measure once before the slow builds of the others; [] if that gains nothing.

        What was begun during the export is among them, however long it builds: nothing is timed beside a build, so
        that it is done by then. A continued run has its first table already, and a single configuration has nothing to
        be compared with.
        """
        being_built = self._builder.list_begun()
        early = [c for c in configurations if not builds_slowly(c.engine) or c in being_built]
        begun = any(map(list_trials, self._results.current.values()))
        several = any(count_builds(configuration) > 1 for configuration in configurations)
        if begun or several or not 1 < len(early) < len(configurations):
            return []
        return early

    def _look_first(self, configurations: Sequence[PlannedConfiguration]) -> None:
        """Check and measure these configurations once: a user who interrupts the slow builds has a table.

        One that was timed before the export has a figure already, and comes last.
        """
        self._check.compare()
        self._parts.begin("trials")
        current = self._results.current
        ready = [configuration for configuration in configurations if current[configuration.id].status == "partial"]
        timed = [configuration for configuration in ready if current[configuration.id].measurements]
        first = [configuration for configuration in ready if configuration not in timed]
        trials = [
            ScheduledTrial(configuration, FIRST_LOOK, i - len(ready))
            for i, configuration in enumerate((*first, *timed))
        ]
        self._trials.run(trials[: len(first)])
        self._trials.run(trials[len(first) :])

    def _reopen_leaders(self) -> None:
        """Measure the leaders of the first look once more, beside the configurations that were built after them.

        These are the leader, the baseline, and the fastest of those that tie with the leader: with one trial each, only
        twofold differences are significant.

        Only if a configuration has a single trial: with several, all are measured anew, and the first look is dropped.
        """
        late = [r for r in self._results.current.values() if r.status == "partial" and not list_trials(r)]
        looked = [r for r in self._results.current.values() if r.status == "ok" and is_first_look(r)]
        if not late or not looked:
            return
        headlines = rank_results(looked, self._rules).headlines
        named = {name for one in headlines for name in (one.id, one.baseline, *one.tied_with[:1])}
        for result in looked:
            if result.id in named:
                self._results.save(replace(result, status="partial"))

    def check(self) -> None:
        """Build every configuration that was not built before, compare its outputs with the reference, score them."""
        self._parts.begin("builds")
        self._builder.prepare(list(self._results.configurations.values()))
        refused = self._builder.refused
        if refused is not None and all(result.status == "skipped" for result in self._results.current.values()):
            raise refused
        self._builder.build_again()
        self._check.compare()
        self._check.score()

    def measure_unchecked(self, configuration: PlannedConfiguration) -> None:
        """Measure a configuration once before its outputs are computed, ahead of the export."""
        self._results.add([configuration])
        self._results.save(self._results.begin(configuration, status="partial"))
        early = ScheduledTrial(configuration, BEFORE_EXPORT, BEFORE_EXPORT)
        self._results.save(self._trials.measure(early, self._results.current[configuration.id], None))
        self._reporter.show(list(self._results.current.values()))

    def begin(self, configuration: PlannedConfiguration) -> Begun | None:
        """Start to build and check a configuration, and return at once; None if that has to wait for its turn."""
        return self._builder.begin(configuration)

    def take_over(self, begun: Mapping[str, Begun]) -> None:
        """Take configurations, by their id, that another campaign began to build and check."""
        self._builder.take_over(begun)

    def measure(self, ids: Sequence[str], trial: int) -> None:
        """Measure one trial of each of these configurations, in this order, unless it has been measured already."""
        configurations = [
            self._results.configurations[configuration_id]
            for configuration_id in ids
            if not self._trials.is_measured(configuration_id, trial)
        ]
        self._trials.run_group(
            [ScheduledTrial(configuration, trial, order) for order, configuration in enumerate(configurations)]
        )
