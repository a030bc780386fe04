"""Python objects as MODELs: which of them this process, and the children that it starts, may open. Needs no PyTorch.

Opening a pickle runs the code in it. So one is opened only if its SHA-256 is that of a file which this very process, or
the parent that started it, wrote a moment ago: the list of them passes from parent to child in the environment, and
never through a run's folder, which may come from a stranger.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from enginebench.core.blame import explain
from enginebench.core.errors import EngineBenchError, ModelError
from enginebench.core.text import name_type

VARIABLE = "ENGINEBENCH_OBJECTS"


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
        hint = f". A module is meant, not its file: {name.removesuffix('.py')}:{attribute}" * name.endswith(".py")
        if not hint and isinstance(error, ModuleNotFoundError) and error.name == name:
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


def _list_allowed() -> tuple[WrittenObject, ...]:
    return (*_written.copy().values(), *_read_passed().objects)


def _read_passed() -> _Passed:
    return msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=_Passed)
