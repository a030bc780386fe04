"""Turns rows into results: builds and checks each once, then measures A B C, C B A, ..., each time in a fresh process.

The row's file is rewritten after every trial, so that nothing measured is lost, however the run ends.
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
from enginebench.core.records import Artifact, Drift, LeastWork, Machine, Precision, Result, ResultWarning, Status, Task
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
from enginebench.runs.scoring import Judged, score_file
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

# Doubts about a row's answers, which a record of its precision leaves as they are.
ABOUT_ANSWERS = ("no_score", "outputs_vary", "random_inputs", "outputs_differ", "outputs_not_compared")
# Outputs are compared over this many samples; enough to see a wrong engine, cheap enough for a slow one.
CHECK_SAMPLES = 32
# The same of `--quick`, which makes no claims: half as many leave room for the outputs of the graph as it stands. Of
# fewer than ten a single decision near a tie would break the limit of 8 bits, nine in ten.
QUICK_SAMPLES = 16
# Two outputs for the same inputs that differ by more than this share of the largest value are not those of a function:
# what the order of sums leaves open on a GPU is a hundred times smaller in FP16 (as for the exported graph).
VARIATION = 1e-2
# Processes of a row of which nobody says beforehand how often it is measured.
ENDLESS = 1_000_000
# The number of a trial that is taken before the first build that takes minutes begins, so that a first table stands.
FIRST_LOOK = -1

T = TypeVar("T")


class Turn(Struct, frozen=True):
    """One trial of one row, and its place in the run."""

    row: PlannedRow
    trial: int
    order: int

    @property
    def environment(self) -> dict[str, str]:
        return child_environment(self.row.engine.threads, max(self.trial, 0))


class Campaign:
    """All rows of a run in progress. `results` holds each row as it stands, in the order of the plan."""

    def __init__(
        self,
        folder: RunFolder,
        rows: Sequence[PlannedRow],
        machine: Machine,
        *,
        timeout_s: float | Callable[[], float],
        reporter: Reporter,
        judged: Judged | None = None,
        task: Task | None = None,
        rules: Rules = USUAL,
        checks_graph: bool = True,
        samples: int = CHECK_SAMPLES,
        propose: Callable[[PlannedRow, Result], PlannedRow | None] | None = None,
    ) -> None:
        """Take the rows of a run; nothing is done yet.

        Args:
            checks_graph: the outputs of a graph are compared with those of the graph itself, not of the first row.
            samples: over which outputs are compared.
            propose: one more row to measure beside a row that was built and checked, or None.
        """
        self._folder, self._rules = folder, rules
        self._judged = judged
        self._task = task
        self._rows = {row.id: row for row in rows}
        self._machine = machine
        self._timeout_s = timeout_s if callable(timeout_s) else lambda: timeout_s
        self._reporter = reporter
        self._at_once, self._workers = count_at_once(machine), count_workers(machine)
        self._inputs = find_samples(folder.artifacts)
        self._checks_graph, self._samples, self._propose = checks_graph, samples, propose
        self._references: dict[Key, Reference] = {}  # with which the rows of each key are compared, once it is known
        self._graphs: dict[Key, Reference | str] = {}  # outputs of graphs as they stand; or why there are none
        self._unasked: set[str] = set()  # rows that nobody asked for; they do not count as progress
        self._medians: dict[str, list[float]] = {}  # of the trials in this process, in ns
        self._timed_s: list[float] = []  # what each trial in this process took, with its start
        self._works: dict[tuple[str, int, str], LeastWork | None] = {}  # of a graph, batch and shapes; None: unknown
        self._refused: UsageError | None = None
        self._prepared: set[str] = set()  # in this process, not by the run that it continues
        self.results: dict[str, Result] = {}

    def add(self, rows: Sequence[PlannedRow]) -> None:
        """Takes more rows, which come after those that it has."""
        self._rows.update((row.id, row) for row in rows)

    def adopt(self, row: PlannedRow, prepared: Result) -> None:
        """Takes a row that was built and checked under another id, so that it can be measured anew."""
        self.add([row])
        folder = self._folder
        for find in (folder.outputs_path, folder.labelled_path, folder.recheck_path, folder.further_path):
            if (kept := find(prepared.id)).exists():
                write_atomic(find(row.id), kept.read_bytes())
        self._save(replace(prepared, id=row.id, measure=row.measure, measurements=(), status="partial", reason=None))

    def finish(self, ids: Mapping[str, str]) -> None:
        """Takes rows, by id and the id under which they were built and compared, as measured often enough."""
        for result in (self.results[row_id] for row_id in ids.values()):
            if result.status == "partial" and result.measurements:
                measure, drift = replace(result.measure, processes=len(result.measurements)), result.drift
                if drift is not None:
                    here = ids.get(drift.reference)
                    drift = replace(drift, reference=here or drift.reference, elsewhere=here is None)
                self._save(replace(result, status="ok", measure=measure, drift=drift))

    def restore(self, *, with_failed: bool = False) -> None:
        """Restores the rows that an earlier, interrupted run stored."""
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
            if stored is None or not has_answered(stored):
                continue  # it begins anew
            timed = tuple(one for one in stored.measurements if one.latency_ns)
            if timed != stored.measurements:  # a trial without samples is measured again
                stored = replace(stored, measurements=timed, look=None)
            finished = stored.look is not None or len(stored.measurements) >= row.measure.processes
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
            # A row that was relabelled keeps what ran; how its engine is set is the plan's to say.
            ran = replace(row.engine, precision=stored.engine.precision, recipe=stored.engine.recipe)
            status: Status = "ok" if finished else "partial"
            self.results[row_id] = replace(stored, engine=ran, status=status, reason=None, stderr_tail=None)

    def run(self) -> list[Result]:
        """Every row, prepared, checked, and measured until no verdict can change; a failed row has its reason."""
        try:
            return self._run()
        except KeyboardInterrupt as error:
            note_kept(error, self.results.values(), self._folder.root)
            raise

    def _run(self) -> list[Result]:
        wanted = [row for row in self._rows.values() if row.skip is None]
        early = self._list_early(wanted)
        # Those of the first look are passed over once more when the others are built.
        steps = sum(count_builds(row) + row.measure.processes for row in wanted) + 2 * len(early)
        self._reporter.begin(steps)
        if early:
            self._look_first(early)
        self.check()
        self._reopen_leaders()
        self._add_lower_levels()
        self._add_proposed()
        turns = order_trials(list(self._rows.values()))
        for start, end in pairwise((0, *LEVELS, ENDLESS)):
            self._measure_turns([turn for turn in turns if start <= turn.trial < end])
            self._end_settled(end)
        return list(self.results.values())

    def _list_early(self, rows: Sequence[PlannedRow]) -> list[PlannedRow]:
        """The rows to measure once before those are built whose builds take minutes; none where nothing is gained.

        A run that is continued has its first table already, and of a single one there is nothing to compare.
        """
        early = [row for row in rows if not builds_slowly(row.engine)]
        begun = any(result.measurements for result in self.results.values())
        several = any(count_builds(row) > 1 for row in rows)
        return early if 1 < len(early) < len(rows) and not begun and not several else []

    def _look_first(self, rows: Sequence[PlannedRow]) -> None:
        """Builds, checks and measures these rows once, so that whoever interrupts the long builds has a table."""
        self._prepare(rows)
        self._compare_outputs()
        ready = [row for row in rows if self.results[row.id].status == "partial"]
        for start in range(0, len(ready), self._at_once):
            group = ready[start : start + self._at_once]
            self._take_turns([Turn(row, FIRST_LOOK, order - len(ready)) for order, row in enumerate(group, start)])

    def _reopen_leaders(self) -> None:
        """Has those that the first look names measured once more, beside what was built after them.

        Named are the leader, the baseline, and the fastest of those that tie with the leader: one trial each tells only
        twofold differences apart.

        Only where a row has a single trial: with several, all are measured anew, and the first look does not count.
        """
        late = [r for r in self.results.values() if r.status == "partial" and not r.measurements]
        looked = [r for r in self.results.values() if r.status == "ok" and is_first_look(r)]
        if not late or not looked:
            return
        headlines = rank_results(looked, self._rules).headlines
        named = {name for one in headlines for name in (one.id, one.baseline, *one.tied_with[:1])}
        for result in looked:
            if result.id in named:
                self._save(replace(result, status="partial"))

    def check(self) -> None:
        """Builds every row that was not built before, compares its answers with the reference's, and scores them."""
        self._prepare_all()
        if self._refused is not None and all(result.status == "skipped" for result in self.results.values()):
            raise self._refused
        waiting: list[PlannedRow] = []
        for row in self._rows.values():
            known = self.results.get(row.id)
            if known is not None and known.status == "partial":
                waiting += [row] * (count_builds(row) - max(1, len(known.builds)))
        for group in self._group(waiting):
            for run in split_runs(group, self._machine):
                self._build_together(run)
        self._compare_outputs()
        self._score_answers()

    def measure(self, ids: Sequence[str], trial: int) -> None:
        """One process of each of these rows, in this order, unless its trial is there already."""
        rows = [self._rows[row_id] for row_id in ids if not self._has(row_id, trial)]
        self._take_turns([Turn(row, trial, order) for order, row in enumerate(rows)])

    def _has(self, row_id: str, trial: int) -> bool:
        return any(m.trial == trial for m in self.results[row_id].measurements)

    def _prepare_all(self) -> None:
        self._prepare(list(self._rows.values()))

    def _prepare(self, rows: Sequence[PlannedRow]) -> None:
        """Builds and checks these rows in a child each; nothing is done for one that was prepared before."""
        waiting = []
        for row in rows:
            known = self.results.get(row.id)
            if row.skip is not None:
                self._save(self._skip(row, row.skip))
            elif known is None or (known.status not in ("failed", "skipped") and self._lost_outputs(known)):
                waiting.append(row)
            else:
                self._reporter.advance()
        for group in self._group(waiting):
            if len(group) == 1:
                self._prepare_alone(group[0])
            else:
                self._prepare_group(group)

    def _group(self, rows: Sequence[PlannedRow]) -> list[list[PlannedRow]]:
        """As many rows as may import at a time; those of another environment, which may break down, alone and last."""
        here = [row for row in rows if can_wait(row.engine)]
        groups = [here[start : start + self._at_once] for start in range(0, len(here), self._at_once)]
        return groups + [[row] for row in rows if not can_wait(row.engine)]

    def _prepare_group(self, rows: Sequence[PlannedRow]) -> None:
        """Their children import side by side; then they build and check, as many at a time as may."""
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
        """Builds and checks rows at the same time, and has their records made one after another.

        What the first child says is shown at once, so that a build of minutes is not silent; what the others say when
        it is their turn, so that the log is the same each time. A row that fails beside others, perhaps for want of
        memory, is tried again alone; one whose time ran out is not.
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
                self._reporter.step(f"{label(row)}: build and check")  # as the row would have shown alone
            found = attempt(work.finish)
            for text in notes.get(row.id, ()):
                self._reporter.step(f"{label(row)}: {text}")
            if isinstance(found, EngineBenchError) and not isinstance(found, UsageError | DependencyError | TimedOut):
                self._prepare_alone(row)
            else:
                self._save_prepared(row, found, peers=min(len(rows), self._workers) - 1)

    def _prepare_alone(self, row: PlannedRow) -> None:
        self._save_prepared(row, attempt(lambda: self._run_prepare(row, self._describe_prepare(row))))

    def _build_together(self, rows: Sequence[PlannedRow]) -> None:
        """Makes one build more of each row, from nothing, at the same time; what fails is tried again alone."""
        rows = [row for row in rows if self.results[row.id].status == "partial"]
        peers = min(len(rows), self._workers) - 1
        builds = [len(self.results[row.id].builds) + rows[:place].count(row) for place, row in enumerate(rows)]
        again = []
        with ExitStack() as stack:
            works: list[Work[PrepareResponse]] = []
            for one in zip(rows, builds, strict=True):
                wait_until_sure(works, left=self._workers - 1)
                works.append(stack.enter_context(self._start_build(*one)))
            wait_until_sure(works)
            for row, build, work in zip(rows, builds, works, strict=True):
                self._reporter.step(f"{label(row)}: build {build + 1} of {count_builds(row)}")
                known, outputs = self.results[row.id], self._rebuilt(row, build)
                try:
                    found = describe_build(work.finish(), self._folder.outputs_path(row.id), outputs)
                except EngineBenchError as error:
                    if len(rows) > 1 and not isinstance(error, TimedOut):
                        again.append(row)
                        continue
                    self._save(self._failed(known, f"while build {build + 1} of {count_builds(row)} was made", error))
                else:
                    outputs.unlink(missing_ok=True)
                    most = max(peers, known.built_beside)
                    self._save(replace(known, builds=(*known.builds, found), built_beside=most))
                self._reporter.advance()
        for row in again:
            self._build_together([row])

    @contextmanager
    def _start_build(self, row: PlannedRow, build: int) -> Iterator[Work[PrepareResponse]]:
        place, outputs = self._choose_place(row, build), self._rebuilt(row, build)
        shutil.rmtree(place, ignore_errors=True)  # what a killed run may have left
        Path(place).mkdir(parents=True)
        job = replace(
            self._describe_prepare(row),
            out_dir=place,
            outputs_path=str(outputs.absolute()),
            further_path="",
            prove=False,
            labelled=None,
        )
        with Child(PATIENCE | child_environment(row.engine.threads), find_place(row.engine)) as child:
            yield child.start(job, timeout_s=self._timeout_s())

    def _rebuilt(self, row: PlannedRow, build: int) -> Path:
        """The file of the answers of one build more; it is there until they were compared."""
        return self._folder.outputs_path(f"{row.id}.build-{build + 1}")

    def _skip(self, row: PlannedRow, reason: str) -> Result:
        """Records that the row cannot run here; if it was measured before, it keeps its samples."""
        known = self.results.get(row.id)
        if known is None or not known.measurements:
            return self._begin(row, status="skipped", reason=reason)
        why = f"it cannot continue: {reason}"
        return known if known.status == "ok" else replace(known, status="failed", reason=why)

    def _lost_outputs(self, known: Result) -> bool:
        """Whether the answers of a restored row, with which others are compared, are missing or incomplete."""
        outputs, answers = self._folder.outputs_path(known.id), self._folder.labelled_path(known.id)
        wanted = [outputs] if known.drift or not known.measurements else []  # else of a tool that returns no answers
        if known.scores or (self._judged and self._judged.metrics and not known.measurements):
            wanted.append(answers)
        if wanted and known.status == "partial":  # its trials are still to come
            wanted.append(self._folder.recheck_path(known.id))
        return not all(holds_arrays(path) for path in wanted)

    def _describe_prepare(self, row: PlannedRow) -> PrepareJob:
        assert row.source is not None
        return PrepareJob(
            model=row.asked_as,
            artifact=row.source,
            engine=row.engine,
            out_dir=self._choose_place(row),
            outputs_path=str(self._folder.outputs_path(row.id).absolute()),
            samples=self._samples,
            seed=row.measure.seed,
            prove=not proves_when_timed(row),
            labelled=self._judged.labelled if self._judged else None,
            labelled_path=str(self._folder.labelled_path(row.id).absolute()),
            inputs=self._inputs,
            graph=row.graph,
            further_path=str(self._folder.further_path(row.id).absolute()),
            examples=str(self._folder.artifacts.absolute()),
            recheck_path=str(self._folder.recheck_path(row.id).absolute()),
        )

    def _choose_place(self, row: PlannedRow, build: int = 0) -> str:
        """Where an engine leaves what it makes: one environment never finds what another compiled, nor one build."""
        artifacts, environment = self._folder.artifacts, row.engine.options.get(OPTION)
        place = self._folder.build_path(row.id, build) if count_builds(row) > 1 else artifacts
        if environment:
            place = artifacts / f"env-{environment}" / place.relative_to(artifacts)
        place.mkdir(parents=True, exist_ok=True)
        return str(place.absolute())

    def _save_prepared(self, row: PlannedRow, found: PrepareResponse | EngineBenchError, peers: int = 0) -> None:
        """Keeps the row as it was built and checked, or with the reason why it was not."""
        begun = self.results.get(row.id) or self._begin(row, status="partial")
        if isinstance(found, DependencyError | UsageError):
            self._save(self._skip(row, str(found)))
            self._refused = found if isinstance(found, UsageError) else self._refused
        elif isinstance(found, EngineBenchError):
            self._save(self._failed(begun, "while it was built and checked", found))
        else:
            self._prepared.add(row.id)
            self._save(self._describe_prepared(row, begun, found, peers))
        self._reporter.advance()

    def _describe_prepared(self, row: PlannedRow, begun: Result, answer: PrepareResponse, peers: int) -> Result:
        made = (answer.lowered, answer.artifact if answer.artifact != row.source else None)
        if answer.artifact.kind == "aoti":  # it was compiled here
            allow_code(f"{NATIVE_CODE} {answer.artifact.sha256}")
        if begun.measurements and begun.artifacts[-1].sha256 != answer.artifact.sha256:
            begun = self._begin(row, status="partial")  # those are times of another engine
        prepared = replace(
            begun,
            artifacts=(*row.chain, *filter(None, made)),
            engine_version=answer.engine_version,
            build_s=answer.build_s,
            built_beside=peers,
            size_bytes=answer.size_bytes,
            drift=answer.drift or begun.drift,
        )
        if count_builds(row) > 1 and not prepared.builds:
            outputs = self._folder.outputs_path(row.id)
            prepared = replace(prepared, builds=(describe_build(answer, outputs, outputs),))
        if answer.varies > VARIATION:
            prepared = add_warnings(prepared, make_warning("outputs_vary", row=row.id, share=answer.varies))
        return judge_proof(prepared, answer.proof) if answer.proof else prepared

    def _begin(self, row: PlannedRow, **fields: object) -> Result:
        try:
            place = find_place(row.engine)
        except EngineBenchError:  # the row is skipped for that reason
            place = None
        machine = replace(self._machine, versions=list_versions(place)) if place else self._machine
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

    def _failed(self, result: Result, when: str, error: EngineBenchError) -> Result:
        reason = str(error) if isinstance(error, UnsupportedOperator) else f"{when}: {error}"
        advice = {c.advice: None for a in result.artifacts for c in a.warnings if c.template == "chosen_shapes.refused"}
        reason = "; ".join((reason, *advice))
        self._reporter.say(f"{label(result)} failed {when}: {error}")
        said = "\n".join(text for text in (error.stderr_tail.rstrip(), error.log) if text)
        return replace(result, status="failed", reason=reason, stderr_tail=said or None)

    def _compare_outputs(self) -> None:
        """Drift of every row against the reference of its model, batch and shapes.

        If that is a row, its outputs stay, so that a row that is built later can be compared, too; of the others a
        few. Drift that was taken against the same reference before is kept, so that it is the same in one go and after
        any interruption.
        """
        for rows in self._list_alike():
            answered = [r for r in rows if has_answered(self.results[r.id]) and holds_arrays(self._find_outputs(r))]
            new = [row for row in answered if self._lacks_comparison(row, answered)]
            if not new:
                continue
            reference = self._find_reference(rows, answered)
            for row in answered:
                self._save_if_new(self._with_drift(self.results[row.id], reference))
                if row.id != reference.result.id:
                    reduce_outputs(self._find_outputs(row))
            self._explain_export([row for row in new if row.id in self._prepared], reference)
        self._prepared.clear()

    def _lacks_comparison(self, row: PlannedRow, answered: Sequence[PlannedRow]) -> bool:
        """Whether its outputs are new, or the row that they were compared with has none any more."""
        drift = self.results[row.id].drift
        if drift is None or row.id in self._prepared:
            return True
        return not drift.elsewhere and row.graph is None and all(one.id != drift.reference for one in answered)

    def _list_alike(self) -> list[list[PlannedRow]]:
        """The rows of each key, in their order, of those that were built, or that cannot be."""
        groups: dict[Key, list[PlannedRow]] = {}
        for row in self._rows.values():
            if row.id in self.results:
                groups.setdefault(find_key(row), []).append(row)
        return list(groups.values())

    def _find_outputs(self, row: PlannedRow) -> Path:
        return self._folder.outputs_path(row.id)

    def _find_reference(self, rows: Sequence[PlannedRow], answered: Sequence[PlannedRow]) -> Reference:
        """What these rows are compared with; once it is found it stays.

        The first row where two sides are compared that a user named, or a plan with its graph. Else PyTorch eager,
        the graph as it stands, FP32 of an engine, and the first row, whichever there is first.
        """
        key = find_key(rows[0])
        if key in self._references:
            return self._references[key]
        named = any(row.inputs_of or row.graph for row in rows)
        found = None if named else find_eager(answered)
        reference = None
        if found is None and not named:
            reference = self._compute_graph(answered) if self._checks_graph else None
            reference = reference or self._compute_in_fp32(rows)
        if reference is None:
            row = found or answered[0]
            reference = Reference(result=self.results[row.id], outputs=load_outputs(self._find_outputs(row))[0])
        self._references[key] = reference
        return reference

    def _compute_graph(self, rows: Sequence[PlannedRow]) -> Reference | None:
        """The outputs of the rows' graph as it stands, never timed; None: there is no graph, or nothing computes it."""
        key, found = find_key(rows[0]), find_own_graph(rows)
        if found is None:
            return None
        if key not in self._graphs:
            self._graphs[key] = self._ask_for_graph(*found)
        graph = self._graphs[key]
        return None if isinstance(graph, str) else graph

    def _ask_for_graph(self, row: PlannedRow, graph: Artifact) -> Reference | str:
        """The outputs of a graph as it stands; or, of each that could have computed them, why it did not."""
        engine, whys = describe_graph_engine(row, graph), list[str]()
        judge = replace(row, id=f"{make_id(engine, graph.precision, row.measure)}-reference", engine=engine)
        judge = replace(judge, requested_precision=graph.precision, source=graph, chain=(graph,))
        for kind, name in KINDS.items():
            job = ReferenceJob(check=self._describe_prepare(judge), kind=kind, budget_s=REFERENCE_BUDGET_S)
            longest_s = EVALUATOR_TIMEOUT_S if kind == "onnx_evaluator" else self._timeout_s()
            self._reporter.step(f"{name}: outputs of the graph")
            try:
                answer = run_child(
                    job, timeout_s=min(longest_s, self._timeout_s()), environment=child_environment(engine.threads)
                )
            except EngineBenchError as error:
                whys.append(f"{name}: {shorten_words(str(error)) or error}")
                continue
            result = self._begin(judge, status="partial")
            if answer.varies > VARIATION:
                result = add_warnings(result, make_warning("outputs_vary", row=judge.id, share=answer.varies))
            outputs = load_outputs(self._find_outputs(judge))[0]
            return Reference(result=result, outputs=outputs, kind=kind, apart=True)
        return "; ".join(whys)

    def _compute_in_fp32(self, rows: Sequence[PlannedRow]) -> Reference | None:
        """The outputs of FP32 for the rows of a shorter precision beside which no FP32 answered; never timed.

        An engine whose build takes minutes is asked where no other is there. A graph that has no FP32 form is its own
        reference.
        """
        plain = [row for row in rows if row.requested_precision in (None, "fp32")]
        if any(has_answered(self.results[row.id]) for row in plain) or not any(r.id in self._prepared for r in rows):
            return None
        for row in sorted(rows, key=lambda row: tunes(row.engine)):
            judge = None if row in plain or row.skip is not None else make_plain(row)
            if judge is None:
                continue
            try:
                answer = self._run_prepare(judge, replace(self._describe_prepare(judge), prove=False, labelled=None))
            except EngineBenchError as error:
                self._reporter.say(f"{label(row)} was not compared with FP32: {error}")
                continue
            result = self._describe_prepared(judge, self._begin(judge, status="partial"), answer, 0)
            return Reference(result=result, outputs=load_outputs(self._find_outputs(judge))[0], apart=True)
        return None

    def _explain_export(self, rows: Sequence[PlannedRow], reference: Reference) -> None:
        """Says of graph engines that deviate from PyTorch whether the exported graph does so, too, as it stands."""
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
        kept = self._agrees(graph.result, graph.outputs, reference)
        for row in changed:
            warning = make_warning(
                "outputs_differ.engine" if kept else "outputs_differ.export", engine=label(row), tool=KINDS[graph.kind]
            )
            self._save(add_warnings(self.results[row.id], warning))

    def _agrees(self, result: Result, outputs: Mapping[str, Any], reference: Reference) -> bool:
        """Whether outputs are within the limits of the reference's."""
        try:
            return self._measure_drift(result, outputs, None, reference).passed
        except ArtifactError:
            return False

    def _add_lower_levels(self) -> None:
        """Adds, for each row of ONNX Runtime whose optimizer changes the outputs, the most of it that keeps them."""
        if not self._checks_graph:
            return
        for rows in self._list_alike():
            for row in rows:
                result = self.results[row.id]
                own = runs_own_graph(row) and row.inputs_of is None and has_answered(result)
                if own and has_changed(result) and self._blames_optimizer(result):
                    self._add_lower_level(row, rows)

    def _blames_optimizer(self, result: Result) -> bool:
        """Whether less optimization may mend changed outputs: the reference is their graph, or it exported well."""
        if result.drift is not None and result.drift.reference_kind != "configuration":
            return True
        return any(warning.template == "outputs_differ.engine" for warning in result.warnings)

    def _add_lower_level(self, row: PlannedRow, rows: Sequence[PlannedRow]) -> None:
        engines = list_lower_engines(row.engine)
        tried = [replace(row, engine=e, id=make_id(e, row.requested_precision, row.measure)) for e in engines]
        # One that is there, or was stored by the run that this one continues, has agreed before.
        for lower in sorted(tried, key=lambda one: not self._folder.row_path(one.id).exists()):
            if lower.id not in self.results:
                self._try_level(lower, rows)
            kept = self.results.get(lower.id)
            if kept is not None and has_answered(kept) and kept.drift is not None and kept.drift.passed:
                warning = make_warning("outputs_differ.optimizer", kept=format_engine(lower.engine))
                self._save_if_new(add_warnings(self.results[row.id], warning))
                return

    def _add_proposed(self) -> None:
        """Adds what is proposed beside each row, where its outputs are within the limits."""
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
        """Adds a row that nobody asked for, as it was stored by the run that this one continues, or if it agrees."""
        if self._folder.read_result(row.id) is not None:
            self._rows[row.id] = row
            self.restore()
            if row.id in self.results:
                self._unasked.add(row.id)
                return
            del self._rows[row.id]
        answered = [one for one in rows if has_answered(self.results[one.id])]
        reference = self._find_reference(rows, answered)
        try:
            answer = self._run_prepare(row, self._describe_prepare(row))
        except EngineBenchError as error:
            self._reporter.say(f"{label(row)} was not tried in its place: {error}")
            return
        prepared = self._describe_prepared(row, self._begin(row, status="partial"), answer, 0)
        outputs = load_outputs(path := self._find_outputs(row))[0]
        if not self._agrees(prepared, outputs, reference):
            path.unlink(missing_ok=True)
            return
        self._unasked.add(row.id)
        self.add([row])
        self._prepared.add(row.id)
        self._save(prepared)
        self._save_if_new(self._with_drift(prepared, reference))
        self._prepared.discard(row.id)
        reduce_outputs(path)
        self._score_answers()

    def _run_prepare(self, row: PlannedRow, job: PrepareJob) -> PrepareResponse:
        self._reporter.step(f"{label(row)}: build and check")
        return run_child(job, timeout_s=self._timeout_s(), on_note=report_steps(self._reporter, label(row)))

    def _with_drift(self, result: Result, reference: Reference) -> Result:
        row, base = self._rows[result.id], reference.result
        old = result.drift if result.id not in self._prepared else None
        if old is not None and (old.elsewhere or old.reference == base.id):
            return result  # compared before, with more answers than have been kept
        if row.graph is not None:
            return result  # held against its graph
        outputs, calls = load_outputs(self._find_outputs(row))
        try:
            drift = self._measure_drift(result, outputs, calls, reference)
        except ArtifactError as error:
            return self._failed(result, "when its outputs were compared", error)
        warnings = [warning for warning in base.warnings if warning.code == "outputs_vary"]
        if isinstance(why := self._graphs.get(find_key(row)), str) and reference.result.engine.backend != "pytorch":
            warnings.append(make_warning("outputs_not_compared.unoptimized", reference=base.id, why=why))
        real = self._inputs is not None or find_own_data(row.asked_as) is not None
        if not drift.unlike and not real and result.requested_precision not in (None, "fp32"):
            warnings.append(
                make_warning("random_inputs.check", seed=result.measure.seed, cure=advise_inputs())
            )  # nobody ever gave it such
        return add_warnings(replace(result, drift=drift), *warnings)

    def _measure_drift(
        self, result: Result, outputs: Mapping[str, Any], calls: int | None, reference: Reference
    ) -> Drift:
        """Drift of a row's outputs, of so many calls, from the reference's."""
        base, row = reference.result, self._rows.get(result.id)
        opened = {name for side in (base, result) for name in list_open_outputs(side)}
        wanted, answers = cut_common(*fill_lengths(reference.outputs, outputs, opened))
        unlike: list[str] = []
        if row is not None and row.inputs_of is not None:  # perhaps two models, and nobody claimed that they are alike
            unlike = compare_inputs(base, result) or list_unlike(wanted, answers)
        elif reference.kind == "onnx_evaluator":  # which may read a graph otherwise than engines do
            unlike = list_unlike(wanted, answers)
        if unlike:
            return replace(refuse_drift(base.id, unlike), reference_kind=reference.kind, elsewhere=reference.apart)
        limits = self._rules.limits
        if limits is None:
            limits = limits_between(base.requested_precision, result.requested_precision, self._list_requested())
        asked = self._count_asked(result, outputs, calls)
        drift = measure_drift(wanted, answers, limits, asked=asked, task=self._task)
        pair = base.requested_precision, result.requested_precision
        wanted, answers = (load_sets(self._folder.further_path(side.id)) for side in (base, result))
        further = measure_further(wanted, answers, pair, limits=self._rules.limits, task=self._task)
        drift = add_further(drift, further)
        return replace(drift, reference=base.id, reference_kind=reference.kind, elsewhere=reference.apart)

    def _list_requested(self) -> tuple[Precision | None, ...]:
        return (*self._rules.requested, *(row.requested_precision for row in self._rows.values()))

    def _count_asked(self, result: Result, outputs: Mapping[str, Any], calls: int | None) -> int | None:
        """How many samples a row's check has, few of large answers; None if an output's first axis counts none."""
        labelled, batch = self._judged.labelled if self._judged else None, result.engine.batch
        firsts = [spec.shape[:1] for spec in result.artifacts[-1].outputs]
        if not firsts or any(not first or first[0] not in (BATCH_AXIS, batch) for first in firsts):
            return None
        pictures = labelled.n if labelled is not None and labelled.unlabelled else None
        asked = pictures or -(-self._samples // batch) * batch
        given = list_samples(self._inputs) if self._inputs is not None and pictures is None else range(asked)
        most = -(-len(given) // batch)
        if calls:
            most = limit_calls(most, count_values(outputs) // calls)
        return min(asked, most * batch)

    def _score_answers(self) -> None:
        """Scores every row that a metric takes, always afresh, against the first of its batch."""
        references: dict[tuple[str, int, str], Path] = {}
        for row_id, result in list(self.results.items()):
            path = self._folder.labelled_path(row_id)
            if self._judged is None or not has_answered(result) or not holds_arrays(path):
                continue
            reference = references.setdefault((result.model, *find_size(result.engine)), path)
            try:
                scored = replace(result, scores=score_file(self._judged.metrics, path, reference))
            except EngineBenchError as error:
                if path == reference and self._judged.asked:
                    raise
                self._reporter.say(f"{label(result)} has no score: {error}")
                scored = add_warnings(replace(result, scores=()), make_warning("no_score", reason=str(error)))
            self._save_if_new(scored)

    def _measure_turns(self, turns: Sequence[Turn]) -> None:
        """A few turns at a time: children can import before their turn."""
        group: list[Turn] = []
        for turn in turns:
            result = self.results[turn.row.id]
            if self._has(turn.row.id, turn.trial) or result.look is not None:
                self._advance(turn.row)
            elif result.status == "partial":
                group.append(turn)
            if len(group) >= self._at_once:
                self._take_turns(group)
                group = []
        self._take_turns(group)

    def _end_settled(self, trials: int) -> None:
        """Ends the rows of which no comparison with another row of their setting can change after so many trials."""
        groups: dict[tuple[object, ...], list[Result]] = {}
        for result in self.results.values():
            if result.measure.settle is not None and result.status in ("ok", "partial"):
                groups.setdefault((result.measure.settle, *find_setting(result)), []).append(result)
        for rows in filter(lambda rows: len(rows) > 1, groups.values()):
            rules = replace(self._rules, requested=self._list_requested())
            still = list_open(rows, trials, rows[0].measure.settle or 0.0, list_relevant_pairs(rows, trials, rules))
            for result in rows:
                if result.look is None and len(result.measurements) == trials and result.id not in still:
                    self._save(replace(result, status="ok", look=trials))

    def _take_turns(self, turns: Sequence[Turn]) -> None:
        """Takes the turns one after another, once every child started ahead has imported: each is timed alone."""
        start = time.monotonic()
        with ExitStack() as stack:
            ahead: dict[int, Child] = {}
            for turn in turns if len(turns) > 1 else ():
                if can_wait(turn.row.engine):
                    ahead[turn.order] = stack.enter_context(Child(turn.environment))
                    job = self._describe_preload(turn.row, self.results[turn.row.id].artifacts[-1])
                    ahead[turn.order].ask_to_preload(replace(job, pin=True))
            deadline = time.monotonic() + self._timeout_s()
            for child in ahead.values():
                child.wait_until_ready(deadline)
            for turn in turns:
                result = self.results[turn.row.id]
                if result.status == "partial":  # it may have failed in an earlier turn
                    self._save(self._repeat(turn, result, ahead.get(turn.order)))
                    self._advance(turn.row)
                    self._reporter.show(list(self.results.values()))
        self._timed_s += [(time.monotonic() - start) / len(turns) for _ in turns]

    def _advance(self, row: PlannedRow) -> None:
        if row.id not in self._unasked:
            self._reporter.advance()

    def _describe_preload(self, row: PlannedRow, artifact: Artifact) -> PreloadJob:
        return PreloadJob(engine=row.engine, kind=artifact.kind, out_dir=self._choose_place(row))

    def _repeat(self, turn: Turn, result: Result, waiting: Child | None) -> Result:
        row, trial = turn.row, turn.trial
        self._reporter.step(" · ".join([label(row), *self._format_progress(row, trial)]))
        build = trial % len(result.builds) if result.builds else None
        job = MeasureJob(
            model=row.asked_as,
            artifact=result.artifacts[-1] if build is None else result.builds[build].artifact,
            engine=row.engine,
            measure=row.measure,
            out_dir=self._choose_place(row, build or 0),
            trial=trial,
            order=turn.order,
            last_level_cache_bytes=self._machine.last_level_cache_bytes,
            prove=proves_when_timed(row) and lacks_proof(result),
            inputs=self._inputs,
            recheck_path=self._find_recheck(result),
        )
        try:
            # A child that ended before it was asked for anything says nothing about the row.
            with waiting if waiting and waiting.alive else Child(turn.environment, find_place(row.engine)) as child:
                answer = child.perform(job, timeout_s=self._timeout_s())
        except EngineBenchError as error:
            if isinstance(error, TimedOut) and self._timeout_s() < 1:
                return result  # the time of all was over, which says nothing about the row
            return self._failed(result, f"in trial {trial + 1}", error)
        self._medians.setdefault(row.id, []).append(median(answer.measurement.latency_ns))
        # The first look stood alone: what was built later has no trial beside it. Only a single trial keeps it.
        counted = [m for m in result.measurements if m.trial != FIRST_LOOK or row.measure.processes == 1]
        measurements = (*counted, replace(answer.measurement, build=build))
        finished = len(measurements) >= row.measure.processes
        machine, gpu = result.machine, answer.measurement.gpu
        status: Status = "ok" if finished else "partial"
        measured = replace(
            result,
            measurements=measurements,
            machine=replace(machine, gpus=(gpu,)) if machine and gpu and not machine.gpus else machine,
            status=status,
            shapes=answer.shapes or {s.name: concrete_shape(s, row.engine.batch) for s in result.artifacts[-1].inputs},
        )
        measured = judge_proof(measured, answer.proof) if answer.proof else measured
        return warn_implausible(replace(measured, work=measured.work or self._count_work(measured)))

    def _find_recheck(self, result: Result) -> str:
        """The file of the outputs that a trial must give again; "" where they differ from call to call anyway."""
        path = self._folder.recheck_path(result.id)
        varies = any(c.code == "outputs_vary" and c.figures.get("row") == result.id for c in result.warnings)
        return str(path.absolute()) if path.exists() and not varies else ""

    def _count_work(self, result: Result) -> LeastWork | None:
        """The work of one call, by the graph that the row or another one of the same model was made of; None: unknown.

        An engine that waits as it is told does no work.
        """
        row = self._rows[result.id]
        chains = [row.chain, *(r.chain for r in self._rows.values() if r.asked_as == row.asked_as)]
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
        """`trial 4 of 10`, `2.29 ms so far (7.2x)`: beside the first row of its setting, `at most 40 s left`."""
        of = f" of {row.measure.processes}" if row.measure.processes < ENDLESS else ""
        yield "first look" if trial == FIRST_LOOK else f"trial {trial + 1}{of}"
        if own := self._medians.get(row.id):
            setting = find_setting(self.results[row.id])
            first = next(r.id for r in self.results.values() if r.id in self._medians and find_setting(r) == setting)
            ratio = median(self._medians[first]) / median(own)
            factor = "" if first == row.id else f" ({format_significant(ratio, 2)}x)"
            yield f"{format_significant(median(own) / 1e6)} ms so far{factor}"
        rows = [self._rows[r.id] for r in self.results.values() if r.status == "partial"]
        left = sum(one.measure.processes - len(self.results[one.id].measurements) for one in rows)
        if self._timed_s and row.measure.processes < ENDLESS:
            yield f"at most {format_significant(left * fmean(self._timed_s), 2)} s left"

    def _save(self, result: Result) -> None:
        self.results[result.id] = result
        self.results = {row_id: self.results[row_id] for row_id in self._rows if row_id in self.results}
        self._folder.write_result(result)

    def _save_if_new(self, result: Result) -> None:
        if result != self.results[result.id]:
            self._save(result)


def order_trials(rows: Sequence[PlannedRow]) -> list[Turn]:
    """Every trial of a run, in order: A B C, then C B A, and so on.

    The places are numbered by the plan alone: a row that fails or is resumed moves no number.
    """
    rounds = max((row.measure.processes for row in rows), default=0)
    builds = max((row.measure.builds for row in rows), default=1)
    pairs: list[tuple[PlannedRow, int]] = []
    for trial in range(rounds):
        taking_part = [row for row in rows if trial < row.measure.processes]
        pairs += [(row, trial) for row in order_round(taking_part, trial, builds)]
    return [Turn(row, trial, order) for order, (row, trial) in enumerate(pairs)]


def order_round(items: Sequence[T], number: int, builds: int = 1) -> Sequence[T]:
    """The items in the order of this round, 0 first: every other round is backwards.

    A machine that becomes slower and slower thus favours none: over two rounds each has the same mean place. Where
    engines are built several times, and trial i times build i modulo their number, each build gets rounds in both
    directions, too.
    """
    backwards = (number % builds + number // builds) % 2 == 1
    return items[::-1] if backwards else items


def note_kept(interrupt: KeyboardInterrupt, results: Iterable[Result], root: Path) -> None:
    """Adds to an interrupt what of the measurements is stored in `root`, if anything is."""
    trials = [len(result.measurements) for result in results if result.measurements]
    if trials:
        configurations = count_of(len(trials), "configurations")
        interrupt.add_note(f"{count_of(sum(trials), 'trials')} of {configurations} are kept in {root}")


def attempt(ask: Callable[[], PrepareResponse]) -> PrepareResponse | EngineBenchError:
    try:
        return ask()
    except EngineBenchError as error:
        return error


def make_plain(row: PlannedRow) -> PlannedRow | None:
    """The same engine in FP32, from the last FP32 form in the row's chain that it starts from; None: there is none."""
    kind = takes(row.engine.backend)
    source = next((a for a in reversed(row.chain) if a.precision == "fp32" and a.kind == kind), None)
    if source is None:
        return None
    engine = replace(row.engine, precision="fp32", recipe=None, mix="")
    chain = row.chain[: row.chain.index(source) + 1]
    plain = replace(row, engine=engine, requested_precision="fp32", source=source, chain=chain)
    return replace(plain, id=f"{make_id(engine, 'fp32', row.measure)}-reference")


def has_changed(result: Result) -> bool:
    """Whether its outputs are known to be others than the reference's."""
    return assess_outputs(result, is_reference=False)[0] == "changed"


def has_answered(result: Result) -> bool:
    """Whether the row was built and answered the check inputs, even if it failed later, while it was timed."""
    return result.status in ("ok", "partial") or bool(result.measurements)


def is_first_look(result: Result) -> bool:
    """Whether all that was measured of a row is the trial before the long builds."""
    return bool(result.measurements) and all(m.trial == FIRST_LOOK for m in result.measurements)


def proves_when_timed(row: PlannedRow) -> bool:
    """Whether the engine's record comes from the first process that times the row, not from the build and check.

    On a GPU libraries choose kernels anew in each process, and others may work on it while rows are built. On a CPU
    the record comes from a session of its own, which would be loaded into a process that is timed.
    """
    return row.engine.device != "cpu"


def lacks_proof(result: Result) -> bool:
    """Whether the next process that times the row must make the record: the first one, and one more if that failed."""
    failed = any(warning.code == "failed_proof" for warning in result.warnings)
    return not result.measurements or (failed and len(result.measurements) == 1)


def judge_proof(result: Result, proof: Proof) -> Result:
    """The row with the engine's record, named after the precision that ran; or with a warning if there is none."""
    answered = [warning for warning in result.warnings if warning.code in ABOUT_ANSWERS]
    if proof.failure is not None:
        return replace(
            result,
            warnings=(*answered, make_record_warning(result.requested_precision, proof.failure), *proof.warnings),
        )
    ran, warnings = check_precision(
        result.requested_precision, proof.effective_precision, result.engine.device, proof.weights
    )
    return replace(
        result,
        engine=replace(result.engine, precision=ran),
        effective_precision=proof.effective_precision,
        warnings=(*answered, *warnings, *proof.warnings),
        layers=proof.layers,
    )


def label(row: PlannedRow | Result) -> str:
    spec = row.engine
    precision = format_precision(row.requested_precision, spec.recipe, spec.mix)
    batch = f" b{spec.batch}" if spec.batch > 1 else ""
    return f"{format_engine(spec)} {precision}{batch} {format_shapes(spec.shapes)}".rstrip()


def list_open_outputs(result: Result) -> set[str]:
    """The row's outputs whose length depends on the values."""
    artifact = result.artifacts[-1]
    return find_open_outputs(artifact.inputs, artifact.outputs)


def add_warnings(result: Result, *warnings: ResultWarning) -> Result:
    return replace(result, warnings=tuple(dict.fromkeys((*result.warnings, *warnings))))


def judge_outcome(results: Sequence[Result], request: RunRequest) -> None:
    """Checks that the baseline and at least one other row are ok; the baseline alone where nobody named the others."""
    if results and all(r.status == "skipped" for r in results):
        raise refuse_all(r.reason or r.status for r in results)
    wanted = [r for r in results if r.status != "skipped"]
    fine = [r for r in wanted if r.status == "ok"]
    if wanted and wanted[0].status == "ok" and (len(fine) > 1 or len(results) == 1 or request.any_engine):
        return
    alike: dict[str, list[str]] = {}
    for r in results:
        if r.status != "ok":
            alike.setdefault(r.reason or r.status, []).append(label(r))
    bad = "; ".join(f"{', '.join(rows)}: {reason}" for reason, rows in alike.items()) or "there is no configuration"
    if wanted and wanted[0].status == "ok":
        raise MeasurementError(f"the baseline is ok, but no other configuration is. Not ok: {bad}")
    raise MeasurementError(f"the baseline and at least one other configuration must be ok. Not ok: {bad}")


def judge_precisions(results: Sequence[Result]) -> None:
    """Checks that every row ran in the precision that was asked for."""
    wrong = [
        f"{label(r)}: asked for {r.requested_precision}, ran in {r.engine.precision}"
        for r in results
        if r.status != "skipped" and r.engine.precision != r.requested_precision
    ]
    if wrong:
        raise GateFailed(f"--strict-precision: {'; '.join(wrong)}")
