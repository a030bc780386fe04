"""BF16 and FP16 in PyTorch: a module with its weights cast, or under autocast, behind FP32 inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from enginebench.backends.request import check_instructions, check_request, read_options
from enginebench.backends.torch.engine import flatten_tensors
from enginebench.core.entry import Option
from enginebench.core.records import Artifact, EngineSpec, Precision

DTYPES: dict[Precision, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS: tuple[Precision, ...] = ("fp32", *DTYPES)
REASONS: dict[Precision, str] = dict.fromkeys(
    ("int8", "fp8"), "8 bits are a property of an ONNX graph; ask ort or openvino for them"
)


def check_torch_request(artifact: Artifact, spec: EngineSpec, known: Mapping[str, Option]) -> dict[str, str]:
    """The options of a request that PyTorch can take on this CPU.

    Raises:
        ArtifactError: it is not a torch artifact.
        BackendUnavailable: the precision is not available here.
        UsageError: an option is unknown.
    """
    check_request(artifact, spec, ("torch",), PRECISIONS, reasons=REASONS)
    options = read_options(spec, known)
    if spec.precision in DTYPES and spec.precision != artifact.precision:  # its own is run as it is, emulated or not
        check_instructions(spec, has_instructions(spec.precision), options["force"] == "1")
    return options


def has_instructions(precision: Precision) -> bool:
    """Whether PyTorch sees instructions that compute in BF16, or in FP16; emulation does not count.

    FP16 without them runs on oneDNN's reference code: resnet18 took 3.4 s, and 0.07 s in FP32.
    """
    ask = getattr(torch.cpu, "get_capabilities", None)
    if ask is not None:
        return any(value is True and precision in name for name, value in ask().items())
    known = torch.cpu  # PyTorch before get_capabilities
    if precision == "bf16":
        return bool(known._is_avx512_bf16_supported() or known._is_amx_tile_supported())
    return bool(getattr(known, "_is_amx_fp16_supported", bool)())


def cast_module(module: Any, artifact: Artifact, precision: Precision, autocast: bool) -> Any:
    """The module in `precision`, with the inputs and outputs of the artifact: the casts are part of every run.

    That is what a caller with FP32 images pays, and what a graph that keeps its input types does, too.
    """
    if precision not in DTYPES or (precision == artifact.precision and not autocast):
        return module
    dtype, outputs = DTYPES[precision], [getattr(torch, s.dtype) for s in artifact.outputs]
    return _AutocastModule(module, dtype, outputs) if autocast else _CastModule(module.to(dtype), dtype, outputs)


class _CastModule(torch.nn.Module):  # type: ignore[misc]
    """A module whose weights are cast: inputs follow them on the way in, outputs come back on the way out."""

    enginebench_wraps = "_module"

    def __init__(self, module: Any, dtype: Any, outputs: list[Any]) -> None:
        super().__init__()
        self._module = module
        self._dtype = dtype
        self._outputs = outputs

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        cast = [x.to(self._dtype) if x.is_floating_point() else x for x in inputs]
        return cast_outputs(self._module(*cast), self._outputs)


class _AutocastModule(_CastModule):
    """A module whose weights stay as they are; PyTorch casts around each operator that it deems safe."""

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        with torch.autocast(inputs[0].device.type, dtype=self._dtype):
            answer = self._module(*inputs)
        return cast_outputs(answer, self._outputs)


def cast_outputs(answer: Any, dtypes: list[Any]) -> tuple[Any, ...]:
    """The tensors of a module's answer, each in the type that its artifact names."""
    return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten_tensors(answer), dtypes, strict=True))
