"""What is asked of engines and looked at in graphs before anything is made for them."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from enginebench.core.errors import BackendUnavailable
from enginebench.core.protocols import Engine
from enginebench.core.records import Artifact, Availability, EngineSpec, Recipe
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.quantize import quantize
from enginebench.runs.child import opening
from enginebench.runs.child.opening import build_graph
from enginebench.runs.child.perform import profile as perform_profile
from enginebench.runs.child.perform.profile import check_profiler, times_layers


class Silent:
    """A backend whose `load` says nothing of the class that it returns."""

    name = "silent"

    def probe(self) -> Availability:
        return Availability(engine=self.name, available=True)

    def build(self, artifact, spec, out_dir):  # type: ignore[no-untyped-def]
        return artifact

    def load(self, artifact, spec):  # type: ignore[no-untyped-def]
        raise AssertionError("nothing is loaded to be asked")


class Vague(Silent):
    def load(self, artifact: Artifact, spec: EngineSpec) -> Engine:
        raise AssertionError("nothing is loaded to be asked")


class Unreadable(Silent):
    def load(self, artifact: Artifact, spec: EngineSpec) -> OnlyForTheTypeChecker:  # type: ignore[name-defined]  # noqa: F821
        raise AssertionError("nothing is loaded to be asked")


def test_an_engine_without_one_says_so_too() -> None:
    from enginebench.engines.backends.onnxruntime.ort_tensorrt import OrtTensorRtBackend

    assert times_layers(OrtTensorRtBackend()) is False  # ONNX Runtime sees a graph that TensorRT took as one kernel
    assert times_layers(object()) is False


@pytest.mark.parametrize("backend", [Silent(), Vague(), Unreadable()])
def test_what_only_loading_shows_is_not_guessed(backend: Silent) -> None:
    assert times_layers(backend) is None


@pytest.mark.feature("fpga")
def test_the_refusal_names_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailable, match=r"fpga-sim cannot time its layers; these can: .*\bort, .*, fake"):
        check_profiler("fpga-sim")
    check_profiler("ort")

    def explode(name: str) -> None:
        raise OSError("libruntime.so.1: cannot open shared object file")

    monkeypatch.setattr(perform_profile, "open_backend", explode)
    check_profiler("openvino")  # what cannot be imported is refused for that, not for its layers


class Builder:
    """A backend that counts what it was asked to build, and builds nothing."""

    def __init__(self) -> None:
        self.asked: list[Artifact] = []

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        self.asked.append(artifact)
        return artifact


def make_int8(recipe: Recipe, out: Path) -> Artifact:
    graph = read_packaged_onnx("digits-mlp")
    data = open_data("digits", model="digits-mlp", inputs=graph.inputs, n=8)
    return quantize(graph, "int8", recipe, out, calibration=calibrate(graph, data, threads=1), threads=1)


@pytest.mark.feature("trtexec")
def test_without_the_packages_the_build_goes_on_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, backend, notes = make_int8("cpu", tmp_path / "q.onnx"), Builder(), list[str]()
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == "onnx" else util.find_spec(name))
    spec = EngineSpec(backend="trtexec", precision="int8")
    build_graph(backend, graph, spec, str(tmp_path), notes.append)  # type: ignore[arg-type]
    assert backend.asked == [graph] and "not looked at" in notes[0]
