"""PyTorch on a GPU, over a lane that needs none; what needs one is marked and skipped elsewhere."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import BackendUnavailable, FeedError, MeasurementError, ModelError, UsageError
from enginebench.core.protocols import CacheFlusher, CopyClock, DeviceClock
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines import pytorch_compile as bundled
from enginebench.engines import pytorch_cuda
from enginebench.engines.backends.torch import engine as torch_cuda
from enginebench.engines.backends.torch import pytorch_compile
from enginebench.engines.backends.torch.engine import WatchedCudaTorchEngine, check_cuda_request
from enginebench.engines.backends.torch.entries import CUDA_OPTIONS, PYTORCH_COMPILE
from enginebench.engines.backends.torch.pytorch import PytorchBackend
from enginebench.engines.backends.torch.pytorch_compile import PytorchCompileBackend
from enginebench.engines.backends.torch.pytorch_cudagraph import PytorchCudagraphBackend
from enginebench.engines.proof import Operator
from enginebench.engines.pytorch_cuda import prepare_cuda
from enginebench.engines.registry import open_backend
from enginebench.measure.loop import check_slots
from enginebench.testing import make_module

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

IMAGE = TensorSpec(name="image", dtype="float32", shape=("batch", 3, 4, 4))
SCORES = TensorSpec(name="scores", dtype="float32", shape=("batch", 48))
SPEC = EngineSpec(backend="pytorch", device="cuda:0", precision="fp32")


@pytest.fixture(autouse=True)
def restore_settings() -> Any:
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


class FakeEvent:
    """A moment of the lane's clock."""

    at_ns = -1

    def synchronize(self) -> None:
        assert self.at_ns >= 0, "waits for an event that was never recorded"

    def query(self) -> bool:
        return self.at_ns >= 0

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.at_ns - self.at_ns) / 1e6


class FakeLane:
    """Does at once what a stream would do later. Every call is written into `log`.

    Args:
        copy_ns: how far the clock moves at each second event of a copy or a run, so that no time is zero.
        capture_error: raised by `capture`.
    """

    def __init__(self, copy_ns: int = 1000, capture_error: Exception | None = None) -> None:
        self.now_ns, self._step_ns, self._capture_error = 0, copy_ns, capture_error
        self.log: list[str] = []
        self.flushes = 0

    def select_stream(self) -> None:
        self.log.append("select_stream")

    def make_event(self) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent) -> None:
        self.now_ns += self._step_ns
        event.at_ns = self.now_ns
        self.log.append("record")

    def wait(self, event: FakeEvent) -> None:
        assert event.at_ns == self.now_ns, "waits for an event that is not the last"
        self.log.append("wait")

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def make_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=getattr(torch, spec.dtype))

    def make_pinned(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        return torch.empty(shape, dtype=dtype)

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        if self._capture_error is not None:
            raise self._capture_error
        call()
        self.log.append("capture")

        def replay() -> None:
            call()
            self.log.append("replay")

        return replay

    def make_flush(self) -> Callable[[], None]:
        def flush() -> None:
            self.flushes += 1

        return flush


def double(image: Any) -> Any:
    return 2 * image.flatten(1)


def make_artifact() -> Artifact:
    return Artifact(kind="torch", model="net", path="", sha256="", files=(), inputs=(IMAGE,), outputs=(SCORES,))


def make_engine(
    call: Callable[..., Any] = double, lane: FakeLane | None = None, **kwargs: Any
) -> WatchedCudaTorchEngine:
    options = {"channels_last": "1" if kwargs.pop("channels_last", False) else "0"}
    spec = replace(SPEC, batch=kwargs.pop("batch", 2))
    return WatchedCudaTorchEngine(call, make_artifact(), spec, options, lane=lane or FakeLane(), **kwargs)  # type: ignore[arg-type]


def draw(batch: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).standard_normal((batch, 3, 4, 4)).astype(np.float32)}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_outputs_are_those_of_the_module(graph: bool, channels_last: bool) -> None:
    engine = make_engine(graph=graph, channels_last=channels_last)
    for seed in range(3):
        feeds = draw(seed=seed)
        np.testing.assert_array_equal(run_on(engine, feeds)["scores"], 2 * feeds["image"].reshape(2, -1))


def test_new_shapes_get_a_new_capture_and_fetched_arrays_stay() -> None:
    lane = FakeLane()
    engine = make_engine(lane=lane, graph=True)
    feeds = draw(batch=5)
    assert run_on(engine, feeds)["scores"].shape == (5, 48)
    assert lane.log.count("capture") == 2
    engine.bind(draw(batch=5, seed=1))
    assert lane.log.count("capture") == 2
    engine = make_engine()
    first = run_on(engine, draw(seed=1))["scores"]
    kept = first.copy()
    run_on(engine, draw(seed=2))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("before", "act", "log"),
    [
        (lambda e: e.bind(draw()), lambda e: e.run(), ["select_stream", "record", "record", "wait"]),
        (lambda e: e.bind(draw()), lambda e: e.bind(draw()), ["select_stream", "synchronize", "record", "record"]),
        (lambda e: e.begin([draw()]), lambda e: e.finish(), ["wait"]),
    ],
    ids=["a run waits for the event behind it", "a copy under way is waited for", "what was begun is waited for"],
)
def test_what_is_under_way_is_waited_for(before: Any, act: Any, log: list[str]) -> None:
    lane = FakeLane()
    engine = make_engine(lane=lane)
    before(engine)
    lane.log.clear()
    act(engine)
    assert lane.log == log


@pytest.mark.parametrize("graph", [False, True])
def test_a_watched_run_does_not_spin(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler records every look of a run that spins: 50 runs of 12 ms gave so many that reading them took 4 s."""
    lane = FakeLane()
    engine = make_engine(lane=lane, graph=graph)
    engine.bind(draw())
    lane.log.clear()

    def record(run: Callable[[], None]) -> list[list[Operator]]:
        run()
        return [[Operator("fp32", 1.0, "kernel")]]

    monkeypatch.setattr(torch_cuda, "watch_kernels", record)
    assert engine.effective_precision() == {"fp32": 1.0}
    assert lane.log == ["select_stream", *(["replay"] if graph else []), "synchronize"]
    launch = weakref.ref(engine._launch)
    engine.close()
    gc.collect()
    assert launch() is None, "a closed engine holds its graph, and with it memory of the GPU"


@pytest.mark.parametrize("graph", [False, True])
def test_a_batch_is_begun_without_waiting_and_fills_what_there_is_room_for(graph: bool) -> None:
    lane = FakeLane()
    engine = make_engine(lane=lane, graph=graph, batch=4)
    for seed, count in ((0, 4), (1, 3)):
        samples = [draw(1, 10 * seed + i) for i in range(count)]
        lane.log.clear()
        engine.begin(samples)
        assert "wait" not in lane.log and "synchronize" not in lane.log and "capture" not in lane.log
        assert engine.is_done()
        outputs, times = engine.finish()
        expected = [2 * sample["image"].reshape(-1) for sample in samples]
        np.testing.assert_array_equal(outputs["scores"][:count], expected)
        assert outputs["scores"].shape == (4, 48) and min(times) == 1000
    with pytest.raises(FeedError, match="image"):
        engine.begin([draw(1), {"image": np.zeros((1, 3, 4, 5), np.float32)}])


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_slot_that_is_overwritten_before_it_was_read_is_found(graph: bool, channels_last: bool) -> None:
    engines = [make_engine(graph=graph, channels_last=channels_last, batch=5) for _ in range(3)]
    check_slots(engines, draw(batch=5), engines[0])
    engines[2]._pinned_outputs = engines[1]._pinned_outputs
    with pytest.raises(MeasurementError, match="scope pipelined: output 'scores' of batch 1 in slot 1 is not what"):
        check_slots(engines, draw(batch=5), engines[0])


def test_clocks_are_those_of_the_events_and_the_flush_is_made_once() -> None:
    lane = FakeLane(copy_ns=7000)
    engine = make_engine(lane=lane)
    run_on(engine, draw())
    assert isinstance(engine, DeviceClock) and isinstance(engine, CopyClock) and isinstance(engine, CacheFlusher)
    assert (engine.last_h2d_ns(), engine.last_device_ns(), engine.last_d2h_ns()) == (7000, 7000, 7000)
    assert engine.last_enqueue_ns() > 0
    assert engine.last_staging_ns() > 0
    lane = FakeLane()
    engine = make_engine(lane=lane)
    engine.flush_cache()
    engine.flush_cache()
    assert lane.flushes == 2


def test_a_module_that_cannot_be_captured_is_named_with_its_reason() -> None:
    lane = FakeLane(capture_error=RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore"))
    with pytest.raises(ModelError, match=r"not permitted when stream is capturing\. Modules that wait") as caught:
        make_engine(lane=lane, graph=True)
    assert str(caught.value).endswith("; pytorch runs them without a graph"), "what else compiles may have failed, too"


@pytest.mark.parametrize(("graph", "captures"), [("1", 1), ("0", 0)])
def test_compiled_code_is_captured_once_it_is_compiled(graph, captures, monkeypatch) -> None:
    lane, calls = FakeLane(), list[str]()

    def count(image: Any) -> Any:
        calls.append("captured" if "capture" in lane.log else "called")
        return double(image)

    options = {"cuda_graph": graph, "fullgraph": "0", "freezing": "0", "mode": "default", "rnn": "eager"}
    for name in ("check_cuda_request", "check_gpu_tools", "prepare_cuda", "load_ready_module"):
        monkeypatch.setattr(pytorch_compile, name, lambda *given: {**options, "channels_last": "0"})
    monkeypatch.setattr(pytorch_compile, "compile_module", lambda *given: count)
    monkeypatch.setattr(pytorch_compile, "WatchedCudaTorchEngine", partial(WatchedCudaTorchEngine, lane=lane))
    engine = PytorchCompileBackend(None, None).load(make_artifact(), replace(SPEC, backend="pytorch-compile", batch=2))
    assert lane.log.count("capture") == captures and len(calls) >= pytorch_compile.COMPILING_CALLS
    feeds = draw(seed=3)  # captured with zeros, it answers to what comes later
    engine.bind(feeds)
    engine.run()
    assert ("replay" in lane.log) == bool(captures)
    np.testing.assert_array_equal(engine.fetch()["scores"], 2 * feeds["image"].reshape(2, -1))


@pytest.mark.parametrize(("graph", "captures"), [("1", 1), ("0", 0)])
def test_a_bundle_captures_as_the_run_did(graph: str, captures: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = FakeLane()
    monkeypatch.setattr(pytorch_cuda, "prepare_cuda", lambda *given: None)
    monkeypatch.setattr(pytorch_cuda, "CudaTorchEngine", partial(pytorch_cuda.CudaTorchEngine, lane=lane))
    for name in ("make_ready", "compile_module"):
        monkeypatch.setattr(bundled, name, lambda module, *given: module)
    options = {"cuda_graph": graph, "freezing": "0", "mode": "default", "channels_last": "0"}
    engine = bundled.open_engine(make_artifact(), replace(SPEC, backend="pytorch-compile", batch=2), options, double)
    assert lane.log.count("capture") == captures
    np.testing.assert_array_equal(run_on(engine, draw(seed=3))["scores"], 2 * draw(seed=3)["image"].reshape(2, -1))


def test_max_autotune_makes_no_graphs_of_its_own_within_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[str | None] = []
    monkeypatch.setattr(torch, "compile", lambda module, mode, **given: modes.append(mode))
    for graph in "01":
        bundled.compile_module(double, {"mode": "max-autotune", "rnn": "eager", "fullgraph": "1", "cuda_graph": graph})
    assert modes == ["max-autotune", "max-autotune-no-cudagraphs"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cuda_graph": "1", "mode": "reduce-overhead"}, "cuda_graph=1 takes the place of mode=reduce-overhead"),
        ({"defaults": "1"}, "its precision is tf32, not fp32"),
    ],
)
def test_options_that_contradict_are_refused(torch_artifact: Artifact, options: dict[str, str], words: str) -> None:
    """Two kinds of graphs are not made of one module; PyTorch's own defaults are no FP32."""
    spec = replace(SPEC, backend="pytorch-compile", options=options)
    with pytest.raises(UsageError, match=words):
        check_cuda_request(torch_artifact, spec, PYTORCH_COMPILE.list_options("cuda"))


def test_a_full_gpu_names_the_shapes() -> None:
    """One that is full when the module is called, and one that is too full for the inputs."""

    def fail(*given: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ...")

    full = FakeLane()
    full.make_tensor = fail  # type: ignore[method-assign]
    for call, lane in ((fail, FakeLane()), (double, full)):
        with pytest.raises(MeasurementError, match=r"out of device memory with image 256x3x4x4: CUDA out of memory\."):
            make_engine(call, lane, batch=256, prepare=lambda run: run())


def test_an_engine_without_inputs_or_closed_refuses_everything() -> None:
    engine = make_engine()
    with pytest.raises(UsageError, match="call bind first"):
        _ = engine.run
    with pytest.raises(FeedError, match="float64"):
        engine.bind({"image": np.zeros((2, 3, 4, 4))})
    engine.close()
    engine.close()
    for use in (lambda: engine.run, engine.fetch, engine.flush_cache, lambda: engine.bind(draw())):
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.mark.parametrize(
    ("precision", "options", "expected"),
    [
        ("fp32", {}, (False, False)),
        ("fp16", {}, (False, False)),
        ("tf32", {}, (True, True)),
        ("tf32", {"defaults": "1"}, (True, False)),
    ],
)
def test_tf32_is_set_as_the_precision_says(precision, options, expected) -> None:
    known = {key: option.default for key, option in CUDA_OPTIONS.items()} | options
    prepare_cuda(replace(SPEC, precision=precision), known)
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == expected
    prepare_cuda(SPEC, {**known, "defaults": "0"})
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) == (False, False)


def test_devices_and_environments_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    known = {key: option.default for key, option in CUDA_OPTIONS.items()}
    with pytest.raises(BackendUnavailable, match="NVIDIA_TF32_OVERRIDE=0"):
        prepare_cuda(replace(SPEC, precision="tf32"), known)
    for device in ("cuda:x", "gpu"):
        with pytest.raises(UsageError, match="cuda:N"):
            torch_cuda.read_device_index(replace(SPEC, device=device))
    monkeypatch.setattr(torch_cuda, "probe_cuda", lambda: ("cuda:0",))
    assert torch_cuda.read_device_index(SPEC) == 0
    with pytest.raises(BackendUnavailable, match="cuda:3: there is cuda:0"):
        torch_cuda.read_device_index(replace(SPEC, device="cuda:3"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is said where there is no GPU")
@pytest.mark.parametrize("backend", [PytorchBackend, PytorchCompileBackend, PytorchCudagraphBackend])
def test_without_a_gpu_every_engine_says_why(backend: Any, torch_artifact: Artifact, tmp_path: Any) -> None:
    opened = backend(None) if backend is not PytorchCompileBackend else backend(None, None)
    with pytest.raises(BackendUnavailable, match=r"built without CUDA|sees no NVIDIA GPU"):
        opened.build(torch_artifact, replace(SPEC, backend=opened.name), tmp_path)
    if backend is PytorchCudagraphBackend:  # the others run on a CPU, too
        answer = opened.probe()
        assert not answer.available and answer.reason and answer.fix


gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that PyTorch sees")

OPTIONS_OF = {"graph": {"cuda_graph": "1"}, "reduce": {"mode": "reduce-overhead"}}
COMPILED = ("default", "graph", "reduce")
GPU_ENGINES = ["pytorch", "pytorch-cudagraph", *(f"pytorch-compile:{name}" for name in COMPILED)]


@gpu
@needs_gpu
# PyTorch's own advice: to allow TF32 where it is switched off on purpose, to keep events that are read at once, and
# that the first graph of reduce-overhead, which only makes its memory pool, is empty.
@pytest.mark.filterwarnings("ignore:TensorFloat32", "ignore:Warning. Profiler clears", "ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("name", GPU_ENGINES)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_engines_on_a_gpu_answer_like_the_truth(name, precision, load_engine, expect) -> None:
    backend, _, mode = name.partition(":")
    options = OPTIONS_OF.get(mode, {})
    engine = load_engine(backend, device="cuda:0", precision=precision, options=options, batch=4)
    image = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    with engine:
        for _ in range(3):
            engine.bind({"image": image})
            engine.run()
        tolerance = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 2e-2, "bf16": 1e-1}[precision]
        np.testing.assert_allclose(engine.fetch()["scores"], expect(image), rtol=tolerance, atol=tolerance)
        assert 0 < engine.last_device_ns() < 1_000_000_000
        assert engine.last_h2d_ns() > 0 and engine.last_d2h_ns() > 0
        engine.flush_cache()
        shares = engine.effective_precision()
        assert sum(shares.values()) == pytest.approx(1.0)
        assert shares.get("tf32", 0.0) == 0.0 or precision == "tf32"


@gpu
@needs_gpu
@pytest.mark.parametrize("name", [name for name in GPU_ENGINES if not name.endswith("reduce")])
def test_batches_overlap_on_a_gpu(name, torch_artifact, loader, expect, tmp_path) -> None:
    """Six batches on three engines of one module, of which none is waited for before the next is begun."""
    backend, _, mode = name.partition(":")
    spec = replace(SPEC, backend=backend, options=OPTIONS_OF.get(mode, {}), batch=4)
    engines: Any = open_backend(backend, loader, tmp_path).load_several(torch_artifact, [spec] * 3)  # type: ignore[attr-defined]
    images = np.random.default_rng(0).standard_normal((6, 3, 3, 8, 8)).astype(np.float32)
    for first in (0, 3):
        for engine, image in zip(engines, images[first:], strict=False):
            engine.begin([{"image": one[None]} for one in image])
        for engine, image in zip(engines, images[first:], strict=False):
            while not engine.is_done():
                pass
            outputs, times = engine.finish()
            np.testing.assert_allclose(outputs["scores"][:3], expect(image), rtol=1e-4, atol=1e-4)
            assert min(times) > 0
    launch = engines[1]._launch
    engines[1]._launch = lambda: (torch.cuda._sleep(40_000_000), launch())  # 20 ms late, and waited for all the same
    check_slots(engines, {"image": images[0]}, engines[0])
    for engine in engines:
        engine.close()


@gpu
@needs_gpu
@pytest.mark.filterwarnings("ignore:TensorFloat32", "ignore:Warning. Profiler clears", "ignore:The CUDA Graph is empty")
@pytest.mark.parametrize("name", GPU_ENGINES)
def test_layers_on_a_gpu_are_modules(name: str, load_engine: Callable[..., Any]) -> None:
    backend, _, mode = name.partition(":")
    options = OPTIONS_OF.get(mode, {})
    engine = load_engine(backend, device="cuda:0", precision="fp16", options=options, batch=4)
    with engine:
        image = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
        before = run_on(engine, {"image": image})["scores"]
        profile = engine.profile_layers()
        np.testing.assert_array_equal(engine.fetch()["scores"], before)
    modules = {path for path, module in make_module(None).named_modules() if path and not list(module.children())}
    told = [part for layer in profile.layers for part in layer.name.split(" + ")]
    assert len(modules & set(told)) >= 2 and all(told.count(path) <= 1 for path in modules), profile
    joined = [layer for layer in profile.layers if set(layer.name.split(" + ")) & modules]
    assert all(layer.kernels and layer.mean_ns > 0 for layer in joined)
    total = sum(layer.mean_ns for layer in profile.layers)
    assert sum(layer.mean_ns for layer in joined) > 0.6 * total, profile
