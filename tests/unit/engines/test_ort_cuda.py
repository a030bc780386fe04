"""`ort-cuda` without a GPU: CUDA is the fake on host memory, and a session of the CPU stands in for one of the GPU."""

import sys
from collections.abc import Iterator
from ctypes import c_byte
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, MeasurementError, UsageError
from enginebench.core.protocols import CacheFlusher, CopyClock, DeviceClock
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from graphs import write_graph

MODULES = Path(__file__).parents[2] / "fakes" / "modules"
OURS = ("enginebench.engines.cuda", "enginebench.engines.ort_cuda", "enginebench.engines.backends.onnxruntime.ort_cuda")
SPEC = EngineSpec(backend="ort-cuda", device="cuda:0", batch=2)
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
RealSession = onnxruntime.InferenceSession


def forget_modules() -> None:
    for name in list(sys.modules):
        package, _, last = name.rpartition(".")
        if name.split(".")[0] == "cuda" or name in OURS:
            del sys.modules[name]
            vars(sys.modules.get(package, ModuleType("none"))).pop(last, None)


@pytest.fixture
def ort_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend's module over the fake CUDA, in a build of ONNX Runtime that says that it has the provider."""
    forget_modules()
    monkeypatch.syspath_prepend(str(MODULES))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    monkeypatch.setattr(onnxruntime, "InferenceSession", GpuSession)
    GpuSession.made.clear()
    from cuda.bindings import runtime

    from enginebench.engines.backends.onnxruntime import ort_cuda as module

    yield module
    assert +runtime.live == {}, "something on the GPU was not freed"
    forget_modules()


class GpuSession:
    """A session on the CPU that takes addresses of the fake device, which is host memory, for its own."""

    made: list["GpuSession"] = []
    dropped, kept = False, {}
    fail: str | None = None
    host_inputs: tuple[str, ...] = ()  # that a node reads on the CPU

    def __init__(self, path: str, settings: Any, providers: Any) -> None:
        if self.fail:
            raise RuntimeError(self.fail)
        [(name, self.options)] = providers
        assert name == CUDA
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
        self.real = RealSession(path, settings, providers=[CPU])
        self._sess = self
        self.runs = 0
        GpuSession.made.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def get_providers(self) -> list[str]:
        return [CPU] if self.dropped else [CUDA, CPU]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {CUDA: self.options | self.kept}

    def io_binding(self) -> Any:
        inner = Binding(self.real.io_binding())

        def bind_input(name: str, device: str, index: int, dtype: Any, shape: Any, address: int) -> None:
            """What is bound where it is not wanted is copied there and then, as ONNX Runtime does."""
            if (device == "cpu") != (name in self.host_inputs):
                memory = (c_byte * (np.prod(shape, dtype=int) * np.dtype(dtype).itemsize)).from_address(address)
                inner.copied[name] = np.frombuffer(bytes(memory), dtype).reshape(shape)
                address = inner.copied[name].ctypes.data
            inner.real.bind_input(name, "cpu", index, dtype, shape, address)

        def bind_output(name: str, device: str, index: int, *rest: Any) -> None:
            inner.real.bind_output(name, "cpu", index, *rest)

        return SimpleNamespace(_iobinding=inner, bind_input=bind_input, bind_output=bind_output)

    def get_input_memory_infos(self) -> list[SimpleNamespace]:
        kinds = ("Cpu" if value.name in self.host_inputs else "Cuda" for value in self.real.get_inputs())
        return [SimpleNamespace(name=kind) for kind in kinds]

    def run_with_iobinding(self, binding: Any, settings: Any) -> None:
        self.runs += 1
        self.real._sess.run_with_iobinding(binding.real._iobinding, settings)


class Binding:
    """A binding of the CPU whose buffers are called those of a device."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.copied: dict[str, np.ndarray] = {}


def draw(batch: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((batch, 3, 8, 8)).astype(np.float32)}


def load(module: Any, artifact: Artifact, **changes: Any) -> Any:
    spec = replace(SPEC, **changes)
    backend = module.create_backend()
    return backend.load(backend.build(artifact, spec, Path()), spec)


@pytest.mark.parametrize("graph", ["0", "1"])
def test_outputs_are_those_of_the_graph(ort_cuda: Any, onnx_artifact: Artifact, expect: Any, graph: str) -> None:
    with load(ort_cuda, onnx_artifact, options={"cuda_graph": graph}) as engine:
        for seed in range(3):
            feeds = draw(seed=seed)
            np.testing.assert_allclose(run_on(engine, feeds)["scores"], expect(feeds["image"]), rtol=1e-4, atol=1e-5)


@pytest.fixture
def handing_on(tmp_path: Path) -> Artifact:
    """y = -x, and its input x among its outputs."""
    text = "g (float[batch, 4] x) => (float[batch, 4] x, float[batch, 4] y) { y = Neg (x) }"
    return write_graph(tmp_path / "model.onnx", text)


def test_an_input_that_is_handed_on_keeps_its_buffers(ort_cuda: Any, handing_on: Artifact) -> None:
    """That they are freed, too, the fixture checks."""
    with load(ort_cuda, handing_on) as engine:
        for seed in range(2):
            x = np.random.default_rng(seed).standard_normal((2, 4), np.float32)
            np.testing.assert_array_equal(run_on(engine, {"x": x})["x"], x)
            np.testing.assert_array_equal(engine.fetch()["y"], -x)


@pytest.fixture
def chosen(tmp_path: Path) -> Artifact:
    """y = x, or -x where the first of `flip` is true: a condition, which the CPU reads."""
    text = """g (float[batch, 4] x, bool[1] flip) => (float[batch, 4] y) {
        y = If (flip) <
            then_branch = then () => (float[batch, 4] t) { t = Neg (x) },
            else_branch = other () => (float[batch, 4] e) { e = Identity (x) }
        >
    }"""
    return write_graph(tmp_path / "model.onnx", text)


@pytest.mark.parametrize("told", [True, False])
def test_an_input_that_the_cpu_reads_is_read_for_each_sample(ort_cuda, chosen, told, monkeypatch) -> None:
    """ONNX Runtime copies it when it is bound; what came later was not seen."""
    monkeypatch.setattr(GpuSession, "host_inputs", ("flip",))
    if not told:  # before 1.23.1 ONNX Runtime does not say
        monkeypatch.setattr(GpuSession, "get_input_memory_infos", None)
    with load(ort_cuda, chosen) as engine:
        for seed, flip in enumerate((False, True, True, False)):
            x = np.random.default_rng(seed).standard_normal((2, 4), np.float32)
            np.testing.assert_array_equal(run_on(engine, {"x": x, "flip": np.array([flip])})["y"], -x if flip else x)


def test_a_captured_run_would_keep_what_the_cpu_read(ort_cuda, chosen, monkeypatch) -> None:
    monkeypatch.setattr(GpuSession, "host_inputs", ("flip",))
    with pytest.raises(BackendUnavailable, match="the first values of flip, which the CPU reads; give cuda_graph=0"):
        load(ort_cuda, chosen, options={"cuda_graph": "1"})
    monkeypatch.setattr(GpuSession, "get_input_memory_infos", None)
    with pytest.raises(BackendUnavailable, match="cuda_graph=1 needs ONNX Runtime"):
        load(ort_cuda, chosen, options={"cuda_graph": "1"})


def test_tf32_is_always_said(ort_cuda: Any, onnx_artifact: Artifact) -> None:
    for precision, expected in (("fp32", "0"), ("tf32", "1")):
        load(ort_cuda, onnx_artifact, precision=precision).close()
        assert GpuSession.made[-1].options["use_tf32"] == expected


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_keeps_its_tensor_cores(ort_cuda: Any, precision: Any) -> None:
    """The provider takes tensor cores from every convolution when TF32 is off."""
    spec, stream = EngineSpec(backend="ort-cuda", device="cuda:0", precision=precision), SimpleNamespace(handle=0)
    options = {"cuda_graph": "0", "prefer_nhwc": "0", "conv_search": "default", "fuse_conv_bias": "0"}
    assert sys.modules["enginebench.engines.ort_cuda"].make_provider_options(spec, options, stream)["use_tf32"] == "1"


def test_options_reach_the_provider(ort_cuda: Any, onnx_artifact: Artifact) -> None:
    options = {"cuda_graph": "1", "prefer_nhwc": "1", "fuse_conv_bias": "1", "conv_search": "heuristic"}
    load(ort_cuda, onnx_artifact, options=options).close()
    found = GpuSession.made[-1].options
    assert [found[name] for name in ("enable_cuda_graph", "prefer_nhwc", "fuse_conv_bias")] == ["1", "1", "1"]
    assert found["cudnn_conv_algo_search"] == "HEURISTIC"
    assert found["device_id"] == "0" and int(found["user_compute_stream"]) > 0


def test_a_graph_runs_until_it_is_launched_before_it_is_timed(ort_cuda: Any, onnx_artifact: Artifact) -> None:
    with load(ort_cuda, onnx_artifact, options={"cuda_graph": "1"}) as engine:
        engine.bind(draw())
        assert GpuSession.made[-1].runs == sys.modules["enginebench.engines.ort_cuda"].RUNS_BEFORE_LAUNCH
        engine.run()
        assert engine.last_enqueue_ns() == 0
        with pytest.raises(UsageError, match="keeps the shapes"):
            engine.bind(draw(batch=3))


def test_clocks(ort_cuda: Any, onnx_artifact: Artifact) -> None:
    with load(ort_cuda, onnx_artifact) as engine:
        assert isinstance(engine, DeviceClock) and isinstance(engine, CopyClock) and isinstance(engine, CacheFlusher)
        run_on(engine, draw())
        times = (engine.last_device_ns(), engine.last_enqueue_ns(), engine.last_h2d_ns(), engine.last_d2h_ns())
        assert min(times) > 0 and engine.last_staging_ns() > 0
        assert engine.last_enqueue_ns() <= engine.last_device_ns()


FELL = "nodes assigned to the CPU EP, but fallback to CPU EP has been disabled"


@pytest.mark.parametrize(
    ("what", "value", "error", "words"),
    [
        ("dropped", True, BackendUnavailable, "got CPUExecutionProvider: its libraries"),
        ("kept", {"use_tf32": "1"}, BackendUnavailable, "given use_tf32=0 and kept 1"),
        ("fail", FELL, BackendUnavailable, "on_cpu=allow"),
        ("fail", "Protobuf parsing failed", ArtifactError, "Protobuf parsing failed"),
    ],
)
def test_a_session_that_is_not_what_was_asked_for_is_refused(
    ort_cuda: Any, onnx_artifact: Artifact, monkeypatch: Any, what: str, value: Any, error: Any, words: str
) -> None:
    monkeypatch.setattr(GpuSession, what, value)
    with pytest.raises(error, match=words):
        load(ort_cuda, onnx_artifact)


def test_a_run_that_fails_says_why(ort_cuda: Any, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, binding: Any, settings: Any) -> None:
        raise RuntimeError("Failed to allocate memory for requested buffer of size 1\nmore")

    monkeypatch.setattr(GpuSession, "run_with_iobinding", fail)
    with load(ort_cuda, onnx_artifact) as engine:
        with pytest.raises(MeasurementError, match=r"on the GPU with \w+ 2x[\dx]+: Failed to allocate .* size 1$"):
            engine.bind(draw())


def test_a_full_gpu_names_the_shapes(ort_cuda: Any, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on the way out: buffers that were never made are not freed, and do not hide the reason."""
    from cuda.bindings import runtime

    def cudaMalloc(size: int) -> tuple[int, int]:
        return runtime.cudaError_t.cudaErrorInvalidValue, 0

    monkeypatch.setattr(runtime, "cudaMalloc", cudaMalloc)
    with pytest.raises(MeasurementError, match=r"buffers for \w+ 2x[\dx]+: cudaMalloc failed"):
        with load(ort_cuda, onnx_artifact) as engine:
            engine.bind(draw())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"precision": "int8"}, BackendUnavailable, "dequantizes"),
        ({"precision": "fp16"}, ArtifactError, "fp16 needs such a graph"),
        ({"device": "cpu"}, UsageError, "--device cuda:N"),
        ({"device": "cuda:7"}, BackendUnavailable, "GPU 7"),
        ({"options": {"nhwc": "1"}}, UsageError, "no option 'nhwc'"),
    ],
)
def test_requests_that_cannot_be_met(ort_cuda, onnx_artifact, changes, error, words) -> None:
    with pytest.raises(error, match=words):
        load(ort_cuda, onnx_artifact, **changes)


def test_a_build_without_the_provider_names_the_package(ort_cuda, onnx_artifact, monkeypatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    answer = ort_cuda.create_backend().probe()
    assert not answer.available and "onnxruntime-gpu" in str(answer.fix)
    with pytest.raises(BackendUnavailable, match="onnxruntime-gpu"):
        load(ort_cuda, onnx_artifact)


def test_probe_names_the_gpus(ort_cuda: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ort_cuda.create_backend().probe().devices == ("cuda:0",)
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "0")
    assert "cudaGetDeviceCount" in str(ort_cuda.create_backend().probe().reason)


def test_outputs_of_unknown_shape_and_wrong_feeds_are_refused(ort_cuda: Any, onnx_artifact: Artifact) -> None:
    late = replace(onnx_artifact, outputs=(TensorSpec(name="scores", dtype="float32", shape=("found", 5)),))
    with load(ort_cuda, late) as engine:
        with pytest.raises(ArtifactError, match="only a run knows"):
            engine.bind(draw())
    with load(ort_cuda, onnx_artifact) as engine:
        with pytest.raises(FeedError):
            engine.bind({"image": np.zeros((2, 3, 8, 8))})
        with pytest.raises(UsageError, match="call bind first"):
            engine.fetch()
    with pytest.raises(UsageError, match="closed"):
        engine.bind(draw())
