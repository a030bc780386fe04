"""Load a TorchScript archive, as `torch.jit.save` writes it, as a module; find what it reveals about its inputs."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from enginebench.core.errors import ModelError, explaining
from enginebench.core.text import first_line
from enginebench.models.archives import ScriptInputs, suggest_shape
from enginebench.models.torch.flat import Flat

# Of the exporter of TorchScript. Source: PyTorch 2.13, torch/onnx/_constants.py.
LARGEST_OPSET = 20


def open_scripted(path: Path, text: str) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(the module, flat and in eval mode; no example inputs: an archive holds none)."""
    refusal = f"{text} cannot be opened as TorchScript by PyTorch {torch.__version__}"
    cure = "Expected an archive that torch.jit.save wrote, by this version or an older one"
    with explaining(ModelError, refusal, describe=first_line, cure=cure), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, which is not this user's doing
        module: Any = torch.jit.load(str(path), map_location="cpu")
        return Flat(module, names=tuple(_list_needed_arguments(module))).eval(), ()


def _list_needed_arguments(module: Any) -> list[str]:
    """The arguments of `forward` that a call needs."""
    return [a.name for a in module.forward.schema.arguments[1:] if not a.has_default_value()]


def describe_inputs(module: Any) -> ScriptInputs:
    """The inputs of a scripted module, or of one that holds such."""
    names = tuple(_list_needed_arguments(module)) if isinstance(module, torch.jit.ScriptModule) else ("input",)
    first = next((tuple(p.shape) for p in module.parameters() if p.ndim > 1), None)
    return ScriptInputs(names, suggest_shape(first) if first is not None else ())


def write_scripted_graph(
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    path: Path,
    names: tuple[list[str], list[str]],
    opened: Mapping[str, Mapping[int, str]],
    opset: int,
    entries: Mapping[str, str],
) -> None:
    """Write the ONNX graph of a module that is TorchScript or contains it, which torch.export does not read.

    PyTorch's older exporter reads it, control flow included. A whole archive is handed over by itself, since a trace
    does not enter one that was loaded; one with a state, or with pictures in bytes, is traced with what is around it.

    Args:
        names: of the inputs, and of the outputs.
        opened: input name to axis to the name that it has, where its length stays open.
        entries: of the graph's metadata.
    """
    import onnx  # only a graph needs it

    alone = isinstance(module, Flat) and module.call is None and not module.state and module.bytes is None
    torch.onnx.export(
        module.module if alone else module,
        examples,
        path,
        dynamo=False,
        input_names=names[0],
        output_names=names[1],
        dynamic_axes={name: dict(axes) for name, axes in opened.items() if axes} or None,
        opset_version=min(opset, LARGEST_OPSET),
    )
    graph = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(graph, dict(entries))
    onnx.save(graph, path)
