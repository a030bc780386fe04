"""Flatten nested arguments and outputs of a module to tensors with stable names. One rule for all of EngineBench.

A mapping is opened by its keys (also `ModelOutput`, `BatchEncoding`), a dataclass and a named tuple by their fields, a
list and a tuple by position; everything else is a leaf. Bundles hold a copy of this file: Python's own library only.
PyTorch's own pytree knows neither dataclasses nor mappings that nobody registered, and nothing can be registered while
`torch.compile` traces.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

# What a module is called with: positional and keyword arguments.
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Leaf: TypeAlias = tuple[tuple[str, ...], Any]

# Where a tensor stands in a template.
HOLE = ...

# The one positional argument, and the output: alone, or opened.
INPUT, OUTPUT, OUTPUTS = "input", "output", "outputs"


def list_leaves(tree: Any, path: tuple[str, ...] = ()) -> list[Leaf]:
    """(path, leaf) of everything in a tree that is not opened further, in order."""
    children = _list_children(tree)
    if children is None:
        return [(path, tree)]
    return [leaf for key, child in children for leaf in list_leaves(child, (*path, key))]


def _list_children(tree: Any) -> list[tuple[str, Any]] | None:
    if isinstance(tree, Mapping):
        return [(str(key), value) for key, value in tree.items()]
    if isinstance(tree, (list, tuple)):
        return list(zip(getattr(tree, "_fields", map(str, range(len(tree)))), tree, strict=False))
    fields = None if isinstance(tree, type) else getattr(tree, "__dataclass_fields__", None)
    return None if fields is None else [(name, getattr(tree, name)) for name in fields]


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree with every leaf changed; leaves are visited in the order of `list_leaves`."""
    if type(tree) is dict:
        return {key: map_leaves(value, change) for key, value in tree.items()}
    if isinstance(tree, Mapping):
        made: Any = copy.copy(tree)
        for key, value in tree.items():
            made[key] = map_leaves(value, change)
        return made
    if isinstance(tree, (list, tuple)):
        values = [map_leaves(value, change) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)
    children = _list_children(tree)
    if children is None:
        return change(tree)
    return replace(tree, **{name: map_leaves(value, change) for name, value in children})


def make_template(call: Call) -> Call:
    """The call with `HOLE` in place of every tensor and array; all else stays as it is in every call."""
    filled: Call = map_leaves(call, lambda leaf: HOLE if is_array(leaf) else leaf)
    return filled


def is_array(leaf: Any) -> bool:
    """Whether a leaf is a tensor or an array: NumPy's scalars that are Python's numbers, too, are not."""
    return hasattr(leaf, "__array__") and not isinstance(leaf, (bool, int, float, complex, str))


def read_call(forward: Callable[..., Any], example: Any) -> Call:
    """The arguments that example inputs are meant as.

    A tuple or list holds positional arguments. A mapping holds keyword arguments if `forward` has parameters of these
    names, else it is the one argument. Anything else is the one argument.
    """
    if isinstance(example, Mapping):
        parameters = inspect.signature(forward).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        fits = all(isinstance(name, str) if takes_any else name in parameters for name in example)
        return ((), dict(example)) if fits else ((example,), {})
    return (tuple(example), {}) if type(example) in (tuple, list) else ((example,), {})


def split_made(made: Any) -> tuple[Any, Any, dict[str, Any]]:
    """(module, example inputs or None, further keyword arguments) of what a factory returned.

    That is a module, (module, example inputs), or (module, positional arguments, {name: argument}).
    """
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[2], Mapping):
        return made[0], made[1], dict(made[2])
    if isinstance(made, tuple) and len(made) == 2:
        return made[0], made[1], {}
    return made, None, {}


def name_arguments(forward: Callable[..., Any], call: Call) -> list[Leaf]:
    """(name as a path of one, leaf) of every leaf of a call: `ids`, `input.mask`, `images.0`."""
    positional, keywords = call
    roots = name_positional(forward, len(positional), alone=not keywords)
    pairs = [*zip(roots, positional, strict=True), *keywords.items()]
    return _join_paths([leaf for root, value in pairs for leaf in list_leaves(value, (root,))])


def name_positional(forward: Callable[..., Any], count: int, *, alone: bool = True) -> list[str]:
    """Return names of positional arguments: "input" for the only one, else the parameters', else "input_0", ..."""
    if count == 1 and alone:
        return [INPUT]
    parameters = inspect.signature(forward).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return names[:count] if len(names) >= count else [f"{INPUT}_{i}" for i in range(count)]


def name_output_tensors(outputs: Any, is_tensor: Callable[[Any], bool]) -> list[str]:
    """Return the names of the tensors of an output: "output" for a tensor, else `outputs.logits`, `outputs.0`, ..."""
    root = OUTPUTS if _list_children(outputs) is not None else OUTPUT
    return [path[0] for path, leaf in _join_paths(list_leaves(outputs, (root,))) if is_tensor(leaf)]


def _join_paths(leaves: list[Leaf]) -> list[Leaf]:
    """The leaves by names that differ: {"a": {"b": x}} and {"a.b": y} would share one."""
    named: dict[str, Any] = {}
    for path, leaf in leaves:
        name = ".".join(path)
        while name in named:
            name += "_"
        named[name] = leaf
    return [((name,), leaf) for name, leaf in named.items()]
