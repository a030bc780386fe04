"""TensorRT's Python API over a stand-in that has exactly the names of 8.6, 10.16, 11.4, or the lean runtime."""

import _ctypes
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from calls import answer_as_ort, run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, MeasurementError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import CacheFlusher
from enginebench.core.records import Artifact, EngineSpec, Precision
from enginebench.engines import registry, tensorrt_library
from enginebench.engines.proof import Operator
from enginebench.models.zoo import DATA_DIR
from enginebench.stats.plans.layers import PlanFiles
from fakes.tensorrt_modules import LEAN, MODULES, VERSIONS, forget_modules, use_fakes, use_lean
from graphs import write_tokens
from processes import ROOT

# The fakes are found on a path of their own, where another distribution's namespace package may lie as well.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    use_fakes(monkeypatch, request.param)
    yield request.param
    forget_modules()


@pytest.fixture
def engine_module(version: str) -> ModuleType:
    return importlib.import_module("enginebench.engines.backends.tensorrt.tensorrt")


@pytest.fixture
def backend(engine_module: ModuleType, tmp_path: Path) -> Any:
    made = engine_module.create_backend(tmp_path / "cache")
    made.take_reader(PlanFiles())
    return made


@pytest.fixture
def opened(backend: Any, graph: Artifact, tmp_path: Path) -> Any:
    """Builds the graph and opens the engine of its plan, with these options."""
    return lambda **options: backend.load(backend.build(graph, make_spec(**options), tmp_path), make_spec(**options))


def make_spec(**options: str) -> EngineSpec:
    return EngineSpec(backend="tensorrt", device="cuda:0", batch=4, options=options)


def live() -> dict[str, int]:
    counts = importlib.import_module("cuda.bindings.runtime").live
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize("captured", ["0", "1"])
def test_it_computes_as_the_graph_does(backend: Any, graph: Artifact, tmp_path: Path, captured: str) -> None:
    spec = make_spec(graph=captured)
    plan = backend.build(graph, spec, tmp_path)
    assert plan.kind == "plan" and plan.parent_sha256 == graph.sha256
    with backend.load(plan, spec) as engine:
        for seed in (1, 2):
            feeds = random_feeds(graph.inputs, 4, seed)
            answers = run_on(engine, feeds)
            for name, expected in answer_as_ort(graph.path, feeds).items():
                np.testing.assert_allclose(answers[name], expected, rtol=1e-5)
        assert engine.last_device_ns() > 0 and engine.last_enqueue_ns() > 0
        assert engine.last_device_ns() >= engine.last_enqueue_ns()
        samples = [random_feeds(graph.inputs, 1, seed) for seed in (3, 4, 5)]  # there is room for one more
        engine.begin(samples)
        assert engine.is_done()
        found, times = engine.finish()
        assert min(times) > 0
        for i, sample in enumerate(samples):
            for name, expected in answer_as_ort(graph.path, sample).items():
                np.testing.assert_allclose(found[name][i : i + 1], expected, rtol=1e-5)


def test_whole_numbers_of_64_bits_go_in_and_out(backend: Any, tmp_path: Path, version: str) -> None:
    """8.6 makes INT32 of them; token ids and labels stay what the graph says."""
    graph = write_tokens(tmp_path / "tokens.onnx", 4)
    plan = backend.build(graph, make_spec(), tmp_path)
    with backend.load(plan, make_spec()) as engine:
        feeds = random_feeds(plan.inputs, 4, 0)
        answers = run_on(engine, feeds)
        for name, expected in answer_as_ort(graph.path, feeds).items():
            assert answers[name].dtype == expected.dtype
            np.testing.assert_allclose(answers[name], expected)
        if version == "8.6":
            with pytest.raises(FeedError, match=r"'ids' holds 4294967299, .* INT32"):
                engine.bind({"ids": feeds["ids"] * 0 + 2**32 + 3})


def test_everything_is_freed_and_the_flush_is_twice_the_cache(backend, graph, tmp_path, opened) -> None:
    plan = backend.build(graph, make_spec(max_shapes="input:8x1x8x8", min_shapes="input:1x1x8x8"), tmp_path)
    engine = backend.load(plan, make_spec())
    for batch in (4, 2, 4):  # new shapes get new buffers and a new graph
        assert run_on(engine, random_feeds(graph.inputs, batch, 0))["output"].shape[0] == batch
    engine.close()
    engine.close()
    assert live() == {}
    with pytest.raises(UsageError, match="closed"):
        engine.bind(random_feeds(graph.inputs, 4, 0))
    with opened() as engine:
        assert isinstance(engine, CacheFlusher)
        engine.flush_cache()
        engine.flush_cache()
    assert importlib.import_module("cuda.bindings.runtime").filled[-2:] == [2000, 2000]
    assert live() == {}


def test_plans_are_kept(backend: Any, graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = backend.build(graph, make_spec(), tmp_path)
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "build")  # a second build would fail
    assert backend.build(graph, make_spec(), tmp_path).sha256 == first.sha256
    with pytest.raises(ArtifactError, match="Error Code 10"):
        backend.build(graph, make_spec(optimization_level="5"), tmp_path)


def test_settings_reach_the_builder(backend: Any, graph: Artifact, tmp_path: Path, version: str) -> None:
    eight = version == "8.6"
    spec = make_spec(
        workspace_mb="64",
        optimization_level="2",
        version_compatible=str(int(not eight)),
        refit="1",
        strip=str(int(not eight)),
        profiles=PROFILES,
    )
    head = read_head(backend.build(graph, spec, tmp_path))
    assert head["limits"] == {"WORKSPACE": 64 << 20}
    assert head["level"] == 2 and head["detailed"] and head["typed"] == (not eight)
    more = [] if eight else ["EXCLUDE_LEAN_RUNTIME", "STRIP_PLAN", "VERSION_COMPATIBLE"]
    assert head["flags"] == sorted(["REFIT", *more])  # TF32 is on by default, and off for FP32
    assert [p[2]["input"][0] for p in head["profiles"]] == [4, 16]


PROFILES = "input:1x1x8x8/2x1x8x8/4x1x8x8\ninput:8x1x8x8/8x1x8x8/16x1x8x8"


def read_head(plan: Artifact) -> dict[str, Any]:
    return dict(json.loads(Path(plan.path).read_bytes().split(b"\n")[1]))


def test_a_profile_is_chosen_and_shapes_and_feeds_must_fit(backend, graph, tmp_path, opened) -> None:
    plan = backend.build(graph, make_spec(profiles=PROFILES), tmp_path)
    with backend.load(plan, make_spec(profile_index="1")) as engine:
        engine.bind(random_feeds(graph.inputs, 16, 0))
        with pytest.raises(ArtifactError, match=r"outside the plan's profile 1 \(min \(8, 1, 8, 8\)"):
            engine.bind(random_feeds(graph.inputs, 4, 0))
    with pytest.raises(UsageError, match="the plan has 2 profiles"):
        backend.load(plan, make_spec(profile_index="2"))
    with opened() as engine:
        with pytest.raises(UsageError, match="bind first"):
            engine.run  # noqa: B018
        with pytest.raises(FeedError, match="float64"):
            engine.bind({"input": np.zeros((4, 1, 8, 8))})


def test_a_plan_alone_says_what_goes_in_and_out(backend: Any, graph: Artifact, tmp_path: Path) -> None:
    plan = backend.build(graph, make_spec(), tmp_path)
    bare = Artifact(kind="plan", model="m.plan", path=plan.path, sha256="", files=(), inputs=(), outputs=())
    alone = backend.build(bare, make_spec(), tmp_path)
    assert [(s.name, s.dtype, s.shape[1:]) for s in alone.inputs] == [("input", "float32", (1, 8, 8))]
    assert alone.inputs[0].shape[0] == 4, "its profile leaves no choice"
    shapes = {"min_shapes": "input:1x1x8x8", "opt_shapes": "input:4x1x8x8", "max_shapes": "input:8x1x8x8"}
    plan = backend.build(graph, make_spec(**shapes), tmp_path)
    wide = backend.build(replace(alone, path=plan.path, inputs=(), outputs=()), make_spec(), tmp_path)
    assert wide.inputs[0].shape == ("batch", 1, 8, 8)
    assert [s.name for s in alone.outputs] == ["output"]


def test_the_precision_is_proved_also_in_the_one_context_that_a_profile_has(opened, graph, backend, tmp_path) -> None:
    with opened() as engine:
        engine.bind(random_feeds(graph.inputs, 4, 0))
        assert engine.effective_precision() == pytest.approx({"fp32": 1.0})
        profile = engine.profile_layers()
        layers = json.loads(engine.inspect(), strict=False)["Layers"]
        took_time = {layer["Name"] for layer in layers if layer["LayerType"] != "NoOp"}
        assert {layer.name for layer in profile.layers} == took_time and len(took_time) == len(layers) - 1
        assert {layer.precision for layer in profile.layers} <= {"fp32", "reorder", None} and profile.runs == 20
    plan = backend.build(graph, make_spec(profiles=PROFILES), tmp_path)
    with backend.load(plan, make_spec()) as engine:
        engine.bind(random_feeds(graph.inputs, 4, 0))
        assert engine.effective_precision() == pytest.approx({"fp32": 1.0})
        assert engine.profile_layers().layers
        assert engine._context.profiler is None, "what follows is timed without it"
        with pytest.raises(MeasurementError, match="Profile 0 has been chosen by another IExecutionContext"):
            engine._make_context()


def test_kernels_say_what_layers_do_not(opened: Any, graph: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("enginebench.engines.backends.tensorrt.engine")
    layers, kernels = {"unknown": 0.9, "fp16": 0.1}, [[Operator("fp16", 9.0), Operator("fp32", 1.0)]]
    monkeypatch.setattr(PlanFiles, "read_precision", lambda *_: layers)
    monkeypatch.setattr(module, "watch_kernels", lambda run: kernels)
    with opened() as engine:
        engine.bind(random_feeds(graph.inputs, 4, 0))
        assert engine.effective_precision() == layers, "nothing can record kernels here"
        monkeypatch.setattr(module, "can_watch", lambda: True)
        assert engine.effective_precision() == {"fp16": 0.9, "fp32": 0.1}
        kernels[0] = [Operator("unknown", 1.0)]
        assert engine.effective_precision() == layers, "kernels that say less decide nothing"


def test_what_fails_says_why(backend, graph, tmp_path, monkeypatch) -> None:
    for fault, words in (("build", "cannot build .*Error Code 10"), ("profile", "refuses the profile")):
        monkeypatch.setenv("FAKE_TENSORRT_FAULT", fault)
        with pytest.raises(ArtifactError, match=words):
            backend.build(graph, make_spec(), tmp_path)
        assert not list((tmp_path / "plans").glob("*.plan"))
    monkeypatch.delenv("FAKE_TENSORRT_FAULT")
    plan = backend.build(graph, make_spec(), tmp_path)
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "context")
    with pytest.raises(MeasurementError, match="cannot create a context"):
        backend.load(plan, make_spec())
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "execute")
    with backend.load(plan, make_spec()) as engine, pytest.raises(MeasurementError, match="enqueueV3: Error Code 1"):
        engine.bind(random_feeds(graph.inputs, 4, 0))


@pytest.mark.parametrize("words", ["tensorrt:graph=0", "first values of input, which"])
def test_what_a_graph_would_not_repeat_is_refused_by_name(backend, graph, tmp_path, monkeypatch, words) -> None:
    """What cannot be captured; and bounds of a slice, which TensorRT reads as it enqueues: a captured run does not."""
    plan = backend.build(graph, make_spec(), tmp_path)
    if words.startswith("first"):
        where = importlib.import_module("tensorrt").TensorLocation
        host = {"input": where.HOST}
        monkeypatch.setattr("tensorrt.ICudaEngine.get_tensor_location", lambda _, n: host.get(n, where.DEVICE))
    else:
        monkeypatch.setenv("FAKE_CUDA_FAULT", "capture")
    with backend.load(plan, make_spec()) as engine, pytest.raises(ArtifactError, match=words):
        engine.bind(random_feeds(graph.inputs, 4, 0))
    with backend.load(plan, make_spec(graph="0")) as engine:
        engine.bind(random_feeds(graph.inputs, 4, 0))
        engine.run()


def test_damaged_plans_and_graphs(backend: Any, graph: Artifact, tmp_path: Path, version: str) -> None:
    broken = tmp_path / "bröken plan.plan"
    broken.write_bytes(b"no plan")
    artifact = Artifact(kind="plan", model="m", path=str(broken), sha256="", files=(), inputs=(), outputs=())
    with pytest.raises(ArtifactError, match="Error Code 1: Serialization"):
        backend.build(artifact, make_spec(), tmp_path)
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"\x00\x01nonsense")
    source = Artifact(kind="onnx", model="m", path=str(bad), sha256="x", files=(), inputs=(), outputs=())
    name = "" if version == "8.6" else r" \(Unheard '/unheard/Of'\)"
    with pytest.raises(ArtifactError, match=rf"node 6{name}: no importer registered"):
        backend.build(source, make_spec(), tmp_path)


def test_timings_are_kept_foreign_ones_ignored_and_progress_is_reported(backend, graph, tmp_path, version) -> None:
    cache = tmp_path / "own.timing"
    cache.write_bytes(b"of another version")
    backend.build(graph, make_spec(timing_cache=str(cache)), tmp_path)
    assert cache.read_bytes().startswith(b"FAKE TIMINGS " + version.encode())
    notes: list[str] = []
    backend.take_note(notes.append)
    backend.build(graph, make_spec(optimization_level="1"), tmp_path)
    assert [p.suffix for p in (tmp_path / "cache").iterdir()] == [".timing"]
    told = ["building: Building Engine", "building: Building Engine, 1 of 2", "building: Building Engine, 2 of 2"]
    assert notes == ([] if version == "8.6" else told)  # 8.6 has no progress monitor


def test_weak_typing_is_of_eight_and_ten_and_refused_by_name_on_eleven(backend, graph, tmp_path, version) -> None:
    np.savez(tmp_path / "calib.npz", input=np.zeros((10, 1, 8, 8), np.float32))
    cache = tmp_path / "calib.cache"
    data = str(tmp_path / "calib.npz")
    spec = replace(make_spec(weak_typing="1", calib_cache=str(cache), calib_data=data), precision="int8", batch=4)
    if version == "11.4":
        with pytest.raises(UsageError, match=r"11\.4.*strongly typed networks only.*quantize .*--to int8"):
            backend.build(graph, spec, tmp_path)
        return
    plan = backend.build(graph, spec, tmp_path)
    head = f"TRT-{8601 if version == '8.6' else 101601}-EntropyCalibration2"
    assert cache.read_text().splitlines()[:2] == [head, "input: 3c010a14"]
    assert {"INT8", "FP16"} <= set(read_head(plan)["flags"]) and not read_head(plan)["typed"]
    with backend.load(plan, spec) as engine:
        engine.bind(random_feeds(graph.inputs, 4, 0))
        assert engine.effective_precision()["int8"] > 0.2
    # The optimum of the plan's own profile is larger: TensorRT would read past the end of the arrays.
    wide = replace(make_spec(weak_typing="1", calib_data=data, opt_shapes="input:8x1x8x8"), precision="int8", batch=2)
    assert "INT8" in read_head(backend.build(graph, wide, tmp_path))["flags"]
    cache.write_bytes(b"not one")
    with pytest.raises(ArtifactError, match="not a calibration cache"):
        backend.build(graph, replace(spec, batch=2), tmp_path)


def test_floats_beside_eight_bits_are_halved_where_flags_decide(backend, graph, tmp_path, version) -> None:
    spec = replace(make_spec(floats="fp16"), precision="int8")
    if version == "8.6":
        assert {"INT8", "FP16"} <= set(read_head(backend.build(graph, spec, tmp_path))["flags"])
    else:
        with pytest.raises(UsageError, match="takes the types of the graph as they are"):
            backend.build(graph, spec, tmp_path)


@pytest.mark.parametrize("version", ["8.6"], indirect=True)
def test_what_the_real_8_6_does_not_take_is_refused_by_name(backend, graph, tmp_path, version, monkeypatch) -> None:
    def ask(precision: Precision, **options: str) -> EngineSpec:
        return replace(make_spec(**options), precision=precision)

    for name in ("by-tensorrt", "ours-refused"):
        cache = Path(__file__).parents[2] / "data" / "tensorrt-8.6" / f"calibration.{name}.cache"
        spec = ask("int8", weak_typing="1", calib_cache=str(cache))
        refused = pytest.raises(ArtifactError, match=r"_Map_base::at\. Ranges that were not written by TensorRT.*quant")
        with refused if name == "ours-refused" else nullcontext():
            assert backend.build(graph, spec, tmp_path).kind == "plan"
    ahead, later = backend.check_ahead, lambda *given: backend.build(*given, tmp_path)
    for use, precision, options, words in (
        (ahead, "fp32", {"refit": "1", "version_compatible": "1"}, "both --refit and --version-compatible"),
        (ahead, "bf16", {}, r"has no BuilderFlag\.BF16"),
        (later, "fp32", {"strip": "1"}, r"8\.6\.1 has no .*\.STRIP_PLAN"),
        (later, "fp32", {"hardware_compatibility": "sameComputeCapability"}, r"has no .*\.SAME_COMPUTE_CAPABILITY"),
    ):
        with pytest.raises(UsageError, match=words):
            use(replace(graph, precision=precision), ask(precision, **options))
    plan = backend.build(graph, ask("fp32", version_compatible="1"), tmp_path)
    assert {"VERSION_COMPATIBLE", "EXCLUDE_LEAN_RUNTIME"} <= set(read_head(plan)["flags"])
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "builder")
    with pytest.raises(BackendUnavailable, match="cannot create a builder: CUDA initialization failure with error: 35"):
        backend.build(graph, ask("fp32", optimization_level="2"), tmp_path)


@pytest.mark.parametrize("version", ["8.6"], indirect=True)
def test_a_timing_cache_that_is_thrown_away_is_a_note(backend, graph, tmp_path, version, capfd, monkeypatch) -> None:
    spec = make_spec(timing_cache=str(tmp_path / "own.timing"))
    backend.build(graph, spec, tmp_path)
    backend.build(graph, make_spec(timing_cache=str(tmp_path / "own.timing"), optimization_level="2"), tmp_path)
    assert "TensorRT goes on without the timing cache: 4: The timing cache will not be used!" in capfd.readouterr().err
    said = 1, "4: The timing cache will not be used!"  # an error
    monkeypatch.setattr("tensorrt.Builder.build_serialized_network", lambda builder, *_: builder._logger.log(*said))
    with pytest.raises(ArtifactError, match=r"cannot build .*: TensorRT gave no message$"):
        backend.build(graph, make_spec(optimization_level="3"), tmp_path)


def test_plugins_of_others(backend: Any, graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArtifactError, match=r"cannot load the plugin library nowhere\.so: .*cannot open shared object"):
        backend.build(graph, make_spec(plugins="nowhere.so"), tmp_path)
    with pytest.raises(ArtifactError, match=r"finds no plugin in the library .* that it does not have"):
        backend.build(graph, make_spec(plugins=_ctypes.__file__), tmp_path)
    creators = importlib.import_module("tensorrt").IPluginRegistry._creators
    monkeypatch.setattr("enginebench.engines.tensorrt_library.CDLL", creators.append)  # it registers itself, as most do
    spec = make_spec(plugins=graph.path)
    backend.load(backend.build(graph, spec, tmp_path), spec).close()
    assert creators == [graph.path]


def test_what_probe_finds_wanting(engine_module, backend, graph, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "0")
    assert not backend.probe().available and "cudaErrorInsufficientDriver" in str(backend.probe().reason)
    with pytest.raises(BackendUnavailable, match="cudaErrorInsufficientDriver"):
        backend.build(graph, make_spec(), tmp_path)
    monkeypatch.setattr(engine_module.trt, "__version__", "8.5.3")
    assert not backend.probe().available and "8.6 and later" in str(backend.probe().reason)


def take_inventory(version: str) -> dict[str, Any]:
    """What the real bindings of a version have; 8.6's is what `tools/tensorrt_names.py` reads from its wheel."""
    folder = Path(os.environ.get("ENGINEBENCH_FACTS", ROOT.parent / "shared" / "facts"))
    path = folder / f"tensorrt-api-{version}.json"
    if not path.is_file():
        pytest.skip(f"the inventory of the real bindings is not at {path}; set ENGINEBENCH_FACTS")
    return dict(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", ["10.16", "11.4"], indirect=True)
def test_names_and_signatures_are_those_of_the_real_bindings(version: str) -> None:
    real = take_inventory(version)
    ours = json.loads((MODULES / "tensorrt" / "names.json").read_text(encoding="utf-8"))[version]
    assert ours["version"] == real["version"]
    for name, members in ours["classes"].items():
        assert members == sorted(m for m in real["classes"][name] if not m.startswith("__"))
    for name, members in ours["enums"].items():
        assert members == real["enums"][name]
    import inspect
    import re

    real = take_inventory(version)["classes"]
    trt = importlib.import_module("tensorrt")
    checked = 0
    for name in real:
        for method, text in vars(getattr(trt, name, object)).items():
            signatures = real[name].get(method)
            if method.startswith("_") or not inspect.isfunction(text) or not isinstance(signatures, list):
                continue
            mine = [p for p in inspect.signature(text).parameters if p != "self"]
            known = [re.findall(r"(\w+): (?!builtin)", s.split("->")[0])[1:] for s in signatures if "*args" not in s]
            assert any(mine == k[: len(mine)] for k in known), f"{name}.{method}{mine} is none of {signatures}"
            checked += 1
    assert checked > 25


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    use_lean(monkeypatch, tmp_path)
    yield importlib.import_module("enginebench.engines.backends.tensorrt.tensorrt")
    forget_modules()


def write_fake_plan(path: Path, flags: list[str]) -> Artifact:
    """A plan as a builder of 11.1 with these flags would leave it."""
    from fakes.fake_plan import describe_graph, write_plan

    data = (DATA_DIR / "digits-cnn.onnx").read_bytes()
    head = describe_graph(data, []) | {"version": "11.1", "detailed": True, "flags": flags}
    shapes = [{"input": [batch, 1, 8, 8]} for batch in (1, 4, 8)]
    path.write_bytes(write_plan(data, **head, profiles=[shapes]))
    return Artifact(kind="plan", model=path.name, path=str(path), sha256="", files=(), inputs=(), outputs=())


def test_the_lean_runtime_runs_a_plan_for_later_versions_and_says_that_it_cannot_build(lean, graph, tmp_path) -> None:
    assert lean.trt.__name__ == LEAN
    backend = lean.create_backend(None)
    backend.take_reader(PlanFiles())
    plan = backend.build(write_fake_plan(tmp_path / "vc.plan", ["VERSION_COMPATIBLE"]), make_spec(), tmp_path)
    feeds = random_feeds(graph.inputs, 4, 0)
    with backend.load(plan, make_spec()) as engine:
        np.testing.assert_allclose(
            run_on(engine, feeds)["output"], answer_as_ort(graph.path, feeds)["output"], rtol=1e-5
        )
        assert engine.effective_precision() == {}  # it has no inspector: nothing is proved
    with pytest.raises(ArtifactError, match=r"lean runtime, .* built with --version-compatible\): .*Code 1"):
        backend.load(write_fake_plan(tmp_path / "own.plan", []), make_spec())
    backend = lean.create_backend(None)
    assert backend.probe().available and "the lean runtime" in backend.probe().reason
    with pytest.raises(BackendUnavailable, match=r"lean runtime cannot build \(tensorrt_lean_bindings 11\.4"):
        backend.build(graph, make_spec(), tmp_path)
    assert registry.find_installed("tensorrt").available
    assert registry.find_absent_modules(("tensorrt", "nowhere"), (LEAN,)) == ["nowhere"]
    assert registry.find_absent_modules(("nowhere", "tensorrt"), ("nowhere.else",)) == ["nowhere", "tensorrt"]


def test_a_runtime_around_nothing_is_not_used(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without CUDA the real bindings log an error and hand out an object whose first use ends the process."""
    plan = tmp_path / "any.plan"
    plan.write_bytes(b"x")
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "runtime")
    artifact = Artifact(kind="plan", model="m", path=str(plan), sha256="", files=(), inputs=(), outputs=())
    with pytest.raises(BackendUnavailable, match="TensorRT cannot create a runtime: createInferRuntime: Error Code 6"):
        backend.load(artifact, make_spec())


@pytest.mark.parametrize("version", ["8.6"], indirect=True)
def test_a_dla_core_runs_what_it_can_and_the_rest_is_named(
    backend: Any, graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(make_spec(dla="1", weak_typing="1"), precision="fp16")
    with pytest.raises(BackendUnavailable, match="dla=1: TensorRT finds 0 DLA cores here"):
        backend.build(graph, spec, tmp_path)
    monkeypatch.setenv("FAKE_TENSORRT_FAULT", "dla")
    plan = backend.build(graph, spec, tmp_path)
    (warning,) = plan.warnings
    assert warning.message == "the device of 1 layer is the GPU, not DLA core 1: softmax"
    engine = backend.load(plan, spec)
    engine.close()
    with pytest.raises(UsageError, match=r"dla=1.*fp16 and int8, not in fp32"):
        backend.build(graph, make_spec(dla="1"), tmp_path)


def test_versions_without_dla_are_refused_by_name(backend: Any, graph: Artifact, version: str, tmp_path: Path) -> None:
    if version != "8.6":
        with pytest.raises(UsageError, match=r"dla=0: TensorRT \S+ has no DLA; 10\.7 and older.*11\.4\.1"):
            backend.check_ahead(graph, replace(make_spec(dla="0"), precision="fp16"))


def test_bindings_of_the_system_are_found_behind_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process of its own: what is imported stays."""
    folder = tmp_path / "dist-packages"
    (folder / "tensorrt").mkdir(parents=True)
    (folder / "tensorrt" / "__init__.py").write_text("__version__ = '10.3.0'\n")
    (folder / "numpy.py").write_text("raise ImportError('nothing else of it is imported')\n")
    (folder / "tensorrt_lean.py").write_text("raise ImportError('nor this')\n")
    program = (
        "from pathlib import Path; from importlib.util import find_spec; import sys\n"
        "from enginebench.engines import tensorrt_library as library\n"
        "library.SYSTEM_FOLDER = Path(sys.argv[1])\n"
        "assert find_spec('tensorrt_lean') is None\n"
        "trt = library.import_tensorrt(); import numpy\n"
        "print(trt.__version__, library.is_of_system(trt), library.is_of_system(numpy))\n"
    )
    for paths, expected in (([], "10.3.0 True False"), ([MODULES], "10.16.1.11 False False")):
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT / "src", *paths]))}
        command = [sys.executable, "-c", program, str(folder)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.stdout.split()[1:] == expected.split()[1:], done.stderr
    assert tensorrt_library.find_other_system_folder(tmp_path) is None
    other = tmp_path / "python3.8" / "dist-packages"
    (other / "tensorrt").mkdir(parents=True)
    assert tensorrt_library.find_other_system_folder(tmp_path) == other


@pytest.mark.parametrize(
    "message",
    [
        "Layer 'conv 1' (CONVOLUTION): Unsupported on DLA. Switching this layer's device type to GPU.",
        "Default DLA is enabled but layer conv 1 is not supported on DLA, falling back to GPU.",
        "Default DLA is enabled but layer conv 1 is not running on DLA, falling back to GPU.",
        "DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv 1",
        "DLA only supports FP16 and Int8 precision type. Switching conv 1 device type to GPU.",
        "Validation failed for DLA layer: conv 1. Switching to GPU fallback.",
    ],
)
def test_layers_that_went_to_the_gpu_are_read_from_every_wording(message: str) -> None:
    """As reported in NVIDIA's forum and issues for TensorRT 7 to 10."""
    assert tensorrt_library.find_layers_on_gpu(f"[W] [TRT] {message}\n[I] done\n[W] {message}\n") == ["conv 1"]
