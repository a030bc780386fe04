"""`pytorch-cudagraph`: the eager module captured once as a CUDA graph and launched as one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.backends.torch_cuda import (
    CUDA_OPTIONS,
    CudaLane,
    CudaTorchEngine,
    check_cuda_request,
    prepare_cuda,
    probe_gpu_engine,
    read_device_index,
)
from enginebench.backends.torch_cuda import PRECISIONS as CUDA_PRECISIONS
from enginebench.backends.torch_module import load_ready_module
from enginebench.core.records import Artifact, Availability, EngineSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import ModuleLoader

NAME = "pytorch-cudagraph"
PRECISIONS = CUDA_PRECISIONS
OPTIONS = CUDA_OPTIONS


class PytorchCudagraphBackend:
    """`torch` artefacts on an NVIDIA GPU, launched without Python between their kernels."""

    name = NAME

    def __init__(self, loader: ModuleLoader | None) -> None:
        self._loader = loader

    def probe(self) -> Availability:
        """Available where PyTorch sees a GPU."""
        return probe_gpu_engine(NAME)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artefact as it is: `load` captures. Refuses what `load` would refuse."""
        check_cuda_request(artifact, spec, OPTIONS)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> CudaTorchEngine:
        """An engine that is captured for `spec.batch`; another batch is captured anew, in `bind`.

        Raises:
            BackendUnavailable: the GPU, strict FP32 or the precision cannot be had.
            ModelError: the module cannot be captured; names the reason.
            MeasurementError: it does not fit into the GPU's memory.
        """
        options = check_cuda_request(artifact, spec, OPTIONS)
        prepare_cuda(spec, options)
        lane = CudaLane(read_device_index(spec), options["wait"])
        return CudaTorchEngine(
            load_ready_module(artifact, spec, options, self._loader, spec.device),
            artifact.inputs,
            artifact.outputs,
            name=NAME,
            batch=spec.batch,
            lane=lane,
            channels_last=options["channels_last"] == "1",
            graph=True,
        )


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> PytorchCudagraphBackend:
    """The backend; it keeps nothing from one process to the next."""
    return PytorchCudagraphBackend(loader)
