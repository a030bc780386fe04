"""`pytorch`: the module as it is, run eagerly; in strict FP32 it is the baseline of every table."""

from collections.abc import Sequence
from pathlib import Path

import torch

from enginebench.core.protocols import ModuleLoader
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.engines.backends.torch.engine import (
    WatchedCudaTorchEngine,
    WatchedTorchEngine,
    check_cuda_request,
    is_cuda,
    load_cuda_engines,
    probe_cuda,
)
from enginebench.engines.backends.torch.entries import PYTORCH
from enginebench.engines.backends.torch.module import check_torch_request, load_ready_module
from enginebench.engines.pytorch import prepare_torch

NAME, OPTIONS = PYTORCH.name, PYTORCH.options


class PytorchBackend:
    """`torch` artifacts, run eagerly."""

    name = NAME

    def __init__(self, loader: ModuleLoader | None) -> None:
        self._loader = loader

    def probe(self) -> Availability:
        devices = ("cpu", *probe_cuda())
        return Availability(engine=NAME, available=True, version=str(torch.__version__), devices=devices)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: nothing is built. Refuses what `load` would refuse."""
        if is_cuda(spec):
            check_cuda_request(artifact, spec, PYTORCH.list_options("cuda"))
        else:
            check_torch_request(artifact, spec, OPTIONS)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedTorchEngine | WatchedCudaTorchEngine:
        """An engine on `spec.threads` threads, which are the process's from now on."""
        return self.load_several(artifact, [spec])[0]

    def load_several(
        self, artifact: Artifact, specs: Sequence[EngineSpec]
    ) -> Sequence[WatchedTorchEngine] | Sequence[WatchedCudaTorchEngine]:
        """An engine for each spec; they share the module, and on a GPU each has a stream of its own."""
        if is_cuda(specs[0]):
            return load_cuda_engines(artifact, specs, PYTORCH.list_options("cuda"), self._loader)
        options = check_torch_request(artifact, specs[0], OPTIONS)
        prepare_torch(specs[0])
        module = load_ready_module(artifact, specs[0], options, self._loader)
        return [WatchedTorchEngine(module, artifact, spec, options) for spec in specs]


create_backend = PytorchBackend
