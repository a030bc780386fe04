"""A user's PyTorch module to a file that a child process can rebuild it from, and back.

Whatever can be imported travels as a reference; what is defined in `__main__`, in a notebook or inside of a function
travels by value. Tensors keep their values, their types and what they share; they arrive on the CPU.
"""

import hashlib
import io
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import NamedTuple

from enginebench.core.errors import ModelError, UsageError, explaining, importing
from enginebench.core.store import open_temporary, write_atomic
from enginebench.core.text import first_line
from enginebench.models.objects import WrittenObject, allow_object, extend_import_paths, format_no_model

with importing("{}, which modules need,", 'pip install "enginebench[torch]"'):
    import cloudpickle
    import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from enginebench.models.torch.architectures import explain_program, stands_in_list
from enginebench.models.torch.flat import NOT_SCRIPTED, Flat, flatten, holds_script

# Digits of the pickle's SHA-256 in the name of a MODEL: they keep apart two modules of one class.
DIGITS = 12
ADVICE = "Take it out of the module before the call, or give MODEL as package.module:factory, which makes a new one"

# cloudpickle keeps one list, for all threads, of the modules whose contents travel by value.
_registering = threading.Lock()


class Offered(NamedTuple):
    """A module that children can have by `text`, a MODEL. `batch`: the first axis that all example inputs have."""

    text: str
    batch: int | None


@contextmanager
def offer_module(module: object, example_inputs: object) -> Iterator[Offered]:
    """The module as children can have it while the block runs. The module itself is left as it is.

    Args:
        module: a `torch.nn.Module`, in any mode and on any device; children get a copy, in eval mode and on the CPU.
        example_inputs: a tensor or array, several of them, or {parameter of `forward`: tensor}.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"{format_no_model(module)}{explain_program(module)}")
    flat, examples = split_examples(module, example_inputs)
    data = pack_module(flat, examples)
    sha256 = hashlib.sha256(data).hexdigest()
    with open_temporary() as folder:
        path = folder / "module.pkl"
        write_atomic(path, data)
        text = f"{re.sub(r'[^A-Za-z0-9_]', '_', type(module).__name__)}@{sha256[:DIGITS]}"
        firsts = {example.shape[0] for example in examples if example.ndim}
        with allow_object(WrittenObject(text=text, path=str(path), sha256=sha256)):
            yield Offered(text, firsts.pop() if len(firsts) == 1 and not stands_in_list(flat) else None)


def split_examples(module: nn.Module, example_inputs: object) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(the module, flat; its example inputs), on the CPU and without history."""
    if example_inputs is None:
        raise UsageError("a module needs example_inputs: a tensor as forward takes it, a tuple of them, or a mapping")
    with explaining(UsageError, "the example inputs cannot be used", ValueError):
        return flatten(module, example_inputs)


def pack_module(flat: Flat, examples: tuple[torch.Tensor, ...]) -> bytes:
    """The module with its example inputs as bytes; the same object gives the same bytes within one process."""
    module = flat.module
    if hasattr(module, "_orig_mod"):
        raise ModelError(
            "the module is the result of torch.compile, which belongs to this process. Give the module that it was "
            "made from; the engine pytorch-compile compiles it"
        )
    if holds_script(module):
        raise ModelError(
            f"{type(module).__name__} is a scripted or traced module (TorchScript), or holds one, which cannot leave "
            f"this process: {NOT_SCRIPTED}"
        )
    with _by_value(module):
        try:
            return _pickle({"module": module, "call": flat.call, "names": flat.names, "examples": examples})
        except Exception as error:  # user code: anything can come out of pickling it
            where = next(_find_faults(module), "something in it")
            raise ModelError(
                f"{type(module).__name__}: {where} cannot leave this process: {first_line(error)}. {ADVICE}"
            ) from error


def _pickle(value: object) -> bytes:
    buffer = io.BytesIO()  # given a path, torch.save stores the file's name inside
    torch.save(value, buffer, pickle_module=cloudpickle)
    return buffer.getvalue()


@contextmanager
def _by_value(module: nn.Module) -> Iterator[None]:
    """Classes of layers whose module a child could not import travel by value inside of the block.

    So do those that PyTorch makes for parametrizations, which refuse it outside of the block.
    """
    with _registering:
        registered = set(cloudpickle.list_registry_pickle_by_value())
        modules = {type(part).__module__ for part in module.modules()} - registered
        added = [sys.modules[name] for name in sorted(modules) if name in sys.modules and not can_be_imported(name)]
        for added_module in added:
            cloudpickle.register_pickle_by_value(added_module)
        kinds = dict.fromkeys(type(part) for part in module.modules() if is_parametrized(part))
        refusals = [(kind, kind.__getstate__) for kind in kinds]
        for kind in kinds:
            del kind.__getstate__
        try:
            yield
        finally:
            for kind, refusal in refusals:
                kind.__getstate__ = refusal
            for added_module in added:
                cloudpickle.unregister_pickle_by_value(added_module)


def can_be_imported(name: str) -> bool:
    """Whether a new process that imports `name` reads the file that this one has. (`__main__` is another one there.)"""
    parent = name.rpartition(".")[0]
    paths = getattr(sys.modules.get(parent), "__path__", None) if parent else None
    # The finders say it: `importlib.util.find_spec` asks `sys.modules` first, where a module may be made by hand.
    finds = (find for finder in sys.meta_path if (find := getattr(finder, "find_spec", None)))
    spec = next((spec for find in finds if (spec := find(name, paths, None)) is not None), None)
    here = getattr(sys.modules[name], "__file__", None)
    return name != "__main__" and spec is not None and here is not None and spec.origin == here


def _find_faults(module: nn.Module) -> Iterator[str]:
    """List what cannot be pickled: attributes of the module and its layers, then what their methods refer to."""
    for path, part in module.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in ("_parameters", "_buffers", "_modules")}
        for name, value in {**part._parameters, **part._buffers, **own}.items():
            if not _travels(value):
                yield f"attribute {'.'.join(filter(None, (path, name)))!r} ({type(value).__name__})"
    for kind in dict.fromkeys(type(part) for part in module.modules()):
        for function in vars(kind).values():
            for name, value in _list_references(function):
                if not _travels(value):
                    yield f"{name!r} ({type(value).__name__}), which {kind.__name__}.{function.__name__} uses,"


def _list_references(function: object) -> Iterator[tuple[str, object]]:
    """Globals and variables of enclosing functions that a function's code names."""
    if not isinstance(function, FunctionType):
        return
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield name, cell.cell_contents


def _travels(value: object) -> bool:
    try:
        _pickle(value)
    except Exception:
        return False
    return True


def unpack_module(path: Path, text: str) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(module in eval mode on the CPU, example inputs) of a pickle that the caller knows to be ours."""
    extend_import_paths()
    try:
        packed = torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:  # user code, imports, versions: each of its own kind
        raise ModelError(
            f"{text} cannot be rebuilt in another process: {type(error).__name__}: {error}. Its class must be one "
            "that can be imported there, or that the script or notebook itself defines; or give MODEL as "
            "package.module:factory"
        ) from error
    return Flat(packed["module"], packed["call"], packed["names"]).eval(), packed["examples"]
