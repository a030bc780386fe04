"""The child's part of `profile` goes the way of the other verbs: the same refusals, the same watch."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, BlockReading, EngineSpec, MeasureSpec
from enginebench.engines.registry import open_backend
from enginebench.measure import nvml, watch
from enginebench.measure.nvml import NO_TELEMETRY
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.quantize import quantize
from enginebench.runs.child import opening
from enginebench.runs.child.other_jobs import ProfileAnswer, ProfileJob


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


def profile(artifact: Artifact, folder: Path, **engine: Any) -> ProfileAnswer:
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
    assert NO_TELEMETRY in profile(graph, tmp_path, backend="fake", device="cuda:0").caveats
    assert NO_TELEMETRY not in profile(graph, tmp_path, backend="fake").caveats


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
    assert ("foreign_cpu" if device == "cpu" else "throttled") in {doubt.code for doubt in found.caveats}


def test_a_plan_of_another_batch_is_not_profiled_under_this_one(backend: OnNoGpu, tmp_path: Path) -> None:
    graph = read_packaged_onnx("digits-mlp")
    fixed = tuple(replace(spec, shape=(4, *spec.shape[1:])) for spec in graph.inputs)
    plan = replace(graph, kind="plan", inputs=fixed)
    with pytest.raises(ArtifactError, match="runs with a batch of 4, not 1"):
        profile(plan, tmp_path, backend="tensorrt", device="cuda:0")
