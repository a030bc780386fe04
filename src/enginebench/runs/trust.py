"""What a stored file may name: data in its own folder. Code, and files elsewhere, only if this program names them too.

A program is one command line, or a process that uses the Python API.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.commands import OPTIONS, VERB, Choice, quote_word
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, EngineSpec, Result
from enginebench.core.store import hash_file
from enginebench.engines.registry import find_entry
from enginebench.models.file_kind import FileKind, find_kind_of_file
from enginebench.models.zoo import resolve_model

# What allows the native code of every package of AOTInductor that a stored file, or MODEL, brings.
NATIVE_CODE = "native-code"
# Kinds of files that are code, whatever they are called, and why.
CODE_FILES: dict[FileKind | None, str] = {
    "pt2": "an exported program, whose expressions Python evaluates",
    "torchscript": "a TorchScript archive, whose code PyTorch runs",
}
# What this program has named; a file also by its name alone, since a stored path may be that of another machine.
_named: dict[str, str] = {}


def allow_code(*names: str | os.PathLike[str]) -> None:
    """Allows stored files that are opened from now on to name this code.

    Args:
        names: `package.module:function`; a library, a .pt2 file or a TorchScript archive; an option of an engine, as
            `path=/opt/trtexec`; or `native-code`, the packages of AOTInductor.
    """
    for given in names:
        name, path = os.fspath(given), Path(given).expanduser()
        _named[name] = name
        if path.is_file():
            _named[path.name] = str(path.absolute())


def allow_model(model: str) -> None:
    """Allows the MODEL that the user names, if it is code."""
    if ":" in model or find_code_file(Path(model)) is not None:
        allow_code(model)


def find_code_file(path: Path) -> FileKind | None:
    """The kind of a file that is code, by its content; one that has the name of such code is taken as that."""
    kind = find_kind_of_file(path)
    if kind not in CODE_FILES and path.suffix.lower() == ".pt2":
        return "pt2"
    return kind if kind in CODE_FILES else None


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
            f"the command does not name. If you trust it, add {option}{quote_word(name)} (in a program: "
            "enginebench.allow_code)"
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


def find_opened(result: Result) -> int | None:
    """The place among its artifacts of the one that a stored configuration starts from again; None if none is kept."""
    entry = find_entry(result.engine.backend)
    kinds = (*entry.accepts, *entry.reopens)
    places = [i for i, artifact in enumerate(result.artifacts) if artifact.kind in kinds]
    places = [i for i in places if not holds_refused(result.artifacts[i])] or places  # else it is built again
    return places[-1] if places else None


def trust_artifact(artifact: Artifact, where: Path | str) -> Artifact:
    """An artifact that may be opened: its libraries are those that this program names, its native code is allowed."""
    if holds_refused(artifact):
        raise UsageError(
            f"{where} holds a package of AOTInductor ({Path(artifact.path).name}), native code that would run as you. "
            f"If you trust it, add --allow-native-code (in a program: enginebench.allow_code({NATIVE_CODE!r})); "
            "or name the model that it was built from"
        )
    if code := _find_code(artifact):
        name, what = code
        program = _find_program(artifact) is not None
        named = require_named(name, find_allowed(name) if program else _named.get(name), what, where)
        if program and artifact.recipe is None and not Path(named).is_file():
            missing = f"{named} is no file here: give its path, --allow-code"
            raise UsageError(f"{where} names {name!r}, {what}, and {missing}")
        own = artifact.recipe is None or Path(named).is_file()
        if program and own and hash_file(Path(named)) != artifact.sha256:
            raise ArtifactError(f"{where}: its {Path(artifact.path).name} is not that of {named}, so it is not opened")
    what = "a library of custom operators"
    option = "--ort-extension " if "--ort-extension" in OPTIONS.get(VERB.get(), ()) else "--allow-code "
    libraries = (require_named(name, find_allowed(name), what, where, option) for name in artifact.operator_libraries)
    return replace(artifact, operator_libraries=tuple(libraries))


def _find_program(artifact: Artifact) -> FileKind | None:
    """The kind of an artifact that is code in a file, by its content or by that of the MODEL that it is a copy of."""
    if artifact.kind != "torch":
        return None
    return find_code_file(Path(artifact.path)) or find_code_file(Path(artifact.model))


def _find_code(artifact: Artifact) -> tuple[str, str] | None:
    """(name, what it is) of the code that opening an artifact runs; None where there is none."""
    if kind := _find_program(artifact):
        name = artifact.model if artifact.recipe is None else Path(artifact.path).name  # one that a run made of MODEL
        return name, CODE_FILES[kind]
    if artifact.kind == "torch" and ":" in artifact.model and resolve_model(artifact.model).kind == "factory":
        return artifact.model, "Python code that makes the model"
    return None


def list_needed(artifact: Artifact, engine: EngineSpec) -> list[Choice]:
    """The options with which a command allows all code that a stored configuration names; [] if it names none."""
    needed: list[Choice] = [("--allow-native-code", None)] if artifact.kind == "aoti" else []
    code = _find_code(artifact)
    names = [*([code[0]] if code else []), *artifact.operator_libraries]
    names += _list_outside(engine.backend, engine.options)
    return [*needed, *(("--allow-code", name) for name in dict.fromkeys(names))]
