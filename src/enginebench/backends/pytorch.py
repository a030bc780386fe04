"""`pytorch`: the module as it is, eager; in strict FP32 the baseline of every table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from enginebench.backends.torch_cast import PRECISIONS as TORCH_PRECISIONS
from enginebench.backends.torch_cast import check_torch_request
from enginebench.backends.torch_cuda import (
    CUDA_OPTIONS,
    CudaLane,
    CudaTorchEngine,
    check_cuda_request,
    is_cuda,
    prepare_cuda,
    probe_cuda,
    read_device_index,
)
from enginebench.backends.torch_engine import TorchEngine, prepare_torch
from enginebench.backends.torch_module import CPU_OPTIONS, load_ready_module
from enginebench.core.records import Artifact, Availability, EngineSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import ModuleLoader

NAME = "pytorch"
PRECISIONS = TORCH_PRECISIONS
OPTIONS = CPU_OPTIONS


class PytorchBackend:
    """`torch` artefacts, run eagerly."""

    name = NAME

    def __init__(self, loader: ModuleLoader | None) -> None:
        self._loader = loader

    def probe(self) -> Availability:
        """Available wherever PyTorch can be imported; says its version."""
        devices = ("cpu", *probe_cuda())
        return Availability(engine=NAME, available=True, version=str(torch.__version__), devices=devices)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artefact as it is: nothing is built. Refuses what `load` would refuse."""
        if is_cuda(spec):
            check_cuda_request(artifact, spec, CUDA_OPTIONS)
        else:
            check_torch_request(artifact, spec, OPTIONS)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> TorchEngine | CudaTorchEngine:
        """An engine on `spec.threads` threads, which are the process's from now on.

        Raises:
            BackendUnavailable: strict FP32, the precision or the thread counts cannot be had.
            UsageError: an option is unknown, or there is no loader.
        """
        return self._load_cuda(artifact, spec) if is_cuda(spec) else self._load_cpu(artifact, spec)

    def _load_cpu(self, artifact: Artifact, spec: EngineSpec) -> TorchEngine:
        options = check_torch_request(artifact, spec, OPTIONS)
        channels_last = options["channels_last"] == "1"
        prepare_torch(spec)
        module = load_ready_module(artifact, spec, options, self._loader)
        return TorchEngine(
            module, artifact.inputs, artifact.outputs, name=NAME, batch=spec.batch, channels_last=channels_last
        )

    def _load_cuda(self, artifact: Artifact, spec: EngineSpec) -> CudaTorchEngine:
        options = check_cuda_request(artifact, spec, CUDA_OPTIONS)
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
        )


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> PytorchBackend:
    """The backend; it keeps nothing from one process to the next."""
    return PytorchBackend(loader)
