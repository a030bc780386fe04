"""Rows become results: built and checked once, then measured A B C A B C, each repetition in a fresh process.

After every repetition the row's file is rewritten, so whatever ends the run, what was measured is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.accuracy import measure_accuracy
from enginebench.analyze.drift import default_limits, measure_drift
from enginebench.analyze.effective import judge_precision
from enginebench.core.errors import (
    ArtifactError,
    BackendUnavailable,
    ChildFailed,
    DependencyError,
    EngineBenchError,
    GateFailed,
    MeasurementError,
    UsageError,
)
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Caveat, Machine, Result
from enginebench.workflow.arrays import load_arrays
from enginebench.workflow.folder import RunFolder
from enginebench.workflow.isolate import Child, run_child
from enginebench.workflow.jobs import MeasureAnswer, MeasureJob, PreloadJob, PrepareAnswer, PrepareJob, Proof
from enginebench.workflow.plan import PlannedRow
from enginebench.workflow.preload import can_wait, count_at_once

# (model, batch) -> (id of the row that was taken as the truth, its outputs)
References: TypeAlias = dict[tuple[str, int], tuple[str, Mapping[str, Any]]]

# Outputs are compared over this many samples; enough to see a wrong engine, cheap enough for a slow one.
CHECK_SAMPLES = 32


class Reporter(Protocol):
    """Where progress goes: a live display on a terminal, plain lines elsewhere."""

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, text: str) -> None: ...

    def advance(self) -> None: ...


class Labelled(Struct, frozen=True, kw_only=True):
    """Labelled data that every row answers."""

    data: str
    n: int
    input_size: int | None = None


def child_environment(threads: int, repetition: int = 0) -> dict[str, str]:
    """Variables for a child: every numeric library at the same number of threads from its first import on."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "ENGINEBENCH_REPETITION": str(repetition),
    }


class Turn(Struct, frozen=True):
    """One repetition of one row, and its place in the run."""

    row: PlannedRow
    repetition: int
    order: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the process that measures it."""
        return child_environment(self.row.engine.threads, self.repetition)


class Campaign:
    """All rows of one run on their way. `results` holds each row as it stands, in the order of the plan."""

    def __init__(
        self,
        folder: RunFolder,
        rows: Sequence[PlannedRow],
        machine: Machine,
        *,
        timeout_s: float,
        reporter: Reporter,
        labelled: Labelled | None = None,
    ) -> None:
        self._folder = folder
        self._labelled = labelled
        self._rows = {row.id: row for row in rows}
        self._machine = machine
        self._timeout_s = timeout_s
        self._reporter = reporter
        self._at_once = count_at_once(machine)
        self.results: dict[str, Result] = {}

    def restore(self) -> None:
        """Takes up the rows that an earlier, interrupted run has stored.

        Raises:
            ParseError: a stored row is damaged.
            ArtifactError: an artefact was changed since.
        """
        for row_id in self._rows:
            stored = self._folder.read_result(row_id)
            if stored is None or stored.status == "skipped":
                continue
            for artifact in stored.artifacts:
                self._folder.verify(artifact)
            fresh = stored.status == "failed" and not stored.measurements
            self.results[row_id] = replace(stored, status="partial") if stored.status == "failed" else stored
            if fresh:
                del self.results[row_id]

    def run(self) -> list[Result]:
        """Every row, prepared, checked and measured; those that failed carry their reason.

        Raises:
            ArtifactError: a row could not be written; `results` has it all the same.
        """
        self._reporter.begin(sum(1 + row.measure.processes for row in self._rows.values() if row.skip is None))
        for row in self._rows.values():
            self.prepare(row)
        self._compare_outputs()
        self._count_answers()
        self._measure_interleaved()
        return list(self.results.values())

    def prepare(self, row: PlannedRow) -> None:
        """Builds and checks one row in a child; nothing is done for a row that was prepared before."""
        if row.skip is not None:
            self._keep(self._begin(row, status="skipped", reason=row.skip))
            return
        self._reporter.step(f"{label(row)}: build and check")
        known = self.results.get(row.id)
        if known is None or not self._folder.outputs_path(row.id).exists():
            self._keep(self._prepare_in_child(row, known))
        self.results[row.id] = self.results.pop(row.id)  # the order of the plan, also after a restore
        self._reporter.advance()

    def _prepare_in_child(self, row: PlannedRow, known: Result | None) -> Result:
        assert row.source is not None
        job = PrepareJob(
            model=row.model,
            artifact=row.source,
            engine=row.engine,
            out_dir=str(self._folder.artefacts.absolute()),
            outputs_path=str(self._folder.outputs_path(row.id).absolute()),
            samples=CHECK_SAMPLES,
            seed=row.measure.seed,
            prove=not proves_when_timed(row),
            data=self._labelled.data if self._labelled else None,
            data_n=self._labelled.n if self._labelled else 0,
            input_size=self._labelled.input_size if self._labelled else None,
            logits_path=str(self._folder.logits_path(row.id).absolute()),
        )
        begun = known or self._begin(row, status="partial")
        try:
            answer = run_child(
                job,
                timeout_s=self._timeout_s,
                environment=child_environment(row.engine.threads),
                on_note=lambda text: self._reporter.step(f"{label(row)}: {text}"),
            )
        except UsageError:
            raise  # a wrong option is the user's to mend, before anything is measured
        except DependencyError as error:
            return replace(begun, status="skipped", reason=str(error))
        except EngineBenchError as error:
            return self._failed(begun, "while it was built and checked", error)
        assert isinstance(answer, PrepareAnswer)
        chain = [*row.chain, *([answer.artifact] if answer.artifact != row.source else [])]
        prepared = replace(
            begun,
            artifacts=tuple(chain),
            engine_version=answer.engine_version,
            build_s=answer.build_s,
            size_bytes=answer.size_bytes,
        )
        return judge_proof(prepared, answer.proof) if answer.proof else prepared

    def _begin(self, row: PlannedRow, **fields: object) -> Result:
        return Result(
            id=row.id,
            model=row.model,
            engine=row.engine,
            measure=row.measure,
            requested_precision=row.requested_precision,
            machine=self._machine,
            artifacts=row.chain,
            **fields,  # type: ignore[arg-type]
        )

    def _failed(self, result: Result, when: str, error: EngineBenchError) -> Result:
        self._reporter.say(f"{result.id} failed {when}: {error}")
        tail = error.stderr_tail if isinstance(error, ChildFailed) else ""
        return replace(result, status="failed", reason=f"{when}: {error}", stderr_tail=tail or None)

    def _compare_outputs(self) -> None:
        """Drift of every row against the first row of its model and batch that answered."""
        references: References = {}
        for row_id, result in list(self.results.items()):
            if result.status in ("failed", "skipped") or result.drift is not None:
                continue
            path = self._folder.outputs_path(row_id)
            if path.exists():
                self._keep(self._with_drift(result, path, references))

    def _with_drift(self, result: Result, path: Path, references: References) -> Result:
        outputs = load_arrays(path)
        reference_id, reference = references.setdefault((result.model, result.engine.batch), (result.id, outputs))
        wanted, answers = cut_common(reference, outputs)
        try:
            drift = measure_drift(wanted, answers, default_limits(result.requested_precision))
        except ArtifactError as error:
            return self._failed(result, "when its outputs were compared", error)
        return replace(result, drift=replace(drift, reference=reference_id))

    def _count_answers(self) -> None:
        """Accuracy of every row that answered the labelled data, against the first of them with its batch."""
        references: dict[tuple[str, int], Mapping[str, Any]] = {}
        for row_id, result in list(self.results.items()):
            path = self._folder.logits_path(row_id)
            if result.status in ("failed", "skipped") or not path.exists():
                continue
            answers = load_arrays(path)
            reference = references.setdefault((result.model, result.engine.batch), answers)
            if result.accuracy is None:
                found = measure_accuracy(answers["logits"], answers["labels"], reference["logits"])
                self._keep(replace(result, accuracy=found))

    def _measure_interleaved(self) -> None:
        """Every repetition in its turn, a few turns at a time: their children may import before it comes."""
        group: list[Turn] = []
        order = 0
        for repetition in range(max((row.measure.processes for row in self._rows.values()), default=0)):
            for row in self._rows.values():
                result = self.results[row.id]
                if result.status != "partial" or repetition >= row.measure.processes:
                    continue
                if any(m.repetition == repetition for m in result.measurements):
                    self._reporter.advance()
                else:
                    group.append(Turn(row, repetition, order))
                order += 1
                if len(group) >= self._at_once:
                    self._take_turns(group)
                    group = []
        self._take_turns(group)

    def _take_turns(self, turns: Sequence[Turn]) -> None:
        """One after the other, once all children that were started ahead have imported: each is timed alone."""
        with ExitStack() as stack:
            ahead: dict[int, Child] = {}
            for turn in turns if len(turns) > 1 else ():
                if can_wait(turn.row.engine):
                    ahead[turn.order] = stack.enter_context(Child(turn.environment))
                    ahead[turn.order].ask_to_preload(self._describe_preload(turn))
            deadline = time.monotonic() + self._timeout_s
            for child in ahead.values():
                child.wait_until_ready(deadline)
            for turn in turns:
                result = self.results[turn.row.id]
                if result.status == "partial":  # it may have failed in a turn before this one
                    waiting = ahead.get(turn.order)
                    # What ends before it was asked for anything says nothing about the row.
                    with waiting if waiting and waiting.alive else Child(turn.environment) as child:
                        self._keep(self._repeat(turn, result, child))
                    self._reporter.advance()

    def _describe_preload(self, turn: Turn) -> PreloadJob:
        artifact = self.results[turn.row.id].artifacts[-1]
        folder = str(self._folder.artefacts.absolute())
        return PreloadJob(engine=turn.row.engine, kind=artifact.kind, out_dir=folder)

    def _repeat(self, turn: Turn, result: Result, child: Child) -> Result:
        row, repetition = turn.row, turn.repetition
        self._reporter.step(f"{label(row)}: process {repetition + 1} of {row.measure.processes}")
        job = MeasureJob(
            model=row.model,
            artifact=result.artifacts[-1],
            engine=row.engine,
            measure=row.measure,
            out_dir=str(self._folder.artefacts.absolute()),
            repetition=repetition,
            order=turn.order,
            last_level_cache_bytes=self._machine.last_level_cache_bytes,
            prove=proves_when_timed(row) and lacks_proof(result),
        )
        try:
            answer = child.perform(job, timeout_s=self._timeout_s)
        except EngineBenchError as error:
            if child.kept is None:
                return self._failed(result, f"in process {repetition + 1}", error)
            answer = replace(child.kept, proof=Proof(failure=str(error)))
        assert isinstance(answer, MeasureAnswer)
        measurements = (*result.measurements, answer.measurement)
        finished = len(measurements) >= row.measure.processes
        measured = replace(result, measurements=measurements, status="ok" if finished else "partial")
        return judge_proof(measured, answer.proof) if answer.proof else measured

    def _keep(self, result: Result) -> None:
        """The row as it stands, in memory and in its file."""
        self.results[result.id] = result
        self._folder.write_result(result)


def proves_when_timed(row: PlannedRow) -> bool:
    """Whether a row's record is made in the first process that times it, and not when it is built and checked.

    On a GPU libraries choose kernels anew in each process, and others may work on it while rows are built. On a CPU
    the record comes from a session of its own, which would be loaded into a process that is timed.
    """
    return row.engine.device != "cpu"


def lacks_proof(result: Result) -> bool:
    """Whether the next process that times a row is to make its record: the first, and one more where that failed."""
    failed = any(caveat.code == "failed_proof" for caveat in result.caveats)
    return not result.measurements or (failed and len(result.measurements) == 1)


def judge_proof(result: Result, proof: Proof) -> Result:
    """The row with the engine's record, named after the precision that ran; or with the doubt that there is none."""
    if proof.failure is not None:
        doubt = Caveat(
            code="failed_proof",
            message=f"asked {result.requested_precision}; the record that would prove it failed: {proof.failure}",
            advice="take the label as what was asked, not as what ran; times and outputs do not depend on it",
        )
        return replace(result, caveats=(doubt,))
    ran, doubts = judge_precision(result.requested_precision, proof.effective_precision)
    return replace(
        result,
        engine=replace(result.engine, precision=ran),
        effective_precision=proof.effective_precision,
        caveats=(*doubts, *proof.caveats),
        layers=proof.layers,
    )


def label(row: PlannedRow) -> str:
    """How a row is called in messages: engine, precision, batch."""
    spec = row.engine
    return f"{format_engine(spec)} {format_precision(row.requested_precision, spec.recipe)} b{spec.batch}"


def cut_common(
    reference: Mapping[str, Any], candidate: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Both, cut to the samples that both answered: a tool that starts anew for each answer gives only the first few."""
    common = {name: min(len(reference[name]), len(candidate[name])) for name in reference.keys() & candidate.keys()}
    reference, candidate = ({n: a[: common.get(n)] for n, a in side.items()} for side in (reference, candidate))
    return reference, candidate


def judge_outcome(results: Sequence[Result]) -> None:
    """Returns if the baseline and at least one other row are ok.

    Raises:
        BackendUnavailable: no row could run here, as on a machine without the device.
        MeasurementError: otherwise; names the rows that are not.
    """
    if results and all(r.status == "skipped" for r in results):
        reasons = dict.fromkeys(r.reason or r.status for r in results)
        raise BackendUnavailable(f"no row can run here: {'; '.join(reasons)}")
    wanted = [r for r in results if r.status != "skipped"]
    fine = [r for r in wanted if r.status == "ok"]
    if wanted and wanted[0].status == "ok" and (len(fine) > 1 or len(results) == 1):
        return
    bad = "; ".join(f"{r.id}: {r.reason or r.status}" for r in results if r.status != "ok") or "no row at all"
    raise MeasurementError(f"the baseline and at least one other row must be ok. Not ok: {bad}")


def judge_precisions(results: Sequence[Result]) -> None:
    """Returns if every row that ran did so in the precision that was asked for.

    Raises:
        GateFailed: names the rows that did not.
    """
    wrong = [
        f"{r.id}: asked {r.requested_precision}, ran {r.engine.precision}"
        for r in results
        if r.status != "skipped" and r.engine.precision != r.requested_precision
    ]
    if wrong:
        raise GateFailed(f"--strict-precision: {'; '.join(wrong)}")
