"""The precision in which a module stores its weights, which does not depend on what a run took how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from enginebench.core.records import Precision

_EIGHT_BITS: dict[torch.dtype, Precision] = {
    torch.int8: "int8",
    torch.uint8: "int8",
    torch.qint8: "int8",
    torch.quint8: "int8",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


def find_eight_bits(call: Any) -> Precision | None:
    """Return the eight-bit precision of most of a module's weights, by their number; None: most have more bits.

    Tables that are only looked up (embeddings) do not count, nor do vectors (biases, scales) and buffers: bytes there
    may be masks or pictures.
    """
    if not isinstance(call, torch.nn.Module):
        return None
    counts: Counter[Precision | None] = Counter()
    for module in call.modules():
        if not isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            for tensor in _list_weights(module):
                counts[_EIGHT_BITS.get(tensor.dtype)] += tensor.numel()
    named = max(counts, key=lambda precision: counts[precision], default=None)
    return named if 2 * counts[named] > counts.total() else None


def _list_weights(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The matrices of one module without its children, as they lie in memory."""
    for parameter in module.parameters(recurse=False):
        if parameter.dim() > 1:
            yield from _unwrap(parameter)
    # A quantized module of PyTorch's own packs its weight, which has no dtype of a parameter, and returns it by a call.
    packed = getattr(module, "weight", None)
    if callable(packed) and type(module).__module__.startswith("torch.ao.nn"):
        yield packed()


def _unwrap(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor of a class of its own (torchao's) is made of; another one as it is."""
    names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
    if not names:
        yield tensor
    for name in names:
        yield from _unwrap(getattr(tensor, name))
