"""Built-in models of which each stage keeps two blocks, as factories: NVIDIA's builder takes minutes for whole ones."""

import re
from functools import partial
from typing import Any

import torch
from torch import nn

from enginebench.models.torch.architectures import build_module
from enginebench.models.zoo import resolve_model

Made = tuple[nn.Module, Any]


def make_short(name: str, size: int) -> Made:
    """A network of torchvision or timm in which each stage ends after its second block.

    The others are equal to the second, so that every layer is there in every shape in which the whole network has it.
    """
    module, _ = build_module(resolve_model(name), size)
    for parent in list(module.modules()):
        for child, stage in list(parent.named_children()):
            if isinstance(stage, nn.Sequential) and len(stage) > 2 and len(set(map(_describe, list(stage)[1:]))) == 1:
                setattr(parent, child, stage[:2])
    return module, torch.zeros(1, 3, size, size)


def _describe(block: nn.Module) -> str:
    """Its layers; how often a block is left out in training differs from block to block."""
    return re.sub(r"StochasticDepth\(.*?\)|\(drop_path\d*\): \S+", "", str(block))


make_short_efficientnet = partial(make_short, "efficientnet_b0", 64)
make_short_vit = partial(make_short, "timm:vit_tiny_patch16_224", 32)
make_short_convnext = partial(make_short, "timm:convnext_atto", 64)
