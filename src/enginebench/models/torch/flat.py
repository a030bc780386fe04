"""A user's module as engines call it: tensors in, tensors out, by the names that `core/trees.py` gives them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ...core.text import name_type
from ...core.trees import (
    HOLE,
    INPUT,
    Call,
    is_array,
    list_leaves,
    make_template,
    map_leaves,
    name_arguments,
    name_positional,
    read_call,
)

# Leaves that stay as they are in every call.
CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype, torch.device)

# What to give in place of a scripted or traced module.
NOT_SCRIPTED = "give the nn.Module that it was made from, or a .pt2 file of torch.export.save"


class Flat(nn.Module):  # type: ignore[misc]  # PyTorch is not followed by mypy
    """The user's module with its tensors in a row: one argument each, and one tensor or a tuple of them as the output.

    Args:
        call: how it wants to be called, `HOLE` in place of each tensor; None: with the tensors as they come.
        names: of the inputs; None where only the number of them will say.
    """

    enginebench_wraps = "module"  # names of layers leave it out

    def __init__(self, module: nn.Module, call: Call | None = None, names: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self.names = names
        self.state: tuple[str, ...] = ()
        self.bytes: int | None = None  # which input is a picture in bytes
        for part in module.modules():  # of torch.export: it refuses to be put into the one mode that it has
            for method in ("train", "eval"):
                vars(part).pop(method, None)
        # What behaves otherwise in train mode, if the user's module came in it.
        kinds = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
        parts = (part for part in module.modules() if isinstance(part, kinds) and part.training)
        named = (type(part).__name__ for part in parts if getattr(part, "track_running_stats", True))
        self.came_training = tuple(dict.fromkeys(named))

    def train(self, mode: bool = True) -> "Flat":
        """Set the mode of the module; frozen TorchScript has that of its freezing alone."""
        if all(hasattr(part, "training") for part in self.module.modules()):
            super().train(mode)
        else:
            self.training = mode
        return self

    def begin_anew(self, state: tuple[str, ...]) -> None:
        """From now on every call begins with the buffers of these names as they are now."""
        self.state = state
        for i, name in enumerate(state):
            self.register_buffer(f"first_{i}", self.module.get_buffer(name).clone(), persistent=False)

    def call_module(self, *inputs: torch.Tensor) -> Any:
        """Return the outputs of the module itself, in its own form."""
        for i, name in enumerate(self.state):
            owner, _, last = name.rpartition(".")
            first, now = getattr(self, f"first_{i}"), self.module.get_buffer(name)
            if now.shape == first.shape:
                now.copy_(first)
            else:  # it grows with each call
                setattr(self.module.get_submodule(owner), last, first.clone())
        if (at := self.bytes) is not None:
            picture = (inputs[at].to(self.bytes_mean.dtype) - self.bytes_mean) / self.bytes_std
            inputs = (*inputs[:at], picture, *inputs[at + 1 :])
        if self.call is None:
            return self.module(*inputs)
        tensors = iter(inputs)
        positional, keywords = map_leaves(self.call, lambda leaf: next(tensors) if leaf is HOLE else leaf)
        return self.module(*positional, **keywords)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        leaves = list_leaves(self.call_module(*inputs))
        tensors = [leaf for _, leaf in leaves if isinstance(leaf, torch.Tensor)]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)

    def name_inputs(self, count: int) -> list[str]:
        return list(self.names) if self.names else name_positional(self.module.forward, count)


def take_picture_bytes(
    module: nn.Module,
    names: list[str],
    *,
    input: str,
    shape: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
) -> Flat:
    """Return the module with its picture `input` in bytes, from which it subtracts `mean` and divides by `std`."""
    flat = module if isinstance(module, Flat) else Flat(module, names=(INPUT,)).eval()
    flat.bytes = names.index(input) if input else 0
    flat.register_buffer("bytes_mean", torch.tensor(mean).reshape(*shape), persistent=False)
    flat.register_buffer("bytes_std", torch.tensor(std).reshape(*shape), persistent=False)
    return flat


def holds_script(module: nn.Module) -> bool:
    """Whether the module, or one inside of it, is scripted or traced."""
    return any(isinstance(part, torch.jit.ScriptModule) for part in module.modules())


def flatten(
    module: nn.Module, arguments: Any, further: Mapping[str, Any] | None = None
) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(the module, flat; its example inputs in a row), on the CPU and without history.

    Raises:
        ValueError: a leaf is neither a tensor or an array, nor a constant; or there is no tensor.
    """
    positional, keywords = read_call(module.forward, arguments)
    call = positional, {**keywords, **(further or {})}
    leaves = {path[0]: _read_leaf(path[0], leaf) for path, leaf in name_arguments(module.forward, call)}
    tensors = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    if not tensors:
        raise ValueError("there is no tensor among them")
    template = make_template(call)
    plain = not template[1] and all(part is HOLE for part in template[0])
    return Flat(module, None if plain else template, tuple(tensors)), tuple(tensors.values())


@contextmanager
def restore_buffers(module: nn.Module) -> Iterator[list[str]]:
    """Whatever is called inside of the block, the buffers hold again what they held before it; which had changed."""
    before = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
    changed: list[str] = []
    try:
        yield changed
    finally:
        for name, buffer in module.named_buffers():
            if name in before and not _is_same(buffer, before[name]):
                changed.append(name)
        for name in changed:
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, before[name])


def find_state(module: Flat, examples: tuple[torch.Tensor, ...]) -> tuple[str, ...]:
    """The buffers that a call changes; they hold again what they held before it."""
    if not any(True for _ in module.module.buffers()):
        return ()
    with restore_buffers(module.module) as changed, torch.no_grad():
        module(*(example.clone() for example in examples))
    return tuple(changed)


def _is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def _read_leaf(name: str, leaf: Any) -> Any:
    """The tensor that a leaf is, on the CPU; or the constant."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().clone()
    if is_array(leaf):
        try:
            return torch.as_tensor(leaf).clone()
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{name!r} cannot be made a tensor: {error}") from error
    if isinstance(leaf, CONSTANTS):
        return leaf
    raise ValueError(f"{name!r} is {name_type(leaf)}; expected a tensor, an array, a number, a text or None")
