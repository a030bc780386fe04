"""Children that die, hang or answer nonsense, for real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from asked import FAKE, make_measure_job, make_prepare_job
from enginebench.core.errors import ChildFailed, ModelError, UsageError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, ModelSource, Result, TensorSpec
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import building, campaign, trials
from enginebench.runs.builds import can_wait, count_at_once
from enginebench.runs.child import isolate
from enginebench.runs.child.environments import PythonEnvironment
from enginebench.runs.child.isolate import Child, format_exit, run_child
from enginebench.runs.child.jobs import MeasureJob, MeasureResponse, PreloadJob, ProbeJob, SourceJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.main_job import run_model
from processes import environment
from reporters import Silent


def make_job(tmp_path: Path, **options: str) -> MeasureJob:
    path = tmp_path / "toy.onnx"
    path.write_bytes(b"the fake engine never opens it")
    into, out = ((TensorSpec(name=n, dtype="float32", shape=shape),) for n, shape in (("x", (1, 4)), ("y", (1, 2))))
    artifact = Artifact(kind="onnx", model="toy", path=str(path), sha256="0" * 64, files=(), inputs=into, outputs=out)
    spec, measure = EngineSpec(backend="fake", options=options), MeasureSpec(warmup=2, iters=20)
    return make_measure_job(tmp_path, artifact, engine=spec, measure=measure, trial=3, order=7)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segfault", "killed by SIGSEGV"),
        ("oom", "killed by SIGKILL, as the kernel does when memory runs out"),
        ("exit", "ended with exit code 3 and without a response"),
        ("garbage", "invalid response"),
        ("raise", "RuntimeError: the fake engine raised"),
    ],
)
def test_a_fault_is_a_reason_with_the_last_words(tmp_path: Path, fault: str, reason: str) -> None:
    with pytest.raises(ChildFailed, match=reason) as caught:
        run_child(make_job(tmp_path, fault=fault, after="5"), timeout_s=60)
    assert f"fault {fault}" in caught.value.stderr_tail


def test_what_a_dead_child_started_does_not_hide_its_death(tmp_path: Path) -> None:
    """A grandchild holds both pipes open."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nsleep 600 &\nexit 3\n")
    python.chmod(0o755)
    environment = PythonEnvironment(name="dying", python=str(python), version=(3, 12), arch="x86_64", packages={})
    with pytest.raises(ChildFailed, match="ended with exit code 3 and without a response"):
        run_child(ProbeJob(engine="fake"), timeout_s=9, environment=environment)


def test_what_hangs_is_killed_and_costs_no_times(tmp_path: Path) -> None:
    before = children_of(os.getpid())  # of this process, which has run other tests
    with pytest.raises(ChildFailed, match="no response within the time-out of 2 s"):
        run_child(make_job(tmp_path, fault="hang"), timeout_s=2)
    assert children_of(os.getpid()) == before
    before = children_of(os.getpid())  # of this process, which has run other tests
    job = msgspec.structs.replace(make_job(tmp_path, fault="hang", at="proof"), prove=True)
    for timeout_s in (6, 60):  # the second for a machine on which even the times take longer than the first
        with suppress(ChildFailed):
            answer = run_child(job, timeout_s=timeout_s)
            break
    assert len(answer.measurement.latency_ns) == 20
    assert answer.proof is not None and answer.proof.failure is not None
    assert "no response within the time-out" in answer.proof.failure
    assert children_of(os.getpid()) == before


def test_errors_raised_on_purpose_keep_their_class_and_exit_code(tmp_path, monkeypatch) -> None:
    with pytest.raises(UsageError, match="nonsense"):
        run_child(make_job(tmp_path, nonsense="1"), timeout_s=60)
    with pytest.raises(ModelError, match="no such file"):
        run_child(SourceJob(source=ModelSource(model="absent.onnx"), out_dir=str(tmp_path)), timeout_s=60)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asking.py").write_text("input('which weights?')")
    with pytest.raises(ModelError, match=r"asking: EOFError: .* \(asking.py:1: input"):
        run_child(SourceJob(source=ModelSource(model="asking:net"), out_dir=str(tmp_path)), timeout_s=60)


def test_threads_wait_asleep_where_nothing_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY")
    started: list[dict[str, str]] = []

    class Recorded(isolate.Child):
        def __init__(self, variables: Mapping[str, str], environment: PythonEnvironment | None) -> None:
            started.append(dict(variables))
            super().__init__(variables, environment)

    monkeypatch.setattr(isolate, "Child", Recorded)
    run_child(ProbeJob(engine="fake"), timeout_s=60, variables={"OMP_NUM_THREADS": "2"})
    run_child(make_job(tmp_path), timeout_s=60, variables={"OMP_NUM_THREADS": "2"})
    assert started == [{"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_NUM_THREADS": "2"}]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_the_parent_however_it_dies(tmp_path: Path, number: signal.Signals) -> None:
    """kill -9 of the parent ends the child and what the child started, though the child holds no thread for it."""
    parent = start_parent_of_hanging_child(tmp_path)
    family = wait_for_family(parent.pid)
    parent.send_signal(number)
    parent.wait(timeout=30)
    assert wait_for_end(family), [p.cmdline() for p in family if p.is_running()]


def test_what_is_written_behind_a_job_does_not_kill_its_child(tmp_path: Path) -> None:
    """Nor what was written with it: the signal of a write may come after its data were read."""
    job = make_job(tmp_path, fault="hang")
    with Child() as child:
        child.start(job, timeout_s=60)
        deadline = time.monotonic() + 30
        while not watches_a_pipe(child.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert watches_a_pipe(child.pid)
        child.ask_to_preload(PreloadJob(engine=job.engine, out_dir=job.out_dir, kind="onnx"))
        time.sleep(0.2)  # a signal takes less
        assert child.alive


def watches_a_pipe(pid: int) -> bool:
    """Whether the kernel signals a process about one of its files."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    return any(int(line.split()[1], 8) & os.O_ASYNC for text in texts for line in text.splitlines() if "flags" in line)


HANGING_PARENT = """
import msgspec, sys
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import MeasureJob
run_child(msgspec.json.decode(sys.argv[1], type=MeasureJob), timeout_s=60)
"""


def start_parent_of_hanging_child(tmp_path: Path) -> subprocess.Popen[bytes]:
    job = msgspec.json.encode(make_job(tmp_path, fault="hang")).decode()
    return subprocess.Popen([sys.executable, "-c", HANGING_PARENT, job], stderr=subprocess.DEVNULL)


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def wait_for_family(pid: int) -> list[psutil.Process]:
    """The parent's descendants, once the child has taken its job and hangs."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        family = children_of(pid)
        if family and any(child.status() == psutil.STATUS_SLEEPING and child.num_threads() for child in family):
            time.sleep(1.0)  # the child reads its job and arms the kernel's signal within a fraction of this
            return children_of(pid)
        time.sleep(0.05)
    raise AssertionError("the child never started")


def wait_for_end(family: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(family, timeout=10)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_child_imports_little_and_ends_in_words(tmp_path: Path) -> None:
    assert format_exit(-33) == "the process was killed by signal 33"
    # Every trial of every row pays for it.
    code = "import sys, enginebench.runs.child.__main__; sys.exit('multiprocessing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=False).returncode == 0


# Children that import before their turn: what they do ahead, and what becomes of those that fail.

# A graph is ready to be measured; by its name the model would be exported first.
GRAPH = str(DATA_DIR / "digits-mlp.onnx")


@pytest.fixture
def job(tmp_path: Path) -> MeasureJob:
    return make_measure_job(tmp_path, read_packaged_onnx("digits-mlp"), trial=2, order=3)


def ask(child: Child, job: MeasureJob) -> None:
    child.ask_to_preload(PreloadJob(engine=job.engine, kind="onnx", out_dir=job.out_dir))


def test_a_child_imports_waits_idle_and_measures_even_late(job: MeasureJob) -> None:
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
    assert (answer.measurement.trial, answer.measurement.order) == (2, 3)
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic())
        assert isinstance(child.perform(job, timeout_s=60), MeasureResponse)


def test_a_child_whose_turn_never_comes_leaves_nothing_behind(job: MeasureJob) -> None:
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
    child.close()
    assert not psutil.pid_exists(child.pid)
    with Child() as child:
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
        child._stdin.close()
        assert psutil.Process(child.pid).wait(10) == 0
    assert can_wait(FAKE)
    assert not can_wait(EngineSpec(backend="fake", options={"env": "other"}))


def test_a_child_is_bound_before_it_imports_and_its_death_is_reported_at_its_turn(job: MeasureJob) -> None:
    with Child() as child:
        child.ask_to_preload(PreloadJob(engine=job.engine, kind="onnx", out_dir=job.out_dir, pin=True))
        child.wait_until_ready(time.monotonic() + 60)
        bound = {tuple(os.sched_getaffinity(int(task.id))) for task in psutil.Process(child.pid).threads()}
        answer = child.perform(job, timeout_s=60)
    assert bound == {answer.measurement.pinned_cpus} and len(answer.measurement.pinned_cpus or ()) == FAKE.threads
    with Child() as child:
        os.kill(child.pid, signal.SIGSEGV)
        ask(child, job)
        child.wait_until_ready(time.monotonic() + 60)
        with pytest.raises(ChildFailed, match="killed by SIGSEGV"):
            child.perform(job, timeout_s=60)


@pytest.mark.parametrize(("free_gib", "limit_gib", "wanted"), [(64, None, 16), (5, None, 2), (64, 4, 2), (64, 1, 1)])
def test_as_many_as_memory_allows(free_gib, limit_gib, wanted, monkeypatch) -> None:
    """Also within a container, whose limit the system's own figures do not show."""
    memory: Any = type("Memory", (), {"available": free_gib << 30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    limit = None if limit_gib is None else limit_gib << 30
    assert count_at_once(replace(describe_machine(), memory_limit_bytes=limit)) == wanted


def test_a_child_that_dies_before_its_turn_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "count_at_once", lambda machine: 2)
    monkeypatch.setattr(trials, "can_wait", lambda engine: True)

    class Dying(Child):
        def wait_until_ready(self, deadline: float) -> None:
            super().wait_until_ready(deadline)
            os.kill(self.pid, signal.SIGKILL)
            psutil.Process(self.pid).wait(10)

    monkeypatch.setattr(trials, "Child", Dying)
    request = RunRequest(model=GRAPH, engines=(("fake", {}),), measure=MeasureSpec(iters=5, processes=2))
    _, (row,) = run_model(request, tmp_path / "run", reporter=Silent())
    assert row.status == "ok" and len(row.measurements) == 2


# When an engine is asked for its record, and what comes of it.

MEASURE = MeasureSpec(warmup=1, iters=5, processes=1)


@pytest.fixture(scope="module")
def graph() -> Artifact:
    return read_packaged_onnx("digits-mlp")


@pytest.mark.parametrize("prove", [True, False])
def test_a_configuration_is_proven_where_it_is_asked_to_be(graph: Artifact, tmp_path: Path, prove: bool) -> None:
    built = make_prepare_job(tmp_path, graph, prove=not prove).perform(print, lambda sure: None)
    timed = make_measure_job(tmp_path, graph, pin=False, prove=prove).perform(print, lambda sure: None)
    proof, none = (timed.proof, built.proof) if prove else (built.proof, timed.proof)
    assert none is None
    assert proof is not None and proof.effective_precision == {"fp32": 1.0} and proof.layers
    assert len(timed.measurement.latency_ns) == 5


def run_proven_when_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], **more: Any
) -> tuple[list[Result], list[tuple[int, bool]]]:
    """The rows of a run whose engines are proven by the processes that time them, and which of those were asked."""
    asked: list[tuple[int, bool]] = []

    class Listening(Child):
        def perform(self, job: Any, **how: Any) -> Any:
            asked.append((job.trial, job.prove))
            if more.get("interrupt_at") == job.trial:
                raise KeyboardInterrupt
            return super().perform(job, **how)

    monkeypatch.setattr(trials, "Child", Listening)
    for module in (building, trials):
        monkeypatch.setattr(module, "proves_when_timed", lambda row: True)
    request = RunRequest(model=GRAPH, engines=(("fake", options),), measure=replace(MEASURE, processes=4))
    results: list[Result] = []
    with suppress(KeyboardInterrupt):
        results = run_model(request, folder, reporter=Silent(), resume=more.get("resume", False))[1]
    return results, asked


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_a_record_that_fails_or_kills_is_tried_twice_and_said(fault, tmp_path, monkeypatch) -> None:
    (row,), asked = run_proven_when_timed(tmp_path / "r", monkeypatch, {"fault": fault, "at": "proof"})
    assert asked == [(0, True), (1, True), (2, False), (3, False)]
    assert row.status == "ok" and [len(m.latency_ns) for m in row.measurements] == [5] * 4
    (warning,) = row.warnings
    said = "requested fp32; the record that would verify it failed: "
    assert warning.code == "failed_proof" and warning.message.startswith(said)


def test_only_the_first_process_proves_also_when_a_run_is_continued(tmp_path, monkeypatch) -> None:
    options = {"ran": "int8"}
    _, asked = run_proven_when_timed(tmp_path / "r", monkeypatch, options, interrupt_at=2)
    assert asked == [(0, True), (1, False), (2, False)]
    (row,), asked = run_proven_when_timed(tmp_path / "r", monkeypatch, options, resume=True)
    assert asked == [(2, False), (3, False)]
    assert row.status == "ok" and row.engine.precision == "int8" and row.effective_precision == {"int8": 1.0}
    assert [c.code for c in row.warnings] == ["relabelled"] and len(row.measurements) == 4


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_a_configuration_on_a_cpu_is_timed_whatever_becomes_of_its_proof(fault: str, tmp_path: Path) -> None:
    request = RunRequest(model=GRAPH, engines=(("fake", {"fault": fault, "at": "proof"}),), measure=MEASURE)
    (row,) = run_model(request, tmp_path / "r", reporter=Silent())[1]
    assert row.status == "ok" and [len(m.latency_ns) for m in row.measurements] == [5]
    assert [c.code for c in row.warnings] == ["failed_proof"] and row.drift is not None and row.drift.n == 32
