"""The Python module of TensorRT: all of it where that is installed, else the lean runtime, which cannot build."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# In the order of what they can do. The wheels of the lean runtime hold its bindings under the last name, which is all
# that an install of them without the package that gathers them brings (seen in 11.4).
MODULES = ("tensorrt", "tensorrt_lean", "tensorrt_lean_bindings")

LEAN_NOTE = (
    "the lean runtime: it runs plans that were built with --version-compatible, and cannot build; its plans show no "
    "layers, so no precision is proved"
)


def import_tensorrt() -> Any:
    """The first of `MODULES` that is installed. What is installed and broken is not passed over.

    Raises:
        ImportError: none is installed, or the first cannot be imported.
    """
    for name in MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError(f"none of {', '.join(MODULES)} is installed", name=MODULES[0])


def is_lean(trt: Any) -> bool:
    """Whether a module can run plans and not build them."""
    return not hasattr(trt, "Builder")
