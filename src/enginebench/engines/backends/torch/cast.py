"""BF16 and FP16 in PyTorch: what this CPU has instructions for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from enginebench.core.entry import Option
from enginebench.core.records import Artifact, EngineSpec, Precision
from enginebench.engines.pytorch_module import DTYPES
from enginebench.engines.request import check_instructions, check_request, read_options

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "fp16")
REASONS: dict[Precision, str] = dict.fromkeys(
    ("int8", "fp8"), "8 bits are a property of an ONNX graph; ask ort or openvino for them"
)


def check_torch_request(artifact: Artifact, spec: EngineSpec, known: Mapping[str, Option]) -> dict[str, str]:
    """The options of a request that PyTorch can take on this CPU."""
    check_request(artifact, spec, ("torch",), PRECISIONS, reasons=REASONS)
    options = read_options(spec, known)
    if spec.precision in DTYPES and spec.precision != artifact.precision:  # its own is run as it is, emulated or not
        check_instructions(spec, has_instructions(spec.precision), options["force"] == "1")
    return options


def has_instructions(precision: str | None) -> bool:
    """Whether PyTorch sees instructions that compute in BF16, or in FP16; emulation does not count.

    FP16 without them runs on oneDNN's reference code: resnet18 took 3.4 s, and 0.07 s in FP32.
    """
    ask = getattr(torch.cpu, "get_capabilities", None)
    if ask is not None:
        return any(value is True and str(precision) in name for name, value in ask().items())
    known = torch.cpu  # PyTorch before get_capabilities
    if precision == "bf16":
        return bool(known._is_avx512_bf16_supported() or known._is_amx_tile_supported())
    return bool(getattr(known, "_is_amx_fp16_supported", bool)())
