"""How engine `tensorrt-rtx` runs a plan, over a stand-in that has exactly the names of 1.7."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from calls import answer_as_ort, run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, MissingDependency, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec
from enginebench.models.onnx.source import read_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.stats.plans.layers import PlanFiles
from fakes.tensorrt_modules import forget_modules, use_rtx

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib")
GRAPH = read_onnx(DATA_DIR / "digits-cnn.onnx")


@pytest.fixture
def engine_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    use_rtx(monkeypatch, tmp_path)
    module = importlib.import_module("enginebench.engines.backends.tensorrt.rtx")
    monkeypatch.setattr(module, "describe_gpu", lambda index: "NVIDIA GeForce RTX 4070")
    monkeypatch.setattr(module, "read_capability", lambda index: "8.9")
    yield module
    forget_modules()


@pytest.fixture
def backend(engine_module: ModuleType, tmp_path: Path) -> Any:
    made = engine_module.create_backend(tmp_path / "cache")
    made.take_reader(PlanFiles())
    return made


def make_spec(**options: str) -> EngineSpec:
    return EngineSpec(backend="tensorrt-rtx", device="cuda:0", batch=4, options=options)


def run_once(backend: Any, plan: Artifact, **options: str) -> dict[str, np.ndarray]:
    with backend.load(plan, make_spec(**options)) as engine:
        return dict(run_on(engine, random_feeds(GRAPH.inputs, 4, 0)))


def list_caches(tmp_path: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((tmp_path / "cache").glob("*.cache"))]


@pytest.mark.parametrize("graph", ["0", "1", "rtx"])
def test_it_computes_as_the_graph_does(backend: Any, tmp_path: Path, graph: str) -> None:
    plan = backend.build(GRAPH, make_spec(graph=graph), tmp_path)
    expected = answer_as_ort(GRAPH.path, random_feeds(GRAPH.inputs, 4, 0))["output"]
    np.testing.assert_allclose(run_once(backend, plan, graph=graph)["output"], expected, rtol=1e-5)


def test_caches_are_found_by_the_next_process_and_strategies_are_those_asked_for(
    backend, tmp_path, engine_module, monkeypatch
) -> None:
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    run_once(backend, plan)
    assert list_caches(tmp_path) == [b"COMPILED EAGER"]
    run_once(backend, plan, specialization="none")
    assert list_caches(tmp_path) == [b"COMPILED EAGER NONE"]
    (path,) = (tmp_path / "cache").glob("*.cache")
    path.write_bytes(b"of another version")
    run_once(backend, plan)
    assert list_caches(tmp_path) == [b"COMPILED EAGER"]
    made: list[Any] = []
    configure = engine_module.configure
    monkeypatch.setattr(engine_module, "configure", lambda *a: made.append(configure(*a)) or made[-1])
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    for options in ({}, {"graph": "rtx", "specialization": "lazy"}):
        run_once(backend, plan, **options)
    found = [(c.cuda_graph_strategy.name, c.dynamic_shapes_kernel_specialization_strategy.name) for c in made]
    assert found == [("DISABLED", "EAGER"), ("WHOLE_GRAPH_CAPTURE", "LAZY")]


def test_streams_and_gpus_that_cannot_are_named(backend, tmp_path, monkeypatch, engine_module) -> None:
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "capturable")
    with pytest.raises(ArtifactError, match=r"TensorRT for RTX cannot capture .* tensorrt-rtx:graph=0"):
        run_once(backend, plan)
    assert run_once(backend, plan, graph="rtx")["output"].shape[0] == 4
    assert backend.probe().available and backend.probe().devices == ("cuda:0",)
    for capability, words in (("9.0", "the GPU here has 9.0"), (None, "there is no GPU here")):
        monkeypatch.setattr(engine_module, "read_capability", lambda index, found=capability: found)
        assert not backend.probe().available and words in str(backend.probe().reason)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("UNSUPPORTED_CC", BackendUnavailable, "not for this GPU's compute capability.*GPU 0 here has .* 8.9"),
        ("OLD_CUDA_DRIVER,INSUFFICIENT_GPU_MEMORY", BackendUnavailable, "driver is too old .*; .*too little memory"),
        ("no_gpu", BackendUnavailable, r"it says \(Error reading CUDA GPU properties\)"),
        ("VERSION_MISMATCH", ArtifactError, "another version of TensorRT for RTX built it"),
    ],
)
def test_a_plan_that_cannot_run_here_says_why(backend, tmp_path, monkeypatch, fault, kind, words) -> None:
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", fault)
    with pytest.raises(kind, match=words):
        backend.load(plan, make_spec())


def test_a_file_that_is_no_plan_is_refused_and_a_finished_plan_described(backend, tmp_path, monkeypatch) -> None:
    junk = tmp_path / "junk.plan"
    junk.write_bytes(b"junk" * 100)
    artifact = Artifact(kind="plan", model="m", path=str(junk), sha256="", files=(), inputs=(), outputs=())
    with pytest.raises(ArtifactError, match="not a plan of TensorRT for RTX, or it is damaged"):
        backend.build(artifact, make_spec(), tmp_path)
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    alone = Artifact(kind="plan", model="m", path=plan.path, sha256="s", files=(), inputs=(), outputs=())
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "suboptimal")
    taken = backend.build(alone, make_spec(), tmp_path)
    assert [s.name for s in taken.inputs] == ["input"] and taken.inputs[0].shape[0] == 4
    assert [c.template for c in taken.warnings] == ["unverified_engine.rtx", "environment.suboptimal_plan"]


def test_the_precision_is_proved_and_running_names_what_it_needs(backend, tmp_path, monkeypatch) -> None:
    plan = backend.build(GRAPH, make_spec(), tmp_path)
    with backend.load(plan, make_spec()) as engine:
        engine.bind(random_feeds(GRAPH.inputs, 4, 0))
        assert engine.effective_precision() == pytest.approx({"fp32": 1.0})
        assert engine.profile_layers().profiler == "TensorRT for RTX's layer profiler"
    import sys

    plan = backend.build(GRAPH, make_spec(), tmp_path)
    monkeypatch.setitem(sys.modules, "enginebench.engines.cuda", None)
    monkeypatch.delattr("enginebench.engines.cuda", raising=False)
    with pytest.raises(MissingDependency, match=r"cuda\.bindings.*enginebench\[tensorrt-rtx\]"):
        backend.load(plan, make_spec())


def test_steps_of_inner_phases_are_thinned_out(engine_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from enginebench.engines.backends.tensorrt import builder

    ticks = iter(range(10_000))
    monkeypatch.setattr(builder.time, "monotonic", lambda: next(ticks) / 500)
    told: list[str] = []
    monitor = builder.make_progress(engine_module.trt, told.append)
    monitor.phase_start("Building engine", None, 2)
    monitor.step_complete("Building engine", 0)
    monitor.phase_start("Optimizing graph", "Building engine", 3000)
    for step in range(3000):
        assert monitor.step_complete("Optimizing graph", step), "it goes on"
    monitor.phase_finish("Optimizing graph")
    monitor.step_complete("Building engine", 1)
    assert [told[i] for i in (0, 1, -1)] == [f"building: Building engine{of}" for of in ("", ", 1 of 2", ", 2 of 2")]
    assert 3 < len(told) < 12, "a note a second, of seconds by the clock"


@pytest.mark.parametrize(
    ("text", "precision", "expected"),
    [
        ("8.6,8.9,12.0", "fp32", ("8.6", "8.9", "12.0")),
        ("12.0+8.9 8.9", "fp16", ("8.9", "12.0")),
        ("7.5", "fp16", ("7.5",)),
        ("", "fp16", ("8.0", "8.6", "8.9", "12.0", "12.1")),
        ("", "fp8", ("8.9", "12.0", "12.1")),
        ("9.0", "fp32", "9.0 is not one .* 7.5, 8.0, 8.6, 8.9, 12.0, 12.1"),
        ("8.6,8.9", "fp8", "capability 8.6 have no fp8.*expected some of 8.9, 12.0, 12.1"),
        ("7.5,8.9", "bf16", "capability 7.5 have no bf16"),
    ],
)
def test_targets_are_always_named(engine_module, text, precision, expected) -> None:
    if isinstance(expected, tuple):
        assert engine_module.read_compute_capabilities(text, precision) == expected
    else:
        with pytest.raises(UsageError, match=expected):
            engine_module.read_compute_capabilities(text, precision)
