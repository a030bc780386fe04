"""`pytorch-cudagraph`: the eager module captured once as a CUDA graph and launched as one."""

from collections.abc import Sequence
from pathlib import Path

import torch

from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.engines.backends.torch.engine import (
    WatchedCudaTorchEngine,
    check_cuda_request,
    explain_no_cuda,
    load_cuda_engines,
    probe_cuda,
)
from enginebench.engines.backends.torch.entries import PYTORCH_CUDAGRAPH
from enginebench.engines.backends.torch.pytorch import PytorchBackend
from enginebench.engines.request import make_availability

NAME, OPTIONS = PYTORCH_CUDAGRAPH.name, PYTORCH_CUDAGRAPH.options


class PytorchCudagraphBackend(PytorchBackend):
    """`torch` artifacts on an NVIDIA GPU, launched without Python between their kernels."""

    name = NAME

    def probe(self) -> Availability:
        fix = "pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu130"
        return make_availability(NAME, probe_cuda(), str(torch.__version__), explain_no_cuda(), fix)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: `load` captures. Refuses what `load` would refuse."""
        check_cuda_request(artifact, spec, OPTIONS)
        return artifact

    def load_several(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> list[WatchedCudaTorchEngine]:
        """An engine for each spec, captured for its batch on a stream of its own; they share the module.

        Another batch is captured anew, in `bind`.
        """
        return load_cuda_engines(artifact, specs, OPTIONS, self._loader, graph=True)


create_backend = PytorchCudagraphBackend
