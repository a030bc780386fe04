"""Children that import before their turn: what they do ahead, and what becomes of those that fail."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from asked import FAKE, make_measure_job
from enginebench.core.errors import ChildFailed
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import campaign
from enginebench.runs.builds import can_wait, count_at_once
from enginebench.runs.child.isolate import Child
from enginebench.runs.child.jobs import MeasureAnswer, MeasureJob, PreloadJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.main_job import run_model
from reporters import Silent

# A graph is ready to be measured; by its name the model would be exported first.
GRAPH = str(DATA_DIR / "digits-mlp.onnx")


@pytest.fixture
def job(tmp_path: Path) -> MeasureJob:
    return make_measure_job(tmp_path, read_packaged_onnx("digits-mlp"), repetition=2, order=3)


def ask(child: Child, job: MeasureJob) -> None:
    child.ask_to_preload(PreloadJob(engine=job.engine, kind="onnx", out_dir=job.out_dir))


def test_a_child_imports_waits_idle_and_measures(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
        process = psutil.Process(child.pid)
        assert any("numpy" in m.path for m in process.memory_maps())
        before = process.cpu_times()
        time.sleep(0.5)
        after = process.cpu_times()
        # One that asks again and again would use all of the half second; a tick may belong to what it did before.
        assert after.user + after.system - before.user - before.system < 0.25
        answer = child.perform(job, timeout_s=60)
    assert len(answer.measurement.latency_ns) == 5
    assert (answer.measurement.repetition, answer.measurement.order) == (2, 3)


def test_a_child_whose_turn_never_comes_leaves_nothing_behind(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
    child.close()
    assert not psutil.pid_exists(child.pid)


def test_a_child_that_dies_while_it_imports_is_told_when_its_turn_comes(job: MeasureJob) -> None:
    with Child() as child:
        os.kill(child.pid, signal.SIGSEGV)
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
        with pytest.raises(ChildFailed, match="killed by SIGSEGV"):
            child.perform(job, timeout_s=60)


def test_a_child_ends_when_its_parent_is_gone_before_its_turn(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
        child._stdin.close()
        assert psutil.Process(child.pid).wait(10) == 0


def test_a_child_that_will_be_timed_is_bound_to_its_cores_before_it_imports(job: MeasureJob) -> None:
    with Child() as child:
        child.ask_to_preload(PreloadJob(engine=job.engine, kind="onnx", out_dir=job.out_dir, pin=True))
        child.wait_until_ready(time.monotonic() + 60)
        bound = {tuple(os.sched_getaffinity(int(task.id))) for task in psutil.Process(child.pid).threads()}
        answer = child.perform(job, timeout_s=60)
    assert bound == {answer.measurement.pinned_cpus} and len(answer.measurement.pinned_cpus or ()) == FAKE.threads


def test_an_engine_of_another_environment_imports_when_its_turn_comes() -> None:
    assert can_wait(FAKE)
    assert not can_wait(EngineSpec(backend="fake", options={"env": "other"}))


@pytest.mark.parametrize(("free_gib", "limit_gib", "wanted"), [(64, None, 16), (5, None, 2), (64, 4, 2), (64, 1, 1)])
def test_as_many_as_memory_allows(free_gib, limit_gib, wanted, monkeypatch) -> None:
    """Also within a container, whose limit the system's own figures do not show."""
    memory: Any = type("Memory", (), {"available": free_gib << 30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limit = None if limit_gib is None else limit_gib << 30
    assert count_at_once(replace(describe_machine(), memory_limit_bytes=limit)) == wanted


def test_a_child_that_dies_before_its_turn_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 2)
    monkeypatch.setattr(campaign, "can_wait", lambda engine: True)

    class Dying(Child):
        def wait_until_ready(self, deadline: float) -> None:
            super().wait_until_ready(deadline)
            os.kill(self.pid, signal.SIGKILL)
            psutil.Process(self.pid).wait(10)

    monkeypatch.setattr(campaign, "Child", Dying)
    request = RunRequest(model=GRAPH, engines=(("fake", {}),), measure=MeasureSpec(iters=5, processes=2))
    _, (row,) = run_model(request, tmp_path / "run", reporter=Silent())
    assert row.status == "ok" and len(row.measurements) == 2


def test_a_child_that_is_late_still_measures(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic())
        assert isinstance(child.perform(job, timeout_s=60), MeasureAnswer)
