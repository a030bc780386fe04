"""Rows that are built and checked side by side: what may be, and that it changes nothing but the time it takes."""

from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from asked import make_prepare_job, make_row
from enginebench.core.errors import ChildFailed
from enginebench.core.records import Artifact, EngineSpec, FileHash, Gpu, Machine, MeasureSpec, Result
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.runs import building, campaign
from enginebench.runs.builds import count_workers, split_runs
from enginebench.runs.campaign import Campaign
from enginebench.runs.child.isolate import Child, Work, wait_until_sure
from enginebench.runs.child.jobs import PrepareJob
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedConfiguration
from reporters import Silent

GRAPH = read_packaged_onnx("digits-mlp")
ONCE = MeasureSpec(warmup=0, iters=5, processes=1)
GPU = Gpu(index=0, name="toy", driver="1", memory_bytes=9 << 30)
MACHINE = replace(
    describe_machine(), cpus_allowed=(0, 1, 2, 3), cpu_quota_cores=None, memory_limit_bytes=None, gpus=(GPU,)
)


def plan(engine: str = "fake", *, source: Artifact = GRAPH, **spec: Any) -> PlannedConfiguration:
    return make_row(EngineSpec(backend=engine, **spec), source, ONCE, model="digits-mlp")


class TestWhichRows:
    @pytest.fixture(autouse=True)
    def memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        free = psutil.virtual_memory()._replace(available=64 << 30)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)

    def split(self, *rows: PlannedConfiguration, machine: Machine = MACHINE) -> list[list[str]]:
        return [[row.engine.backend + str(row.engine.batch) for row in run] for run in split_runs(rows, machine)]

    def test_one_a_cpu_works_at_a_time_whatever_its_threads(self) -> None:
        rows = [plan(batch=i, threads=4) for i in (1, 2, 3)]
        assert self.split(*rows) == [["fake1", "fake2", "fake3"]]
        quotas = {None: 4, 3.5: 3, 0.5: 1}
        assert [count_workers(replace(MACHINE, cpu_quota_cores=quota)) for quota in quotas] == [*quotas.values()]

    def test_a_configuration_on_a_gpu_needs_room_on_it(self) -> None:
        rows = [plan("pytorch", device="cuda:0", batch=i, threads=4) for i in range(1, 6)]
        assert self.split(*rows[:4]) == [["pytorch1", "pytorch2", "pytorch3", "pytorch4"]]
        small = replace(MACHINE, gpus=(replace(GPU, memory_bytes=7 << 30),))
        assert self.split(*rows[:4], machine=small) == [["pytorch1", "pytorch2", "pytorch3"], ["pytorch4"]]

    def test_a_large_model_needs_more_room(self) -> None:
        files = (FileHash(path="m.onnx", sha256="0" * 64, size_bytes=4 << 30),)
        rows = [plan(source=replace(GRAPH, files=files), batch=i) for i in (1, 2)]
        assert self.split(*rows) == [["fake1"], ["fake2"]]
        assert self.split(*rows, machine=replace(MACHINE, memory_limit_bytes=1 << 30)) == [["fake1"], ["fake2"]]

    def test_builders_that_time_kernels_come_last_and_alone(self) -> None:
        names = ("tensorrt", "pytorch", "trtexec", "pytorch-compile", "ort-cuda")
        found = self.split(*(plan(name, device="cuda:0") for name in names))
        assert found == [["pytorch1", "ort-cuda1"], ["tensorrt1"], ["trtexec1"], ["pytorch-compile1"]]

    def test_plans_of_one_engine_are_built_beside_each_other_where_the_gpu_has_room(self) -> None:
        rows = [plan("tensorrt", device="cuda:0", batch=i) for i in (1, 2, 3)]
        rows += [plan("pytorch-compile", device="cuda:0", batch=i) for i in (1, 2)]
        alone = [["pytorch-compile1"], ["pytorch-compile2"]]
        assert self.split(*rows) == [["tensorrt1"], ["tensorrt2"], ["tensorrt3"], *alone]
        large = replace(MACHINE, gpus=(replace(GPU, memory_bytes=80 << 30),))
        assert self.split(*rows, machine=large) == [["tensorrt1", "tensorrt2"], ["tensorrt3"], *alone]
        # As in a plan of several precisions, in each of which all engines take their turn.
        turns = [rows[0], rows[3], rows[1], rows[4]]
        assert self.split(*turns, machine=large) == [["tensorrt1", "tensorrt2"], *alone]

    def test_what_is_compiled_for_a_cpu_is_timed_only_on_request(self) -> None:
        rows = [plan("pytorch-compile", batch=1), plan("pytorch", batch=2)]
        assert self.split(*rows) == [["pytorch-compile1", "pytorch2"]]
        told = plan("pytorch-compile", batch=1, options={"mode": "max-autotune"})
        assert self.split(told, rows[1]) == [["pytorch2"], ["pytorch-compile1"]]


class Family:
    """Real children, and what was done with them in which order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[Child] = []
        self.told: list[str] = []
        family = self

        class Told(Child):
            def __init__(self, environment: Any = None, place: Any = None) -> None:
                super().__init__(environment, place)
                family.children.append(self)

            def start(self, job: Any, **how: Any) -> Any:
                if isinstance(job, PrepareJob):
                    family.told.append("start")
                return super().start(job, **how)

        def wait(works: Any, *, left: int = 0) -> None:
            wait_until_sure(works, left=left)
            if left == 0:
                family.told.append("sure")

        monkeypatch.setattr(campaign, "count_at_once", lambda machine: 4)
        monkeypatch.setattr(building, "Child", Told)
        monkeypatch.setattr(building, "wait_until_sure", wait)

    def all_gone(self) -> bool:
        return not any(psutil.pid_exists(child.pid) for child in self.children)


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch) -> Family:
    return Family(monkeypatch)


def run(
    folder: Path, *rows: PlannedConfiguration, timeout_s: float = 60, machine: Machine = MACHINE
) -> tuple[list[Result], list[str]]:
    reporter = Silent()
    results = Campaign(RunFolder(folder), rows, machine, timeout_s=timeout_s, reporter=reporter).run()
    return results, [step.partition(" · at most")[0] for step in reporter.steps]


def forget_times(results: list[Result]) -> list[Result]:
    return [replace(result, build_s=None, built_beside=0, measurements=(), layers=()) for result in results]


def test_side_by_side_is_the_same_run(tmp_path: Path, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"seed": "2", "fault": "slow_build", "build_s": "1"}
    rows = [plan(options={"seed": "1"}), plan("ort"), plan(options=slow)]
    found, steps = run(tmp_path / "beside", *rows)
    assert family.told == ["start", "start", "start", "sure"]
    assert [result.built_beside for result in found] == [2, 2, 2]
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 1)
    alone, steps_alone = run(tmp_path / "alone", *rows)
    assert [result.built_beside for result in alone] == [0, 0, 0]
    assert [r.status for r in found] == ["ok"] * 3
    root = str(tmp_path / "alone")
    move = RunFolder.change_paths
    moved = [move(r, lambda a: replace(a, path=a.path.replace(root, str(tmp_path / "beside")))) for r in alone]
    assert forget_times(found) == forget_times(moved)
    assert steps == ["building and checking 3 configurations side by side", *steps_alone]
    assert family.all_gone()


def test_no_more_work_than_cpus_and_a_configuration_that_hangs_costs_only_time(tmp_path: Path, family: Family) -> None:
    rows = [plan(options={"seed": seed}) for seed in "12"]
    found, _ = run(tmp_path / "r", *rows, machine=replace(MACHINE, cpu_quota_cores=1))
    assert [result.built_beside for result in found] == [0, 0]
    assert family.told == ["sure", "start", "sure", "start", "sure"], "each starts once those before it are sure"
    (hung, fine), _ = run(tmp_path / "r", plan(options={"fault": "hang"}), plan(), timeout_s=8)
    assert (hung.status, fine.status) == ("failed", "ok")
    assert "no response within the time-out of 8 s" in (hung.reason or "")
    assert family.all_gone()


def test_a_configuration_that_fails_beside_others_is_tried_again_alone(tmp_path, family, monkeypatch) -> None:
    """As where memory was enough for one, and not for two."""
    crowded = Work.finish
    lost: list[Any] = []

    def finish(work: Work[Any]) -> Any:
        answer = crowded(work)
        if family.told[-1:] == ["sure"] and not lost:
            lost.append(answer)
            raise ChildFailed("killed by SIGKILL")
        return answer

    monkeypatch.setattr(Work, "finish", finish)
    (first, second), _ = run(tmp_path / "r", plan(options={"seed": "1"}), plan(options={"seed": "2"}))
    assert lost and (first.status, second.status) == ("ok", "ok")
    assert (first.built_beside, second.built_beside) == (0, 1)


def test_an_interrupt_ends_all(tmp_path: Path, family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(works: Any, *, left: int = 0) -> None:
        if left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(building, "wait_until_sure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "r", plan(options={"fault": "hang"}), plan(options={"seed": "2", "fault": "hang"}))
    assert len(family.children) == 2 and family.all_gone()


def test_records_are_made_one_after_another(tmp_path: Path) -> None:
    """A child that is sure of its answer waits: shares of time that others had a part in would prove nothing."""

    def describe(seed: str) -> PrepareJob:
        return make_prepare_job(tmp_path, GRAPH, seed, engine=EngineSpec(backend="fake", options={"seed": seed}))

    notes: list[str] = []
    with Child() as one, Child() as two:
        works = [
            child.start(describe(seed), timeout_s=60, on_note=lambda text, seed=seed: notes.append(f"{seed}: {text}"))
            for child, seed in ((one, "1"), (two, "2"))
        ]
        wait_until_sure(works)
        assert all(work.sure for work in works) and one.alive and two.alive
        assert not [note for note in notes if "verifying" in note]
        answers = [works[1].finish()]
        assert [note for note in notes if "verifying" in note] == ["2: verifying the precision"]
        answers.append(works[0].finish())
    assert all(a.proof is not None and a.proof.effective_precision == {"fp32": 1.0} for a in answers)
