"""Seeded weights that give outputs worth comparing: BatchNorm statistics fit the activations.

A freshly made network keeps running statistics of mean 0 and variance 1, which its activations do not have. Deep
networks then shrink their signal layer by layer (standard deviation 1e-14 at the output of efficientnet_b0), and a
comparison of precisions compares rounding noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from enginebench.models.torch.architectures import set_batch

# Eight batches of eight bring the output of the four torchvision networks back to 0.008 .. 0.5; more changes little.
CALIBRATION_BATCHES = 8
CALIBRATION_BATCH_SIZE = 8
# Of weights that begin as zeros; the usual one of transformers' other weights.
# Source: torchvision, models/vision_transformer.py (pos_embedding, after BERT).
ZERO_STD = 0.02
# What a constructor fills a parameter with: PyTorch's own functions, and the parts of which other packages make theirs.
PARTS = {"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_"}
FILLING = frozenset({name for name in dir(nn.init) if name.endswith("_")} | PARTS)


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """PyTorch's CPU generator set to `seed` inside, and as it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Undrawn(TorchFunctionMode):
    """Modules made inside keep whatever memory their parameters stand in: for those whose weights are then all loaded.

    Drawing is most of what it costs to make a large transformer.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        filled = args[0] if args else given.get("tensor")
        if isinstance(filled, nn.Parameter) and getattr(func, "__name__", "") in FILLING:
            return filled
        return func(*args, **given)


def reset_parameters(module: nn.Module, seed: int) -> None:
    """Draws the weights of every layer that knows how (`reset_parameters`, PyTorch's convention) anew."""
    with seed_torch(seed):
        for layer in module.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()


def draw_zeros(module: nn.Module, seed: int) -> int:
    """Draws the weights that begin as zeros, such as the heads of vision transformers; returns how many there are.

    Behind a head of zeros every answer is zero, and engines agree whatever they computed before it.
    """
    trained = [p for p in module.parameters() if p.requires_grad and p.ndim > 1 and p.numel()]
    zeros = [p for p in trained if not p.any()]
    with seed_torch(seed), torch.no_grad():
        for weight in zeros:
            nn.init.normal_(weight, std=ZERO_STD)
    return len(zeros)


def calibrate_batch_norm(module: nn.Module, examples: Sequence[torch.Tensor], seed: int) -> int:
    """Sets the running statistics of every BatchNorm to those of standard normal inputs; returns how many there are.

    Only BatchNorm layers are in train mode meanwhile, so that dropout and stochastic depth add nothing; statistics are
    plain averages over the batches. The module is back in eval mode afterwards.

    Args:
        examples: one tensor an input; floats are drawn anew in their shape, other values (token ids) are repeated.
    """
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return 0
    with seed_torch(seed), torch.no_grad(), _averaging(layers):
        for _ in range(CALIBRATION_BATCHES):
            module(*(_draw_like(example) for example in set_batch(examples, CALIBRATION_BATCH_SIZE)))
    return len(layers)


@contextmanager
def _averaging(layers: Sequence[_BatchNorm]) -> Iterator[None]:
    """The layers in train mode, with a momentum of None: a plain average since their reset."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()


def _draw_like(example: torch.Tensor) -> torch.Tensor:
    if example.ndim == 0 or not example.is_floating_point():
        return example
    return torch.randn(example.shape, dtype=example.dtype)
