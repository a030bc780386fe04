"""Locks of devices: every device that a row runs on, in one order, whatever the verb."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import DeviceBusy
from enginebench.core.records import Availability, EngineSpec, MeasureSpec, ModelSource
from enginebench.models.zoo import DATA_DIR
from enginebench.workflow import lock, main_job, plan
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.lock import lock_device, lock_devices
from enginebench.workflow.targets.sides import SideRequest
from enginebench.workflow.targets.stored import Side
from enginebench.workflow.verbs import accuracy, stages
from enginebench.workflow.verbs import bench as comparison
from enginebench.workflow.verbs import build as building
from enginebench.workflow.verbs import drift as drifting
from enginebench.workflow.verbs import infer as inference

GRAPH = DATA_DIR / "digits-cnn.onnx"


def is_free(device: str, folder: Path) -> bool:
    try:
        with lock_device(device, wait=False, folder=folder):
            return True
    except DeviceBusy:
        return False


def test_every_device_is_held_once_and_given_back(tmp_path: Path) -> None:
    with lock_devices(("cuda:0", "cpu", "cuda"), wait=False, folder=tmp_path):
        assert [is_free(device, tmp_path) for device in ("cpu", "cuda:0", "cuda:1")] == [False, False, True]
    assert is_free("cpu", tmp_path) and is_free("cuda:0", tmp_path)


def test_a_device_that_is_busy_leaves_the_others_free(tmp_path: Path) -> None:
    with lock_device("cuda:0", folder=tmp_path):
        with pytest.raises(DeviceBusy, match="cuda:0"), lock_devices(("cuda:0", "cpu"), wait=False, folder=tmp_path):
            raise AssertionError("a lock was given to two")
        assert is_free("cpu", tmp_path)


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


def test_the_devices_of_a_request_are_those_of_its_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Availability:
        return Availability(engine=name, available=name != "ort-cuda")

    monkeypatch.setattr(plan, "find_installed", find)
    assert set(plan.list_devices(ask("ort", "trtexec"))) == {"cpu", "cuda:0"}
    assert plan.list_devices(ask("ort", "ort-cuda")) == ("cpu",)  # what is not installed runs nowhere
    assert plan.list_devices(ask("trtexec", device="cuda:1")) == ("cuda:1",)


class Reached(Exception):
    """A verb came to its lock."""


def ask(*engines: str, device: str = "cpu") -> RunRequest:
    return RunRequest(
        model=str(GRAPH), engines=tuple((e, {}) for e in engines), device=device, measure=MeasureSpec(processes=1)
    )


class Silent:
    """A reporter that says nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


QUIET: Any = Silent()
GPU = EngineSpec(backend="trtexec", device="cuda:0")
SIDES = SideRequest(source=ModelSource(model=""))


def infer(folder: Path) -> None:
    np.savez(folder / "in.npz", input=np.zeros((1, 1, 8, 8), np.float32))
    inference.infer_file(
        ModelSource(model=str(GRAPH), inputs=str(folder / "in.npz")),
        folder / "out.npz",
        engine=("tensorrt", {}),
        device="cpu",
        threads=1,
        reporter=QUIET,
    )


VERBS: dict[str, tuple[Any, Callable[[Path], object], set[str]]] = {
    "run": (main_job, lambda d: main_job.run_model(ask("ort", "trtexec"), d / "r", reporter=QUIET), {"cpu", "cuda:0"}),
    "bench": (
        comparison,
        lambda d: comparison.bench_sides(
            ask("trtexec"), Side(engine=("ort", {}), target=str(GRAPH)), d / "b", reporter=QUIET
        ),
        {"cpu", "cuda:0"},
    ),
    "stages": (
        stages,
        lambda d: stages.measure_stages(
            replace(ask("trtexec"), model="resnet18"), images=None, n=1, decoders=1, reporter=QUIET
        ),
        {"cuda:0"},
    ),
    "drift": (
        drifting,
        lambda d: drifting.measure_sides(f"ort@{GRAPH}", f"tensorrt@{GRAPH}", request=SIDES, n=1, reporter=QUIET),
        {"cpu", "cuda:0"},
    ),
    "accuracy": (
        accuracy,
        lambda d: accuracy.measure_side_accuracy(
            f"tensorrt@{GRAPH}", "digits", request=SIDES, model="digits-cnn", reporter=QUIET
        ),
        {"cuda:0"},
    ),
    "infer": (inference, infer, {"cuda:0"}),
    "build": (
        building,
        lambda d: building.build_engine(GRAPH, d / "net.plan", GPU, timeout_s=60.0, reporter=QUIET),
        {"cuda:0"},
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_locks_what_it_runs_on(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, call, expected = VERBS[verb]

    @contextmanager
    def reach(devices: Iterable[str], **_: object) -> Iterator[None]:
        raise Reached(*sorted(set(devices)))
        yield

    monkeypatch.setattr(plan, "find_installed", lambda name: Availability(engine=name, available=True))
    # The command is put together before, by a trtexec that need not be here.
    monkeypatch.setattr(building, "open_composing", lambda spec: SimpleNamespace(compose_build=lambda *_: None))
    monkeypatch.setattr(module, "lock_devices", reach)
    with pytest.raises(Reached) as caught:
        call(tmp_path)
    assert set(caught.value.args) == expected
