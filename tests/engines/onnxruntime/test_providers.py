"""Providers that are packages of their own: OpenVINO's runs here, that of TensorRT for RTX says what it lacks."""

import ctypes
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.onnxruntime import ort_openvino, ort_tensorrt_rtx, providers
from enginebench.engines.backends.onnxruntime.ort_openvino import OrtOpenvinoBackend, make_openvino_options
from enginebench.engines.backends.onnxruntime.ort_tensorrt_rtx import OrtTensorRtRtxBackend
from enginebench.engines.backends.onnxruntime.providers import Provider, find_devices, register
from enginebench.engines.registry import probe
from graphs import write_graph
from intel import needs_intel_cpu

SPEC = EngineSpec(backend="ort-openvino")
RTX = EngineSpec(backend="ort-tensorrt-rtx", device="cuda:0")


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.fixture
def determinants(tmp_path: Path) -> Artifact:
    """relu(det(x)): OpenVINO has no Det."""
    return write_graph(tmp_path / "det.onnx", "g (float[3, 4, 4] x) => (float[3] y) { d = Det (x) y = Relu (d) }")


@pytest.fixture
def wide(tmp_path: Path) -> Artifact:
    """A chain of matrix products that take long enough to be seen."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((256, 256), np.float32) / 16 for i in range(3)}
    products = "a = MatMul (x, w0) b = MatMul (a, w1) y = MatMul (b, w2)"
    text = f"g (float[batch, 256] x) => (float[batch, 256] y) {{ {products} }}"
    return write_graph(tmp_path / "wide.onnx", text, weights)


def prove(artifact: Artifact, spec: EngineSpec = SPEC) -> dict[str, float]:
    with OrtOpenvinoBackend().load(artifact, spec) as engine:
        engine.bind(random_feeds(engine.inputs, 64, 0))
        return engine.effective_precision()


def test_a_session_has_options_where_none_are_given(wide: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ONNX Runtime's own device, which every machine has."""
    name = "CPUExecutionProvider"
    monkeypatch.setattr(providers, "register", lambda provider: name)
    (device,) = (d for d in onnxruntime.get_ep_devices() if d.ep_name == name)
    chosen = {"opt": "basic", "fallback": "allow"}
    session = providers.open_provider_session(wide, Provider(engine="own", module=""), device, {}, chosen)
    options = session.get_session_options()
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.intra_op_num_threads == 1 and session.run(None, {"x": np.ones((2, 256), np.float32)})


@needs_intel_cpu
def test_it_is_there_with_threads_and_precisions_of_openvino(wide, monkeypatch) -> None:
    found = probe("ort-openvino")
    assert found.available and found.devices == ("cpu",), found.reason
    assert onnxruntime.__version__ in str(found.version)
    asked = replace(SPEC, precision="bf16")
    hint = json.loads(make_openvino_options(asked)["load_config"])["CPU"]["INFERENCE_PRECISION_HINT"]
    assert hint == ("bf16" if "BF16" in ort_openvino.read_plugin_capabilities() else "f32")
    told = json.loads(make_openvino_options(replace(SPEC, threads=3))["load_config"])["CPU"]
    assert (told["INFERENCE_NUM_THREADS"], told["NUM_STREAMS"]) == ("3", "1")
    allowed = len(os.sched_getaffinity(0))
    with pytest.raises(BackendUnavailable, match=f"{allowed + 1} threads; the process may use {allowed} CPUs"):
        OrtOpenvinoBackend().load(wide, replace(SPEC, threads=allowed + 1))
    # The settings reach the plugin: one that it does not have ends the session.
    wrong = {"load_config": json.dumps({"CPU": {"NO_SUCH_SETTING": "1"}})}
    monkeypatch.setattr(ort_openvino, "make_openvino_options", lambda spec: wrong)
    with pytest.raises(Exception, match="NO_SUCH_SETTING"):
        OrtOpenvinoBackend().load(wide, SPEC)


@needs_intel_cpu
def test_every_node_is_openvinos_or_it_is_refused(determinants: Artifact) -> None:
    """Left to itself ONNX Runtime gives the node to its own CPU provider, and says nothing."""
    backend = OrtOpenvinoBackend()
    with pytest.raises(BackendUnavailable, match=r"does not take every node.*ort-openvino:fallback=allow"):
        backend.load(determinants, SPEC)
    with backend.load(determinants, replace(SPEC, options={"fallback": "allow"})) as engine:
        x = np.random.default_rng(0).standard_normal((3, 4, 4), np.float32)
        np.testing.assert_allclose(run_on(engine, {"x": x})["y"], np.maximum(np.linalg.det(x), 0), rtol=1e-4, atol=1e-5)
        assert "Det" in {layer.kind for layer in engine.profile_layers().layers}, "the CPU provider's kernels count"


@needs_intel_cpu
def test_fp32_is_fp32_and_the_proof_would_say_otherwise(wide: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = prove(wide)
    assert set(shares) <= {"fp32", "reorder"} and shares["fp32"] > 0.9
    if "BF16" not in ort_openvino.read_plugin_capabilities():
        pytest.skip("this CPU computes nothing in BF16")

    def shorten(spec: EngineSpec) -> dict[str, str]:
        config = json.loads(make_openvino_options(spec)["load_config"])
        config["CPU"] |= {"INFERENCE_PRECISION_HINT": "bf16", "EXECUTION_MODE_HINT": "PERFORMANCE"}
        return {"load_config": json.dumps(config)}

    monkeypatch.setattr(ort_openvino, "make_openvino_options", shorten)
    assert prove(wide)["bf16"] > 0.5


def test_no_device_and_no_library_are_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(providers.onnxruntime, "get_ep_devices", list)
    assert find_devices(ort_openvino.PROVIDER) == []
    found = OrtOpenvinoBackend().probe()
    assert not found.available and "offers no CPU" in str(found.reason)
    monkeypatch.setattr(ort_tensorrt_rtx, "find_devices", lambda provider: [])
    found = OrtTensorRtRtxBackend().probe()
    assert not found.available and "no GPU that TensorRT for RTX supports" in str(found.reason)
    (tmp_path / "broken_ep.py").write_text(
        "def get_ep_name(): return 'Broken'\ndef get_library_path(): return __file__\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailable, match="engine e: the library of broken_ep cannot be loaded"):
        register(Provider(engine="e", module="broken_ep"))
    with pytest.raises(BackendUnavailable, match=r"engine e: go home; .*absent_ep"):
        register(Provider(engine="e", module="absent_ep", needs=(("No module", "go home"),)))


@pytest.mark.skipif(has_driver(), reason="NVIDIA's driver is installed here")
def test_without_a_driver_the_provider_of_rtx_says_so(tmp_path: Path, wide: Artifact) -> None:
    reason = r"NVIDIA's driver is not installed here.*libcuda\.so\.1"
    with pytest.raises(BackendUnavailable, match=reason):
        OrtTensorRtRtxBackend(tmp_path).load(wide, RTX)


def test_options_of_rtx_have_the_providers_names(wide: Artifact, tmp_path: Path) -> None:
    asked = replace(RTX, batch=4, options={"graph": "1", "workspace_mb": "64", "weight_budget_mb": "10"})
    found = ort_tensorrt_rtx.make_rtx_options(wide, asked, tmp_path)
    assert found == {
        "enable_cuda_graph": "1",
        "nv_max_workspace_size": str(64 << 20),
        "nv_weight_streaming_budget": str(10 << 20),
        "nv_runtime_cache_path": str(tmp_path / "ort-tensorrt-rtx"),
        **{f"nv_profile_{side}_shapes": "x:4x256" for side in ("min", "opt", "max")},
    }
    package = pytest.importorskip("onnxruntime_ep_nv_tensorrt_rtx")
    header = (Path(package.__file__).parent / "tensorrt_rtx_provider_options.h").read_text(encoding="utf-8")
    assert [name for name in found if name not in header] == []
    with pytest.raises(UsageError, match="workspace_mb"):
        OrtTensorRtRtxBackend(None).build(wide, replace(RTX, options={"workspace_mb": "a"}), tmp_path)


def make_event(run: int, name: str, dur: int, kind: str, exec_type: str) -> dict[str, Any]:
    args = {"ort_correlation_id": str(run), "ov_status": "EXECUTED", "ov_node_type": kind, "ov_exec_type": exec_type}
    return {"cat": "Kernel", "name": f"OV::{name}", "ts": run, "dur": dur, "args": args}


def test_the_first_run_does_not_count_though_the_counters_hold_it() -> None:
    """Three runs of 2 us, after one of 10 ms that prepared the weights: the counters say 10000, 5001, 3335, 2502."""
    events: list[dict[str, Any]] = [{"name": "model_run", "ts": ts, "dur": 5, "args": {}} for ts in (0, 100)]
    for run, mean in enumerate((10000, 5001, 3335, 2502), start=1):
        events.append(make_event(run, "product", mean, "MatMul", "brgemm_avx512_f32"))
        events.append(make_event(run, "turn", 4, "Reorder", "jit_uni_f32"))
    (found,) = ort_openvino.split_node_times(events)
    assert [(o.name, o.dtype) for o in found] == [("product", "f32"), ("turn", "reorder")]
    assert found[0].time_ns < 10e3, "of the 10 ms nothing is left but what the rounding hides"
    assert found[1].time_ns == 4e3
