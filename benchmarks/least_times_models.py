"""Networks of torchvision with seeded weights, as factories: `least_times_models:vgg11`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def __getattr__(name: str) -> Callable[[], tuple[Any, tuple[Any, ...]]]:
    if name.startswith("_"):
        raise AttributeError(name)

    def make() -> tuple[Any, tuple[Any, ...]]:
        import torch

        from enginebench.models.torch.torchvision_import import import_torchvision

        torchvision = import_torchvision()
        torch.manual_seed(0)
        more = {"init_weights": True} if name == "googlenet" else {}
        module = torchvision.models.get_model(name, weights=None, **more)
        return module.eval(), (torch.randn(1, 3, 224, 224),)

    return make
