"""`ort-cuda`: ONNX Runtime on an NVIDIA GPU."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import onnxruntime

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable, MissingDependency
from enginebench.core.operators import register_operators
from enginebench.core.records import Artifact, Availability, EngineSpec, LayerProfile
from enginebench.engines import cuda
from enginebench.engines.backends.onnxruntime.entries import ORT_CUDA
from enginebench.engines.backends.onnxruntime.ort import check_interface
from enginebench.engines.ort_cuda import PROVIDER, OrtCudaEngine, make_cuda_session_options
from enginebench.engines.proof import Operator, prove_precision, summarize_kernels, watch_kernels
from enginebench.engines.request import check_graph_precision, check_request, make_availability, read_options

NAME, OPTIONS = ORT_CUDA.name, ORT_CUDA.options
WITHOUT = f"onnxruntime {onnxruntime.__version__} is a build without {PROVIDER}"
FIX = "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"


class OrtCudaBackend:
    """ONNX artifacts on ONNX Runtime's CUDA provider alone."""

    name = NAME

    def probe(self) -> Availability:
        """Available where the CUDA provider is compiled in and CUDA shows a GPU."""
        if PROVIDER not in onnxruntime.get_available_providers():
            return make_availability(NAME, (), onnxruntime.__version__, WITHOUT, FIX)
        devices = tuple(f"cuda:{i}" for i in range(cuda.count_devices()))
        return make_availability(NAME, devices, onnxruntime.__version__, None if devices else cuda.explain_no_device())

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: ONNX Runtime optimises while it loads. Refuses what `load` would refuse."""
        check_ort_request(artifact, spec)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedOrtCudaEngine:
        options = check_ort_request(artifact, spec)
        settings = make_cuda_session_options(artifact, spec, options)
        register_operators(settings, artifact.operator_libraries)
        engine = WatchedOrtCudaEngine(artifact, spec, options, settings)
        try:
            check_interface(artifact, engine.session)
        except BaseException:
            engine.close()
            raise
        return engine


create_backend = OrtCudaBackend


def check_ort_request(artifact: Artifact, spec: EngineSpec) -> dict[str, str]:
    check_request(artifact, spec, ("onnx",), ORT_CUDA.precisions, (spec.device,), reasons=ORT_CUDA.lacks)
    if spec.precision != "tf32":  # a setting of the session: its graph is FP32
        check_graph_precision(artifact, spec)
    options = read_options(spec, OPTIONS)
    read_index(spec)
    if PROVIDER not in onnxruntime.get_available_providers():
        raise BackendUnavailable(f"{WITHOUT}. To add it: {FIX}")
    return options


class WatchedOrtCudaEngine(OrtCudaEngine):
    """The engine, and CUPTI's record of it."""

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the names of the kernels that CUPTI recorded; needs PyTorch.

        Without PyTorch there is no record, and nothing is claimed.
        """
        self._open_run()
        return prove_precision(self._watch()) if find_spec("torch") is not None else {}

    def profile_layers(self) -> LayerProfile:
        if find_spec("torch") is None:
            raise MissingDependency("PyTorch, whose profiler records kernels,", "pip install torch")
        return summarize_kernels(self._watch())

    def _watch(self) -> list[list[Operator]]:
        self._watched = self._watched or watch_kernels(self._open_run().call)
        return self._watched
