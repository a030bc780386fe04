"""Quantized graphs are looked at before TensorRT is asked to build them."""

from importlib import util
from pathlib import Path

import pytest

from enginebench.core.records import Artifact, EngineSpec, Recipe
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.quantize import quantize
from enginebench.runs.child import opening
from enginebench.runs.child.opening import build_graph


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
