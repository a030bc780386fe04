"""Children that die, hang or answer nonsense, for real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from asked import make_measure_job
from enginebench.core.errors import ChildFailed, ModelError, UsageError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, ModelSource, TensorSpec
from enginebench.runs.child import isolate
from enginebench.runs.child.isolate import format_exit, run_child
from enginebench.runs.child.jobs import MeasureJob, ProbeJob, SourceJob
from enginebench.runs.child.places import Place
from processes import environment


def make_job(tmp_path: Path, **options: str) -> MeasureJob:
    path = tmp_path / "toy.onnx"
    path.write_bytes(b"the fake engine never opens it")
    into, out = (
        (TensorSpec(name=name, dtype="float32", shape=shape),) for name, shape in (("x", (1, 4)), ("y", (1, 2)))
    )
    artifact = Artifact(kind="onnx", model="toy", path=str(path), sha256="0" * 64, files=(), inputs=into, outputs=out)
    spec, measure = EngineSpec(backend="fake", options=options), MeasureSpec(warmup=2, iters=20)
    return make_measure_job(tmp_path, artifact, engine=spec, measure=measure, repetition=3, order=7)


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
    place = Place(name="dying", python=str(python), version=(3, 12), arch="x86_64", packages={})
    with pytest.raises(ChildFailed, match="ended with exit code 3 and without a response"):
        run_child(ProbeJob(engine="fake"), timeout_s=9, place=place)


def test_a_child_that_hangs_is_killed_at_the_time_out(tmp_path: Path) -> None:
    before = children_of(os.getpid())  # of this process, which has run other tests
    with pytest.raises(ChildFailed, match="no response within the time-out of 2 s"):
        run_child(make_job(tmp_path, fault="hang"), timeout_s=2)
    assert children_of(os.getpid()) == before


def test_a_record_that_hangs_costs_no_times(tmp_path: Path) -> None:
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
        def __init__(self, environment: Mapping[str, str], place: Place | None) -> None:
            started.append(dict(environment))
            super().__init__(environment, place)

    monkeypatch.setattr(isolate, "Child", Recorded)
    run_child(ProbeJob(engine="fake"), timeout_s=60, environment={"OMP_NUM_THREADS": "2"})
    run_child(make_job(tmp_path), timeout_s=60, environment={"OMP_NUM_THREADS": "2"})
    assert started == [{"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}, {"OMP_NUM_THREADS": "2"}]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_survives_the_parent_however_it_dies(tmp_path: Path, number: signal.Signals) -> None:
    """kill -9 of the parent ends the child and what the child started, though the child holds no thread for it."""
    parent = start_parent_of_hanging_child(tmp_path)
    family = wait_for_family(parent.pid)
    parent.send_signal(number)
    parent.wait(timeout=30)
    assert wait_for_end(family), [p.cmdline() for p in family if p.is_running()]


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


def test_a_signal_without_a_name_is_put_into_words() -> None:
    assert format_exit(-33) == "the process was killed by signal 33"


def test_a_child_imports_nothing_that_its_parent_needs_alone(tmp_path: Path) -> None:
    """Every repetition of every row pays for it."""
    code = "import sys, enginebench.runs.child.__main__; sys.exit('multiprocessing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(tmp_path), check=False).returncode == 0
