"""Measure the configurations of a run: build and check each once, then run trials A B C, C B A, and so on.

Each trial is a fresh process. A configuration's file is rewritten after each of its trials, so that nothing measured is
lost, however the run ends.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import advise_inputs
from enginebench.core.errors import (
    ArtifactError,
    DependencyError,
    EngineBenchError,
    GateFailed,
    MeasurementError,
    ParseError,
    TimedOut,
    UnsupportedOperator,
    UsageError,
    refuse_all,
)
from enginebench.core.limits import LEVELS
from enginebench.core.names import format_engine, format_precision
from enginebench.core.names import row_id as make_id
from enginebench.core.records import (
    Artifact,
    Drift,
    LeastWork,
    Machine,
    Measurement,
    Precision,
    Result,
    ResultWarning,
    Status,
    Task,
)
from enginebench.core.shapes import BATCH_AXIS, concrete_shape, find_open_outputs, find_size, format_shapes
from enginebench.core.store import write_atomic
from enginebench.core.text import count_of
from enginebench.core.warnings import make_warning
from enginebench.engines.refusals import shorten_words
from enginebench.engines.registry import is_simulated, takes
from enginebench.models.samples import find_samples, list_samples
from enginebench.models.task import find_own_data
from enginebench.report.numbers import format_significant
from enginebench.runs.builds import (
    builds_slowly,
    can_wait,
    count_at_once,
    count_builds,
    count_workers,
    cut_common,
    describe_build,
    split_runs,
    tunes,
)
from enginebench.runs.child.arrays import (
    count_values,
    holds_arrays,
    limit_calls,
    load_outputs,
    load_sets,
    reduce_outputs,
)
from enginebench.runs.child.isolate import PATIENCE, Child, Work, child_environment, run_child, wait_until_sure
from enginebench.runs.child.jobs import (
    LeastWorkJob,
    MeasureJob,
    PreloadJob,
    PrepareJob,
    PrepareResponse,
    Proof,
    ReferenceJob,
)
from enginebench.runs.child.places import OPTION, find_place, list_versions
from enginebench.runs.child.proving import make_record_warning
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.plan import PlannedRow, find_axes
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.references import (
    EVALUATOR_TIMEOUT_S,
    KINDS,
    REFERENCE_BUDGET_S,
    Key,
    Reference,
    describe_graph_engine,
    find_eager,
    find_key,
    find_own_graph,
    list_lower_engines,
    runs_own_graph,
)
from enginebench.runs.scoring import Scoring, score_file
from enginebench.runs.trust import NATIVE_CODE, allow_code, holds_refused
from enginebench.stats.alike import assess_outputs, compare_inputs, fill_lengths
from enginebench.stats.assessment import find_setting
from enginebench.stats.compare import list_open
from enginebench.stats.drift import limits_between, list_unlike, measure_drift, refuse_drift
from enginebench.stats.effective import check_precision
from enginebench.stats.further import add_further, measure_further
from enginebench.stats.least_time import warn_implausible
from enginebench.stats.quantiles import median
from enginebench.stats.ranking import USUAL, Rules, list_relevant_pairs, rank_results

# Codes of warnings about a configuration's outputs, which stay when the record of its precision is added.
ABOUT_OUTPUTS = ("no_score", "outputs_vary", "random_inputs", "outputs_differ", "outputs_not_compared")
# Outputs are compared over this many samples; enough to see a wrong engine, cheap enough for a slow one.
CHECK_SAMPLES = 32
# The same for `--quick`, which makes no claims: half as many, so that there is time for the outputs of the unchanged
# graph. With fewer than ten, a single decision near a tie would break the limit of 8 bits, nine in ten.
QUICK_SAMPLES = 16
# If two outputs for the same inputs differ by more than this fraction of the largest value, the model is not
# deterministic: a GPU's varying order of sums makes a hundred times less in FP16 (as for the exported graph).
VARIATION = 1e-2
# Number of trials of a configuration that is measured until its caller stops.
ENDLESS = 1_000_000
# The number of the trial before the first slow build begins, for a first table.
FIRST_LOOK = -1
# The number of the trial before the model is exported, so that an interrupted export leaves a figure. The
# next trial of the configuration replaces it.
BEFORE_EXPORT = -2

T = TypeVar("T")


class ScheduledTrial(Struct, frozen=True):
    """One trial of one configuration, and its position in the run."""

    row: PlannedRow
    number: int
    order: int

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(self.row.engine.threads, max(self.number, 0))


class Campaign:
    """All configurations of a run in progress. `results` has the current result of each, in the order of the plan."""

    def __init__(
        self,
        folder: RunFolder,
        rows: Sequence[PlannedRow],
        machine: Machine,
        *,
        timeout_s: float | Callable[[], float],
        reporter: Reporter,
        scoring: Scoring | None = None,
        task: Task | None = None,
        rules: Rules = USUAL,
        checks_graph: bool = True,
        samples: int = CHECK_SAMPLES,
        propose: Callable[[PlannedRow, Result], PlannedRow | None] | None = None,
    ) -> None:
        """Take the configurations of a run; nothing is done yet.

        Args:
            checks_graph: compare outputs with those of the unchanged graph, not of the first configuration.
            samples: number of samples over which outputs are compared.
            propose: returns one more configuration to measure beside one that was built and checked, or None.
        """
        self._folder, self._rules = folder, rules
        self._scoring = scoring
        self._task = task
        self._rows = {row.id: row for row in rows}
        self._machine = machine
        self._timeout_s = timeout_s if callable(timeout_s) else lambda: timeout_s
        self._reporter = reporter
        self._children_at_once, self._workers = count_at_once(machine), count_workers(machine)
        self._inputs = find_samples(folder.artifacts)
        self._checks_graph, self._samples, self._propose = checks_graph, samples, propose
        self._references: dict[Key, Reference] = {}  # with which the configurations of a key are compared
        self._graphs: dict[Key, Reference | str] = {}  # outputs of unchanged graphs; or why there are none
        self._added: set[str] = set()  # configurations that were not requested; they do not count as progress
        self._medians: dict[str, list[float]] = {}  # of the trials in this process, in ns
        self._timed_s: list[float] = []  # seconds that each trial in this process took, with its start
        self._works: dict[tuple[str, int, str], LeastWork | None] = {}  # of a graph, batch and shapes; None: unknown
        self._refused: UsageError | None = None
        self._prepared: set[str] = set()  # in this process, not by the run that it continues
        self.results: dict[str, Result] = {}

    def add(self, rows: Sequence[PlannedRow]) -> None:
        """Add configurations after those that it has."""
        self._rows.update((row.id, row) for row in rows)

    def adopt(self, row: PlannedRow, prepared: Result) -> None:
        """Add a configuration that was built and checked under another id, to measure it again."""
        self.add([row])
        folder = self._folder
        for find in (folder.outputs_path, folder.labelled_path, folder.recheck_path, folder.further_path):
            if (kept := find(prepared.id)).exists():
                write_atomic(find(row.id), kept.read_bytes())
        self._save(replace(prepared, id=row.id, measure=row.measure, measurements=(), status="partial", reason=None))

    def finish(self, ids: Mapping[str, str]) -> None:
        """End configurations as measured often enough.

        Args:
            ids: the id under which a configuration was built and compared -> its id here.
        """
        for result in (self.results[row_id] for row_id in ids.values()):
            if result.status == "partial" and result.measurements:
                measure, drift = replace(result.measure, processes=len(result.measurements)), result.drift
                if drift is not None:
                    here = ids.get(drift.reference)
                    drift = replace(drift, reference=here or drift.reference, elsewhere=here is None)
                self._save(replace(result, status="ok", measure=measure, drift=drift))

    def restore(self, *, with_failed: bool = False) -> None:
        """Restore the configurations that an earlier, interrupted run stored."""
        for row_id, row in self._rows.items():
            if row_id in self.results:
                continue
            stored = self._folder.read_result(row_id)
            if stored is not None and Path(stored.model).name != Path(row.model).name:
                path, advice = self._folder.row_path(row_id), "Delete it to measure this configuration again"
                raise ParseError(path, "$.model", repr(stored.model), repr(row.model), advice)
            if stored is not None and with_failed and stored.status in ("failed", "skipped"):
                self.results[row_id] = stored
                continue
            if stored is None or not has_outputs(stored):
                continue  # it begins anew
            timed = tuple(one for one in stored.measurements if one.latency_ns)
            if timed != stored.measurements:  # a trial without samples is measured again
                stored = replace(stored, measurements=timed, look=None)
            finished = stored.look is not None or len(list_trials(stored)) >= row.measure.processes
            compiled = any(map(holds_refused, (*stored.artifacts, *(build.artifact for build in stored.builds))))
            if compiled and not finished:
                continue  # native code that this program did not compile: it begins anew
            try:
                if not compiled:  # else it is not loaded again
                    stored = self._folder.change_paths(stored, self._folder.open)
            except ArtifactError:
                if stored.measurements:
                    raise
                continue  # nothing was measured on it: it is built anew
            # The precision that ran is kept; the other settings of the engine come from the plan.
            ran = replace(row.engine, precision=stored.engine.precision, recipe=stored.engine.recipe)
            status: Status = "ok" if finished else "partial"
            self.results[row_id] = replace(stored, engine=ran, status=status, reason=None, stderr_tail=None)

    def run(self) -> list[Result]:
        """Prepare, check and measure every configuration until no verdict can change; one that fails has a reason."""
        try:
            return self._run()
        except KeyboardInterrupt as error:
            note_kept(error, self.results.values(), self._folder.root)
            raise

    def _run(self) -> list[Result]:
        wanted = [row for row in self._rows.values() if row.skip is None]
        early = self._list_early(wanted)
        # Those of the first look count once more when the others are built.
        steps = sum(count_builds(row) + row.measure.processes for row in wanted) + 2 * len(early)
        self._reporter.begin(steps)
        if early:
            self._look_first(early)
        self.check()
        self._reopen_leaders()
        self._add_lower_levels()
        self._add_proposed()
        trials = order_trials(list(self._rows.values()))
        for start, end in pairwise((0, *LEVELS, ENDLESS)):
            self._measure_trials([trial for trial in trials if start <= trial.number < end])
            self._end_settled(end)
        return list(self.results.values())

    def _list_early(self, rows: Sequence[PlannedRow]) -> list[PlannedRow]:
        """Return the configurations to measure once before the slow builds of the others; [] if that gains nothing.

        A continued run has its first table already, and a single configuration has nothing to be compared with.
        """
        early = [row for row in rows if not builds_slowly(row.engine)]
        begun = any(map(list_trials, self.results.values()))
        several = any(count_builds(row) > 1 for row in rows)
        if begun or several or not 1 < len(early) < len(rows):
            return []
        return early

    def _look_first(self, rows: Sequence[PlannedRow]) -> None:
        """Build, check and measure these configurations once: a user who interrupts the slow builds has a table."""
        self._prepare(rows)
        self._compare_outputs()
        ready = [row for row in rows if self.results[row.id].status == "partial"]
        for start in range(0, len(ready), self._children_at_once):
            group = ready[start : start + self._children_at_once]
            trials = [ScheduledTrial(row, FIRST_LOOK, order - len(ready)) for order, row in enumerate(group, start)]
            self._run_trials(trials)

    def _reopen_leaders(self) -> None:
        """Measure the leaders of the first look once more, beside the configurations that were built after them.

        These are the leader, the baseline, and the fastest of those that tie with the leader: with one trial each, only
        twofold differences are significant.

        Only if a configuration has a single trial: with several, all are measured anew, and the first look is dropped.
        """
        late = [r for r in self.results.values() if r.status == "partial" and not list_trials(r)]
        looked = [r for r in self.results.values() if r.status == "ok" and is_first_look(r)]
        if not late or not looked:
            return
        headlines = rank_results(looked, self._rules).headlines
        named = {name for one in headlines for name in (one.id, one.baseline, *one.tied_with[:1])}
        for result in looked:
            if result.id in named:
                self._save(replace(result, status="partial"))

    def check(self) -> None:
        """Build every configuration that was not built before, compare its outputs with the reference, score them."""
        self._prepare_all()
        if self._refused is not None and all(result.status == "skipped" for result in self.results.values()):
            raise self._refused
        waiting: list[PlannedRow] = []
        for row in self._rows.values():
            result = self.results.get(row.id)
            if result is not None and result.status == "partial":
                waiting += [row] * (count_builds(row) - max(1, len(result.builds)))
        for group in self._group(waiting):
            for run in split_runs(group, self._machine):
                self._build_together(run)
        self._compare_outputs()
        self._score_outputs()

    def measure_unchecked(self, row: PlannedRow) -> None:
        """Measure a configuration once before its outputs are computed, ahead of the export."""
        self.add([row])
        self._save(self._begin(row, status="partial"))
        self._save(self._measure_trial(ScheduledTrial(row, BEFORE_EXPORT, BEFORE_EXPORT), self.results[row.id], None))
        self._reporter.show(list(self.results.values()))

    def measure(self, ids: Sequence[str], trial: int) -> None:
        """Measure one trial of each of these configurations, in this order, unless it has been measured already."""
        rows = [self._rows[row_id] for row_id in ids if not self._is_measured(row_id, trial)]
        self._run_trials([ScheduledTrial(row, trial, order) for order, row in enumerate(rows)])

    def _is_measured(self, row_id: str, trial: int) -> bool:
        return any(m.trial == trial for m in self.results[row_id].measurements)

    def _prepare_all(self) -> None:
        self._prepare(list(self._rows.values()))

    def _prepare(self, rows: Sequence[PlannedRow]) -> None:
        """Build and check these configurations, each in a child; those that were prepared before are passed over."""
        waiting = []
        for row in rows:
            result = self.results.get(row.id)
            if row.skip is not None:
                self._save(self._skip(row, row.skip))
            elif result is None or (result.status not in ("failed", "skipped") and self._lacks_outputs(result)):
                waiting.append(row)
            else:
                self._reporter.advance()
        for group in self._group(waiting):
            if len(group) == 1:
                self._prepare_alone(group[0])
            else:
                self._prepare_group(group)

    def _group(self, rows: Sequence[PlannedRow]) -> list[list[PlannedRow]]:
        """Group the configurations whose children may import at the same time.

        Those of another environment, which may fail to import, are alone and last.
        """
        here = [row for row in rows if can_wait(row.engine)]
        groups = [here[start : start + self._children_at_once] for start in range(0, len(here), self._children_at_once)]
        return groups + [[row] for row in rows if not can_wait(row.engine)]

    def _prepare_group(self, rows: Sequence[PlannedRow]) -> None:
        """Import all engines side by side; then build and check, as many at a time as the machine allows."""
        children: dict[str, Child] = {}
        with ExitStack() as stack:
            for row in rows:
                assert row.source is not None
                child = stack.enter_context(Child(PATIENCE | child_environment(row.engine.threads)))
                child.ask_to_preload(self._describe_preload(row, row.source))
                children[row.id] = child
            deadline = time.monotonic() + self._timeout_s()
            for child in children.values():
                child.wait_until_ready(deadline)
            for run in split_runs(rows, self._machine):
                self._prepare_together(run, children)

    def _prepare_together(self, rows: Sequence[PlannedRow], children: Mapping[str, Child]) -> None:
        """Build and check configurations at the same time, and make their records one after another.

        Notes of the first child are shown at once, so that a build of minutes is not silent; those of the others in
        their order, so that the log is always the same. A configuration that fails beside others, perhaps for want of
        memory, is tried again alone, but not one that timed out.
        """
        first, *others = rows
        notes: dict[str, list[str]] = {row.id: [] for row in others}
        if others:
            self._reporter.step(f"building and checking {len(rows)} configurations side by side")
        works: list[Work[PrepareResponse]] = []
        for row in rows:
            wait_until_sure(works, left=self._workers - 1)
            if row is first:
                self._reporter.step(f"{label(row)}: build and check")
            on_note = report_steps(self._reporter, label(row)) if row is first else notes[row.id].append
            works.append(
                children[row.id].start(self._describe_prepare(row), timeout_s=self._timeout_s(), on_note=on_note)
            )
        wait_until_sure(works)
        for row, work in zip(rows, works, strict=True):
            if row is not first:
                self._reporter.step(f"{label(row)}: build and check")  # as it would have been shown alone
            outcome = attempt(work.finish)
            for text in notes.get(row.id, ()):
                self._reporter.step(f"{label(row)}: {text}")
            final = isinstance(outcome, UsageError | DependencyError | TimedOut)
            if isinstance(outcome, EngineBenchError) and not final:
                self._prepare_alone(row)
            else:
                self._save_prepared(row, outcome, peers=min(len(rows), self._workers) - 1)

    def _prepare_alone(self, row: PlannedRow) -> None:
        self._save_prepared(row, attempt(lambda: self._run_prepare(row, self._describe_prepare(row))))

    def _build_together(self, rows: Sequence[PlannedRow]) -> None:
        """Make one more build of each configuration at the same time; those that fail are tried again alone."""
        rows = [row for row in rows if self.results[row.id].status == "partial"]
        peers = min(len(rows), self._workers) - 1
        builds = [len(self.results[row.id].builds) + rows[:index].count(row) for index, row in enumerate(rows)]
        again = []
        with ExitStack() as stack:
            works: list[Work[PrepareResponse]] = []
            for planned_build in zip(rows, builds, strict=True):
                wait_until_sure(works, left=self._workers - 1)
                works.append(stack.enter_context(self._start_build(*planned_build)))
            wait_until_sure(works)
            for row, build, work in zip(rows, builds, works, strict=True):
                self._reporter.step(f"{label(row)}: build {build + 1} of {count_builds(row)}")
                result, outputs = self.results[row.id], self._find_build_outputs(row, build)
                try:
                    build_record = describe_build(work.finish(), self._folder.outputs_path(row.id), outputs)
                except EngineBenchError as error:
                    if len(rows) > 1 and not isinstance(error, TimedOut):
                        again.append(row)
                        continue
                    when = f"while build {build + 1} of {count_builds(row)} was made"
                    self._save(self._describe_failure(result, when, error))
                else:
                    outputs.unlink(missing_ok=True)
                    most = max(peers, result.built_beside)
                    self._save(replace(result, builds=(*result.builds, build_record), built_beside=most))
                self._reporter.advance()
        for row in again:
            self._build_together([row])

    @contextmanager
    def _start_build(self, row: PlannedRow, build: int) -> Iterator[Work[PrepareResponse]]:
        folder, outputs = self._make_build_folder(row, build), self._find_build_outputs(row, build)
        shutil.rmtree(folder, ignore_errors=True)  # files that a killed run may have left
        Path(folder).mkdir(parents=True)
        job = replace(
            self._describe_prepare(row),
            out_dir=folder,
            outputs_path=str(outputs.absolute()),
            further_path="",
            prove=False,
            labelled=None,
        )
        with Child(PATIENCE | child_environment(row.engine.threads), find_place(row.engine)) as child:
            yield child.start(job, timeout_s=self._timeout_s())

    def _find_build_outputs(self, row: PlannedRow, build: int) -> Path:
        """Return the file of one more build's outputs, which is removed once they are compared."""
        return self._folder.outputs_path(f"{row.id}.build-{build + 1}")

    def _skip(self, row: PlannedRow, reason: str) -> Result:
        """Return the result of a configuration that cannot run here; trials that it has are kept."""
        result = self.results.get(row.id)
        if result is None or not list_trials(result):
            return self._begin(row, status="skipped", reason=reason)
        why = f"it cannot continue: {reason}"
        return result if result.status == "ok" else replace(result, status="failed", reason=why)

    def _lacks_outputs(self, result: Result) -> bool:
        """Return whether outputs of a restored configuration that are still needed are missing or incomplete."""
        outputs, labelled = self._folder.outputs_path(result.id), self._folder.labelled_path(result.id)
        begun = bool(list_trials(result))
        # A configuration that was measured without a drift is of a tool that returns no outputs.
        needed = [outputs] if result.drift or not begun else []
        if result.scores or (self._scoring and self._scoring.metrics and not begun):
            needed.append(labelled)
        if needed and result.status == "partial":  # its trials are still to come
            needed.append(self._folder.recheck_path(result.id))
        return not all(holds_arrays(path) for path in needed)

    def _describe_prepare(self, row: PlannedRow) -> PrepareJob:
        assert row.source is not None
        return PrepareJob(
            model=row.inputs_model,
            artifact=row.source,
            engine=row.engine,
            out_dir=self._make_build_folder(row),
            outputs_path=str(self._folder.outputs_path(row.id).absolute()),
            samples=self._samples,
            seed=row.measure.seed,
            prove=not proves_when_timed(row),
            labelled=self._scoring.labelled if self._scoring else None,
            labelled_path=str(self._folder.labelled_path(row.id).absolute()),
            inputs=self._inputs,
            graph=row.graph,
            further_path=str(self._folder.further_path(row.id).absolute()),
            examples=str(self._folder.artifacts.absolute()),
            recheck_path=str(self._folder.recheck_path(row.id).absolute()),
        )

    def _make_build_folder(self, row: PlannedRow, build: int = 0) -> str:
        """Make the folder for an engine's files; each environment and each build has its own."""
        artifacts, environment = self._folder.artifacts, row.engine.options.get(OPTION)
        folder = self._folder.build_path(row.id, build) if count_builds(row) > 1 else artifacts
        if environment:
            folder = artifacts / f"env-{environment}" / folder.relative_to(artifacts)
        folder.mkdir(parents=True, exist_ok=True)
        return str(folder.absolute())

    def _save_prepared(self, row: PlannedRow, outcome: PrepareResponse | EngineBenchError, peers: int = 0) -> None:
        """Save the configuration as it was built and checked, or the reason why that failed."""
        begun = self.results.get(row.id) or self._begin(row, status="partial")
        if isinstance(outcome, DependencyError | UsageError):
            self._save(self._skip(row, str(outcome)))
            self._refused = outcome if isinstance(outcome, UsageError) else self._refused
        elif isinstance(outcome, EngineBenchError):
            begun = replace(begun, measurements=tuple(list_trials(begun)))  # a time without outputs is no figure
            self._save(self._describe_failure(begun, "while it was built and checked", outcome))
        else:
            self._prepared.add(row.id)
            self._save(self._describe_prepared(row, begun, outcome, peers))
        self._reporter.advance()

    def _describe_prepared(self, row: PlannedRow, begun: Result, response: PrepareResponse, peers: int) -> Result:
        made = (response.lowered, response.artifact if response.artifact != row.source else None)
        if response.artifact.kind == "aoti":  # it was compiled here
            allow_code(f"{NATIVE_CODE} {response.artifact.sha256}")
        if begun.measurements and begun.artifacts[-1].sha256 != response.artifact.sha256:
            begun = self._begin(row, status="partial")  # those are times of another engine
        prepared = replace(
            begun,
            artifacts=(*row.chain, *filter(None, made)),
            engine_version=response.engine_version,
            build_s=response.build_s,
            built_beside=peers,
            size_bytes=response.size_bytes,
            drift=response.drift or begun.drift,
        )
        if count_builds(row) > 1 and not prepared.builds:
            outputs = self._folder.outputs_path(row.id)
            prepared = replace(prepared, builds=(describe_build(response, outputs, outputs),))
        if response.varies > VARIATION:
            prepared = add_warnings(prepared, make_warning("outputs_vary", row=row.id, share=response.varies))
        return apply_proof(prepared, response.proof) if response.proof else prepared

    def _begin(self, row: PlannedRow, **fields: object) -> Result:
        try:
            environment = find_place(row.engine)
        except EngineBenchError:  # the configuration is skipped for that reason
            environment = None
        machine = replace(self._machine, versions=list_versions(environment)) if environment else self._machine
        return Result(
            id=row.id,
            model=row.model,
            engine=row.engine,
            measure=row.measure,
            requested_precision=row.requested_precision,
            machine=machine,
            artifacts=row.chain,
            axes=find_axes(row.engine, row.source),
            **fields,  # type: ignore[arg-type]
        )

    def _describe_failure(self, result: Result, when: str, error: EngineBenchError) -> Result:
        reason = str(error) if isinstance(error, UnsupportedOperator) else f"{when}: {error}"
        advice = {c.advice: None for a in result.artifacts for c in a.warnings if c.template == "chosen_shapes.refused"}
        reason = "; ".join((reason, *advice))
        self._reporter.say(f"{label(result)} failed {when}: {error}")
        log = "\n".join(text for text in (error.stderr_tail.rstrip(), error.log) if text)
        return replace(result, status="failed", reason=reason, stderr_tail=log or None)

    def _compare_outputs(self) -> None:
        """Measure the drift of every configuration from the reference of its model, batch and shapes.

        If the reference is a configuration, all of its outputs are kept, since others may be built later; the others
        keep a few. A drift from the same reference that was measured before is kept: it does not depend on
        interruptions.
        """
        for rows in self._list_alike():
            comparable = [r for r in rows if has_outputs(self.results[r.id]) and holds_arrays(self._find_outputs(r))]
            new = [row for row in comparable if self._lacks_comparison(row, comparable)]
            if not new:
                continue
            reference = self._find_reference(rows, comparable)
            for row in comparable:
                self._save_if_new(self._with_drift(self.results[row.id], reference))
                if row.id != reference.result.id:
                    reduce_outputs(self._find_outputs(row))
            self._explain_export([row for row in new if row.id in self._prepared], reference)
        self._prepared.clear()

    def _lacks_comparison(self, row: PlannedRow, comparable: Sequence[PlannedRow]) -> bool:
        """Return whether its outputs are new, or were compared with a configuration that has no outputs any more."""
        drift = self.results[row.id].drift
        if drift is None or row.id in self._prepared:
            return True
        return not drift.elsewhere and row.graph is None and all(one.id != drift.reference for one in comparable)

    def _list_alike(self) -> list[list[PlannedRow]]:
        """Group the configurations that were built, or that cannot be, by the key of their inputs."""
        groups: dict[Key, list[PlannedRow]] = {}
        for row in self._rows.values():
            if row.id in self.results:
                groups.setdefault(find_key(row), []).append(row)
        return list(groups.values())

    def _find_outputs(self, row: PlannedRow) -> Path:
        return self._folder.outputs_path(row.id)

    def _find_reference(self, rows: Sequence[PlannedRow], comparable: Sequence[PlannedRow]) -> Reference:
        """Return the reference with which these configurations are compared; it never changes once it is chosen.

        The first configuration if the user named two sides to compare, or a plan and its graph. Else the first there
        is of: PyTorch eager, the unchanged graph, an engine in FP32, and the first configuration.
        """
        key = find_key(rows[0])
        if key in self._references:
            return self._references[key]
        named = any(row.inputs_of or row.graph for row in rows)
        eager = None if named else find_eager(comparable)
        reference = None
        if eager is None and not named:
            reference = self._compute_graph(comparable) if self._checks_graph else None
            reference = reference or self._compute_in_fp32(rows)
        if reference is None:
            row = eager or comparable[0]
            reference = Reference(result=self.results[row.id], outputs=load_outputs(self._find_outputs(row))[0])
        self._references[key] = reference
        return reference

    def _compute_graph(self, rows: Sequence[PlannedRow]) -> Reference | None:
        """Return the outputs of the configurations' unchanged graph, never timed; None if nothing computes them."""
        key, own_graph = find_key(rows[0]), find_own_graph(rows)
        if own_graph is None:
            return None
        if key not in self._graphs:
            self._graphs[key] = self._run_graph(*own_graph)
        graph = self._graphs[key]
        return None if isinstance(graph, str) else graph

    def _run_graph(self, row: PlannedRow, graph: Artifact) -> Reference | str:
        """Compute the outputs of an unchanged graph; or return why each evaluator that could have done so did not."""
        engine, reasons = describe_graph_engine(row, graph), list[str]()
        reference = replace(row, id=f"{make_id(engine, graph.precision, row.measure)}-reference", engine=engine)
        reference = replace(reference, requested_precision=graph.precision, source=graph, chain=(graph,))
        for kind, name in KINDS.items():
            job = ReferenceJob(check=self._describe_prepare(reference), kind=kind, budget_s=REFERENCE_BUDGET_S)
            longest_s = EVALUATOR_TIMEOUT_S if kind == "onnx_evaluator" else self._timeout_s()
            self._reporter.step(f"{name}: outputs of the graph")
            try:
                response = run_child(
                    job, timeout_s=min(longest_s, self._timeout_s()), environment=child_environment(engine.threads)
                )
            except EngineBenchError as error:
                reasons.append(f"{name}: {shorten_words(str(error)) or error}")
                continue
            result = self._begin(reference, status="partial")
            if response.varies > VARIATION:
                result = add_warnings(result, make_warning("outputs_vary", row=reference.id, share=response.varies))
            outputs = load_outputs(self._find_outputs(reference))[0]
            return Reference(result=result, outputs=outputs, kind=kind, apart=True)
        return "; ".join(reasons)

    def _compute_in_fp32(self, rows: Sequence[PlannedRow]) -> Reference | None:
        """Compute FP32 outputs, never timed, for configurations in a shorter precision, if none in FP32 has outputs.

        An engine whose build takes minutes is used only if there is no other. None if nothing has an FP32 form.
        """
        fp32_rows = [row for row in rows if row.requested_precision in (None, "fp32")]
        if any(has_outputs(self.results[row.id]) for row in fp32_rows) or not any(r.id in self._prepared for r in rows):
            return None
        for row in sorted(rows, key=lambda row: tunes(row.engine)):
            reference = None if row in fp32_rows or row.skip is not None else make_fp32(row)
            if reference is None:
                continue
            try:
                job = replace(self._describe_prepare(reference), prove=False, labelled=None)
                response = self._run_prepare(reference, job)
            except EngineBenchError as error:
                self._reporter.say(f"{label(row)} was not compared with FP32: {error}")
                continue
            result = self._describe_prepared(reference, self._begin(reference, status="partial"), response, 0)
            return Reference(result=result, outputs=load_outputs(self._find_outputs(reference))[0], apart=True)
        return None

    def _explain_export(self, rows: Sequence[PlannedRow], reference: Reference) -> None:
        """Add to engines whose outputs deviate from PyTorch's whether the engine or the export changed them."""
        base = reference.result
        exported = [
            row
            for row in rows
            if row.source is not None and row.source.kind == "onnx" and row.source.precision == base.requested_precision
        ]
        changed = [row for row in exported if has_changed(self.results[row.id])]
        if base.engine.backend != "pytorch" or not changed:
            return
        graph = self._compute_graph(changed)
        if graph is None:
            return
        export_agrees = self._agrees(graph.result, graph.outputs, reference)
        for row in changed:
            figures = {"engine": label(row), "tool": KINDS[graph.kind]}
            warning = make_warning("outputs_differ.engine" if export_agrees else "outputs_differ.export", **figures)
            self._save(add_warnings(self.results[row.id], warning))

    def _agrees(self, result: Result, outputs: Mapping[str, Any], reference: Reference) -> bool:
        """Return whether outputs are within the limits of the reference."""
        try:
            return self._measure_drift(result, outputs, None, reference).passed
        except ArtifactError:
            return False

    def _add_lower_levels(self) -> None:
        """Add, for ONNX Runtime if its optimizer changes the outputs, the highest level that does not."""
        if not self._checks_graph:
            return
        for rows in self._list_alike():
            for row in rows:
                result = self.results[row.id]
                own = runs_own_graph(row) and row.inputs_of is None and has_outputs(result)
                if own and has_changed(result) and self._blames_optimizer(result):
                    self._add_lower_level(row, rows)

    def _blames_optimizer(self, result: Result) -> bool:
        """Return whether less optimization may mend changed outputs: the unchanged graph itself has the right ones."""
        if result.drift is not None and result.drift.reference_kind != "configuration":
            return True
        return any(warning.template == "outputs_differ.engine" for warning in result.warnings)

    def _add_lower_level(self, row: PlannedRow, rows: Sequence[PlannedRow]) -> None:
        engines = list_lower_engines(row.engine)
        tried = [replace(row, engine=e, id=make_id(e, row.requested_precision, row.measure)) for e in engines]
        # A level that was stored, perhaps by the run that this one continues, agreed then: it is tried first.
        for lower in sorted(tried, key=lambda one: not self._folder.row_path(one.id).exists()):
            if lower.id not in self.results:
                self._try_level(lower, rows)
            kept = self.results.get(lower.id)
            if kept is not None and has_outputs(kept) and kept.drift is not None and kept.drift.passed:
                warning = make_warning("outputs_differ.optimizer", kept=format_engine(lower.engine))
                self._save_if_new(add_warnings(self.results[row.id], warning))
                return

    def _add_proposed(self) -> None:
        """Add the configuration that is proposed beside each one, if its outputs are within the limits."""
        propose = self._propose
        if propose is None:
            return
        for rows in self._list_alike():
            for row in rows:
                result = self.results[row.id]
                if result.status not in ("ok", "partial"):
                    continue
                try:
                    proposed = propose(row, result)
                except EngineBenchError as error:
                    self._reporter.say(f"{label(row)}: no other recipe was tried: {error}")
                    continue
                if proposed is not None and proposed.id not in self.results:
                    self._try_level(proposed, rows)

    def _try_level(self, row: PlannedRow, rows: Sequence[PlannedRow]) -> None:
        """Add a configuration that was not requested, if the continued run stored it, or if its outputs agree."""
        if self._folder.read_result(row.id) is not None:
            self._rows[row.id] = row
            self.restore()
            if row.id in self.results:
                self._added.add(row.id)
                return
            del self._rows[row.id]
        comparable = [one for one in rows if has_outputs(self.results[one.id])]
        reference = self._find_reference(rows, comparable)
        try:
            response = self._run_prepare(row, self._describe_prepare(row))
        except EngineBenchError as error:
            self._reporter.say(f"{label(row)} was not tried in its place: {error}")
            return
        prepared = self._describe_prepared(row, self._begin(row, status="partial"), response, 0)
        outputs = load_outputs(path := self._find_outputs(row))[0]
        if not self._agrees(prepared, outputs, reference):
            path.unlink(missing_ok=True)
            return
        self._added.add(row.id)
        self.add([row])
        self._prepared.add(row.id)
        self._save(prepared)
        self._save_if_new(self._with_drift(prepared, reference))
        self._prepared.discard(row.id)
        reduce_outputs(path)
        self._score_outputs()

    def _run_prepare(self, row: PlannedRow, job: PrepareJob) -> PrepareResponse:
        self._reporter.step(f"{label(row)}: build and check")
        return run_child(job, timeout_s=self._timeout_s(), on_note=report_steps(self._reporter, label(row)))

    def _with_drift(self, result: Result, reference: Reference) -> Result:
        row, base = self._rows[result.id], reference.result
        old = result.drift if result.id not in self._prepared else None
        if old is not None and (old.elsewhere or old.reference == base.id):
            return result  # compared before, with more outputs than have been kept
        if row.graph is not None:
            return result  # compared with its graph already
        outputs, calls = load_outputs(self._find_outputs(row))
        try:
            drift = self._measure_drift(result, outputs, calls, reference)
        except ArtifactError as error:
            return self._describe_failure(result, "when its outputs were compared", error)
        warnings = [warning for warning in base.warnings if warning.code == "outputs_vary"]
        if isinstance(why := self._graphs.get(find_key(row)), str) and reference.result.engine.backend != "pytorch":
            warnings.append(make_warning("outputs_not_compared.unoptimized", reference=base.id, why=why))
        real = self._inputs is not None or find_own_data(row.inputs_model) is not None
        if not drift.unlike and not real and result.requested_precision not in (None, "fp32"):
            # The errors of a shorter precision depend on the inputs, and random ones are unlike those of its use.
            warnings.append(make_warning("random_inputs", seed=result.measure.seed, cure=advise_inputs()))
        return add_warnings(replace(result, drift=drift), *warnings)

    def _measure_drift(
        self, result: Result, outputs: Mapping[str, Any], calls: int | None, reference: Reference
    ) -> Drift:
        """Measure the drift of a configuration's outputs, made by so many calls, from the reference."""
        base, row = reference.result, self._rows.get(result.id)
        opened = {name for side in (base, result) for name in list_open_outputs(side)}
        expected, compared = cut_common(*fill_lengths(reference.outputs, outputs, opened))
        unlike: list[str] = []
        if row is not None and row.inputs_of is not None:  # perhaps two models, which need not have like inputs
            unlike = compare_inputs(base, result) or list_unlike(expected, compared)
        elif reference.kind == "onnx_evaluator":  # it may interpret a graph differently from engines
            unlike = list_unlike(expected, compared)
        if unlike:
            return replace(refuse_drift(base.id, unlike), reference_kind=reference.kind, elsewhere=reference.apart)
        limits = self._rules.limits
        if limits is None:
            limits = limits_between(base.requested_precision, result.requested_precision, self._list_requested())
        requested = self._count_requested(result, outputs, calls)
        drift = measure_drift(expected, compared, limits, n_requested=requested, task=self._task)
        pair = base.requested_precision, result.requested_precision
        expected, compared = (load_sets(self._folder.further_path(side.id)) for side in (base, result))
        further = measure_further(expected, compared, pair, limits=self._rules.limits, task=self._task)
        drift = add_further(drift, further)
        return replace(drift, reference=base.id, reference_kind=reference.kind, elsewhere=reference.apart)

    def _list_requested(self) -> tuple[Precision | None, ...]:
        return (*self._rules.requested, *(row.requested_precision for row in self._rows.values()))

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
        available = list_samples(self._inputs) if self._inputs is not None and pictures is None else range(requested)
        most = -(-len(available) // batch)
        if calls:
            most = limit_calls(most, count_values(outputs) // calls)
        return min(requested, most * batch)

    def _score_outputs(self) -> None:
        """Score the labelled outputs of every configuration, always anew, against the first of its batch and shapes."""
        references: dict[tuple[str, int, str], Path] = {}
        for row_id, result in list(self.results.items()):
            path = self._folder.labelled_path(row_id)
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
            self._save_if_new(scored)

    def _measure_trials(self, trials: Sequence[ScheduledTrial]) -> None:
        """Run the trials in groups, whose children import before their trials begin."""
        group: list[ScheduledTrial] = []
        for trial in trials:
            result = self.results[trial.row.id]
            if self._is_measured(trial.row.id, trial.number) or result.look is not None:
                self._advance(trial.row)
            elif result.status == "partial":
                group.append(trial)
            if len(group) >= self._children_at_once:
                self._run_trials(group)
                group = []
        self._run_trials(group)

    def _end_settled(self, trials: int) -> None:
        """End the configurations whose comparisons with others of their setting cannot change after so many trials."""
        groups: dict[tuple[object, ...], list[Result]] = {}
        for result in self.results.values():
            if result.measure.settle is not None and result.status in ("ok", "partial"):
                groups.setdefault((result.measure.settle, *find_setting(result)), []).append(result)
        for rows in groups.values():
            if len(rows) < 2:
                continue
            rules = replace(self._rules, requested=self._list_requested())
            still = list_open(rows, trials, rows[0].measure.settle or 0.0, list_relevant_pairs(rows, trials, rules))
            for result in rows:
                if result.look is None and len(result.measurements) == trials and result.id not in still:
                    self._save(replace(result, status="ok", look=trials))

    def _run_trials(self, trials: Sequence[ScheduledTrial]) -> None:
        """Run trials one after another, once every child that was started ahead has imported: each is timed alone."""
        start = time.monotonic()
        with ExitStack() as stack:
            ahead: dict[int, Child] = {}
            for trial in trials:
                if len(trials) > 1 and can_wait(trial.row.engine):
                    ahead[trial.order] = stack.enter_context(Child(trial.environment))
                    job = self._describe_preload(trial.row, self.results[trial.row.id].artifacts[-1])
                    ahead[trial.order].ask_to_preload(replace(job, pin=True))
            deadline = time.monotonic() + self._timeout_s()
            for child in ahead.values():
                child.wait_until_ready(deadline)
            for trial in trials:
                result = self.results[trial.row.id]
                if result.status == "partial":  # it may have failed in an earlier trial
                    self._save(self._measure_trial(trial, result, ahead.get(trial.order)))
                    self._advance(trial.row)
                    self._reporter.show(list(self.results.values()))
        if trials:
            self._timed_s += [(time.monotonic() - start) / len(trials)] * len(trials)

    def _advance(self, row: PlannedRow) -> None:
        if row.id not in self._added:
            self._reporter.advance()

    def _describe_preload(self, row: PlannedRow, artifact: Artifact) -> PreloadJob:
        return PreloadJob(engine=row.engine, kind=artifact.kind, out_dir=self._make_build_folder(row))

    def _measure_trial(self, scheduled: ScheduledTrial, result: Result, waiting: Child | None) -> Result:
        row, trial = scheduled.row, scheduled.number
        self._reporter.step(" · ".join([label(row), *self._format_progress(row, trial)]))
        build = trial % len(result.builds) if result.builds else None
        job = MeasureJob(
            model=row.inputs_model,
            artifact=result.artifacts[-1] if build is None else result.builds[build].artifact,
            engine=row.engine,
            measure=row.measure,
            out_dir=self._make_build_folder(row, build or 0),
            trial=trial,
            order=scheduled.order,
            last_level_cache_bytes=self._machine.last_level_cache_bytes,
            prove=proves_when_timed(row) and lacks_proof(result),
            inputs=self._inputs,
            recheck_path=self._find_recheck(result),
        )
        try:
            # A child that ended before it got a job is no failure of the configuration: another one is started.
            usable = waiting if waiting and waiting.alive else None
            with usable or Child(scheduled.environment, find_place(row.engine)) as child:
                response = child.perform(job, timeout_s=self._timeout_s())
        except EngineBenchError as error:
            if isinstance(error, TimedOut) and self._timeout_s() < 1:
                return result  # the time of the whole run was over: no failure of the configuration
            return self._describe_failure(result, f"in {format_trial(trial)}", error)
        self._medians.setdefault(row.id, []).append(median(response.measurement.latency_ns))
        # The first look is dropped unless it is the only trial: configurations built later have none beside it.
        counted = [m for m in list_trials(result) if m.trial != FIRST_LOOK or row.measure.processes == 1]
        measurements = (*counted, replace(response.measurement, build=build))
        finished = trial != BEFORE_EXPORT and len(measurements) >= row.measure.processes
        machine, gpu = result.machine, response.measurement.gpu
        status: Status = "ok" if finished else "partial"
        measured = replace(
            result,
            measurements=measurements,
            machine=replace(machine, gpus=(gpu,)) if machine and gpu and not machine.gpus else machine,
            status=status,
            shapes=response.shapes
            or {spec.name: concrete_shape(spec, row.engine.batch) for spec in result.artifacts[-1].inputs},
        )
        measured = apply_proof(measured, response.proof) if response.proof else measured
        return warn_implausible(replace(measured, work=measured.work or self._count_work(measured)))

    def _find_recheck(self, result: Result) -> str:
        """Return the file of the outputs that a trial must reproduce; "" if they differ from call to call anyway."""
        path = self._folder.recheck_path(result.id)
        varies = any(c.code == "outputs_vary" and c.figures.get("row") == result.id for c in result.warnings)
        return str(path.absolute()) if path.exists() and not varies else ""

    def _count_work(self, result: Result) -> LeastWork | None:
        """Count the work of one call, by a graph of the same model; None if it is unknown.

        A simulated engine, which only waits, does no work.
        """
        row = self._rows[result.id]
        chains = [row.chain, *(r.chain for r in self._rows.values() if r.inputs_model == row.inputs_model)]
        graph = next((a for chain in chains for a in chain if a.kind == "onnx"), None)
        if graph is None or is_simulated(result.engine.backend):
            return None
        shapes = result.shapes
        if shapes.keys() != {spec.name for spec in graph.inputs} and len(shapes) == len(graph.inputs):
            # A module's inputs have names of their own, in the order of the graph's.
            shapes = {spec.name: shape for spec, shape in zip(graph.inputs, shapes.values(), strict=True)}
        key = graph.path, result.engine.batch, repr(sorted(shapes.items()))
        if key not in self._works:
            job = LeastWorkJob(path=graph.path, shapes=shapes, batch=result.engine.batch)
            try:
                self._works[key] = run_child(job, timeout_s=self._timeout_s())
            except EngineBenchError as error:
                self._works[key] = None
                self._reporter.say(f"the least time of {result.model} is not known: {error}")
        return self._works[key]

    def _format_progress(self, row: PlannedRow, trial: int) -> Iterator[str]:
        """Yield `trial 4 of 10`, `2.29 ms so far (7.2x)` (than the first of its setting), `at most 40 s left`."""
        of = f" of {row.measure.processes}" if row.measure.processes < ENDLESS else ""
        yield format_trial(trial) + (of if trial >= 0 else "")
        if own := self._medians.get(row.id):
            setting = find_setting(self.results[row.id])
            first = next(r.id for r in self.results.values() if r.id in self._medians and find_setting(r) == setting)
            ratio = median(self._medians[first]) / median(own)
            factor = "" if first == row.id else f" ({format_significant(ratio, 2)}x)"
            yield f"{format_significant(median(own) / 1e6)} ms so far{factor}"
        rows = [self._rows[r.id] for r in self.results.values() if r.status == "partial"]
        left = sum(one.measure.processes - len(list_trials(self.results[one.id])) for one in rows)
        if self._timed_s and row.measure.processes < ENDLESS:
            yield f"at most {format_significant(left * fmean(self._timed_s), 2)} s left"

    def _save(self, result: Result) -> None:
        self.results[result.id] = result
        self.results = {row_id: self.results[row_id] for row_id in self._rows if row_id in self.results}
        self._folder.write_result(result)

    def _save_if_new(self, result: Result) -> None:
        if result != self.results[result.id]:
            self._save(result)


def order_trials(rows: Sequence[PlannedRow]) -> list[ScheduledTrial]:
    """Return every trial of a run, in order: A B C, then C B A, and so on.

    The order depends on the plan alone, not on configurations that fail or are resumed.
    """
    rounds = max((row.measure.processes for row in rows), default=0)
    builds = max((row.measure.builds for row in rows), default=1)
    pairs: list[tuple[PlannedRow, int]] = []
    for trial in range(rounds):
        taking_part = [row for row in rows if trial < row.measure.processes]
        pairs += [(row, trial) for row in order_round(taking_part, trial, builds)]
    return [ScheduledTrial(row, trial, order) for order, (row, trial) in enumerate(pairs)]


def order_round(items: Sequence[T], number: int, builds: int = 1) -> Sequence[T]:
    """Return the items in the order of this round: every other round is backwards.

    So a machine that becomes slower and slower favours none: over two rounds each has the same mean position. If
    engines are built several times, trial i times build i modulo their number, and each build gets rounds in both
    directions, too.
    """
    backwards = (number % builds + number // builds) % 2 == 1
    return items[::-1] if backwards else items


def note_kept(interrupt: KeyboardInterrupt, results: Iterable[Result], root: Path) -> None:
    """Add to an interrupt how many trials are stored in `root`, if any are."""
    trials = [len(result.measurements) for result in results if result.measurements]
    if trials:
        configurations = count_of(len(trials), "configurations")
        interrupt.add_note(f"kept in {root}: {count_of(sum(trials), 'trials')} of {configurations}")


def attempt(call: Callable[[], PrepareResponse]) -> PrepareResponse | EngineBenchError:
    try:
        return call()
    except EngineBenchError as error:
        return error


def make_fp32(row: PlannedRow) -> PlannedRow | None:
    """Return the configuration in FP32, from the last FP32 form in its chain; None if it has none."""
    kind = takes(row.engine.backend)
    source = next((a for a in reversed(row.chain) if a.precision == "fp32" and a.kind == kind), None)
    if source is None:
        return None
    engine = replace(row.engine, precision="fp32", recipe=None, mix="")
    chain = row.chain[: row.chain.index(source) + 1]
    configuration = replace(row, engine=engine, requested_precision="fp32", source=source, chain=chain)
    return replace(configuration, id=f"{make_id(engine, 'fp32', row.measure)}-reference")


def has_changed(result: Result) -> bool:
    """Return whether its outputs differ from the reference's by more than the limits."""
    return assess_outputs(result, is_reference=False)[0] == "changed"


def has_outputs(result: Result) -> bool:
    """Return whether the configuration computed outputs for the check inputs, even if it failed later in a trial."""
    return result.status in ("ok", "partial") or bool(list_trials(result))


def is_first_look(result: Result) -> bool:
    """Return whether the only trial of a configuration is that before the slow builds."""
    return bool(result.measurements) and all(m.trial == FIRST_LOOK for m in result.measurements)


def list_trials(result: Result) -> list[Measurement]:
    """Return the trials of a configuration, without the one before the export, which nothing is compared with."""
    return [m for m in result.measurements if m.trial != BEFORE_EXPORT]


def format_trial(trial: int) -> str:
    names = {FIRST_LOOK: "the first look", BEFORE_EXPORT: "the trial before the export"}
    return names.get(trial, f"trial {trial + 1}")


def proves_when_timed(row: PlannedRow) -> bool:
    """Return whether the engine's record comes from the first trial, not from the build and check.

    On a GPU libraries choose kernels anew in each process, and other processes may use it during builds. On a CPU the
    record comes from a session of its own, which must not be loaded into a process that is timed.
    """
    return row.engine.device != "cpu"


def lacks_proof(result: Result) -> bool:
    """Return whether the next trial must make the record: the first does, and the second if that failed."""
    failed = any(warning.code == "failed_proof" for warning in result.warnings)
    return not result.measurements or (failed and len(result.measurements) == 1)


def apply_proof(result: Result, proof: Proof) -> Result:
    """Return the result with the engine's record and the precision that ran, or with a warning without a record."""
    kept = [warning for warning in result.warnings if warning.code in ABOUT_OUTPUTS]
    if proof.failure is not None:
        return replace(
            result, warnings=(*kept, make_record_warning(result.requested_precision, proof.failure), *proof.warnings)
        )
    ran, warnings = check_precision(
        result.requested_precision, proof.effective_precision, result.engine.device, proof.weights
    )
    return replace(
        result,
        engine=replace(result.engine, precision=ran),
        effective_precision=proof.effective_precision,
        warnings=(*kept, *warnings, *proof.warnings),
        layers=proof.layers,
    )


def label(row: PlannedRow | Result) -> str:
    spec = row.engine
    precision = format_precision(row.requested_precision, spec.recipe, spec.mix)
    batch = f" b{spec.batch}" if spec.batch > 1 else ""
    return f"{format_engine(spec)} {precision}{batch} {format_shapes(spec.shapes)}".rstrip()


def list_open_outputs(result: Result) -> set[str]:
    """Return the names of the outputs whose length depends on the values."""
    artifact = result.artifacts[-1]
    return find_open_outputs(artifact.inputs, artifact.outputs)


def add_warnings(result: Result, *warnings: ResultWarning) -> Result:
    return replace(result, warnings=tuple(dict.fromkeys((*result.warnings, *warnings))))


def check_outcome(results: Sequence[Result], request: RunRequest) -> None:
    """Check that the baseline and one other configuration are ok; the baseline alone if no engines were named."""
    if results and all(r.status == "skipped" for r in results):
        raise refuse_all(r.reason or r.status for r in results)
    attempted = [r for r in results if r.status != "skipped"]
    ok = [r for r in attempted if r.status == "ok"]
    if attempted and attempted[0].status == "ok" and (len(ok) > 1 or len(results) == 1 or request.any_engine):
        return
    alike: dict[str, list[str]] = {}
    for r in results:
        if r.status != "ok":
            alike.setdefault(r.reason or r.status, []).append(label(r))
    bad = "; ".join(f"{', '.join(rows)}: {reason}" for reason, rows in alike.items()) or "there is no configuration"
    if attempted and attempted[0].status == "ok":
        raise MeasurementError(f"the baseline is ok, but no other configuration is. Not ok: {bad}")
    raise MeasurementError(f"the baseline and at least one other configuration must be ok. Not ok: {bad}")


def check_precisions(results: Sequence[Result]) -> None:
    """Check that every configuration ran in its requested precision."""
    wrong = [
        f"{label(r)}: asked for {r.requested_precision}, ran in {r.engine.precision}"
        for r in results
        if r.status != "skipped" and r.engine.precision != r.requested_precision
    ]
    if wrong:
        raise GateFailed(f"--strict-precision: {'; '.join(wrong)}")
