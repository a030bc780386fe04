"""A package of AOTInductor, loaded without compiling. Bundles hold a copy of this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.aoti import find_differences, read_package_record
from ..core.engine_api import ArtifactError, ArtifactLike, EngineSpecLike, read_index
from .pytorch import TorchEngine, prepare_torch

if TYPE_CHECKING:
    from .pytorch_cuda import CudaTorchEngine


def open_engine(
    artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]
) -> TorchEngine | CudaTorchEngine:
    """An engine of a package, for the shapes that it was compiled for; `options` has a value for each."""
    if spec.device == "cpu":
        prepare_torch(spec)
        return TorchEngine(load_package(artifact, spec), artifact, spec, options)
    from .pytorch_cuda import CudaTorchEngine, prepare_cuda

    prepare_cuda(spec, options)
    graph = options["cuda_graph"] == "1"
    return CudaTorchEngine(load_package(artifact, spec), artifact, spec, options, graph=graph)


def name_gpu(spec: EngineSpecLike) -> str | None:
    """The GPU of a spec, with its compute capability; None for the CPU."""
    if spec.device == "cpu":
        return None
    index = read_index(spec)
    return f"{torch.cuda.get_device_name(index)}, {'.'.join(map(str, torch.cuda.get_device_capability(index)))}"


def load_package(artifact: ArtifactLike, spec: EngineSpecLike) -> Callable[..., Any]:
    """The call of a package: native code, which is loaded only if it was compiled for this machine and this PyTorch.

    It is PyTorch's own loader that `torch._inductor.aoti_load_package` wraps, whose imports take five seconds.
    """
    if problems := [*find_differences(read_package_record(Path(artifact.path)), name_gpu(spec))]:
        raise ArtifactError(f"{artifact.path} is not opened: {'; '.join(problems)}. Build it again here")
    index = -1 if spec.device == "cpu" else read_index(spec)
    try:
        run = torch._C._aoti.AOTIModelPackageLoader(artifact.path, "model", True, 1, index).run
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n")[0].split())
        raise ArtifactError(f"PyTorch cannot open {artifact.path}: {reason}. Build it again") from error
    return lambda *tensors: run(list(tensors))
