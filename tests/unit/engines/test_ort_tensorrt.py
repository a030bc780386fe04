"""`ort-tensorrt`: its settings and its fallback check, over ONNX Runtime's CPU provider in the place of TensorRT's."""

from ctypes import c_byte
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Backend, Loadable
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.onnxruntime import ort_tensorrt
from enginebench.engines.backends.onnxruntime.ort_tensorrt import PROVIDER, create_backend, make_tensorrt_options
from enginebench.models.onnx.source import read_onnx

REAL = onnxruntime.InferenceSession


class Session:
    """A session on the CPU that claims the providers it was asked for, as a build with TensorRT does."""

    def __init__(self, path: str, settings: Any, providers: list[tuple[str, dict[str, str]]]) -> None:
        if len(providers) == 1:  # no CUDA for what TensorRT does not take, which here is all
            raise RuntimeError("nodes are assigned to the CPU EP, but fallback to CPU EP has been explicitly disabled")
        self._real = REAL(path, settings, providers=["CPUExecutionProvider"])
        self.asked = providers

    def get_providers(self) -> list[str]:
        return [name for name, _ in self.asked]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def io_binding(self) -> Any:
        """A binding that copies what it is given there and then, as one to a GPU's memory does."""
        binding = self._real.io_binding()
        bind, copies = binding.bind_input, {}

        def copy_and_bind(name: str, device: str, index: int, dtype: Any, shape: Any, address: int) -> None:
            memory = (c_byte * (np.prod(shape, dtype=int) * np.dtype(dtype).itemsize)).from_address(address)
            copies[name] = np.frombuffer(bytes(memory), dtype).reshape(shape)
            bind(name, device, index, dtype, shape, copies[name].ctypes.data)

        binding.bind_input = copy_and_bind
        return binding


@pytest.fixture
def graph(tiny_onnx: Path) -> Artifact:
    return read_onnx(tiny_onnx)


def make_spec(**options: str) -> EngineSpec:
    return EngineSpec(backend="ort-tensorrt", device="cuda:1", batch=4, options=options)


def test_settings(graph: Artifact, tmp_path: Path) -> None:
    options = make_tensorrt_options(graph, make_spec(workspace_mb="64", optimization_level="5", graph="1"), tmp_path)
    assert options["device_id"] == "1" and options["trt_cuda_graph_enable"] == "1"
    assert options["trt_max_workspace_size"] == str(64 << 20)
    assert options["trt_builder_optimization_level"] == "5"
    assert options["trt_engine_cache_enable"] == "1" and Path(options["trt_engine_cache_path"]).is_dir()
    assert {options[f"trt_profile_{side}_shapes"] for side in ("min", "opt", "max")} == {"input:4x64"}
    assert "trt_fp16_enable" not in options  # the graph says the precision
    weak = make_tensorrt_options(
        graph, EngineSpec(backend="x", device="cuda", precision="int8", options={"weak_typing": "1"}), None
    )
    assert weak["trt_fp16_enable"] == weak["trt_int8_enable"] == "1"
    with pytest.raises(UsageError, match="no option"):
        make_tensorrt_options(graph, make_spec(tweak="1"), None)


def test_without_the_provider_and_with_a_damaged_graph(graph: Artifact, tmp_path: Path) -> None:
    backend = create_backend(tmp_path)
    assert isinstance(backend, Backend) and isinstance(backend, Loadable)
    assert not backend.probe().available and PROVIDER in str(backend.probe().reason)
    with pytest.raises(BackendUnavailable, match="asked ONNX Runtime"):
        backend.load(graph, make_spec())


def stand_in(monkeypatch: pytest.MonkeyPatch, session: Any = Session) -> None:
    monkeypatch.setattr(ort_tensorrt.onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(ort_tensorrt.onnxruntime, "get_available_providers", lambda: [PROVIDER])


def test_outputs_and_buffers(graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    backend = create_backend(tmp_path)
    spec = make_spec(fallback="allow")
    with backend.load(backend.build(graph, spec, tmp_path), spec) as engine:
        with pytest.raises(UsageError, match="bind first"):
            engine.run  # noqa: B018
        for batch, seed in ((4, 1), (4, 2), (2, 3)):
            feeds = random_feeds(graph.inputs, batch, seed)
            engine.bind(feeds)
            engine.run()
            expected = REAL(graph.path).run(None, feeds)[0]
            np.testing.assert_allclose(engine.fetch()["output"], expected, rtol=1e-5)
        with pytest.raises(FeedError):
            engine.bind({})
    with pytest.raises(UsageError, match="closed"):
        engine.fetch()


def test_nodes_on_another_provider_are_refused(graph, tmp_path, monkeypatch) -> None:
    stand_in(monkeypatch)
    with pytest.raises(BackendUnavailable, match=r"every node.*fallback=allow"):
        create_backend(tmp_path).load(graph, make_spec())


def test_a_damaged_graph(graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, REAL)
    Path(graph.path).write_bytes(b"nonsense")
    with pytest.raises(ArtifactError, match="cannot load"), pytest.warns(UserWarning):
        create_backend(tmp_path).load(graph, make_spec())
