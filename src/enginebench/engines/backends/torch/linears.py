"""`@dynamic` for PyTorch on a GPU: torchao puts linear layers in INT8 or FP8, and scales what goes in in each run."""

from collections.abc import Mapping
from typing import Any

import torch
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable, MissingDependency, ModelError
from enginebench.core.protocols import ModuleLoader
from enginebench.core.recipes import TORCHAO
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.backends.torch.module import load_ready_module

# The matrix units take eight bits in steps of this many values. Source: PyTorch, aten/src/ATen/native/cuda/Blas.cpp.
STEP = 16


def load_quantized(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], loader: ModuleLoader | None
) -> Any:
    """The module in BF16, its linear layers in eight bits."""
    module = load_ready_module(artifact, replace(spec, precision="bf16"), options, loader)
    if not any(fits(layer) for layer in module.modules()):
        raise ModelError(
            f"{spec.precision}@{spec.recipe} covers linear layers whose sizes are multiples of {STEP}, and "
            f"{artifact.model} has none. Ask {spec.backend} for bf16"
        )
    try:
        from torchao import quantization as torchao
    except ModuleNotFoundError as missing:
        raise MissingDependency("torchao", TORCHAO) from missing
    if spec.precision == "fp8":
        scale = torchao.PerRow() if options["scales"] == "row" else torchao.PerTensor()
        config = torchao.Float8DynamicActivationFloat8WeightConfig(granularity=scale)
    else:
        config = torchao.Int8DynamicActivationInt8WeightConfig()
    try:
        torchao.quantize_(module, config, filter_fn=lambda layer, _: fits(layer))
    except AssertionError as error:  # how torchao says what a GPU lacks
        raise BackendUnavailable(f"torchao makes no {spec.precision}@{spec.recipe} here: {error}") from error
    return module


def fits(layer: Any) -> bool:
    """Whether a layer is a linear one of sizes that matrix units take."""
    return isinstance(layer, torch.nn.Linear) and layer.in_features % STEP == layer.out_features % STEP == 0
