"""What the classes of a built-in model are called."""

from __future__ import annotations

import ast

from enginebench.models.zoo import BUILTIN, find_packaged

# Where torchvision keeps the names of ImageNet's classes. Read as text: importing it takes PyTorch and seconds.
# Source: torchvision 0.28.0, torchvision/models/_meta.py.
PLACE, VARIABLE = "torchvision/models/_meta.py", "_IMAGENET_CATEGORIES"


def find_labels(model: str) -> list[str]:
    """The names of the classes in their order; empty where only the model's owner knows them."""
    card = BUILTIN.get(model)
    if card is None:
        return []
    return [str(digit) for digit in range(card.classes)] if card.task == "digits" else _read_imagenet()


def _read_imagenet() -> list[str]:
    path = find_packaged(PLACE)
    if path is None:
        return []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == VARIABLE for t in node.targets):
            return [str(name) for name in ast.literal_eval(node.value)]
    return []
