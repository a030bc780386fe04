"""Imports torchvision, even if its published wheel does not match the installed PyTorch.

torchvision's wheel on the default index registers its operators from an extension that links CUDA libraries. Beside a
CPU-only PyTorch that extension does not load, and the import dies at the first operator that it describes
(`operator torchvision::nms does not exist`). No classification model calls those operators, so declaring their
names is enough; detectors call one of them, which then runs in Python, and say so. Where the two wheels match, nothing
here runs but the import.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import ModuleType
from typing import Any, TypeVar

import torch

from ...core.errors import BackendUnavailable, MissingDependency, list_causes

# The operators that torchvision describes while it is imported. Source: torchvision/_meta_registrations.py, 0.28.0.
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# PyTorch's message for an undeclared operator: it ends the import, and declaring the operator first prevents it.
UNDECLARED = "torchvision::"
# torchvision's message before it would call an operator of an extension that did not load.
# Source: torchvision/extension.py (_assert_has_ops), 0.28.0.
NOT_LOADED = "Couldn't load custom C++ ops"
# A declaration lives as long as its library object.
_libraries: list[Any] = []
# The operators in whose place one in Python was called, one entry for each call in this process.
_stand_in_calls: list[str] = []

T = TypeVar("T")


def import_torchvision() -> ModuleType:
    """The package torchvision, with `models` and `transforms` usable."""
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


def with_torchvision(call: Callable[[], T]) -> T:
    """Call the user's code, and help it to import torchvision; return its result.

    The first attempt, which failed at that import, left nothing behind: Python forgets a module that did not import.
    """
    try:
        return call()
    except Exception as error:
        if not any(UNDECLARED in str(link) for link in list_causes(error)):  # some raise their own from it
            raise
    import_torchvision()
    return call()


def explain_other_build(error: BaseException) -> str:
    """Explain what to do if an operator of torchvision is missing because its build is not that of PyTorch; else ""."""
    causes = " ".join(map(str, list_causes(error)))
    if UNDECLARED not in causes and NOT_LOADED not in causes:
        return ""
    own, build = version("torchvision"), str(torch.__version__).partition("+")[2] or "the same"
    cure = (
        f". torchvision {own} is of another build than PyTorch {torch.__version__}, so its operators do not load: "
        f"install torchvision of the build {build}, from where this PyTorch was installed"
    )
    if NOT_LOADED in causes:  # not one of those that are replaced
        return cure
    return (
        f"{cure}. Or import torchvision at the top of the factory's file: EngineBench then puts operators of its own "
        "in their place"
    )


def _import_or_declare() -> ModuleType:
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if UNDECLARED not in str(error):
            raise
    for name in [n for n in sys.modules if n == "torchvision" or n.startswith("torchvision.")]:
        del sys.modules[name]
    if not _libraries:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        library.impl("nms", suppress_overlaps, "CPU")
        _libraries.append(library)
    package = importlib.import_module("torchvision")
    # It asks whether its extension is loaded before it calls the operator, which is there all the same.
    importlib.import_module("torchvision.ops.boxes").__dict__["_assert_has_ops"] = lambda: None
    # It has this one in Python itself, for compilers: called as it is, it needs none.
    aligning = importlib.import_module("torchvision.ops.roi_align").__dict__
    aligning["is_compile_supported"] = lambda device: True
    align = getattr(aligning["_roi_align"], "__wrapped__", aligning["_roi_align"])

    def align_in_python(*args: Any, **kwargs: Any) -> Any:
        _stand_in_calls.append("roi_align")
        return align(*args, **kwargs)

    aligning["_roi_align"] = align_in_python
    return package


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


def count_stand_in_calls() -> int:
    """Count the calls of this process to operators in Python, in place of torchvision's own.

    A process makes several models: what one of them called says nothing about the next, so compare two counts.
    """
    return len(_stand_in_calls)


def suppress_overlaps(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """Places of the boxes that are kept, best first: each is dropped that overlaps a better one by more than the limit.

    Source: torchvision/csrc/ops/cpu/nms_kernel.cpp, 0.28.
    """
    _stand_in_calls.append("nms")
    order = scores.argsort(stable=True, descending=True)
    low, high = boxes[order, :2], boxes[order, 2:]
    areas = (high - low).prod(1)
    dropped = torch.zeros(len(order), dtype=torch.bool)
    for i in range(len(order)):
        if not dropped[i]:
            overlap = (torch.minimum(high[i], high) - torch.maximum(low[i], low)).clamp(min=0).prod(1)
            dropped[i + 1 :] |= (overlap / (areas[i] + areas - overlap) > iou_threshold)[i + 1 :]
    return order[~dropped]
