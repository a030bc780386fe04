"""Locks of devices: every device that a row runs on, in one order, whatever the verb."""

import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import enginebench
from enginebench.core.commands import COMMAND
from enginebench.core.errors import ArtifactError, DeviceBusy, MeasurementError, UsageError
from enginebench.core.records import Availability, MeasureSpec
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import lock, main_job, plan
from enginebench.runs.child import environments
from enginebench.runs.folder import RunRequest
from enginebench.runs.lock import lock_device, lock_devices, lock_folder
from enginebench.verbs import accuracy, stages
from enginebench.verbs import bench as comparison
from enginebench.verbs import build as building
from enginebench.verbs import drift as drifting
from enginebench.verbs import infer as inference
from reporters import Silent

GRAPH = DATA_DIR / "digits-cnn.onnx"
FEEDS = {"input": np.zeros((1, 1, 8, 8), np.float32)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks lie where nobody else looks for them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def is_free(device: str) -> bool:
    try:
        with lock_device(device, wait=False):
            return True
    except DeviceBusy:
        return False


def test_a_device_that_is_busy_leaves_the_others_free() -> None:
    with lock_device("cuda:0"):
        with pytest.raises(DeviceBusy, match="cuda:0"), lock_devices(("cuda:0", "cpu"), wait=False):
            raise AssertionError("a lock was given to two")
        assert is_free("cpu")


@pytest.mark.parametrize("asked", [("cuda:1", "cpu", "cuda:0"), ("cuda:0", "cuda:1", "cpu")])
def test_the_order_is_that_of_the_names(asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextmanager
    def note(device: str, **_: object) -> Iterator[None]:
        order.append(device)
        yield

    monkeypatch.setattr(lock, "lock_device", note)
    with lock_devices(asked):
        assert order == ["cpu", "cuda:0", "cuda:1"]


def test_a_lock_is_held_though_its_file_was_removed(tmp_path: Path) -> None:
    with lock_device("cpu"):
        (tmp_path / "enginebench-cpu.lock").unlink()
        assert not is_free("cpu")
        assert not is_free("cpu"), "nor with the file of whoever tried"
    assert is_free("cpu")


def test_a_run_that_waits_goes_by_the_file_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A namespace of its own has names of its own: there the file alone tells, and only the one at the path."""
    monkeypatch.setattr(lock.sys, "platform", "other")
    path, stack, waits = tmp_path / "enginebench-cpu.lock", ExitStack(), []

    def pass_on(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:  # the first run ends, and another one begins with a file of its own
            path.unlink()
            third.enter_context(lock_device("cpu"))
            stack.close()
        elif len(waits) == 2:
            third.close()

    with ExitStack() as third:
        stack.enter_context(lock_device("cpu"))
        monkeypatch.setattr(lock.time, "sleep", pass_on)
        with lock_device("cpu"):
            assert len(waits) == 2 and not is_free("cpu")


def test_a_file_that_is_replaced_while_it_is_locked_is_not_the_lock(tmp_path, monkeypatch) -> None:
    path, real, waits = tmp_path / "enginebench-cpu.lock", lock.fcntl.flock, []

    def replace_first(fd: int, how: int) -> None:
        if not waits:
            path.unlink()
            path.touch()
        real(fd, how)

    monkeypatch.setattr(lock.fcntl, "flock", replace_first)
    monkeypatch.setattr(lock.time, "sleep", waits.append)
    with lock_device("cpu"):
        monkeypatch.setattr(lock.fcntl, "flock", real)
        assert len(waits) == 1 and not is_free("cpu")


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir], ids=["a pipe", "a folder"])
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None], wait: bool) -> None:
    make(tmp_path / "enginebench-cpu.lock")
    with (
        pytest.raises(MeasurementError, match=r"enginebench-cpu\.lock is not a plain file\. Remove it"),
        lock_device("cpu", wait=wait),
    ):
        raise AssertionError("a pipe was taken for a lock")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EBADF, errno.EIO])
def test_a_file_system_without_locks_is_named(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with (
        pytest.raises(MeasurementError, match=f"cannot lock .*{os.strerror(number)}. Set TMPDIR to a folder"),
        lock_device("cpu"),
    ):
        raise AssertionError("there was no lock")


def test_one_run_in_a_folder_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with lock_folder(tmp_path / "run", pytest.fail):
        for other in (tmp_path / "run", tmp_path / "link", tmp_path / "run" / ".." / "run"):
            with pytest.raises(UsageError, match="another run is at work in"), lock_folder(other, pytest.fail):
                raise AssertionError("a folder was given to two")
        (tmp_path / "run" / lock.FOLDER_LOCK).unlink()
        with pytest.raises(UsageError, match="another run"), lock_folder(tmp_path / "run", pytest.fail):
            raise AssertionError("the name in the kernel went with the file")
        (tmp_path / "run" / "run.json").write_text("{}")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
    with lock_folder(tmp_path / "run", pytest.fail):
        pass
    with pytest.raises(DeviceBusy), lock_folder(tmp_path / "new", pytest.fail):
        raise DeviceBusy("the device is not free")
    assert not (tmp_path / "new").exists(), "nothing was begun there"


def test_a_run_of_another_process_with_a_tmpdir_of_its_own_is_seen(tmp_path: Path) -> None:
    """Without names in the kernel, as between two containers or two machines: the file alone tells."""
    program = (
        "import sys; from pathlib import Path; from enginebench.runs import lock; lock.sys.platform = 'other'\n"
        "with lock.lock_folder(Path(sys.argv[1]), print): print('held', flush=True); sys.stdin.read()"
    )
    (tmp_path / "own").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "own")}
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match="another run"), lock_folder(tmp_path / "run", pytest.fail):
            raise AssertionError("a folder was given to two")
        other.kill()
    with lock_folder(tmp_path / "run", pytest.fail):
        pass  # the kernel dropped the lock; the file that stayed is none


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_a_folder_without_locks_is_used_with_a_warning(tmp_path: Path, number: int, monkeypatch) -> None:
    def refuse(fd: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    said: list[str] = []
    with lock_folder(tmp_path / "run", said.append) as warnings:
        (warning,) = warnings
        assert "has no locks" in warning and said == [f"warning: {warning}"]
        with pytest.raises(UsageError, match="another run"), lock_folder(tmp_path / "run", pytest.fail):
            raise AssertionError("on one machine the name in the kernel tells")


def test_what_is_no_folder_is_not_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot write .*file"), lock_folder(tmp_path / "file", pytest.fail):
        raise AssertionError("a file was locked as a folder")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / lock.FOLDER_LOCK).symlink_to(tmp_path / "file")
    with pytest.raises(MeasurementError, match="cannot open the lock file"), lock_folder(tmp_path / "run", pytest.fail):
        raise AssertionError("a link was followed")


@pytest.mark.skipif(lock.sys.platform != "linux", reason="names of abstract sockets are Linux's")
def test_who_waits_learns_who_holds_the_device_and_again_every_ten_seconds(monkeypatch) -> None:
    stack, looks, messages = ExitStack(), [], list[str]()
    stack.enter_context(lock_device("cpu"))

    def end_after_ten_seconds(seconds: float) -> None:
        looks.append(seconds)
        if sum(looks) > 10:
            stack.close()

    monkeypatch.setattr(lock.time, "sleep", end_after_ten_seconds)
    with lock_device("cpu", on_wait=messages.append):
        pass
    first, again = messages
    assert first.startswith(f"another run is measuring on cpu: pid {os.getpid()}, ")
    assert ", since " in first and first.endswith(". Waiting for it to end; wait=False would not wait")
    assert again.startswith(f"waiting for 10 s: another run is measuring on cpu: pid {os.getpid()}, ")


@pytest.mark.skipif(lock.sys.platform != "linux", reason="names of abstract sockets are Linux's")
def test_who_waited_first_is_first_and_a_suspended_process_holds_nobody_up(tmp_path: Path, monkeypatch) -> None:
    path, messages, stopped = tmp_path / "enginebench-cpu.lock", list[str](), list[bool]()

    def suspend(seconds: float) -> None:
        assert is_free("cpu") and not stopped
        stopped.append(True)

    monkeypatch.setattr(lock.time, "sleep", suspend)
    monkeypatch.setattr(lock, "is_stopped", lambda mark: bool(stopped))
    with lock.show_mark("waits", path, 1), lock_device("cpu", on_wait=messages.append):
        assert messages[0].startswith("another run is measuring on cpu; 1 run waits before this one.") and stopped


def test_whom_it_refuses_it_names_the_holder_and_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_device("cpu"), pytest.raises(DeviceBusy, match="Wait for it: leave out wait=False"):
        lock_device("cpu", wait=False).__enter__()
    token = COMMAND.set(("enginebench", "run"))
    with lock_device("cpu"), pytest.raises(DeviceBusy, match="Wait for it: leave out --no-wait"):
        lock_device("cpu", wait=False).__enter__()
    COMMAND.reset(token)


class Reached(Exception):
    """A verb came to its lock."""


def ask(*engines: str, device: str = "cpu") -> RunRequest:
    return RunRequest(
        model=str(GRAPH), engines=tuple((e, {}) for e in engines), device=device, measure=MeasureSpec(processes=1)
    )


TWO_SIDES = comparison.BenchRequest(own=ask("trtexec"), other=ask("ort"))
BOTH = {"cpu", "cuda:0"}
VERBS: dict[str, tuple[Any, Callable[[Path], object], set[str]]] = {
    "run": (
        main_job,
        lambda d: main_job.run_model(ask("ort", "trtexec"), d / "r", reporter=Silent()),
        {"cpu", "cuda:0"},
    ),
    "bench": (comparison, lambda d: comparison.bench_sides(TWO_SIDES, d / "b", reporter=Silent()), BOTH),
    "stages": (stages, lambda d: stages.stages("resnet18", engine="trtexec", n=1, decoders=1), {"cuda:0"}),
    "drift": (drifting, lambda d: drifting.drift(f"ort@{GRAPH}", f"tensorrt@{GRAPH}", n=1), BOTH),
    "accuracy": (accuracy, lambda d: accuracy.accuracy(f"tensorrt@{GRAPH}", "digits", model="digits-cnn"), {"cuda:0"}),
    "infer": (inference, lambda d: inference.infer(GRAPH, FEEDS, engine="tensorrt"), {"cuda:0"}),
    "build": (building, lambda d: building.build(GRAPH, d / "net.plan"), {"cuda:0"}),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.feature("trtexec", "'run'", "'bench'", "'stages'")
def test_every_verb_locks_what_it_runs_on(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, call, expected = VERBS[verb]
    if verb == "stages":
        pytest.importorskip("torch")  # whose factory makes this model

    @contextmanager
    def reach(devices: Iterable[str], **_: object) -> Iterator[None]:
        raise Reached(*sorted(set(devices)))
        yield

    for asking in (plan, environments):
        monkeypatch.setattr(asking, "find_installed", lambda name: Availability(engine=name, available=True))
    monkeypatch.setattr(environments, "find_gpu_name", "Fake GPU".__getitem__)
    # The command is put together before, by a trtexec that need not be here.
    monkeypatch.setattr(building, "open_composing", lambda spec: SimpleNamespace(compose_build=lambda *_: None))
    monkeypatch.setattr(module, "lock_devices", reach)
    with pytest.raises(Reached) as caught:
        call(tmp_path)
    assert set(caught.value.args) == expected


SPEC = """
engines = ["ort"]
[[model]]
name = "digits-mlp"
[[machine]]
kind = "local"
"""
FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "run": lambda out, spec: enginebench.run(GRAPH, engines="ort", out=out),
    "bench": lambda out, spec: enginebench.bench(GRAPH, "ort", out=out),
    "tune": lambda out, spec: enginebench.tune(GRAPH, engines="ort", out=out),
    "load": lambda out, spec: enginebench.load(GRAPH, "ort", qps=10, out=out),
    "sweep": lambda out, spec: enginebench.sweep(spec, out),
}


@pytest.mark.parametrize("verb", FOLDERS)
@pytest.mark.feature("tune", "'tune'")
@pytest.mark.feature("load", "'load'")
@pytest.mark.feature("sweep", "'sweep'")
def test_no_verb_works_where_another_run_is_at_work(verb: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SPEC)
    with lock_folder(tmp_path / "out", pytest.fail), pytest.raises(UsageError, match="another run is at work"):
        FOLDERS[verb](tmp_path / "out", tmp_path / "sweep.toml")
    assert not (tmp_path / "out").exists(), "nothing was written there"
