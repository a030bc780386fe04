"""A ModelRef to a PyTorch module: built-in, from timm, or from the user's own factory. Weights come later."""

import contextlib
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from enginebench.core.blame import explain
from enginebench.core.errors import BackendUnavailable, MissingDependency, ModelError, UsageError, explaining
from enginebench.core.records import TensorSpec
from enginebench.core.trees import HOLE, INPUT, list_leaves, name_output_tensors, split_made
from enginebench.models.objects import FACTORY, import_named
from enginebench.models.torch.flat import Flat, flatten
from enginebench.models.torch.torchvision_import import explain_other_build, import_torchvision, with_torchvision
from enginebench.models.zoo import BUILTIN, TIMM_EXTRA, ModelRef, explain_timm_name, require_packages


def build_module(ref: ModelRef, input_size: int | None = None) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """(module in eval mode, example inputs, () where a factory brings none), with its constructor's weights."""
    if ref.kind in ("factory", "hf"):
        refuse_input_size(ref, input_size)
    if ref.kind == "factory":
        return call_factory(ref)
    if ref.kind == "hf":
        from enginebench.models.torch.hugging_face import build_hf

        return build_hf(ref)
    module, shape = _build_timm(ref, input_size) if ref.kind == "timm" else _build_builtin(ref, input_size)
    return module.eval(), (torch.zeros(1, *shape),)


def refuse_input_size(ref: ModelRef, input_size: int | None) -> None:
    if input_size is not None:
        raise UsageError(f"an input size does not apply to {ref.text}; give --input-shape name:1x3x224x224")


def _build_builtin(ref: ModelRef, input_size: int | None) -> tuple[nn.Module, tuple[int, ...]]:
    card = BUILTIN[ref.name]
    if card.task == "digits" and input_size not in (None, 8):
        raise UsageError(f"{ref.name} takes only 8x8 images, not {input_size}x{input_size}; leave the input size out")
    shape = (3, input_size, input_size) if input_size and card.task != "digits" else card.input_shape
    if card.source is not None:
        require_packages(ref.name)
        file, _, constructor = card.source.partition(":")
        return getattr(importlib.import_module(f"enginebench.models.torch.{file}"), constructor)(), shape
    import_torchvision()
    from torchvision.models import get_model

    return get_model(ref.name, weights=None), shape


def _build_timm(ref: ModelRef, input_size: int | None) -> tuple[nn.Module, tuple[int, ...]]:
    timm = import_timm()
    if not timm.is_model(ref.name):
        raise ModelError(explain_timm_name(ref, timm.list_models()))
    config = timm.get_pretrained_cfg(ref.name)
    shape = tuple(config.input_size) if config else (3, 224, 224)
    # Transformers bake the size into their position embedding, and take it as an argument.
    fixed = bool(config and config.fixed_input_size)
    arguments = {"img_size": input_size} if fixed and input_size not in (None, shape[-1]) else {}
    with explaining(ModelError, f"{ref.text} cannot be built", RuntimeError, TypeError, ValueError):
        module = timm.create_model(ref.name, pretrained=False, **arguments)
    return module, (shape[0], input_size, input_size) if input_size else shape


def import_timm() -> Any:
    import_torchvision()
    try:
        import timm
    except ModuleNotFoundError as error:
        if error.name != "timm":
            raise BackendUnavailable(f"timm does not import: {error}") from error
        raise MissingDependency("timm", TIMM_EXTRA) from error
    return timm


def call_factory(ref: ModelRef) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """Call the user's `package.module:factory` and return (module, flat and in eval mode; example inputs or ())."""
    factory = with_torchvision(lambda: import_named(ref.name, ModelError, ref.text, FACTORY))
    failing = explaining(ModelError, f"{ref.text}: the factory failed", Exception, SystemExit, describe=explain)
    with failing:  # user code: anything can come out of it, also the end of a script
        returned = with_torchvision(factory)
    module, examples_given, further = split_made(returned)
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"{ref.text} returned {_describe(returned)}; expected a torch.nn.Module, or (module, example inputs)"
            f"{explain_program(module)}"
        )
    empty = f"{ref.text}: the module holds no weights that could be measured"
    with explaining(ModelError, empty, NotImplementedError):  # on the device "meta"
        module = module.cpu()
    if examples_given is None:
        return Flat(module).eval(), ()
    refusal = f"{ref.text}: the example inputs are {_describe(examples_given)}, and they cannot be used"
    with explaining(ModelError, refusal, ValueError):
        flat, examples = flatten(module, examples_given, further)
    return flat.eval(), examples


def explain_program(made: object) -> str:
    """Explain what to give in place of a program of torch.export, which is no module; "" for anything else."""
    return ". Give its .module()" if isinstance(made, torch.export.ExportedProgram) else ""


def _describe(value: object) -> str:
    names = [type(part).__name__ for part in value] if isinstance(value, tuple) else []
    return f"({', '.join(names)})" if isinstance(value, tuple) else type(value).__name__


def name_inputs(module: nn.Module, count: int) -> list[str]:
    """Return the names of `count` inputs, as in `core/trees.py`; the models known by name take one."""
    return module.name_inputs(count) if isinstance(module, Flat) else [INPUT]


def examples_of_shapes(
    module: nn.Module, examples: Sequence[torch.Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[torch.Tensor, ...]:
    """The examples in the given shapes; zeros where there are none, in the order of `forward`'s parameters.

    Args:
        shapes: input name to shape, batch axis first.
    """
    for name, shape in shapes.items():
        if any(axis < 1 for axis in shape):
            raise UsageError(f"--input-shape {name}:{'x'.join(map(str, shape))} has an axis below 1")
    names = name_inputs(module, len(examples) or len(shapes))
    names_known = set(names) if examples or len(shapes) > 1 else set(shapes)
    if unknown := [name for name in shapes if name not in names_known]:
        raise UsageError(f"--input-shape names {', '.join(unknown)}; the inputs are {', '.join(names)}")
    if not examples:
        return tuple(torch.zeros(shapes[name]) for name in (names if len(shapes) > 1 else shapes))
    return tuple(
        _repeat_values(example, shapes[name]) if name in shapes else example
        for name, example in zip(names, examples, strict=True)
    )


def _repeat_values(example: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The example's own values in another shape: token ids stay within the vocabulary, a full mask stays full."""
    indices = torch.arange(math.prod(shape)) % max(1, example.numel())
    return example.reshape(-1)[indices].reshape(shape) if example.numel() else example.new_zeros(shape)


def stands_in_list(module: nn.Module) -> bool:
    """Whether tensors reach the module in a list: there each is an entry of its own, without a batch axis."""
    call = module.call if isinstance(module, Flat) else None
    parts = [*call[0], *call[1].values()] if call else []
    return any(isinstance(part, list) and HOLE in [leaf for _, leaf in list_leaves(part)] for part in parts)


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


def describe_inputs(
    module: nn.Module, examples: Sequence[torch.Tensor], *, fixed: bool = False
) -> tuple[TensorSpec, ...]:
    """Specs of the inputs, with the range of values that their examples show.

    Args:
        fixed: no axis of theirs is a batch. Then the first one has a name and a size of its own.
    """
    specs = describe_tensors(name_inputs(module, len(examples)), examples)
    limits = _find_table_rows(module, examples)
    varied = any(_is_varied(example) for example in examples)
    specs = tuple(
        replace(spec, values=_find_values(example, limits.get(i), varied), widest=_find_widest(example, limits.get(i)))
        for i, (spec, example) in enumerate(zip(specs, examples, strict=True))
    )
    if not fixed or not specs[0].shape:
        return specs
    length, *rest = specs[0].shape
    sizes = (int(length), *[0] * len(rest))
    return (replace(specs[0], shape=(f"{specs[0].name}_0", *rest), sizes=sizes), *specs[1:])


def _is_varied(example: torch.Tensor) -> bool:
    return example.numel() > 1 and bool((example != example.reshape(-1)[0]).any())


def _find_values(example: torch.Tensor, rows: int | None, varied: bool) -> tuple[float, float] | None:
    """(lowest, highest) of the values that may replace the example's; None: any that are usual for the type.

    A constant beside inputs that vary is meant: a full mask, a sampling rate. An example that is all zeros, alone, says
    its shape only. What looks up a table stays within it.
    """
    if not example.numel() or example.is_complex():
        return None
    whole = not example.is_floating_point() and example.dtype != torch.bool
    if whole and rows and (rows == 1 or not _is_varied(example)):
        return 0, rows - 1
    low, high = float(example.min()), float(example.max())
    if low == high:
        return (low, high) if varied or (low and not example.is_floating_point()) else None
    if (low, high) == (0, 1) and not example.is_floating_point():  # a mask: whole
        return 1, 1
    return (low, high) if low >= 0 or not example.is_floating_point() else None


def _find_widest(example: torch.Tensor, rows: int | None) -> tuple[float, float] | None:
    """Return (0, the last row) of a table that an example with other values looks up; else None."""
    if not rows or rows == 1 or example.is_floating_point() or not _is_varied(example):
        return None
    return 0, rows - 1


def _find_table_rows(module: nn.Module, examples: Sequence[torch.Tensor]) -> dict[int, int]:
    """{place of an input: rows of the smallest table that it, or a view of it, looks up directly}.

    For the offsets of bags 1: zeros alone are sure to be ones.
    """
    input_indices = {example.untyped_storage().data_ptr(): i for i, example in enumerate(examples) if example.numel()}
    tables = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    rows: dict[int, int] = {}

    def watch(layer: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        arguments = dict(zip(("input", "offsets"), args, strict=False)) | named
        for name, count in (("input", layer.num_embeddings), ("offsets", 1)):
            tensor = arguments.get(name)
            if tensor is not None and (index := input_indices.get(tensor.untyped_storage().data_ptr())) is not None:
                rows[index] = min(count, rows.get(index, count))

    with contextlib.ExitStack() as hooks:
        for table in tables:
            hooks.enter_context(table.register_forward_pre_hook(watch, with_kwargs=True))
        if tables:
            with torch.inference_mode():
                module(*examples)
    return rows


def explain_run(error: BaseException) -> str:
    """Explain what a module raised, with the cure if that is torchvision of another build than PyTorch."""
    return explain(error) + explain_other_build(error)


def describe_outputs(module: nn.Module, examples: Sequence[torch.Tensor], model: str) -> tuple[TensorSpec, ...]:
    """Specs of what the module returns: "output" for a tensor, else `outputs.logits`, `outputs.0`, ..."""
    with torch.inference_mode(False):
        examples = tuple(example.clone() for example in examples)
    versions = [example._version for example in examples]  # PyTorch counts what is written into a tensor
    shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
    failing = explaining(ModelError, f"{model} does not run on inputs of shape {shapes}", describe=explain_run)
    with failing, torch.inference_mode():
        returned = module.call_module(*examples) if isinstance(module, Flat) else module(*examples)
    inputs = name_inputs(module, len(examples))
    pairs = zip(inputs, versions, examples, strict=True)
    if changed := [name for name, version, example in pairs if example._version != version]:
        raise ModelError(
            f"{model} writes into its input {changed[0]!r}, so that every call would see what the call before left. "
            "Begin forward with a copy: x = x.clone()"
        )
    leaves = [leaf for _, leaf in list_leaves(returned) if isinstance(leaf, torch.Tensor)]
    if not leaves:
        raise ModelError(f"{model} returns no tensor ({_describe(returned)}); expected at least one")
    names = name_output_tensors(returned, lambda leaf: isinstance(leaf, torch.Tensor))
    distinct = [f"{name}_" if name in inputs else name for name in names]  # a graph has each name once
    return describe_tensors(distinct, leaves)
