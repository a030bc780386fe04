"""Groups, stores and schedules of a sweep, interrupted and not."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Result
from enginebench.features.sweep import group as groups
from enginebench.features.sweep import verb
from enginebench.features.sweep.document import SweepDocument
from enginebench.features.sweep.reading import read_group, read_sweep
from enginebench.features.sweep.records import GroupJob, JobEnd, SourcesJob
from enginebench.features.sweep.schedule import MOST_LOSSES, LocalFleet, Schedule, perform
from enginebench.features.sweep.spec import SweepSpec, list_groups, read_spec
from enginebench.features.sweep.store import Store, open_store
from enginebench.features.sweep.verb import plan_sweep, resume_sweep, run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import main_job
from enginebench.runs.child.jobs import MeasureJob
from in_process import Children
from interruptions import check_any_moment, still
from reporters import Silent

__all__ = ["still"]
SPEC = """
engines = ["fake:latency_us=20", "fake:latency_us=10", "fake:bias=1"]
baseline = "fake:latency_us=20"
batches = [1, 2]
processes = {processes}
iters = 3
warmup = 1
[[model]]
name = "one.onnx"
[[model]]
name = "two.onnx"
[[exclude]]
engine = "fake:bias=1"
batch = 2
"""


ROWS = 2 * 5
Spec = Callable[..., SweepSpec]


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    for name in ("one.onnx", "two.onnx"):
        (tmp_path / name).write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())

    def make(processes: int = 2, more: str = "") -> SweepSpec:
        (tmp_path / "sweep.toml").write_text(SPEC.format(processes=processes) + more)
        return read_spec(tmp_path / "sweep.toml")

    return make


def sweep(spec: SweepSpec, store: object, **options: Any) -> SweepDocument:
    return run_sweep(spec, str(store), reporter=Silent(), **options)


def check_measured_once(children: Children) -> None:
    """Checks that each trial of each row was measured, and none twice."""
    counts = Counter(
        (Path(str(job.model)).name, str(job.engine.options), job.engine.batch, job.measure.scope, job.trial)
        for job in children.of(MeasureJob)
    )
    assert set(counts.values()) == {1} and len(counts) == 2 * ROWS


def list_results(store: Store, group: str) -> tuple[Result, ...]:
    measured = read_group(store, group)
    return measured.results if measured else ()


def read_configurations(store: Store, spec: SweepSpec) -> list[Result]:
    return [row for g in list_groups(spec) for row in list_results(store, g.id)]


def test_another_specification_does_not_go_on_in_the_same_store(children: Children, spec: Spec, tmp_path: Path) -> None:
    sweep(spec(1), tmp_path / "store")
    with pytest.raises(UsageError, match="other options \\(processes\\)"):
        sweep(spec(2), tmp_path / "store", resume=True)


class Losing(LocalFleet):
    """Machines that are lost before the measurements with these numbers."""

    def __init__(self, children: Children, losses: set[int]) -> None:
        super().__init__(Silent())
        self._children = children
        self._losses = losses
        children.before = self._lose
        self.lost: list[MeasureJob] = []

    def _lose(self, job: Any) -> None:
        number = len(self._children.of(MeasureJob)) - 1
        if isinstance(job, MeasureJob) and number in self._losses:
            self._losses.discard(number)
            self.lost.append(job)
            raise SystemExit

    def wait(self) -> list[tuple[GroupJob | SourcesJob, JobEnd | str]]:
        job = self._waiting.pop(0)
        try:
            return [(job, perform(job, self._reporter))]
        except SystemExit:
            return [(job, "the worker died")]


def run_losing(fleet: Losing, spec: SweepSpec, folder: Path) -> tuple[Store, Schedule]:
    store = open_store(str(folder))
    record = resume_sweep(store, spec, resume=False)
    schedule = Schedule(store, record.salt, fleet, Silent())
    schedule.run(list_groups(spec))
    return store, schedule


def test_lost_workers_cost_what_they_were_at_and_nothing_else(children: Children, spec: Spec, tmp_path: Path) -> None:
    fleet = Losing(children, {0, 4, 5, 11, 17})
    store, schedule = run_losing(fleet, spec(), tmp_path / "store")
    assert schedule.refused == {} and len(fleet.lost) == 5
    for job in fleet.lost:
        children.jobs.remove(job)
    check_measured_once(children)
    rows = read_configurations(store, spec())
    assert len(rows) == ROWS and all([m.trial for m in row.measurements] == [0, 1] for row in rows)


def test_a_job_that_takes_its_worker_down_each_time_is_given_up(children: Children, spec: Spec, tmp_path: Path) -> None:
    store, schedule = run_losing(Losing(children, set(range(1000))), spec(), tmp_path / "store")
    assert len(schedule.refused) == 2
    assert all(f"given up after {MOST_LOSSES} losses" in reason for reason in schedule.refused.values())
    document = read_sweep(store, schedule.refused)
    assert len(document.failed) == ROWS and "the worker died" in document.failed[0].reason


def test_a_group_is_not_continued_with_other_versions(children, spec, tmp_path, monkeypatch) -> None:
    """Its rows stay as they are, and what is left says why it was not measured."""
    real, described = groups.describe_machine, iter([False])

    def describe() -> Any:
        machine = real()
        return replace(machine, versions={**machine.versions, "numpy": "0.1"}) if next(described, True) else machine

    monkeypatch.setattr(groups, "describe_machine", describe)
    store, schedule = run_losing(Losing(children, {7}), spec(), tmp_path / "store")
    first = list_results(store, list_groups(spec())[0].id)
    # The second round runs backwards.
    assert [len(row.measurements) for row in first] == [1, 1, 1, 2, 2]
    reason = schedule.refused[list_groups(spec())[0].id]
    assert "was begun on another machine" in reason and "now 0.1" in reason
    assert len([cell for cell in read_sweep(store, schedule.refused).failed if cell.model == "one.onnx"]) == 3


@pytest.mark.parametrize("damage", ["content", "row", "record"])
def test_damage_in_a_store_is_named_and_costs_its_group(children, spec, tmp_path, damage) -> None:
    children.before = lambda job: (_ for _ in ()).throw(KeyboardInterrupt) if len(children.of(MeasureJob)) > 5 else None
    with pytest.raises(KeyboardInterrupt):
        sweep(spec(), tmp_path / "store")
    children.before = lambda job: None
    first = list_groups(spec())[0].id
    folder = tmp_path / "store" / "groups" / first
    if damage == "content":
        for path in folder.rglob("*.onnx"):
            path.write_bytes(b"other")
    elif damage == "row":
        next((folder / "rows").glob("*.json")).write_text("{")
    else:
        (folder / "run.json").write_text("[]")
    document = sweep(spec(), tmp_path / "store", resume=True)
    reasons = {cell.reason for cell in document.failed if cell.model == "one.onnx"}
    said = {"content": "was changed after the run began", "row": "rows/", "record": "run.json"}
    assert reasons and all(said[damage] in reason for reason in reasons), reasons
    assert all(cell.row and cell.row.status == "ok" for cell in document.cells if cell.model == "two.onnx")


@pytest.mark.parametrize("damage", ["cut", "other group"])
def test_figures_of_a_group_that_are_damaged_or_of_another_are_named_and_written_anew(children, spec, tmp_path, damage):
    store = open_store(str(tmp_path / "store"))
    whole = sweep(spec(), store.url)
    first, second = (f"groups/{group.id}/done.json" for group in list_groups(spec())[:2])
    known = store.read(first)
    assert known is not None
    store.write(first, known[:99] if damage == "cut" else store.read(second) or b"")
    found = read_sweep(store)
    assert {cell.model for cell in found.cells} == {"two.onnx"}
    assert {cell.model for cell in found.failed} == {"one.onnx"}
    assert found.unread and "done.json" in found.unread[0] and "--resume rebuilds it" in found.unread[0]
    measured = len(children.of(MeasureJob))
    again = sweep(spec(), store.url, resume=True)
    assert again.cells == whole.cells and not again.unread
    assert len(children.of(MeasureJob)) == measured


def test_a_configuration_of_another_model_is_not_shown_as_one_of_the_group(children, spec, tmp_path) -> None:
    store = open_store(str(tmp_path / "store"))
    sweep(spec(), store.url)
    first, second = list_groups(spec())[:2]
    row = list_results(store, first.id)[0].id
    store.write(f"groups/{first.id}/rows/{row}.json", store.read(f"groups/{second.id}/rows/{row}.json") or b"")
    with pytest.raises(ParseError, match=r"two.onnx.*expected 'one.onnx'"):
        read_group(store, first.id)


def test_what_company_costs_is_measured_with_the_machine_to_itself(children, spec, tmp_path) -> None:
    """A group begins with its baseline, whatever was asked for first: two engines are not each other's company."""
    spec()
    text = SPEC.replace("latency_us=10", "latency_us=4000").replace(
        '"fake:latency_us=20"\n', '"fake:latency_us=4000"\n'
    )
    (tmp_path / "sweep.toml").write_text(text.format(processes=2))
    store = open_store(str(tmp_path / "store"))
    record = resume_sweep(store, asked := read_spec(tmp_path / "sweep.toml"), resume=False, shared=True)
    assert record.spec.engines[0] != record.spec.baseline
    verb.measure_groups(store, record, LocalFleet(Silent()), Silent())
    document = read_sweep(store)
    found = document.interference
    assert [one.model for one in found] == ["one.onnx", "two.onnx"] and len(document.cells) == ROWS
    assert all("latency-us-20-" in one.row for one in found)
    assert all(one.ratio and 0.05 < one.ratio.value < 20 for one in found), "the other engine takes 200 times as long"
    alone = list_results(store, f"{list_groups(asked)[0].id}-alone")
    assert [row.id for row in alone] == [found[0].row] and len(alone[0].measurements) == 2


def test_a_plan_counts_processes_and_bounds_their_time(spec: Spec) -> None:
    plan = plan_sweep(spec(5, '[[machine]]\nkind = "a"\n[[machine]]\nkind = "b"\n'))
    assert [(k.machine_kind, k.rows, k.processes) for k in plan.kinds] == [("a", ROWS, 5 * ROWS), ("b", ROWS, 5 * ROWS)]
    assert plan.kinds[0].at_most_s == pytest.approx(5 * ROWS * 1.0 + 6 * ROWS * plan.start_s)


def test_this_machine_measures_its_own_kind_alone(children: Children, spec: Spec, tmp_path: Path) -> None:
    two = spec(1, '[[machine]]\nkind = "a"\n[[machine]]\nkind = "b"\n')
    with pytest.raises(UsageError, match="--kind"):
        sweep(two, tmp_path / "store")
    with pytest.raises(UsageError, match="is not in the sweep"):
        sweep(two, tmp_path / "store", kind="c")
    document = sweep(two, tmp_path / "store", kind="b")
    assert {cell.machine_kind for cell in document.failed} == {"a"}
    assert "measured as b" in document.failed[0].reason
    document = sweep(two, tmp_path / "store", kind="a", resume=True)
    assert not document.failed and len(document.cells) == 2 * ROWS


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "moon"}, "expected local, auto or ray://"),
        ({"on": "auto", "kind": "local"}, "for --on local"),
        ({"share_machine": True}, "--share-machine"),
    ],
)
def test_what_cannot_be_is_refused(spec: Spec, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sweep(spec(1), tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_model_whose_graph_cannot_be_made_says_so_in_its_cells(children, spec, tmp_path) -> None:
    (tmp_path / "one.onnx").write_bytes(b"no graph")
    document = sweep(spec(1), tmp_path / "store")
    assert {cell.model for cell in document.failed} == {"one.onnx"} and len(document.failed) == ROWS // 2
    assert all(cell.row and cell.row.status == "ok" for cell in document.cells if cell.model == "two.onnx")


ENGINE = "latency_us=20,process_sd=0.1,build_sd=0.1"
INTERRUPTED_SPEC = f"""
engines = ["fake:seed=1,{ENGINE}", "fake:seed=2,{ENGINE}"]
processes = 2
iters = 5
warmup = 1
[[model]]
name = "{DATA_DIR / "digits-mlp.onnx"}"
"""


def sweep_interrupted(root: Path) -> object:
    store, spec = root / "store", root.parent / "sweep.toml"
    spec.write_text(INTERRUPTED_SPEC)
    resume = (store / "sweep.json").exists()
    return replace(run_sweep(read_spec(spec), str(store), reporter=Silent(), resume=resume), store="", started_utc="")


@pytest.mark.usefixtures("still")
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_sweep(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(groups, "describe_machine", main_job.describe_machine)
    check_any_moment(sweep_interrupted, tmp_path)
