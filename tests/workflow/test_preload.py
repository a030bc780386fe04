"""Children that import before their turn: what they do ahead, and what becomes of those that fail."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from enginebench.core.errors import ChildFailed
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.models.onnx_source import read_packaged_onnx
from enginebench.workflow import campaign
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.isolate import Child
from enginebench.workflow.jobs import MeasureAnswer, MeasureJob, PreloadJob
from enginebench.workflow.main_job import run_model
from enginebench.workflow.preload import can_wait, count_at_once

SPEC = EngineSpec(backend="fake")


@pytest.fixture
def job(tmp_path: Path) -> MeasureJob:
    return MeasureJob(
        model="digits-mlp",
        artifact=read_packaged_onnx("digits-mlp"),
        engine=SPEC,
        measure=MeasureSpec(warmup=1, iters=5),
        out_dir=str(tmp_path),
        repetition=2,
        order=3,
    )


def ask(child: Child, job: MeasureJob) -> None:
    child.ask_to_preload(PreloadJob(engine=job.engine, kind="onnx", out_dir=job.out_dir))


def test_a_child_imports_waits_idle_and_measures(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(60)
        process = psutil.Process(child.pid)
        assert any("numpy" in m.path for m in process.memory_maps())
        before = process.cpu_times()
        time.sleep(0.3)
        after = process.cpu_times()
        assert (after.user, after.system) == (before.user, before.system)
        answer = child.perform(job, timeout_s=60)
    assert isinstance(answer, MeasureAnswer)
    assert len(answer.measurement.latency_ns) == 5
    assert (answer.measurement.repetition, answer.measurement.order) == (2, 3)


def test_a_child_whose_turn_never_comes_leaves_nothing_behind(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(60)
    child.close()
    assert not psutil.pid_exists(child.pid)


def test_a_child_that_dies_while_it_imports_is_told_when_its_turn_comes(job: MeasureJob) -> None:
    with Child() as child:
        os.kill(child.pid, signal.SIGSEGV)
        ask(child, job)
        child.wait_until_ready(60)
        with pytest.raises(ChildFailed, match="killed by SIGSEGV"):
            child.perform(job, timeout_s=60)


def test_a_child_ends_when_its_parent_is_gone_before_its_turn(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(60)
        child._conversation._stdin.close()
        assert psutil.Process(child.pid).wait(10) == 0


def test_only_engines_on_a_device_may_import_ahead() -> None:
    assert not can_wait(SPEC)
    assert can_wait(EngineSpec(backend="pytorch", device="cuda:0"))


@pytest.mark.parametrize(("cpus", "free_gib", "wanted"), [(2, 64, 1), (16, 64, 8), (8, 64, 4), (64, 64, 8), (16, 5, 2)])
def test_as_many_as_cpus_and_memory_allow(
    cpus: int, free_gib: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    memory: Any = type("Memory", (), {"available": free_gib << 30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert count_at_once() == wanted


class Silent:
    """A reporter that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, text: str) -> None:
        self.steps.append(text)

    def advance(self) -> None: ...


@pytest.mark.parametrize("at_once", [1, 4])
def test_rows_take_turns_whether_started_ahead_or_not(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "count_at_once", lambda: at_once)
    monkeypatch.setattr(campaign, "can_wait", lambda engine: True)
    started: list[Child] = []
    monkeypatch.setattr(campaign, "Child", lambda environment: started.append(Child(environment)) or started[-1])
    failing = {"fault": "raise", "after": "500"}  # beyond the runs of the check
    request = RunRequest(
        model="digits-mlp",
        engines=(("fake", {}), ("fake", failing)),
        measure=MeasureSpec(warmup=0, iters=600, processes=3),
    )
    reporter = Silent()
    _, results = run_model(request, tmp_path / "run", reporter=reporter)
    good, bad = results
    assert good.status == "ok"
    # What is started ahead keeps its place, also if its row fails meanwhile.
    last = 4 if at_once > 1 else 3
    assert [(m.repetition, m.order) for m in good.measurements] == [(0, 0), (1, 2), (2, last)]
    assert bad.status == "failed" and "the fake engine raised" in (bad.reason or "") and bad.measurements == ()
    turns = [step for step in reporter.steps if "process" in step]
    assert [t.rpartition(": ")[2] for t in turns] == ["process 1 of 3"] * 2 + ["process 2 of 3", "process 3 of 3"]
    assert not any(psutil.pid_exists(child.pid) for child in started)
