"""Rows on their way: order, faults in the middle, builds, what is kept, and how a run ends."""

import re
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace

from asked import make_row
from enginebench.core.errors import (
    ArtifactError,
    ChildFailed,
    DependencyError,
    GateFailed,
    MeasurementError,
    TimedOut,
    UsageError,
)
from enginebench.core.input_sets import EXAMPLES
from enginebench.core.names import configuration_id
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Result, TensorSpec
from enginebench.core.store import hash_files
from enginebench.engines import fake
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.samples import write_samples
from enginebench.runs import building, campaign
from enginebench.runs.building import Begun
from enginebench.runs.builds import count_builds, cut_common, measure_build_difference
from enginebench.runs.campaign import Campaign
from enginebench.runs.checking import CHECK_SAMPLES
from enginebench.runs.child import arrays
from enginebench.runs.child.jobs import Labelled, MeasureJob, PreloadJob, PrepareJob
from enginebench.runs.child.perform import build
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.results import BEFORE_EXPORT, FIRST_LOOK, check_precisions, label
from enginebench.runs.scoring import Scoring, open_metrics
from enginebench.runs.trials import order_trials
from enginebench.stats.alike import assess_outputs, check_comparisons
from enginebench.stats.ranking import Rules
from in_process import Children
from interruptions import still
from reporters import Silent
from samples import make_result

MACHINE = describe_machine()

AXES = ("batch", 4)
IDEAL = MeasureSpec(warmup=1, iters=5, processes=2)


@pytest.fixture
def graph(tmp_path: Path) -> Artifact:
    """What rows start from, in the folder of the run; `fake` never opens the file."""
    path = tmp_path / "r" / "artefacts" / "toy.onnx"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"a graph")
    sha256, files = hash_files([path], path.parent)
    into, out = ((TensorSpec(name=name, dtype="float32", shape=AXES),) for name in "xy")
    return Artifact(kind="onnx", model="toy", path=str(path), sha256=sha256, files=files, inputs=into, outputs=out)


def plan(
    source: Artifact, seed: str, *, measure: MeasureSpec = IDEAL, batch: int = 1, backend: str = "fake", **options: str
) -> PlannedConfiguration:
    """A row of an engine, called by its seed."""
    engine = EngineSpec(backend=backend, options={"seed": seed, **options}, batch=batch)
    return make_row(engine, source, measure, model="toy")


class Counting(Silent):
    """A reporter that also counts."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.advanced = 0, 0
        self.said: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def advance(self) -> None:
        self.advanced += 1

    def say(self, text: str) -> None:
        self.said.append(text)


class Bed(NamedTuple):
    """A graph, a folder for runs, and children in this process."""

    graph: Artifact
    path: Path
    children: Children

    def plan(self, seed: str, **more: Any) -> PlannedConfiguration:
        return plan(self.graph, seed, **more)

    def start(self, *rows: PlannedConfiguration, at: str = "r", **more: Any) -> Campaign:
        how = {"timeout_s": 60, "reporter": Counting(), **more}
        return Campaign(RunFolder(self.path / at), rows, MACHINE, **how)

    def resume(self, *rows: PlannedConfiguration, **more: Any) -> Campaign:
        """The run of a later process, in which no child is disturbed."""
        self.children.jobs.clear()
        self.children.before = lambda job: None
        campaign = self.start(*rows, **more)
        campaign.restore()
        return campaign

    def stored(self, row: PlannedConfiguration) -> Any:
        found = RunFolder(self.path / "r").read_result(row.id)
        assert found is not None
        return found


@pytest.fixture
def bed(graph: Artifact, tmp_path: Path, children: Children) -> Bed:
    return Bed(graph, tmp_path, children)


def test_configurations_are_built_in_the_order_of_the_plan_and_measured_in_turns(bed: Bed) -> None:
    rows = [bed.plan(seed) for seed in "312"]
    reporter = Counting()
    results = bed.start(*rows, reporter=reporter).run()
    kinds = [type(job) for job in bed.children.jobs]
    assert kinds == [PrepareJob] * 3 + [MeasureJob] * 6, "all are built before the first is timed"
    assert [job.engine.options["seed"] for job in bed.children.of(PrepareJob)] == ["3", "1", "2"]
    assert bed.children.turns == [("3", 0, 0), ("1", 0, 1), ("2", 0, 2), ("2", 1, 3), ("1", 1, 4), ("3", 1, 5)]
    assert [(r.id, r.status) for r in results] == [(row.id, "ok") for row in rows]
    assert [bed.stored(row) for row in rows] == results
    assert (reporter.total, reporter.advanced) == (9, 9)
    assert bed.children.closed == len(bed.children.environments) == 9, "every process is ended"


@pytest.mark.parametrize("builds", [1, 2, 3])
def test_a_machine_that_slows_down_steadily_favours_no_configuration_and_no_build(bed: Bed, builds: int) -> None:
    rows = [bed.plan(seed, measure=replace(IDEAL, processes=12, builds=builds)) for seed in "123"]
    turns = order_trials(rows)
    assert [turn.order for turn in turns] == list(range(36)), "every place is taken once"
    for number in range(builds):
        of_build = [turn for turn in turns if turn.number % builds == number]
        means = {fmean(turn.order for turn in of_build if turn.configuration is row) for row in rows}
        assert len(means) == 1, f"over the trials of build {number} no row comes earlier than another"


def test_a_proposed_configuration_is_measured_beside_the_others_once(bed: Bed) -> None:
    rows, more, asked = [bed.plan("1"), bed.plan("2")], bed.plan("3"), []

    def propose(row: PlannedConfiguration, result: Result) -> PlannedConfiguration | None:
        asked.append((row.id, len(result.measurements)))
        if row is rows[0]:
            raise ArtifactError("its graph cannot be quantized so")
        return more

    reporter = Counting()
    results = bed.start(*rows, reporter=reporter, propose=propose).run()
    assert asked == [(row.id, 0) for row in rows], "once it is built, before it is timed"
    assert [(r.id, r.status, len(r.measurements)) for r in results] == [(row.id, "ok", 2) for row in (*rows, more)]
    assert [text for text in reporter.said if "no other recipe was tried: its graph" in text]
    assert reporter.total == reporter.advanced, "nobody asked for it, so that it is no progress"
    resumed = bed.resume(*rows, propose=propose)
    assert resumed.run() == results and not bed.children.jobs, "nothing is built or timed again"


def test_a_proposed_configuration_whose_outputs_are_beyond_the_limits_is_not_kept(bed: Bed) -> None:
    rows, wrong = [bed.plan("1"), bed.plan("2")], bed.plan("3", bias="9")
    results = bed.start(*rows, propose=lambda row, result: wrong).run()
    assert [r.id for r in results] == [row.id for row in rows] and not (
        bed.path / "r" / "rows" / f"{wrong.id}.json"
    ).exists()


def test_configurations_of_fewer_trials_leave_the_later_rounds(bed: Bed) -> None:
    rows = [bed.plan(seed, measure=replace(IDEAL, processes=n)) for seed, n in (("1", 3), ("2", 1), ("3", 2))]
    turns = [(turn.configuration.engine.options["seed"], turn.number) for turn in order_trials(rows)]
    assert turns == [("1", 0), ("2", 0), ("3", 0), ("3", 1), ("1", 1), ("1", 2)]


def test_a_resumed_run_goes_on_in_the_order_of_its_plan(bed: Bed) -> None:
    rows = [bed.plan(seed, measure=replace(IDEAL, processes=4)) for seed in "123"]

    def interrupt(job: Any) -> None:
        if isinstance(job, MeasureJob) and (job.engine.options["seed"], job.trial) == ("2", 1):
            raise KeyboardInterrupt

    bed.children.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        bed.start(*rows).run()
    before = bed.children.turns[:-1]
    results = bed.resume(*rows).run()
    assert before + bed.children.turns == [
        (turn.configuration.engine.options["seed"], turn.number, turn.order) for turn in order_trials(rows)
    ]
    places = [[m.order for m in result.measurements] for result in results]
    assert places == [[0, 5, 6, 11], [1, 4, 7, 10], [2, 3, 8, 9]]


@pytest.fixture
def slow_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines with an even seed take minutes to build."""
    monkeypatch.setattr(campaign, "builds_slowly", lambda engine: int(engine.options["seed"]) % 2 == 0)


def list_events(bed: Bed) -> list[tuple[str, str, int | None]]:
    return [
        (type(job).__name__, job.engine.options["seed"], getattr(job, "trial", None))
        for job in bed.children.jobs
        if isinstance(job, PrepareJob | MeasureJob)
    ]


@pytest.mark.usefixtures("slow_builds")
def test_what_builds_in_seconds_is_measured_before_the_first_long_build(bed: Bed) -> None:
    rows = [bed.plan(seed) for seed in "1352"]
    reporter = Counting()
    results = bed.start(*rows, reporter=reporter).run()
    looks = [("MeasureJob", seed, FIRST_LOOK) for seed in "135"]
    built = [("PrepareJob", seed, None) for seed in "135"]
    assert list_events(bed)[:7] == [*built, *looks, ("PrepareJob", "2", None)]
    assert {m.trial for result in results for m in result.measurements} == {0, 1}, "verdicts are of rounds alone"
    assert [(result.status, result.reason) for result in results] == [("ok", None)] * 4
    assert reporter.total == reporter.advanced


@pytest.mark.usefixtures("slow_builds")
def test_what_was_timed_before_the_export_comes_last_in_the_first_look(bed: Bed) -> None:
    rows = [bed.plan(seed) for seed in "1352"]
    bed.start().measure_unchecked(rows[0])
    bed.resume(*rows).run()
    looks = [(job.engine.options["seed"], job.order) for job in bed.children.of(MeasureJob) if job.trial == FIRST_LOOK]
    assert looks == [("3", -3), ("5", -2), ("1", -1)], "the others have no figure yet"


@pytest.fixture
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "count_workers", lambda machine: 2)


def run_with(campaign: Campaign, row: PlannedConfiguration, begun: Begun) -> list[Result]:
    campaign.take_over({row.id: begun})
    return campaign.run()


@pytest.mark.usefixtures("two_workers")
def test_what_is_built_during_the_export_is_not_built_again(bed: Bed) -> None:
    rows = [bed.plan("1"), bed.plan("2")]
    begun = bed.start().begin(rows[0])
    assert begun is not None and not bed.children.of(PrepareJob), "it works while the export does"
    results = run_with(bed.start(*rows), rows[0], begun)
    assert [job.engine.options["seed"] for job in bed.children.of(PrepareJob)] == ["1", "2"]
    assert [(result.status, result.build_s is not None) for result in results] == [("ok", True)] * 2


@pytest.mark.usefixtures("two_workers")
def test_what_was_begun_on_other_samples_is_built_anew(bed: Bed) -> None:
    rows = [bed.plan("1"), bed.plan("2")]
    begun = bed.start(samples=CHECK_SAMPLES + 1).begin(rows[0])
    assert begun is not None
    run_with(bed.start(*rows), rows[0], begun)
    assert [job.samples for job in bed.children.of(PrepareJob)] == [CHECK_SAMPLES] * 2
    assert bed.children.closed == len(bed.children.environments), "the first child is ended before it writes outputs"


@pytest.mark.usefixtures("two_workers")
def test_what_fails_during_the_export_is_tried_again_alone(bed: Bed) -> None:
    rows, failures = [bed.plan("1"), bed.plan("2")], list[str]()

    def fail_once(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options["seed"] == "1" and not failures:
            failures.append("memory was short")
            raise ChildFailed(failures[0])

    begun = bed.start().begin(rows[0])
    assert begun is not None
    bed.children.before = fail_once
    results = run_with(bed.start(*rows), rows[0], begun)
    assert failures and [result.status for result in results] == ["ok", "ok"]


def test_nothing_is_built_during_an_export_on_a_single_cpu_or_where_memory_does_not_hold_both(
    bed: Bed, monkeypatch
) -> None:
    row = bed.plan("1")
    monkeypatch.setattr(building, "count_workers", lambda machine: 1)
    assert bed.start().begin(row) is None
    monkeypatch.setattr(building, "count_workers", lambda machine: 2)
    monkeypatch.setattr(building, "fit_in_memory", lambda rows, machine: len(rows) < 2)
    assert bed.start().begin(row) is None


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize(("device", "begins"), [("cpu", False), ("cuda:0", True)])
def test_a_builder_that_times_kernels_works_during_the_export_on_a_gpu_alone(
    bed: Bed, monkeypatch, device: str, begins: bool
) -> None:
    """An export keeps the CPU busy, and leaves a GPU alone."""
    row = bed.plan("1")
    row = replace(row, engine=replace(row.engine, device=device))
    monkeypatch.setattr(building, "tunes", lambda engine: True)
    assert (bed.start().begin(row) is not None) is begins


@pytest.mark.usefixtures("two_workers", "slow_builds")
def test_what_is_built_during_the_export_is_done_before_anything_else_runs(bed: Bed, monkeypatch) -> None:
    """Neither checks of other engines nor a first look disturb a builder that times kernels."""
    rows, before = [bed.plan(seed) for seed in "13524"], list[int]()
    monkeypatch.setattr(building, "tunes", lambda engine: engine.options["seed"] == "2")
    on_gpu = replace(rows[3], engine=replace(rows[3].engine, device="cuda:0"))
    begun = bed.start().begin(on_gpu)
    assert begun is not None

    def note(works: Any, **_: Any) -> None:
        if begun.work in works:
            before.append(len(bed.children.of(PrepareJob)))

    monkeypatch.setattr(building, "wait_until_sure", note)
    reporter = Counting()
    campaign_run = bed.start(*rows[:3], on_gpu, rows[4], reporter=reporter)
    campaign_run.take_over({on_gpu.id: begun})
    results = campaign_run.run()
    assert before[0] == 0
    events = list_events(bed)
    assert events.index(("PrepareJob", "2", None)) < events.index(("MeasureJob", "1", FIRST_LOOK))
    assert events.count(("PrepareJob", "2", None)) == 1
    assert events.count(("MeasureJob", "2", FIRST_LOOK)) == 1, "it is built by then"
    assert [result.status for result in results] == ["ok"] * 5
    assert reporter.total == reporter.advanced


@pytest.mark.usefixtures("two_workers", "slow_builds")
def test_a_module_alone_is_measured_beside_what_was_compiled_during_the_export_before_a_long_build(bed: Bed) -> None:
    """PyTorch, its compiled code, and TensorRT: the first table does not wait for the plan."""
    rows = [bed.plan(seed) for seed in "124"]
    begun = bed.start().begin(rows[1])
    assert begun is not None
    run_with(bed.start(*rows), rows[1], begun)
    events = list_events(bed)
    looks = [event for event in events if event[2] == FIRST_LOOK]
    assert looks == [("MeasureJob", seed, FIRST_LOOK) for seed in "12"]
    assert events.index(looks[-1]) < events.index(("PrepareJob", "4", None))


@pytest.mark.usefixtures("slow_builds")
def test_with_one_trial_the_leader_its_nearest_and_the_baseline_are_measured_again_beside_a_late_one(bed: Bed) -> None:
    one = replace(IDEAL, processes=1)
    rows = [
        bed.plan(seed, measure=one, latency_us=latency)
        for seed, latency in (("1", "900"), ("3", "100"), ("5", "500"), ("7", "130"), ("2", "50"))
    ]
    results = bed.start(*rows, rules=Rules(baseline_engine="fake:latency_us=900,seed=1")).run()
    trials = [[m.trial for m in result.measurements] for result in results]
    assert trials[0] == trials[1] == [FIRST_LOOK, 0], "the baseline, and who led before"
    assert trials[3] == [FIRST_LOOK, 0], "one trial each does not tell it from who led"
    assert trials[2] == [FIRST_LOOK] and trials[4] == [0]
    assert [result.status for result in results] == ["ok"] * 5


@pytest.mark.usefixtures("slow_builds")
def test_an_interrupt_during_a_long_build_leaves_times_and_outputs_of_the_others(bed: Bed) -> None:
    rows = [bed.plan(seed) for seed in "132"]

    def interrupt(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options["seed"] == "2":
            raise KeyboardInterrupt

    bed.children.before = interrupt
    campaign = bed.start(*rows)
    with pytest.raises(KeyboardInterrupt):
        campaign.run()
    kept = [result for result in campaign.results.values() if result.measurements]
    assert [result.engine.options["seed"] for result in kept] == ["1", "3"]
    assert all(result.drift is not None for result in kept), "what is named was compared"
    again = bed.resume(*rows).run()
    assert [len(result.measurements) for result in again] == [2, 2, 2]
    assert FIRST_LOOK not in {job.trial for job in bed.children.of(MeasureJob)}


def test_what_is_measured_before_the_export_is_a_figure_until_the_next_trial_and_part_of_no_verdict(bed: Bed) -> None:
    rows = [bed.plan("1", measure=(one := replace(IDEAL, processes=1))), bed.plan("2", measure=one)]
    bed.start().measure_unchecked(rows[0])
    assert [m.trial for m in bed.stored(rows[0]).measurements] == [BEFORE_EXPORT]
    assert bed.stored(rows[0]).status == "partial", "one trial is all that was asked for, and this is not it"

    def look(job: Any) -> None:
        if isinstance(job, PrepareJob):
            assert bed.stored(rows[0]).measurements, "nothing replaces the figure before it is measured again"

    campaign = bed.resume(*rows)
    bed.children.before = look
    results = campaign.run()
    assert len(bed.children.of(PrepareJob)) == 2, "its outputs are compared like any other's"
    assert [[m.trial for m in result.measurements] for result in results] == [[0], [0]]
    assert [result.status for result in results] == ["ok", "ok"] and results[1].drift is not None


@pytest.mark.parametrize(
    ("error", "status"), [(ChildFailed("killed by SIGSEGV"), "failed"), (DependencyError("no such library"), "skipped")]
)
def test_a_time_from_before_the_export_is_dropped_where_no_outputs_follow(bed: Bed, error, status: str) -> None:
    rows = [bed.plan("1"), bed.plan("2")]
    bed.start().measure_unchecked(rows[0])
    campaign = bed.resume(*rows)

    def fail(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options["seed"] == "1":
            raise error

    bed.children.before = fail
    first, second = campaign.run()
    assert (first.status, first.measurements, second.status) == (status, (), "ok")


def test_wrong_usage_that_shows_after_the_trial_before_the_export_ends_the_run(bed: Bed) -> None:
    rows = [bed.plan("1"), bed.plan("2")]
    bed.start().measure_unchecked(rows[0])
    campaign = bed.resume(*rows)

    def refuse(job: Any) -> None:
        if isinstance(job, PrepareJob):
            raise UsageError("--targets has 5 entries, and there are 8 samples")

    bed.children.before = refuse
    with pytest.raises(UsageError, match="--targets has 5 entries"):
        campaign.run()
    assert not bed.stored(rows[0]).measurements, "its folder is free for the corrected command"


def test_every_process_gets_its_trial_and_its_threads(bed: Bed) -> None:
    row = bed.plan("1")
    row = replace(row, engine=replace(row.engine, threads=3))
    bed.start(row).run()
    told = [
        (e["ENGINEBENCH_REPETITION"], e["OMP_NUM_THREADS"], e["MKL_NUM_THREADS"]) for e in bed.children.environments
    ]
    assert told == [("0", "3", "3")] * 2 + [("1", "3", "3")]


def test_a_failure_keeps_what_was_measured_and_stops_no_other(bed: Bed) -> None:
    rows = [bed.plan(seed, measure=replace(IDEAL, processes=4)) for seed in "123"]
    bed.children.fail_in("2", 2, ChildFailed("killed by SIGSEGV", "its last words"))
    reporter = Counting()
    first, failed, last = bed.start(*rows, reporter=reporter).run()
    assert (first.status, last.status) == ("ok", "ok")
    assert failed.status == "failed" and [m.trial for m in failed.measurements] == [0, 1]
    assert (failed.reason, failed.stderr_tail) == ("in trial 3: killed by SIGSEGV", "its last words")
    assert bed.stored(rows[1]) == failed
    # A place in the order is that of the plan, whoever fails on the way: a resumed run has the same.
    assert [turn for turn in bed.children.turns if turn[1] == 3] == [("3", 3, 9), ("1", 3, 11)]
    assert reporter.said == [f"{label(failed)} failed in trial 3: killed by SIGSEGV"]


def test_outputs_are_held_against_the_first_configuration_of_their_batch(bed: Bed) -> None:
    rows = [bed.plan("1", batch=batch, bias=bias) for batch in (1, 2) for bias in ("0", "1")]
    results = bed.start(*rows).run()
    assert [r.drift.reference for r in results if r.drift] == [rows[0].id, rows[0].id, rows[2].id, rows[2].id]
    assert [r.drift.passed for r in results if r.drift] == [True, False, True, False]
    accepted = bed.start(*rows, at="accepted", rules=Rules(limits={"max_abs": 1.01})).run()
    assert all(r.drift.passed and r.drift.limits == {"max_abs": 1.01} for r in accepted if r.drift)


@pytest.mark.parametrize(
    ("wrong", "on"),
    [
        (lambda x: np.abs(x).max() > 20, "on large, negative and zero inputs: "),
        (lambda x: bool((x == 7).all()), "on the example inputs: "),
        (lambda x: False, None),
    ],
)
def test_an_engine_that_is_wrong_on_further_inputs_alone_is_changed(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Any], bool], on: str | None
) -> None:
    project = fake.project_feeds

    def lie(inputs: Any, outputs: Any, feeds: Any, bias: float = 0.0) -> Any:
        return project(inputs, outputs, feeds, bias if wrong(feeds["x"]) else 0.0)

    monkeypatch.setattr(fake, "project_feeds", lie)
    graph = replace(bed.graph, inputs=(replace(bed.graph.inputs[0], shape=("batch", 16)),))
    write_samples(
        [{"x": np.full((1, 16), 7, np.float32)}], graph.inputs, RunFolder(bed.path / "r").artifacts / EXAMPLES
    )
    rows = [plan(graph, "1"), plan(graph, "2", bias="1")]
    first, second = bed.start(*rows).run()
    assert first.drift is not None and first.drift.passed
    assert second.drift is not None and second.drift.passed == (on is None)
    assert {one.inputs for one in second.drift.further} == {"large", "examples"}
    verdict, why = assess_outputs(second, is_reference=False)
    assert (verdict, why.startswith(on or "")) == ("same" if on is None else "changed", True)
    assert bed.stored(rows[1]).drift == second.drift


def shorten(row: PlannedConfiguration) -> PlannedConfiguration:
    engine = replace(row.engine, precision="bf16")
    return replace(row, engine=engine, requested_precision="bf16", id=configuration_id(engine, "bf16", row.measure))


def test_a_shorter_precision_is_held_against_fp32_that_nobody_asked_for(bed: Bed) -> None:
    rows = [shorten(bed.plan("1")), shorten(bed.plan("2", bias="1"))]
    results = bed.start(*rows).run()
    assert [r.id for r in results] == [row.id for row in rows]  # FP32 is built and asked, and is no row
    assert [job.engine.precision for job in bed.children.of(PrepareJob)] == ["bf16", "bf16", "fp32"]
    assert [turn[0] for turn in bed.children.turns] == ["1", "2", "2", "1"]
    drifts = [r.drift for r in results if r.drift]
    assert [(d.elsewhere, d.passed) for d in drifts] == [(True, True), (True, False)]
    assert {d.reference for d in drifts} == {rows[0].id.replace("bf16", "fp32") + "-reference"}
    assert [r.drift for r in check_comparisons(results)] == drifts
    assert [r.drift for r in bed.resume(*rows).run()] == drifts and not bed.children.of(PrepareJob)


def test_fp32_that_failed_judges_nothing(bed: Bed) -> None:
    """Nor does a shorter precision in its place."""
    failing, *rows = bed.plan("1"), shorten(bed.plan("2")), shorten(bed.plan("3", bias="1"))

    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options["seed"] == "1":
            raise MeasurementError("broken")

    bed.children.before = before
    results = bed.start(failing, *rows).run()
    assert [(r.status, r.drift and (r.drift.elsewhere, r.drift.passed)) for r in results] == [
        ("failed", None),
        ("ok", (True, True)),
        ("ok", (True, False)),
    ]


def test_a_graph_without_an_fp32_form_is_its_own_reference(bed: Bed) -> None:
    row = shorten(plan(replace(bed.graph, precision="bf16"), "1"))
    (result,) = bed.start(row).run()
    assert result.drift is not None and (result.drift.reference, result.drift.elsewhere) == (row.id, False)


def test_an_engine_with_other_outputs_each_time_judges_nothing(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    steady = bed.start(bed.plan("1"), bed.plan("2"), at="a").run()
    assert not any(warning.code == "outputs_vary" for r in steady for warning in r.warnings)
    monkeypatch.setattr(build, "measure_variation", lambda first, again: 0.5)
    results = bed.start(bed.plan("1"), bed.plan("2", bias="1"), at="b").run()
    told = [[c.message for c in r.warnings if c.code == "outputs_vary"] for r in results]
    assert all(
        any(f"{results[0].id} gives different outputs for the same inputs" in text for text in texts) for texts in told
    )
    assert [assess_outputs(r, is_reference=False)[0] for r in results] == ["not_judged", "not_judged"]


@pytest.mark.parametrize(
    ("first", "again", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.0], [1.0, 1.5], 0.25),
        ([0.0], [0.5], 0.5),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0),
        (["a"], ["b"], 1.0),
        ([1.0], [1.0, 2.0], 1.0),
    ],
)
def test_two_outputs_differ_by_a_part_of_the_largest_value(first: list[Any], again: list[Any], expected: float) -> None:
    assert build.measure_variation({"y": np.array(first)}, {"y": np.array(again)}) == expected


def test_outputs_of_another_shape_fail_the_configuration(bed: Bed) -> None:
    narrow = replace(bed.graph, outputs=(replace(bed.graph.outputs[0], shape=("batch", 3)),))
    good, bad = bed.start(bed.plan("1"), plan(narrow, "2")).run()
    assert good.status == "ok"
    assert bad.status == "failed" and str(bad.reason).startswith("when its outputs were compared: ")
    assert {turn[0] for turn in bed.children.turns} == {"1"}


def test_a_configuration_that_cannot_be_is_skipped_and_the_run_ends_where_none_can(bed: Bed) -> None:
    good, bad = bed.start(bed.plan("1"), bed.plan("2", speed="high")).run()
    assert (good.status, bad.status) == ("ok", "skipped") and "no option 'speed'" in str(bad.reason)
    bed.children.jobs.clear()
    with pytest.raises(UsageError, match="speed"):
        bed.start(bed.plan("1", speed="low"), bed.plan("2", speed="high"), at="r2").run()
    assert bed.children.turns == []


def test_a_configuration_on_the_cpu_is_proven_when_built_and_one_on_a_gpu_by_its_first_process(bed: Bed) -> None:
    here, there = bed.plan("1", ran="int8"), bed.plan("2", ran="int8")
    there = replace(there, engine=replace(there.engine, device="cuda:0"))
    results = bed.start(here, there).run()
    assert [job.prove for job in bed.children.of(PrepareJob)] == [True, False]
    asked = [(job.engine.options["seed"], job.prove) for job in bed.children.of(MeasureJob)]
    assert asked == [("1", False), ("2", True), ("2", False), ("1", False)]
    for result in results:
        assert result.status == "ok" and len(result.measurements) == 2
        assert (result.requested_precision, result.engine.precision) == ("fp32", "int8")
        assert [warning.code for warning in result.warnings] == ["relabelled"]
    assert results[1].engine.device == "cuda:0"


def test_what_waits_beside_others_is_started_ahead(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 2)
    rows = [bed.plan(seed) for seed in "123"]
    rows[2] = replace(rows[2], engine=replace(rows[2].engine, device="cuda:0"))
    bed.start(*rows, reporter=Counting()).run()
    jobs = [(type(job).__name__[:7], job.engine.options["seed"]) for job in bed.children.jobs]
    built, order = jobs[:5], jobs[5:]
    # Groups of two: (1, 2), (3).
    assert built == [("Preload", "1"), ("Preload", "2"), ("Prepare", "1"), ("Prepare", "2"), ("Prepare", "3")]
    # Groups of two: (1, 2), (3, 3), (2, 1).
    pairs = [("1", "2"), ("3", "3"), ("2", "1")]
    assert order == [(kind, seed) for pair in pairs for kind in ("Preload", "Measure") for seed in pair]
    ahead = bed.children.of(PreloadJob)
    assert [job.pin for job in ahead] == [False] * 2 + [True] * 6, "what compiles has all cores, what is timed its own"
    assert [turn[0] for turn in bed.children.turns] == list("123321"), "the order of the turns is that of the plan"
    bed.children.jobs.clear()
    bed.start(replace(rows[1], measure=replace(IDEAL, processes=1)), at="alone").run()
    assert bed.children.of(PreloadJob) == [], "nobody waits for one alone"


def test_a_configuration_that_failed_in_its_group_is_not_asked_again(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 4)
    bed.children.fail_in("1", 0, ChildFailed("killed by SIGKILL", ""))
    bad, good = bed.start(bed.plan("1"), bed.plan("2")).run()
    assert bed.children.turns == [("1", 0, 0), ("2", 0, 1), ("2", 1, 2)]
    assert (bad.status, bad.stderr_tail, good.status) == ("failed", None, "ok")


@pytest.mark.parametrize(("error", "builds"), [(TimedOut("no response"), 1), (ChildFailed("no memory"), 2)])
def test_a_build_whose_time_ran_out_is_not_tried_again(bed, monkeypatch, error, builds) -> None:
    """What failed beside others may do so for want of memory; who took too long will again. Limits may change."""

    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options["seed"] == "1":
            raise error

    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 4)
    bed.children.before = before
    limits = iter([60.0] * 99)
    bad, good = bed.start(bed.plan("1"), bed.plan("2"), timeout_s=lambda: next(limits)).run()
    asked = [job.engine.options["seed"] for job in bed.children.of(PrepareJob)]
    assert (asked.count("1"), bad.status, good.status) == (builds, "failed", "ok")
    assert len(list(limits)) < 95, "the limit is asked for anew"


@pytest.mark.parametrize(("left_s", "status"), [(60.0, "failed"), (0.1, "partial")])
def test_a_trial_that_the_end_of_all_time_cut_off_is_no_fault_of_its_configuration(
    bed: Bed, left_s: float, status: str
) -> None:
    def before(job: Any) -> None:
        if isinstance(job, MeasureJob) and job.trial == 1:
            raise TimedOut("no response")

    bed.children.before = before
    (row,) = bed.start(bed.plan("1"), timeout_s=lambda: left_s).run()
    assert (row.status, len(row.measurements)) == (status, 1)


def test_labelled_data_is_counted_against_the_first_configuration_of_a_batch(bed: Bed) -> None:
    digits = read_packaged_onnx("digits-mlp")
    one = replace(IDEAL, processes=1)
    rows = [replace(plan(digits, seed, measure=one), model="digits-mlp") for seed in "12"]
    labelled = Labelled(data="digits", n=24)
    results = bed.start(*rows, scoring=Scoring(labelled=labelled, metrics=open_metrics(labelled))).run()
    found = [r.scores for r in results]
    assert [[s.metric for s in scores] for scores in found] == [["top1", "top5"]] * 2
    assert all(score.value.n == 24 for scores in found for score in scores)
    assert [s.value for s in found[0]] == [s.value for s in found[1]]
    assert [r.scores for r in bed.start(rows[0], at="q").run()] == [()], "no labels, no scores"


def test_while_it_runs_a_line_says_how_far_it_is_and_what_was_found_so_far(bed: Bed) -> None:
    rows = [bed.plan("1", latency_us="2000"), bed.plan("2", latency_us="20")]
    reporter = Counting()
    bed.start(*rows, reporter=reporter).run()
    timed = [re.sub(r"\d[\d.]* (ms|us|s)|[\d.]+x", r"N\1", step.partition(" · ")[2]) for step in reporter.steps]
    assert [text for text in timed if text] == [
        "trial 1 of 2",
        "trial 1 of 2 · at most Ns left",
        "trial 2 of 2 · Nus (N) · at most Ns left",
        "trial 2 of 2 · Nms · at most Ns left",
    ]


class TestRestore:
    """What an earlier run left is taken up, and nothing of it is done twice."""

    def test_a_configuration_that_failed_is_given_what_is_missing(self, bed: Bed) -> None:
        rows = [bed.plan(seed) for seed in "123"]
        bed.children.fail_in("2", 1, ChildFailed("killed by SIGSEGV", "tail"))
        bed.start(*rows).run()
        again = bed.resume(*rows)
        assert again.results[rows[1].id].status == "partial"
        assert [r.status for r in again.run()] == ["ok"] * 3
        assert [turn[:2] for turn in bed.children.turns] == [("2", 1)]

    def test_a_configuration_that_was_never_built_is_begun_anew(self, bed: Bed) -> None:
        rows = [bed.plan(seed) for seed in "123"]

        def refuse(job: Any) -> None:
            if job.engine.options["seed"] == "1":
                raise ChildFailed("killed by SIGKILL", "")

        bed.children.before = refuse
        assert bed.start(*rows).run()[0].status == "failed"
        again = bed.resume(*rows)
        results = again.run()
        assert [job.engine.options["seed"] for job in bed.children.of(PrepareJob)] == ["1"]
        assert [r.id for r in results] == [row.id for row in rows], "it is back in its place"
        assert results[0].status == "ok" and results[0].reason is None

    def test_a_configuration_that_was_skipped_is_judged_by_the_plan_of_today(self, bed: Bed) -> None:
        first, *others = [bed.plan(seed) for seed in "123"]
        bed.start(replace(first, skip="there is no GPU"), *others).run()
        assert [(r.status, r.reason) for r in bed.resume(first, *others).run()] == [("ok", None)] * 3

    def test_a_graph_that_was_changed_is_refused(self, bed: Bed) -> None:
        rows = [bed.plan(seed) for seed in "123"]
        bed.start(*rows).run()
        Path(bed.graph.path).write_bytes(b"another graph")
        with pytest.raises(ArtifactError, match="was changed after the run began"):
            bed.start(*rows).restore()


def test_outputs_are_cut_to_what_both_answered() -> None:
    many, few = {"y": np.arange(8), "only here": np.arange(8)}, {"y": np.arange(3)}
    for reference, candidate in (cut_common(many, few), cut_common(few, many)[::-1]):
        assert reference["y"].tolist() == candidate["y"].tolist() == [0, 1, 2]
        assert len(reference["only here"]) == 8


def test_another_precision_than_asked_is_named() -> None:
    right, wrong = make_result(), make_result("ort")
    check_precisions([right, replace(wrong, status="skipped", requested_precision="int8")])
    with pytest.raises(GateFailed, match=r"ort int8: asked for int8, ran in fp32$"):
        check_precisions([right, replace(wrong, requested_precision="int8")])


def test_a_run_keeps_the_outputs_of_its_reference_and_a_few_of_the_others(bed, monkeypatch) -> None:
    monkeypatch.setattr(arrays, "KEPT_VALUES", 1)
    first, second = bed.plan("1"), bed.plan("2")
    folder = RunFolder(bed.path / "r")
    bed.start(first, second).run()
    calls = [arrays.load_outputs(folder.outputs_path(row.id))[1] for row in (first, second)]
    assert calls == [CHECK_SAMPLES, arrays.FEWEST_CALLS]
    drift = bed.stored(second).drift
    assert drift.n == CHECK_SAMPLES  # all were compared before they were dropped
    bed.resume(first, second).run()
    assert bed.stored(second).drift == drift


UP_TO_TEN = MeasureSpec(warmup=0, iters=3, processes=10, settle=0.02)


@pytest.mark.usefixtures("still")  # on a busy machine no verdict would be certain
def test_configurations_end_once_no_verdict_can_change(bed: Bed) -> None:
    rows = [bed.plan(seed, measure=UP_TO_TEN, latency_us=time) for seed, time in (("1", "100"), ("2", "3000"))]
    reporter = Counting()
    results = bed.start(*rows, reporter=reporter).run()
    assert [(r.status, r.look, len(r.measurements)) for r in results] == [("ok", 6, 6)] * 2
    assert [bed.stored(row) for row in rows] == results
    assert (reporter.total, reporter.advanced) == (22, 22)


MEASURE = MeasureSpec(warmup=1, iters=5, processes=6, builds=3)


def test_each_build_is_made_from_nothing_and_measured_in_its_turn(bed: Bed) -> None:
    row = bed.plan("1", measure=MEASURE, build_sd="0.2")
    (result,) = bed.start(row).run()
    assert result.status == "ok" and len(result.builds) == 3
    places = [job.out_dir for job in bed.children.of(PrepareJob)]
    assert len(set(places)) == 3 and all(f"builds/{row.id}/" in place for place in places)
    assert [m.build for m in result.measurements] == [0, 1, 2, 0, 1, 2]
    assert [job.out_dir for job in bed.children.of(MeasureJob)] == places * 2
    assert [job.artifact.path for job in bed.children.of(MeasureJob)][:3] == [b.artifact.path for b in result.builds]
    assert len({build.fingerprint for build in result.builds}) == 3
    assert [build.max_abs_diff for build in result.builds] == [0.0] * 3
    assert not list((bed.path / "r" / "artefacts" / "outputs").glob("*.build-*")), "answers that were compared are gone"
    assert str(bed.path) not in RunFolder(bed.path / "r").configuration_path(row.id).read_text(), (
        "paths are relative to the folder"
    )


@pytest.mark.parametrize("failing", [1, 2])
def test_a_build_that_fails_costs_its_configuration_and_says_which(bed: Bed, failing: int) -> None:
    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.out_dir.endswith(f"{failed.id}/{failing + 1}"):
            raise ChildFailed("the builder crashed", "its last words")

    bed.children.before = before
    failed = bed.plan("1", measure=MEASURE)
    bad, good = bed.start(failed, bed.plan("2", measure=MEASURE)).run()
    assert bad.status == "failed" and len(bad.builds) == failing and not bad.measurements
    assert f"while build {failing + 1} of 3 was made: the builder crashed" in (bad.reason or "")
    assert good.status == "ok" and len(good.builds) == 3


def test_an_interrupt_among_the_builds_is_continued_where_it_was(bed: Bed) -> None:
    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.out_dir.endswith("/3"):
            raise KeyboardInterrupt

    bed.children.before = before
    row = bed.plan("1", measure=MEASURE, build_sd="0.2")
    with pytest.raises(KeyboardInterrupt):
        bed.start(row).run()
    known = bed.stored(row)
    assert len(known.builds) == 2
    (result,) = bed.resume(row).run()
    assert [Path(job.out_dir).name for job in bed.children.of(PrepareJob)] == ["3"]
    assert result.status == "ok" and result.builds[:2] == known.builds


def test_only_what_builds_is_built_again(graph: Artifact) -> None:
    def count(source: Artifact = graph, builds: int = 3, **options: str) -> int:
        return count_builds(plan(source, "1", measure=replace(MEASURE, builds=builds), **options))  # type: ignore[arg-type]

    assert [count(), count(backend="openvino"), count(backend="ort", ahead="1")] == [3] * 3
    assert [count(backend="ort"), count(builds=1)] == [1] * 2
    assert count(replace(graph, kind="plan"), backend="tensorrt") == 1
    assert count(replace(graph, kind="openvino"), backend="openvino") == 1
    with pytest.raises(UsageError, match=r"tensorrt:timing_cache=f would hand on"):
        count(backend="tensorrt", timing_cache="f")


def test_outputs_of_two_builds_are_compared_or_nobody_knows(tmp_path: Path) -> None:
    assert measure_build_difference(tmp_path / "a.npz", tmp_path / "b.npz") is None


__all__ = ["still"]
