"""What a stored file may name: data in its own folder. Code, and files elsewhere, only if this program names them too.

A program is one command line, or a process that uses the Python API.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact
from enginebench.core.store import hash_file
from enginebench.engines.registry import find_entry
from enginebench.models.zoo import resolve_model

# What allows the native code of every package of AOTInductor that a stored file, or MODEL, brings.
NATIVE_CODE = "native-code"
# What this program has named; a file also by its name alone, since a stored path may be that of another machine.
_named: dict[str, str] = {}


def allow_code(*names: str | os.PathLike[str]) -> None:
    """Allows stored files that are opened from now on to name this code.

    Args:
        names: `package.module:function`; a library, or a .pt2 file; an option of an engine, as `path=/opt/trtexec`; or
            `native-code`, the packages of AOTInductor.
    """
    for given in names:
        name, path = os.fspath(given), Path(given).expanduser()
        _named[name] = name
        if path.is_file():
            _named[path.name] = str(path.absolute())


def allow_model(model: str) -> None:
    """Allows the MODEL that the user names, if it is code."""
    if ":" in model or model.lower().endswith(".pt2"):
        allow_code(model)


def allow_engines(engines: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Allows what the options of these engines name; they are the user's own."""
    allow_code(*(text for name, options in engines for text in _list_outside(name, options)))


def find_allowed(name: str) -> str | None:
    """What this program calls the code, or the library, that a stored file calls so; None if it does not name it."""
    return _named.get(name) or _named.get(Path(name).name)


def require_named(name: str, found: str | None, what: str, where: Path | str, option: str = "--allow-code ") -> str:
    """`found`, what this program calls something that a stored file names."""
    if found is None:
        raise UsageError(
            f"{where} names {name!r}, {what}. A stored file runs no code and opens nothing outside of its folder that "
            f"the command does not name. If you trust it, add {option}{name} (in a program: enginebench.allow_code)"
        )
    return found


def trust_engine(name: str, options: Mapping[str, str], where: Path | str, option: str = "--allow-code ") -> None:
    """Checks that a stored engine names no program, library or file that this program does not; raises UsageError."""
    for text in _list_outside(name, options):
        require_named(text, _named.get(text), f"an option of {name}", where, option)


def _list_outside(name: str, options: Mapping[str, str]) -> list[str]:
    outside = {key for key, option in find_entry(name).options.items() if option.outside}
    return [f"{key}={value}" for key, value in options.items() if key in outside and value not in ("", "0")]


def holds_refused(artifact: Artifact) -> bool:
    """Whether an artifact is native code that this program has neither compiled itself nor been allowed to run."""
    return artifact.kind == "aoti" and f"{NATIVE_CODE} {artifact.sha256}" not in _named and NATIVE_CODE not in _named


def trust_artifact(artifact: Artifact, where: Path | str) -> Artifact:
    """An artifact that may be opened: its libraries are those that this program names, its native code is allowed."""
    model = artifact.model
    if holds_refused(artifact):
        raise UsageError(
            f"{where} holds a package of AOTInductor ({Path(artifact.path).name}), native code that would run as you. "
            f"If you trust it, add --allow-native-code (in a program: enginebench.allow_code({NATIVE_CODE!r})); "
            "or name the model that it was built from"
        )
    if artifact.kind == "torch" and Path(artifact.path).suffix.lower() == ".pt2":
        what = "an exported program, whose expressions Python evaluates"
        name = model if artifact.recipe is None else Path(artifact.path).name  # one that a run made of MODEL
        named = require_named(name, find_allowed(name), what, where)
        if (artifact.recipe is None or Path(named).is_file()) and hash_file(Path(named)) != artifact.sha256:
            raise ArtifactError(f"{where}: its exported program is not that of {named}, so it is not opened")
    elif artifact.kind == "torch" and ":" in model and resolve_model(model).kind == "factory":
        require_named(model, _named.get(model), "Python code that makes the model", where)
    what, option = "a library of custom operators", "--ort-extension "
    libraries = (require_named(name, find_allowed(name), what, where, option) for name in artifact.operator_libraries)
    return replace(artifact, operator_libraries=tuple(libraries))
