"""A `.pt2` file, as `torch.export.save` writes it, to a module with its example inputs."""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from enginebench.core.aoti import FOLDER
from enginebench.core.errors import ModelError, explaining
from enginebench.core.text import first_line
from enginebench.models.torch.flat import Flat, flatten

# PyTorch then opens what is pickled in the file as weights only. Source: torch/serialization.py.
WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


def open_program(path: Path, text: str) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(the module, flat; the example inputs that it was exported with, else zeros of their shapes)."""
    refusal = f"{text} cannot be opened as an exported program by PyTorch {torch.__version__}"
    cure = "Expected a file that torch.export.save wrote, by this version or an older one"
    with explaining(ModelError, refusal, describe=first_line, cure=cure):
        with zipfile.ZipFile(path) as archive:  # what Python cannot read, PyTorch might, and a package is native code
            if any(FOLDER in name for name in archive.namelist()):
                raise ValueError("it is a package of native code")
        with _weights_only():
            program = torch.export.load(path)
    positional, keywords = program.example_inputs or _make_inputs(program)
    return flatten(program.module(), positional, keywords)


@contextmanager
def _weights_only() -> Iterator[None]:
    before = {key: value for key, value in os.environ.items() if key == WEIGHTS_ONLY}
    os.environ[WEIGHTS_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[WEIGHTS_ONLY]
        os.environ |= before


def _make_inputs(program: Any) -> Any:
    """(positional, keyword) zeros in the shapes that the program was exported with."""
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    # An open axis has the length with which it was exported.
    shapes = [[axis if isinstance(axis, int) else int(axis.node.hint or 2) for axis in v.shape] for v in values]
    zeros = [torch.zeros(shape, dtype=v.dtype) for shape, v in zip(shapes, values, strict=True)]
    return pytree.tree_unflatten(zeros, program.call_spec.in_spec)
