"""What a watch on a GPU adds to a measurement and to a profile, with a watch that the test plays."""

from dataclasses import dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from msgspec.structs import replace

from asked import make_measure_job
from enginebench.core.errors import ArtifactError, MeasurementError, UsageError
from enginebench.core.records import Artifact, Block, BlockReading, EngineSpec, Measurement, MeasureSpec
from enginebench.engines.registry import open_backend
from enginebench.measure import nvml, watch
from enginebench.measure.nvml import HIDDEN_PROCESSES, NO_TELEMETRY
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.quantize import quantize
from enginebench.runs.child import opening
from enginebench.runs.child.other_jobs import ProfileJob, ProfileResponse
from enginebench.runs.child.perform import measure as perform
from enginebench.runs.child.perform.measure import calling_after, check_cache
from enginebench.runs.child.watching import add_least, add_telemetry

TOY = Artifact(kind="onnx", model="toy", path="toy.onnx", sha256="0" * 64, files=(), inputs=(), outputs=())
JOB = make_measure_job(Path(), TOY, engine=EngineSpec(backend="fake", device="cuda:1"), measure=MeasureSpec())


@pytest.mark.parametrize(("scope", "count"), [("io", 1), ("pipelined", 3)])
def test_as_many_engines_are_loaded_as_have_batches_on_their_way(scope, count, monkeypatch) -> None:
    timed: list[Any] = []
    engines = [MagicMock(name=str(i)) for i in range(count)]

    def load(artifact: Artifact, specs: list[EngineSpec]) -> list[Any]:
        assert specs == [JOB.engine] * count
        return engines

    def time_all(engine: Any, *given: Any, others: Any, **more: Any) -> Any:
        timed.extend((engine, *others))
        raise MeasurementError("enough")

    backend = SimpleNamespace(load=print, load_several=load)
    monkeypatch.setattr(perform, "open_for", lambda *given: backend)
    monkeypatch.setattr(perform, "open_gpu", lambda spec: None)
    monkeypatch.setattr(perform, "time_watched", time_all)
    job = replace(JOB, measure=MeasureSpec(scope=scope), last_level_cache_bytes=1, pin=False)
    with pytest.raises(MeasurementError, match="enough"):
        perform.measure_trial(job, lambda text: None, lambda answer: None)
    assert timed == [engine.__enter__() for engine in engines]
    assert all(engine.__exit__.called for engine in engines)


def test_a_block_that_does_not_end_is_given_up_and_no_other() -> None:
    called = Event()
    with calling_after(3600.0, called.set):
        pass
    assert not called.is_set()
    with calling_after(0.01, called.set):
        assert called.wait(600)


def test_a_queue_of_calls_that_does_not_end_ends_the_trial(monkeypatch) -> None:
    """The outputs come only once the process is left, as where each takes an hour."""
    left, kept = Event(), list[Any]()
    engine = MagicMock()
    engine.__enter__().fetch.side_effect = lambda: {} if left.wait(600) else None
    backend = SimpleNamespace(load=print, load_several=lambda *_: [engine])
    measured = Measurement(clock="host", latency_ns=[1_000] * 10, blocks=(), stop_rule="settled")
    monkeypatch.setattr(perform, "open_for", lambda *_: backend)
    monkeypatch.setattr(perform, "time_watched", lambda *_, **__: measured)
    monkeypatch.setattr(perform, "_find_missing_work", lambda *_: [])
    monkeypatch.setattr(perform, "DRAIN_S", 0.01)
    monkeypatch.setattr(perform.os, "_exit", lambda code: left.set())
    job = replace(JOB, engine=EngineSpec(backend="fake"), pin=False)
    perform.measure_trial(job, lambda text: None, kept.append)
    assert [w.template for w in kept[0].measurement.warnings] == ["implausible_time.outside_run"]
    assert kept[0].measurement.latency_ns == measured.latency_ns


@dataclass
class FakeWatch:
    hides_processes: bool

    def energy_per_image(self, images: int) -> tuple[float, float]:
        return 1000 / images, 1.0

    def peak_memory_bytes(self) -> int:
        return 7


def add(gpu: Any) -> Measurement:
    measured = Measurement(clock="host", latency_ns=[1_000] * 10, blocks=(), stop_rule="settled")
    return add_telemetry(measured, JOB.engine, JOB.measure, gpu)


@pytest.mark.parametrize(("hidden", "warnings"), [(False, ()), (True, (HIDDEN_PROCESSES,))])
def test_a_configuration_says_that_nobody_could_see_others(hidden: bool, warnings: tuple[object, ...]) -> None:
    measured = add(FakeWatch(hides_processes=hidden))
    assert (measured.peak_device_memory_bytes, measured.energy_mj) == (7, 100.0)
    assert measured.warnings == warnings


def test_an_engine_that_times_itself_has_no_cold_configurations() -> None:
    check_cache(JOB.engine, MeasureSpec())
    with pytest.raises(UsageError, match="fake times itself and cannot empty a cache"):
        check_cache(JOB.engine, MeasureSpec(cache="cold"))


@pytest.mark.parametrize(("marked", "device", "least"), [(2, "cpu", 3.0), (1, "cpu", None), (2, "cuda:0", None)])
def test_what_a_call_takes_at_least_is_asked_beside_others(marked: int, device: str, least: float | None) -> None:
    blocks = [Block(start=0, stop=1, duration_ns=1, marks=("foreign_cpu",) if i < marked else ()) for i in range(3)]
    measured = Measurement(clock="host", latency_ns=[1], blocks=tuple(blocks), stop_rule="settled")
    engine = SimpleNamespace(count_least_ns=lambda: 3.0)
    assert add_least(measured, EngineSpec(backend="fake", device=device), engine).least_ns == least


class OnNoGpu:
    """The engine `fake`, of which a job may say that it runs on a GPU."""

    def __init__(self) -> None:
        self.built: list[Artifact] = []
        self._fake: Any = open_backend("fake")

    def probe(self) -> Any:
        return self._fake.probe()

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        self.built.append(artifact)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> Any:
        return self._fake.load(artifact, replace(spec, backend="fake", device="cpu", precision="fp32"))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> OnNoGpu:
    stand_in = OnNoGpu()
    monkeypatch.setattr(opening, "open_backend", lambda *_: stand_in)
    return stand_in


def profile(artifact: Artifact, folder: Path, **engine: Any) -> ProfileResponse:
    given: Any = {"engine": EngineSpec(**engine), "measure": MeasureSpec(warmup=1, iters=20), "out_dir": str(folder)}
    return ProfileJob(model="digits-mlp", artifact=artifact, **given).perform(lambda text: None, lambda sure: None)


def test_what_tensorrt_refuses_is_not_profiled(backend: OnNoGpu, tmp_path: Path) -> None:
    graph = read_packaged_onnx("digits-mlp")
    ranges = calibrate(graph, open_data("digits", model="digits-mlp", inputs=graph.inputs, n=8), threads=1)
    quantized = quantize(graph, "int8", "cpu", tmp_path / "q.onnx", calibration=ranges, threads=1)
    with pytest.raises(ArtifactError, match=r"would refuse \d+ nodes of .*q\.onnx"):
        profile(quantized, tmp_path, backend="tensorrt", precision="int8", device="cuda:0")
    assert backend.built == []


def test_a_profile_on_a_gpu_that_nobody_watched_says_so(backend, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(nvml, "open_gpu_watch", lambda device: None)
    graph = read_packaged_onnx("digits-mlp")
    assert NO_TELEMETRY in profile(graph, tmp_path, backend="fake", device="cuda:0").warnings
    assert NO_TELEMETRY not in profile(graph, tmp_path, backend="fake").warnings


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_a_profile_beside_others_says_so(backend, tmp_path, monkeypatch, device) -> None:
    reading = BlockReading(marks=("foreign_cpu",) if device == "cpu" else ("throttled",))

    class Busy:
        hides_processes = False

        def begin(self) -> None: ...

        def end(self) -> BlockReading:
            return reading

        def __getattr__(self, name: str) -> Any:
            return lambda *_: None

    monkeypatch.setattr(nvml, "open_gpu_watch", lambda device: Busy())
    if device == "cpu":
        monkeypatch.setattr(watch, "BlockWatch", lambda cpus: Busy())
    found = profile(read_packaged_onnx("digits-mlp"), tmp_path, backend="fake", device=device)
    assert ("foreign_cpu" if device == "cpu" else "throttled") in {warning.code for warning in found.warnings}


def test_a_plan_of_another_batch_is_not_profiled_under_this_one(backend: OnNoGpu, tmp_path: Path) -> None:
    graph = read_packaged_onnx("digits-mlp")
    fixed = tuple(replace(spec, shape=(4, *spec.shape[1:])) for spec in graph.inputs)
    plan = replace(graph, kind="plan", inputs=fixed)
    with pytest.raises(ArtifactError, match="runs with a batch of 4, not 1"):
        profile(plan, tmp_path, backend="tensorrt", device="cuda:0")
