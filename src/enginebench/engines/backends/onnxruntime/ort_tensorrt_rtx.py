"""`ort-tensorrt-rtx`: ONNX Runtime with NVIDIA's provider of TensorRT for RTX, a package of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable, EngineBenchError
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.core.shapes import concrete_shape, format_shapes
from enginebench.engines.backends.onnxruntime.entries import ORT_TENSORRT_RTX
from enginebench.engines.backends.onnxruntime.providers import (
    Provider,
    ProviderEngine,
    find_devices,
    open_provider_session,
)
from enginebench.engines.proof import Operator
from enginebench.engines.request import (
    check_graph_precision,
    check_request,
    make_availability,
    read_number,
    read_options,
)

NAME, OPTIONS = ORT_TENSORRT_RTX.name, ORT_TENSORRT_RTX.options
# The library looks for CUDA's runtime under a name that the package's copy of it does not have.
PROVIDER = Provider(
    engine=NAME,
    module="onnxruntime_ep_nv_tensorrt_rtx",
    preload=("libcudart.so.*",),
    needs=(("libcuda.so", "NVIDIA's driver is not installed here"),),
)
MIB = 1 << 20


class OrtTensorRtRtxBackend:
    """ONNX artifacts on TensorRT for RTX, through ONNX Runtime."""

    name = NAME

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available where the provider's library loads and offers a GPU; it offers those that it supports."""
        try:
            count, reason = len(require_devices()), None
        except EngineBenchError as error:
            count, reason = 0, str(error)
        return make_availability(NAME, tuple(f"cuda:{index}" for index in range(count)), None, reason)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: plans are built while a session is opened. Refuses what `load` would refuse."""
        check_rtx_request(artifact, spec)
        require_devices()
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtTensorRtRtxEngine:
        """A session all of whose nodes TensorRT for RTX runs; arrays are on the host, so every run holds the copies."""
        check_rtx_request(artifact, spec)
        devices, index = require_devices(), read_index(spec)
        if index >= len(devices):
            raise BackendUnavailable(f"{NAME} finds {len(devices)} GPUs that it supports; there is no {spec.device}")
        options = make_rtx_options(artifact, spec, self._cache_dir)
        session = open_provider_session(artifact, PROVIDER, devices[index], options, read_options(spec, OPTIONS))
        return OrtTensorRtRtxEngine(session, artifact, spec)


create_backend = OrtTensorRtRtxBackend


def check_rtx_request(artifact: Artifact, spec: EngineSpec) -> None:
    check_request(artifact, spec, ("onnx",), ORT_TENSORRT_RTX.precisions, (spec.device,))
    check_graph_precision(artifact, spec)
    read_index(spec)
    make_rtx_options(artifact, spec, None)


def require_devices() -> list[Any]:
    devices = find_devices(PROVIDER)
    if not devices:
        raise BackendUnavailable(
            f"{NAME}: the provider finds no GPU that TensorRT for RTX supports (GeForce RTX and RTX PRO: compute "
            "capability 8.0, 8.6, 8.9, 12.0 or 12.1)"
        )
    return devices


def make_rtx_options(artifact: Artifact, spec: EngineSpec, cache_dir: Path | None) -> dict[str, str]:
    """The provider's options: one profile for exactly this batch, compiled kernels kept for the next process.

    Source: tensorrt_rtx_provider_options.h, which the package holds, 0.5.0.
    """
    chosen = read_options(spec, OPTIONS)
    options = {"enable_cuda_graph": chosen["graph"]}
    for key, name in (("workspace_mb", "nv_max_workspace_size"), ("weight_budget_mb", "nv_weight_streaming_budget")):
        if chosen[key]:
            options[name] = str(int(read_number(spec, key, chosen[key])) * MIB)
    if cache_dir is not None:
        folder = cache_dir / NAME
        folder.mkdir(parents=True, exist_ok=True)
        options["nv_runtime_cache_path"] = str(folder)
    open_inputs = [s for s in artifact.inputs if any(isinstance(axis, str) for axis in s.shape)]
    shapes = format_shapes({s.name: concrete_shape(s, spec.batch) for s in open_inputs})
    return options | {f"nv_profile_{side}_shapes": shapes for side in ("min", "opt", "max") if shapes}


class OrtTensorRtRtxEngine(ProviderEngine):
    """A session whose nodes TensorRT for RTX runs. Which precisions ran, the provider does not tell."""

    @property
    def threads(self) -> int:
        """One: the work is the GPU's."""
        _ = self.session  # refuses a closed engine
        return 1

    def _record(self) -> list[list[Operator]]:
        raise BackendUnavailable(f"{NAME} keeps no record of what its plans run; tensorrt-rtx shows their layers")
