"""`ort-tensorrt`: ONNX Runtime's TensorRT provider with an engine cache, and a check that TensorRT ran the graph.

The session is fed and read through an IOBinding on host arrays: the provider copies them, so that both scopes of this
engine hold the transfers. What TensorRT does not take falls to the CUDA provider; how much is found in a profile, and
is a caveat of the artifact. The CPU provider is not asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Feeds
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.core.shapes import concrete_shape
from enginebench.engines.backends.onnxruntime.entries import ORT_TENSORRT
from enginebench.engines.backends.onnxruntime.ort import KERNEL_TIME, probe_provider, record_profile
from enginebench.engines.ort import ERRORS_ONLY, OrtEngine
from enginebench.engines.refusals import explain_refusal
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
        make_provider_options(artifact, spec, self._cache_dir)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtTensorRtEngine:
        check_request(artifact, spec, ("onnx",), ORT_TENSORRT.precisions, (spec.device,))
        options = make_provider_options(artifact, spec, self._cache_dir)
        return OrtTensorRtEngine(artifact, spec, options)


create_backend = OrtTensorRtBackend


def make_provider_options(artifact: Artifact, spec: EngineSpec, cache_dir: Path | None) -> dict[str, str]:
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


def open_session(artifact: Artifact, options: dict[str, str], settings: Any) -> Any:
    """A session on TensorRT, with CUDA for what it does not take."""
    settings.log_severity_level = ERRORS_ONLY
    register_operators(settings, artifact.operator_libraries)
    onnxruntime.disable_telemetry_events()
    providers = [(PROVIDER, options), (FALLBACK, {"device_id": options["device_id"]})]
    try:
        session = onnxruntime.InferenceSession(artifact.path, settings, providers=providers)
    except Exception as error:
        raise explain_refusal(f"ONNX Runtime cannot load {artifact.path} on TensorRT", error) from error
    session.disable_fallback()
    if PROVIDER not in session.get_providers():
        raise BackendUnavailable(
            f"asked ONNX Runtime for {PROVIDER} and got {', '.join(session.get_providers())}: TensorRT's libraries "
            "were not found, or are of another version than it needs. Install that version; see its messages"
        )
    return session


class OrtTensorRtEngine(OrtEngine):
    """A session whose nodes TensorRT runs, fed from the host."""

    def __init__(self, artifact: Artifact, spec: EngineSpec, options: dict[str, str]) -> None:
        super().__init__(open_session(artifact, options, onnxruntime.SessionOptions()), artifact, spec)
        self._options = options
        self._checked = read_options(spec, OPTIONS)["fallback"] == "allow"

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays in; the first time it also checks that TensorRT runs every node."""
        super().bind(feeds)
        if not self._checked:
            self._checked = True
            opened = partial(open_session, self._artifact, self._options)
            events = record_profile(opened, onnxruntime.SessionOptions(), self._feeds, counted=0)
            require_tensorrt(count_providers(events))

    def _hand_over(self) -> None:
        self._bind_inputs()  # copied to the GPU there and then; later values in the same buffer are not seen


def count_providers(events: list[dict[str, Any]]) -> Counter[str]:
    """Provider -> number of kernels in a trace; a graph that TensorRT took whole is one kernel.

    Source: the Chrome trace that ONNX Runtime 1.31 writes; kernels are `Node` events that end in `_kernel_time`.
    """
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(KERNEL_TIME)]
    return Counter(kernel["args"].get("provider", "unknown") for kernel in kernels)


def require_tensorrt(counts: Mapping[str, int]) -> None:
    """Checks that TensorRT ran every node; copies between host and GPU do not count as nodes."""
    others = {name: count for name, count in counts.items() if name != PROVIDER}
    if others or not counts:
        shown = ", ".join(f"{count} by {name}" for name, count in others.items()) or "none was seen"
        raise BackendUnavailable(
            f"TensorRT did not run every node of the graph ({shown}). To time the mixture anyway: "
            "ort-tensorrt:fallback=allow"
        )
