"""Code, and files outside of its folder, that a stored file may name: only those that this program names, too.

A program is one command line, or a process that uses the Python API.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.commands import OPTIONS, VERB, Choice, quote_word
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, EngineSpec, Result
from enginebench.core.store import hash_file
from enginebench.engines.registry import ENTRIES, find_entry, list_names
from enginebench.models.file_kind import FileKind, find_kind_of_file
from enginebench.models.zoo import resolve_model

# The name that allows the native code of every package of AOTInductor that a stored file, or MODEL, holds.
NATIVE_CODE = "native-code"
# Kinds of files that are code, whatever their name -> why.
CODE_FILES: dict[FileKind | None, str] = {
    "pt2": "an exported program, whose expressions Python evaluates",
    "torchscript": "a TorchScript archive, whose code PyTorch runs",
}
# Names that this program allows -> paths; a file also by its name alone: a stored path may be another machine's.
_named: dict[str, str] = {}


def allow_code(*names: str | os.PathLike[str]) -> None:
    """Allow stored files that are opened from now on to name this code.

    Args:
        names: `package.module:function`; a library, a .pt2 file or a TorchScript archive; an option of an engine, as
            `path=/opt/trtexec`; or `native-code`, the packages of AOTInductor.
    """
    for text in names:
        name, path = os.fspath(text), Path(text).expanduser()
        _named[name] = name
        if path.is_file():
            _named[path.name] = str(path.absolute())


def allow_model(model: str) -> None:
    """Allow the MODEL that the user names, if it is code."""
    if ":" in model or find_code_file(Path(model)) is not None:
        allow_code(model)


def find_code_file(path: Path) -> FileKind | None:
    """Find the kind of a file that is code, by its content, or by the suffix .pt2; None for other files."""
    kind = find_kind_of_file(path)
    if kind not in CODE_FILES and path.suffix.lower() == ".pt2":
        return "pt2"
    return kind if kind in CODE_FILES else None


def allow_engines(engines: Iterable[tuple[str, Mapping[str, str]]]) -> None:
    """Allow the files that the options of these engines name; they come from the user."""
    allow_code(*(text for name, options in engines for text in _list_outside(name, options)))


def find_allowed(name: str) -> str | None:
    """Find what this program names code, or a library, of a stored file; None if it does not name it."""
    return _named.get(name) or _named.get(Path(name).name)


def require_named(name: str, allowed: str | None, role: str, where: Path | str, option: str = "--allow-code ") -> str:
    """Return `allowed`, this program's own name of what a stored file names; raises UsageError if it is None."""
    if allowed is None:
        raise UsageError(
            f"{where} names {name!r}, {role}. A stored file runs no code and opens nothing outside of its folder that "
            f"the command does not name. If you trust it, add {option}{quote_word(name)} (in a program: "
            "enginebench.allow_code)"
        )
    return allowed


def trust_engine(name: str, options: Mapping[str, str], where: Path | str, option: str = "--allow-code ") -> None:
    """Check that a stored engine names no program, library or file that this program does not; raises UsageError."""
    for text in _list_outside(name, options):
        require_named(text, _named.get(text), f"an option of {name}", where, option)


def find_outside_option(text: str) -> str | None:
    """Find the first option with which an ENGINE in a text, a list or a SIDE names a program, a library or a file."""
    named = set(re.findall(r"[a-z0-9-]+", text)) & {*list_names()} - ENTRIES.keys()  # of other packages
    entries = (*ENTRIES.values(), *map(find_entry, sorted(named)))
    keys = {key for entry in entries for key, option in entry.options.items() if option.outside}
    match = re.search(rf"(?:^|[:,])\s*({'|'.join(map(re.escape, sorted(keys)))})\s*=", text)
    return match[1] if match else None


def _list_outside(name: str, options: Mapping[str, str]) -> list[str]:
    outside = {key for key, option in find_entry(name).options.items() if option.outside}
    return [f"{key}={value}" for key, value in options.items() if key in outside and value not in ("", "0")]


def holds_refused(artifact: Artifact) -> bool:
    """Whether an artifact is native code that this program has neither compiled itself nor been allowed to run."""
    return artifact.kind == "aoti" and f"{NATIVE_CODE} {artifact.sha256}" not in _named and NATIVE_CODE not in _named


def find_opened(result: Result) -> int | None:
    """Find the index of the artifact from which a stored configuration can start again; None if none is kept."""
    entry = find_entry(result.engine.backend)
    kinds = (*entry.accepts, *entry.reopens)
    indices = [i for i, artifact in enumerate(result.artifacts) if artifact.kind in kinds]
    indices = [i for i in indices if not holds_refused(result.artifacts[i])] or indices  # else it is built again
    return indices[-1] if indices else None


def trust_artifact(artifact: Artifact, where: Path | str) -> Artifact:
    """The artifact, checked for opening: this program names its libraries and allows its native code."""
    if holds_refused(artifact):
        raise UsageError(
            f"{where} holds a package of AOTInductor ({Path(artifact.path).name}), native code that would run as you. "
            f"If you trust it, add --allow-native-code (in a program: enginebench.allow_code({NATIVE_CODE!r})); "
            "or name the model that it was built from"
        )
    if code := _find_code(artifact):
        name, role = code
        program = _find_program(artifact) is not None
        named = require_named(name, find_allowed(name) if program else _named.get(name), role, where)
        if program and artifact.recipe is None and not Path(named).is_file():
            missing = f"{named} is no file here: give its path, --allow-code"
            raise UsageError(f"{where} names {name!r}, {role}, and {missing}")
        own = artifact.recipe is None or Path(named).is_file()
        if program and own and hash_file(Path(named)) != artifact.sha256:
            raise ArtifactError(f"{where}: its {Path(artifact.path).name} is not that of {named}, so it is not opened")
    role = "a library of custom operators"
    option = "--ort-extension " if "--ort-extension" in OPTIONS.get(VERB.get(), ()) else "--allow-code "
    libraries = (require_named(name, find_allowed(name), role, where, option) for name in artifact.operator_libraries)
    return replace(artifact, operator_libraries=tuple(libraries))


def _find_program(artifact: Artifact) -> FileKind | None:
    """Find the kind of an artifact that is code in a file, by its content or by that of its MODEL."""
    if artifact.kind != "torch":
        return None
    return find_code_file(Path(artifact.path)) or find_code_file(Path(artifact.model))


def _find_code(artifact: Artifact) -> tuple[str, str] | None:
    """Find (name, description) of the code that opening an artifact runs; None if it runs none."""
    if kind := _find_program(artifact):
        name = artifact.model if artifact.recipe is None else Path(artifact.path).name  # one that a run made of MODEL
        return name, CODE_FILES[kind]
    if artifact.kind == "torch" and ":" in artifact.model and resolve_model(artifact.model).kind == "factory":
        return artifact.model, "Python code that makes the model"
    return None


def list_needed(artifact: Artifact, engine: EngineSpec) -> list[Choice]:
    """List the options that allow all code that a stored configuration names."""
    needed: list[Choice] = [("--allow-native-code", None)] if artifact.kind == "aoti" else []
    code = _find_code(artifact)
    names = [*([code[0]] if code else []), *artifact.operator_libraries]
    names += _list_outside(engine.backend, engine.options)
    return [*needed, *(("--allow-code", name) for name in dict.fromkeys(names))]
