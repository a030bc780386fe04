"""Which engines can time their layers: asked of the engines, before anything is made for them."""

from __future__ import annotations

import pytest

from enginebench.core.errors import BackendUnavailable
from enginebench.core.protocols import Engine
from enginebench.core.records import Artifact, Availability, EngineSpec
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
    with pytest.raises(BackendUnavailable, match=r"fpga-sim cannot time its layers; these can: pytorch, .*, fake"):
        check_profiler("fpga-sim")
    check_profiler("ort")

    def explode(name: str) -> None:
        raise OSError("libruntime.so.1: cannot open shared object file")

    monkeypatch.setattr(perform_profile, "open_backend", explode)
    check_profiler("openvino")  # what cannot be imported is refused for that, not for its layers
