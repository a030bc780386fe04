"""Python objects as MODELs: which of them this process, and the children that it starts, may open. Needs no PyTorch.

Opening a pickle runs the code in it. So one is opened only if its SHA-256 is that of a file which this very process, or
the parent that started it, wrote a moment ago: the list of them passes from parent to child in the environment, and
never through a run's folder, which may come from a stranger.
"""

import ast
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from enginebench.core.blame import explain
from enginebench.core.errors import EngineBenchError, ModelError
from enginebench.core.text import name_type

VARIABLE = "ENGINEBENCH_OBJECTS"
# What in a module's source can give it names that do not stand there, and in a package's, modules.
_DYNAMIC = frozenset({"__getattr__", "globals", "locals", "vars", "exec", "eval", "setattr"})
_DYNAMIC_PACKAGE = re.compile(rb"__path__|sys\s*\.\s*modules|__import__|import_hook|meta_path")


class WrittenObject(Struct, frozen=True, kw_only=True):
    """A pickle that this process wrote: `text` is the MODEL that it is called by."""

    text: str
    path: str
    sha256: str


class _Passed(Struct, frozen=True, kw_only=True):
    """What a child is told: the objects, and where their classes may be imported from."""

    objects: tuple[WrittenObject, ...] = ()
    import_paths: tuple[str, ...] = ()


# By path, so that two threads that offer the same module do not take it away from each other.
_written: dict[str, WrittenObject] = {}


@contextmanager
def allow_object(written: WrittenObject) -> Iterator[None]:
    """Lets this process and its children open the pickle inside of the block."""
    _written[written.path] = written
    try:
        yield
    finally:
        del _written[written.path]


def list_variables() -> dict[str, str]:
    """The variables of a child's environment that let it open what this process wrote, and import what it can.

    Packages of this environment are left out: the child may run in another one. A project in its folder is not."""
    packages = ("site-packages", "dist-packages", str(Path(os.__file__).parent))
    own = tuple(path for path in map(str, sys.path) if path.isprintable() and not any(one in path for one in packages))
    passed = _Passed(objects=tuple(_written.copy().values()), import_paths=own)
    return {VARIABLE: msgspec.json.encode(passed).decode()}


def find_object(text: str) -> WrittenObject:
    """The pickle of the MODEL `text`."""
    for written in _list_allowed():
        if written.text == text:
            return written
    raise ModelError(
        f"{text} is a Python object of another program. Its pickle is not opened, since that would run the code in it. "
        "Give the module itself to enginebench.run(), or a MODEL that can be made anywhere: package.module:factory"
    )


def may_open(sha256: str) -> bool:
    """Whether a pickle of this hash was written by this process or by its parent."""
    return any(written.sha256 == sha256 for written in _list_allowed())


def extend_import_paths() -> None:
    """Lets imports look where the parent's do, last: a class beside the user's script is found there."""
    sys.path.extend(path for path in _read_passed().import_paths if path not in sys.path and Path(path).exists())


def look_here() -> None:
    """Has imports look in the working folder, as `python -m` has it: a file beside the user is found."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def import_named(text: str, kind: type[EngineBenchError], told: str, expected: str) -> Any:
    """What `package.module:function` names, found from the working folder; else an error that begins with `told`."""
    name, _, attribute = text.partition(":")
    look_here()
    extend_import_paths()
    try:
        found: Any = import_module(name)
    except (Exception, SystemExit) as error:  # user code: anything can come out of it
        hint = ""
        if name.endswith(".py"):
            hint = f". A module is meant, not its file: {name.removesuffix('.py')}:{attribute}"
        elif isinstance(error, ModuleNotFoundError) and error.name == name:
            hint = ". Start in the folder that holds it, or set PYTHONPATH"
        raise kind(f"{told}: cannot import {name}: {explain(error)}{hint}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise kind(f"{told}: {name} has no {attribute!r}{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise kind(f"{told}: {attribute} is {name_type(found)}; expected {expected}")
    return found


def check_importable(text: str, kind: type[EngineBenchError], told: str) -> None:
    """Check that `package.module:function` is there, in the source alone: nothing of the user's is imported or run.

    What a source makes while it is imported (a star import, `globals()`, a library in C) cannot be seen in it, and is
    left to `import_named`.

    Raises:
        kind: as `import_named` raises it, for a module that is not found or not Python, or a name that is not in it.
    """
    name, _, attribute = text.partition(":")
    look_here()
    try:
        source = _find_source(name)
        known = None if source is None else _list_names(ast.parse(source.read_bytes(), filename=str(source)))
    except (ImportError, SyntaxError, ValueError) as error:  # ValueError: a zero byte
        hint = ""
        if name.endswith(".py"):
            hint = f". A module is meant, not its file: {name.removesuffix('.py')}:{attribute}"
        elif isinstance(error, ImportError):
            hint = ". Start in the folder that holds it, or set PYTHONPATH"
        raise kind(f"{told}: cannot import {name}: {explain(error)}{hint}") from error
    first = attribute.partition(".")[0]
    if source is None or known is None or first in known or (source.parent / first).exists():
        return
    if source.with_name(f"{first}.py").exists():  # a module of the package
        return
    near = get_close_matches(first, [n for n in known if not n.startswith("_")], n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise kind(f"{told}: {name} has no {attribute!r}{hint}")


def _find_source(name: str) -> Path | None:
    """The source of a module, found as an import would, without importing the packages around it.

    None where it has no source that can be read; ModuleNotFoundError if there is no such module.
    """
    spec: ModuleSpec | None = None
    places: Sequence[str] | None = None
    whole = ""
    for part in name.split("."):
        parent, whole = spec, f"{whole}.{part}" if whole else part
        if parent is not None and places is None:
            raise ModuleNotFoundError(f"No module named {whole!r}; {parent.name!r} is not a package", name=whole)
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for finder in finders if (found := finder.find_spec(whole, places)) is not None), None)
        if spec is None:
            if parent is not None and _makes_modules(parent.origin):
                return None
            raise ModuleNotFoundError(f"No module named {whole!r}", name=whole)
        places = spec.submodule_search_locations
    origin = Path(spec.origin) if spec is not None and spec.origin and spec.has_location else None
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _makes_modules(origin: str | None) -> bool:
    """Whether a package may hold modules that are no files of its folder."""
    return origin is None or not Path(origin).is_file() or bool(_DYNAMIC_PACKAGE.search(Path(origin).read_bytes()))


def _list_names(tree: ast.Module) -> set[str] | None:
    """The names that a module may have once it is imported; None if its source does not tell."""
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


def _list_allowed() -> tuple[WrittenObject, ...]:
    return (*_written.copy().values(), *_read_passed().objects)


def _read_passed() -> _Passed:
    return msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=_Passed)
