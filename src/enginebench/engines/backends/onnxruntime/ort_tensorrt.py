"""`ort-tensorrt`: ONNX Runtime's TensorRT provider with an engine cache, and a check that TensorRT ran the graph.

The session is fed and read through an IOBinding on host arrays: the provider copies them, so that both scopes of this
engine hold the transfers. A graph that TensorRT does not take whole is refused, or CUDA's provider runs the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable
from enginebench.core.operators import register_operators
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.core.shapes import concrete_shape
from enginebench.engines.backends.onnxruntime.entries import ORT_TENSORRT
from enginebench.engines.backends.onnxruntime.ort import probe_provider
from enginebench.engines.backends.onnxruntime.providers import FELL_BACK
from enginebench.engines.ort import ERRORS_ONLY, OrtEngine
from enginebench.engines.refusals import make_refusal
from enginebench.engines.request import check_request, read_options

NAME, OPTIONS = ORT_TENSORRT.name, ORT_TENSORRT.options
PROVIDER = "TensorrtExecutionProvider"
FALLBACK = "CUDAExecutionProvider"
MIB = 1 << 20


class OrtTensorRtBackend:
    """ONNX artifacts on ONNX Runtime's TensorRT provider."""

    name = NAME

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available where the provider is compiled in; TensorRT's libraries are loaded with the first session only."""
        return probe_provider(NAME, PROVIDER, "cuda:0")

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: engines are built while a session is loaded, and cached."""
        check_request(artifact, spec, ("onnx",), ORT_TENSORRT.precisions, (spec.device,))
        make_tensorrt_options(artifact, spec, self._cache_dir)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtTensorRtEngine:
        check_request(artifact, spec, ("onnx",), ORT_TENSORRT.precisions, (spec.device,))
        available = onnxruntime.get_available_providers()
        if PROVIDER not in available:
            raise BackendUnavailable(f"asked ONNX Runtime for {PROVIDER}; this build has {', '.join(available)}")
        options = make_tensorrt_options(artifact, spec, self._cache_dir)
        alone = read_options(spec, OPTIONS)["fallback"] == "refuse"
        return OrtTensorRtEngine(open_tensorrt_session(artifact, options, alone=alone), artifact, spec)


create_backend = OrtTensorRtBackend


def make_tensorrt_options(artifact: Artifact, spec: EngineSpec, cache_dir: Path | None) -> dict[str, str]:
    """The provider's options: device, caches, one profile for exactly this batch.

    Source: the options of TensorrtExecutionProvider in ONNX Runtime's documentation.
    """
    chosen = read_options(spec, OPTIONS)
    options = {"device_id": str(read_index(spec)), "trt_cuda_graph_enable": chosen["graph"]}
    if cache_dir is not None:
        folder = cache_dir / NAME
        folder.mkdir(parents=True, exist_ok=True)
        options |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": str(folder)}
        options |= {"trt_timing_cache_enable": "1", "trt_timing_cache_path": str(folder)}
    if chosen["workspace_mb"]:
        options["trt_max_workspace_size"] = str(int(chosen["workspace_mb"]) * MIB)
    if chosen["optimization_level"]:
        options["trt_builder_optimization_level"] = chosen["optimization_level"]
    if chosen["weak_typing"] == "1":
        options |= {"trt_fp16_enable": str(int(spec.precision in ("fp16", "int8")))}
        options |= {"trt_int8_enable": str(int(spec.precision == "int8"))}
    dynamic = [s for s in artifact.inputs if any(isinstance(axis, str) for axis in s.shape)]
    shapes = ",".join(f"{s.name}:{'x'.join(map(str, concrete_shape(s, spec.batch)))}" for s in dynamic)
    return options | {f"trt_profile_{side}_shapes": shapes for side in ("min", "opt", "max") if shapes}


def open_tensorrt_session(artifact: Artifact, options: dict[str, str], *, alone: bool) -> Any:
    """A session on TensorRT; unless it is to run all nodes `alone`, with CUDA for what it does not take."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = ERRORS_ONLY
    register_operators(settings, artifact.operator_libraries)
    onnxruntime.disable_telemetry_events()
    providers = [(PROVIDER, options), (FALLBACK, {"device_id": options["device_id"]})]
    if alone:
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        del providers[1]
    try:
        session = onnxruntime.InferenceSession(artifact.path, settings, providers=providers)
    except Exception as error:
        if FELL_BACK in str(error):
            raise BackendUnavailable(
                "TensorRT does not run every node of the graph, or its libraries were not found: see ONNX Runtime's "
                "messages. To time TensorRT with CUDA beside it: ort-tensorrt:fallback=allow"
            ) from error
        raise make_refusal(f"ONNX Runtime cannot load {Path(artifact.path).name} on TensorRT", error) from error
    session.disable_fallback()
    if PROVIDER not in session.get_providers():
        raise BackendUnavailable(
            f"asked ONNX Runtime for {PROVIDER} and got {', '.join(session.get_providers())}: TensorRT's libraries "
            "were not found, or are of another version than it needs. Install that version; see its messages"
        )
    return session


class OrtTensorRtEngine(OrtEngine):
    """A session whose nodes TensorRT runs, fed from the host."""

    def _hand_over(self) -> None:
        self._bind_inputs()  # copied to the GPU there and then; later values in the same buffer are not seen
