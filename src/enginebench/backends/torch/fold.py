"""Batch norms folded into the layers before them: the same function with fewer operators, for any PyTorch engine."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx

from enginebench.backends.torch.engine import flatten_tensors
from enginebench.core.errors import ModelError

NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
# Of the largest output. Folding rounds 50 layers of resnet50 to 4e-7 of it; a norm in the wrong place is off by tenths.
TOLERANCE = 1e-4


def fold_batch_norms(module: Any, name: str, checks: Iterable[Sequence[Any]]) -> Any:
    """The module without the batch norms that directly follow a convolution or a linear layer.

    Parts that torch.fx can trace become traced graphs if there is something to fold in them; the others, such as a
    wrapper with a variable number of inputs, stay as they are around them. The original is not touched.

    Args:
        module: in inference mode, with weights in FP32.
        name: of the model, for messages.
        checks: tensors for all inputs; on the first that the module takes folded and original must agree. A layer that
            is used elsewhere, too, cannot take a batch norm, and a trace does not always show it.

    Raises:
        ModelError: nothing could be folded, so that the row's name would be wrong, or the module answers differently
            once it is folded.
    """
    obstacles: list[str] = []
    folded = _fold_part(module, obstacles)
    if folded is module:
        why = f" in what torch.fx can trace: {obstacles[0]}" if obstacles else ""
        raise ModelError(
            f"{name} has no batch norm that directly follows a convolution or a linear layer{why}. Leave out fold_bn=1"
        )
    _check_answers(module, folded, name, checks)
    return folded


def _fold_part(part: Any, obstacles: list[str]) -> Any:
    """The part, folded; itself if there is nothing to fold. What cannot be traced is added to `obstacles`."""
    from torch.fx.experimental.optimization import fuse

    children = part._modules  # with those that are None or have two names, which `named_children` leaves out
    if not children:
        return part
    try:
        traced = torch.fx.symbolic_trace(part)
    except Exception as error:
        obstacles.append(f"{type(part).__name__}: {_find_reason(error)}")
        parts = {path: child and _fold_part(child, obstacles) for path, child in children.items()}
        if all(parts[path] is child for path, child in children.items()):
            return part
        around = copy.copy(part)
        around._modules = parts
        return around
    folded = fuse(traced, no_trace=True)
    return folded if count_norms(folded) < count_norms(traced) else part


def count_norms(graph: torch.fx.GraphModule) -> int:
    """Batch norms that a traced module calls."""
    calls = (node.target for node in graph.graph.nodes if node.op == "call_module")
    return sum(isinstance(graph.get_submodule(str(path)), NORMS) for path in calls)


def _check_answers(module: Any, folded: Any, name: str, checks: Iterable[Sequence[Any]]) -> None:
    try:
        with torch.inference_mode():
            inputs, answers = _answer_first(module, checks)
            pairs = list(zip(answers, flatten_tensors(folded(*inputs)), strict=True))
    except Exception as error:
        raise ModelError(
            f"batch norms of {name} were folded, but it cannot be checked that its answers stay the same: "
            f"{_find_reason(error)}. Leave out fold_bn=1"
        ) from error
    for wanted, found in pairs:
        largest = float(wanted.abs().max()) if wanted.numel() else 0.0
        difference = float((wanted - found).abs().max()) if wanted.numel() else 0.0
        if not difference <= TOLERANCE * largest:
            raise ModelError(
                f"{name} answers differently once its batch norms are folded: {difference:.2g} off where the largest "
                f"output is {largest:.2g}; a layer is used twice, or along another axis. Leave out fold_bn=1"
            )


def _answer_first(module: Any, checks: Iterable[Sequence[Any]]) -> tuple[Sequence[Any], list[Any]]:
    """(inputs, outputs) of the first inputs that the module answers to; the last ones' error if there are none."""
    refusal: Exception = ValueError("there is nothing to call it with")
    for inputs in checks:
        try:
            answers = list(flatten_tensors(module(*inputs)))
        except Exception as error:
            refusal = error
            continue
        if any(answer.numel() for answer in answers):
            return inputs, answers
        refusal = ValueError("its answers are empty")
    raise refusal


def _find_reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
