"""A ModelRef to a PyTorch module: built-in, from timm, or from the user's own factory. Weights come later."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from enginebench.core.errors import BackendUnavailable, MissingDependency, ModelError, UsageError
from enginebench.core.records import TensorSpec
from enginebench.models.digits_modules import DIGITS_MODULES
from enginebench.models.torchvision_import import import_torchvision
from enginebench.models.zoo import BUILTIN, ModelRef

INPUT_NAME = "input"


class FlatOutputs(nn.Module):  # type: ignore[misc]  # PyTorch is not followed by mypy
    """The user's module, answering with one tensor or a flat tuple of tensors, whatever structure it returns itself."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        tensors = [t for t in pytree.tree_leaves(self.module(*inputs)) if isinstance(t, torch.Tensor)]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)


def build_module(ref: ModelRef, input_size: int | None = None) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """(module in eval mode, example inputs), with whatever weights its constructor gives it.

    The example inputs are () where a factory brings none.

    Args:
        ref: anything but an `onnx` reference.
        input_size: height and width in pixels in place of the model's own; image models only.

    Raises:
        UsageError: `input_size` for a model that is no image model of free size.
        ModelError: timm does not know the name, or the factory cannot be imported, fails, or returns something else.
        MissingDependency: torchvision or timm is not installed.
    """
    if ref.kind == "factory":
        _refuse_input_size(ref, input_size)
        module, examples = call_factory(ref)
        return FlatOutputs(module).eval(), examples
    module, shape = _build_timm(ref, input_size) if ref.kind == "timm" else _build_builtin(ref, input_size)
    return module.eval(), (torch.zeros(1, *shape),)


def _refuse_input_size(ref: ModelRef, input_size: int | None) -> None:
    if input_size is not None:
        raise UsageError(f"--input-size does not apply to {ref.text}; use --input-shape name:1x3x224x224")


def _build_builtin(ref: ModelRef, input_size: int | None) -> tuple[nn.Module, tuple[int, ...]]:
    card = BUILTIN[ref.name]
    if ref.name in DIGITS_MODULES:
        if input_size not in (None, 8):
            raise UsageError(f"{ref.name} takes 8x8 images only; --input-size {input_size} cannot be had")
        return DIGITS_MODULES[ref.name](), card.input_shape
    import_torchvision()
    from torchvision.models import get_model

    module = get_model(ref.name, weights=None)
    return module, (3, input_size, input_size) if input_size else card.input_shape


def _build_timm(ref: ModelRef, input_size: int | None) -> tuple[nn.Module, tuple[int, ...]]:
    timm = import_timm()
    known_as = check_timm_name(timm, ref)
    config = timm.get_pretrained_cfg(known_as)
    shape = tuple(config.input_size) if config else (3, 224, 224)
    # Transformers bake the size into their position embedding, and take it as an argument.
    fixed = bool(config and config.fixed_input_size)
    arguments = {"img_size": input_size} if fixed and input_size not in (None, shape[-1]) else {}
    try:
        module = timm.create_model(known_as, pretrained=False, **arguments)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{ref.text} cannot be built: {error}") from error
    return module, (shape[0], input_size, input_size) if input_size else shape


def import_timm() -> Any:
    """The package timm.

    Raises:
        MissingDependency: it, or torchvision below it, is not installed.
        BackendUnavailable: it is installed and does not import.
    """
    import_torchvision()
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise BackendUnavailable(f"timm does not import: {error}") from error
        raise MissingDependency("timm", 'pip install "enginebench[torch,timm]"') from error
    return timm


def check_timm_name(timm: Any, ref: ModelRef) -> str:
    """The name by which timm knows the model.

    Raises:
        ModelError: it knows none such; near names are listed.
    """
    if timm.is_model(ref.name):
        return ref.name
    near = difflib.get_close_matches(ref.name, timm.list_models(), n=3)
    hint = f"; did you mean {' or '.join('timm:' + n for n in near)}?" if near else ""
    raise ModelError(f"{ref.text}: timm {timm.__version__} has no model {ref.name!r}{hint}")


def call_factory(ref: ModelRef) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """What the user's `package.module:factory` returns: (module, example inputs or ()).

    Raises:
        ModelError: the import or the call fails (chained), or the answer is neither a module nor a pair.
    """
    factory = _import_factory(ref)
    try:
        made = factory()
    except Exception as error:
        raise ModelError(f"{ref.text}: the factory failed: {type(error).__name__}: {error}") from error
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, ())
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{ref.text} returned {_describe(made)}; expected a torch.nn.Module, or (module, tuple of example inputs)"
        )
    examples = (examples,) if isinstance(examples, torch.Tensor) else tuple(examples)
    if not all(isinstance(example, torch.Tensor) for example in examples):
        raise ModelError(f"{ref.text}: the example inputs are {_describe(examples)}; expected tensors only")
    return module.cpu(), tuple(example.detach().cpu() for example in examples)


def _describe(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(part).__name__ for part in value)})"
    return type(value).__name__


def _import_factory(ref: ModelRef) -> Callable[[], object]:
    name, _, attribute = ref.name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` has it, so that a file beside the user is found
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(name)
    except Exception as error:  # user code: anything can come out of it
        meant = f"{name.removesuffix('.py')}:{attribute}"
        hint = f". A module is meant, not its file: {meant}" if name.endswith(".py") else ""
        raise ModelError(f"{ref.text}: cannot import {name}: {type(error).__name__}: {error}{hint}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ModelError(f"{ref.text}: {name} has no {attribute!r}{_near_attributes(found, part)}")
        found = getattr(found, part)
    if not callable(found):
        raise ModelError(f"{ref.text}: {attribute} is a {type(found).__name__}; expected a function without arguments")
    return found  # type: ignore[no-any-return]


def _near_attributes(found: object, part: str) -> str:
    near = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def name_inputs(module: nn.Module, count: int) -> list[str]:
    """Names of `count` positional inputs: "input" for one, the parameters of `forward` for more."""
    if count == 1:
        return [INPUT_NAME]
    inner = module.module if isinstance(module, FlatOutputs) else module
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [p.name for p in inspect.signature(inner.forward).parameters.values() if p.kind in kinds]
    return names[:count] if len(names) >= count else [f"{INPUT_NAME}_{i}" for i in range(count)]


def examples_of_shapes(
    module: nn.Module, examples: Sequence[torch.Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[torch.Tensor, ...]:
    """Zeros of the given shapes, in the order of `forward`'s parameters where the names are known there.

    Args:
        module: the module.
        examples: what it brings itself; where there are any, names and number of the shapes must agree with them.
        shapes: input name to shape, batch axis first.

    Raises:
        UsageError: a name that the module does not have, or a shape with an axis below 1.
    """
    for name, shape in shapes.items():
        if any(axis < 1 for axis in shape):
            raise UsageError(f"--input-shape {name}:{'x'.join(map(str, shape))} has an axis below 1")
    names = name_inputs(module, len(examples) or len(shapes))
    known = set(names) if examples or len(shapes) > 1 else set(shapes)
    if unknown := [name for name in shapes if name not in known]:
        raise UsageError(f"--input-shape names {', '.join(unknown)}; the inputs are {', '.join(names)}")
    if not examples:
        return tuple(torch.zeros(shapes[name]) for name in (names if len(shapes) > 1 else shapes))
    return tuple(
        torch.zeros(shapes[name], dtype=example.dtype) if name in shapes else example
        for name, example in zip(names, examples, strict=True)
    )


def set_batch(examples: Sequence[torch.Tensor], batch: int) -> tuple[torch.Tensor, ...]:
    """The examples with `batch` entries on axis 0, where that axis is the batch: as long as the first input's."""
    length = examples[0].shape[0] if examples and examples[0].ndim else 0
    return tuple(
        e if e.ndim == 0 or e.shape[0] != length else e[:1].repeat(batch, *[1] * (e.ndim - 1)) for e in examples
    )


def describe_tensors(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Specs of tensors, every axis static."""
    return tuple(
        TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=tuple(tensor.shape))
        for name, tensor in zip(names, tensors, strict=True)
    )


def describe_outputs(module: nn.Module, examples: Sequence[torch.Tensor], model: str) -> tuple[TensorSpec, ...]:
    """Specs of what the module answers to the examples: "output" for one, "output_0", ... for more.

    Raises:
        ModelError: the forward pass fails on these shapes, or answers with no tensor.
    """
    try:
        with torch.inference_mode():
            answer = module(*examples)
    except Exception as error:  # user code, or shapes that the layers refuse
        shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
        raise ModelError(
            f"{model} does not run on inputs of shape {shapes}: {type(error).__name__}: {error}"
        ) from error
    tensors = (answer,) if isinstance(answer, torch.Tensor) else tuple(answer)
    if not tensors:
        raise ModelError(f"{model} returns no tensor; expected at least one")
    names = ["output"] if len(tensors) == 1 else [f"output_{i}" for i in range(len(tensors))]
    return describe_tensors(names, tensors)
