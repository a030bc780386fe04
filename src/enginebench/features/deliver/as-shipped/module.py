"""The PyTorch module of this bundle, made by its own code, with the weights of the bundle."""

import importlib
from typing import Any

import facts
import numpy as np
import torch
from measured.core import trees
from measured.models.torch import flat, torchvision_import


def load_module() -> Any:
    """Load the module with the interface of its engine: its tensors as positional arguments, on the CPU."""
    module, artifact = load_own(), facts.BUNDLE["artifact"]
    names = [spec["name"] for spec in artifact["inputs"]]
    return flat.take_picture_bytes(module, names, **artifact["normalize"]) if artifact["normalize"] else module


def load_own() -> Any:
    """The module as its source makes it, of the floats that it was trained on."""
    spec = facts.BUNDLE["module"]
    module, positional, further = trees.split_made(make(spec))
    with np.load(facts.ARTIFACT.path, allow_pickle=False) as stored:
        module.requires_grad_(False).load_state_dict(
            {name: torch.from_numpy(stored[name]) for name in stored.files}, strict=True
        )
    if not spec["flat"]:
        return module
    return flat.Flat(module) if positional is None else flat.flatten(module, positional, further)[0]


def make(spec: dict[str, Any]) -> Any:
    """Call the module's constructor; the weights of what it returns are replaced later."""
    if spec["kind"] == "source":
        made = importlib.import_module(spec["file"].removesuffix(".py"))
        for part in spec["name"].split("."):
            made = getattr(made, part)
        return made()  # type: ignore[operator]
    vision = torchvision_import.import_torchvision()
    if spec["kind"] == "torchvision":
        return vision.models.get_model(spec["name"], weights=None)
    return importlib.import_module("timm").create_model(spec["name"], pretrained=False, **spec["arguments"])
