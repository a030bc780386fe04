"""Batch norms folded into the layers before them: the same function with fewer operators, for any PyTorch engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.fx

from enginebench.backends.request import Option
from enginebench.core.errors import ModelError

FOLD_BN = Option(
    default="0",
    choices=("0", "1"),
    meaning="1 folds batch norms into the convolutions or linear layers before them, in FP32, before anything else",
)

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
LAYERS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear, *NORMS)


def fold_batch_norms(module: Any, name: str) -> Any:
    """The module as a traced graph without the batch norms that directly follow a convolution or a linear layer.

    Args:
        module: in inference mode, with weights in FP32.
        name: of the model, for messages.

    Raises:
        ModelError: the module cannot be traced, has no such batch norm, so that the row would be called folded and not
            be, or calls a layer twice, which cannot take two batch norms.
    """
    from torch.fx.experimental.optimization import fuse

    try:
        traced = torch.fx.symbolic_trace(module)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"batch norms of {name} cannot be folded, since torch.fx cannot trace it: {reason}. Leave out fold_bn=1"
        ) from error
    calls = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
    twice = [path for path, count in calls.items() if count > 1 and isinstance(traced.get_submodule(path), LAYERS)]
    if twice:
        raise ModelError(f"batch norms of {name} cannot be folded: it calls {twice[0]} twice. Leave out fold_bn=1")
    folded = fuse(traced, no_trace=True)
    if count_norms(folded) == count_norms(module):
        raise ModelError(
            f"{name} has no batch norm that directly follows a convolution or a linear layer. Leave out fold_bn=1"
        )
    return folded


def count_norms(module: Any) -> int:
    """Batch norms among the submodules."""
    return sum(isinstance(child, NORMS) for child in module.modules())
