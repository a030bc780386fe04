"""Custom operators for a session of ONNX Runtime, from the libraries that a graph names."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enginebench.core.errors import MissingDependency, UsageError


def register_operators(settings: Any, libraries: Sequence[str]) -> None:
    """Add the custom operators of every library to a session's options."""
    for library in libraries:
        path = find_library(library)
        try:
            settings.register_custom_ops_library(path)
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"--ort-extension {library}: ONNX Runtime cannot load it: {reason}. Expected a shared library with "
                "RegisterCustomOps, built for this version"
            ) from error


def find_library(library: str) -> str:
    """The file that `--ort-extension` names: a path, or a module that tells it, as onnxruntime_extensions does."""
    path = Path(library).expanduser()
    if path.is_file():
        return str(path)
    if not library.isidentifier():
        raise UsageError(f"--ort-extension {library}: no such file; expected a shared library, or a module's name")
    try:
        module = importlib.import_module(library)
        return str(module.get_library_path())
    except ModuleNotFoundError as error:
        raise MissingDependency(library, f"pip install {library.replace('_', '-')}") from error
    except AttributeError as error:
        raise UsageError(f"--ort-extension {library}: the module has no get_library_path; give its library") from error
