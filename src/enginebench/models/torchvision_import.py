"""torchvision, also where its published wheel does not match the PyTorch beside it.

torchvision's wheel on the default index registers its operators from an extension that links CUDA libraries. Beside a
CPU-only PyTorch that extension does not load, and the import dies at the first operator that it describes
(`operator torchvision::nms does not exist`). No classification model calls those operators, so declaring their
names is enough. Where the two wheels match, nothing here runs but the import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from enginebench.core.errors import BackendUnavailable, MissingDependency

# The operators that torchvision describes while it is imported. Source: torchvision/_meta_registrations.py, 0.28.0.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# A declaration lives as long as its library object.
_libraries: list[Any] = []


def import_torchvision() -> ModuleType:
    """The package torchvision, with `models` and `transforms` usable.

    Raises:
        MissingDependency: it is not installed.
        BackendUnavailable: it is installed and does not import.
    """
    try:
        with _postpone_dynamo():
            return _import_or_declare()
    except ModuleNotFoundError as error:
        if error.name != "torchvision":
            raise BackendUnavailable(f"torchvision does not import: {error}") from error
        raise MissingDependency("torchvision", 'pip install "enginebench[torch]"') from error
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendUnavailable(
            f"torchvision does not import beside PyTorch {torch.__version__}: {error}. Install the matching version"
        ) from error


def _import_or_declare() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    _drop_half_imported()
    _declare_operators()
    return importlib.import_module("torchvision")


@contextmanager
def _postpone_dynamo() -> Iterator[None]:
    """Within it torchvision finds the one name that it wants of `torch._dynamo` without importing that compiler.

    The import costs every process of an eager row more than a second, for a function that only `roi_align` asks, and
    no classification model calls `roi_align`. Source: torchvision/ops/roi_align.py, 0.26 and 0.28.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    package, utils = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    utils.__dict__["is_compile_supported"] = lambda device: False
    sys.modules |= {package.__name__: package, utils.__name__: utils}
    try:
        yield
    finally:
        del sys.modules[package.__name__], sys.modules[utils.__name__]


def _drop_half_imported() -> None:
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]


def _declare_operators() -> None:
    if _libraries:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in SCHEMAS:
        library.define(schema)
    _libraries.append(library)
