"""Python objects as MODELs, and the pickles that this process and its children may open. Needs no PyTorch.

Opening a pickle runs the code in it. So one is opened only if its SHA-256 is that of a file which this very process, or
the parent that started it, wrote a moment ago: the list of them passes from parent to child in the environment, and
never through a run's folder, which is untrusted.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from enginebench.core.blame import explain
from enginebench.core.errors import EngineBenchError, ModelError
from enginebench.core.text import list_or, name_type

VARIABLE = "ENGINEBENCH_OBJECTS"
# Names in a module's source by which it may get members that are not written there; in a package's, modules.
_DYNAMIC = frozenset({"__getattr__", "globals", "locals", "vars", "exec", "eval", "setattr"})
_DYNAMIC_PACKAGE = re.compile(rb"__path__|sys\s*\.\s*modules|__import__|import_hook|meta_path")


class Expected(Struct, frozen=True):
    """A function as `package.module:function` has to name it."""

    words: str
    arguments: int  # with which it is called


FACTORY = Expected("a function without arguments", 0)
METRIC = Expected("f(outputs, targets)", 2)


class WrittenObject(Struct, frozen=True, kw_only=True):
    """A pickle that this process wrote. `text` is the MODEL that stands for it."""

    text: str
    path: str
    sha256: str


class _Passed(Struct, frozen=True, kw_only=True):
    """The record that is passed to a child: the objects, and the paths from which their classes are imported."""

    objects: tuple[WrittenObject, ...] = ()
    import_paths: tuple[str, ...] = ()


# By path, so that of two threads with the same module neither withdraws the other's pickle.
_written: dict[str, WrittenObject] = {}


def format_no_model(value: object) -> str:
    """Format what is wrong with a MODEL that is neither text nor a module."""
    return f"model is {name_type(value)}; expected a name, a path, or a torch.nn.Module with example_inputs"


@contextmanager
def allow_object(written: WrittenObject) -> Iterator[None]:
    """Let this process and its children open the pickle while the block runs."""
    _written[written.path] = written
    try:
        yield
    finally:
        del _written[written.path]


def list_variables() -> dict[str, str]:
    """Return the environment variables by which a child opens this process's pickles and imports from its paths.

    Installed packages are left out, since the child may run in another environment; a project's folder is kept.
    """
    packages = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
    own = tuple(path for path in map(str, sys.path) if path.isprintable() and not any(one in path for one in packages))
    passed = _Passed(objects=tuple(_written.copy().values()), import_paths=own)
    return {VARIABLE: msgspec.json.encode(passed).decode()}


def find_object(text: str) -> WrittenObject:
    """Return the pickle of the MODEL `text`.

    Raises:
        ModelError: neither this process nor its parent wrote it.
    """
    for written in _list_allowed():
        if written.text == text:
            return written
    raise ModelError(
        f"{text} is a Python object of another program. Its pickle is not opened, since that would run the code in it. "
        "Give the module itself to enginebench.run(), or a MODEL that can be made anywhere: package.module:factory"
    )


def may_open(sha256: str) -> bool:
    """Return whether this process or its parent wrote a pickle with this hash."""
    return any(written.sha256 == sha256 for written in _list_allowed())


def extend_import_paths() -> None:
    """Append the parent's import paths to ours, so that a class beside the user's script can be imported."""
    sys.path.extend(path for path in _read_passed().import_paths if path not in sys.path and Path(path).exists())


def import_from_working_folder() -> None:
    """Import from the working folder, too, like `python -m`."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def import_named(text: str, kind: type[EngineBenchError], prefix: str, expected: Expected) -> Any:
    """Import and return what `package.module:function` names, relative to the working folder.

    Args:
        kind: class of the error to raise.
        prefix: begins the error's message.
        expected: what the member should be, for the message if it cannot be called.
    """
    name, _, attribute = text.partition(":")
    import_from_working_folder()
    extend_import_paths()
    try:
        member: Any = import_module(name)
    except (Exception, SystemExit) as error:  # user code: anything can come out of it
        hint = ""
        if name.endswith(".py"):
            hint = f". A module is meant, not its file: {name.removesuffix('.py')}:{attribute}"
        elif isinstance(error, ModuleNotFoundError) and error.name == name:
            hint = ". Start in the folder that holds it, or set PYTHONPATH"
        raise kind(f"{prefix}: cannot import {name}: {explain(error)}{hint}") from error
    for part in attribute.split("."):
        if not hasattr(member, part):
            similar = get_close_matches(part, [n for n in dir(member) if not n.startswith("_")], n=3)
            hint = f"; did you mean {list_or(similar)}?" if similar else ""
            raise kind(f"{prefix}: {name} has no {attribute!r}{hint}")
        member = getattr(member, part)
    if not callable(member):
        raise kind(f"{prefix}: {attribute} is {name_type(member)}; expected {expected.words}")
    return member


def check_importable(text: str, kind: type[EngineBenchError], prefix: str, expected: Expected) -> None:
    """Check that `package.module:function` exists and can be called, by its source alone: no user code is run.

    Names that are made during the import (by a star import, `globals()`, a library in C) cannot be seen in the source
    and are left to `import_named`.

    Raises:
        kind: as `import_named` raises it, for a module that is not found or not Python, or a name that is not in it,
            or is no function; also for a function that takes other arguments.
    """
    name, _, attribute = text.partition(":")
    import_from_working_folder()
    try:
        source = _find_source(name)
        tree = None if source is None else ast.parse(source.read_bytes(), filename=str(source))
        names = None if tree is None else _list_names(tree)
    except (ImportError, SyntaxError, ValueError) as error:  # ValueError: a zero byte
        hint = ""
        if name.endswith(".py"):
            hint = f". A module is meant, not its file: {name.removesuffix('.py')}:{attribute}"
        elif isinstance(error, ImportError):
            hint = ". Start in the folder that holds it, or set PYTHONPATH"
        raise kind(f"{prefix}: cannot import {name}: {explain(error)}{hint}") from error
    first = attribute.partition(".")[0]
    if source is None or tree is None or names is None:
        return
    if first in names:
        if attribute == first and (fault := _find_fault(tree, first, expected)):
            raise kind(f"{prefix}: {attribute} {fault}; expected {expected.words}")
        return
    if (source.parent / first).exists():
        return
    if source.with_name(f"{first}.py").exists():  # a module of the package
        return
    similar = get_close_matches(first, [n for n in names if not n.startswith("_")], n=3)
    hint = f"; did you mean {list_or(similar)}?" if similar else ""
    raise kind(f"{prefix}: {name} has no {attribute!r}{hint}")


def _find_source(name: str) -> Path | None:
    """Return the source of a module, searched as an import would, without importing the packages around it.

    None where it has no source that can be read; ModuleNotFoundError if there is no such module.
    """
    spec: ModuleSpec | None = None
    search_paths: Sequence[str] | None = None
    whole = ""
    for part in name.split("."):
        parent, whole = spec, f"{whole}.{part}" if whole else part
        if parent is not None and search_paths is None:
            raise ModuleNotFoundError(f"No module named {whole!r}; {parent.name!r} is not a package", name=whole)
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for finder in finders if (spec := finder.find_spec(whole, search_paths)) is not None), None)
        if spec is None:
            if parent is not None and _makes_modules(parent.origin):
                return None
            raise ModuleNotFoundError(f"No module named {whole!r}", name=whole)
        search_paths = spec.submodule_search_locations
    origin = Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _makes_modules(origin: str | None) -> bool:
    """Return whether a package may have modules that are not files of its folder."""
    return origin is None or not Path(origin).is_file() or bool(_DYNAMIC_PACKAGE.search(Path(origin).read_bytes()))


def _list_names(tree: ast.Module) -> set[str] | None:
    """Return the names that a module may have once it is imported; None if its source does not show them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Global):
            names.update(node.names)
    # Names inside functions are among them, too: nothing that may be there is refused.
    return None if names & _DYNAMIC or "*" in names else names


def _find_fault(tree: ast.Module, name: str, expected: Expected) -> str:
    """Return why what a name stands for cannot be called as expected; "" where it can, or the source does not show."""
    bindings = [node for node in ast.walk(tree) if name in _list_bound(node)]
    if len(bindings) != 1:
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name and not node.decorator_list:
            return _find_argument_fault(node.args, expected)
        if isinstance(node, ast.Assign) and bindings[0] in node.targets:
            with suppress(ValueError):  # no literal
                value = ast.literal_eval(node.value)
                return "" if value is None else f"is {name_type(value)}"  # None: another module may set it
    return ""


def _list_bound(node: ast.AST) -> list[str]:
    """List the names that a node of a module's source binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    return node.names if isinstance(node, ast.Global) else []


def _find_argument_fault(arguments: ast.arguments, expected: Expected) -> str:
    """Return why a function cannot be called with so many arguments by position; "" where it can."""
    named = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    needed = named[: len(named) - len(arguments.defaults)]
    needed += [
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    if len(needed) > expected.arguments:
        return f"needs {', '.join(needed)}"
    if arguments.vararg is None and len(named) < expected.arguments:
        return f"takes {', '.join(named) or 'no arguments'}"
    return ""


def _list_allowed() -> tuple[WrittenObject, ...]:
    return (*_written.copy().values(), *_read_passed().objects)


def _read_passed() -> _Passed:
    return msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=_Passed)
