"""A PyTorch module made ready for an engine: folded, placed, laid out and cast. Bundles hold a copy of this file."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ..core.engine_api import Artifact, EngineSpec
from ..core.trees import list_leaves

DTYPES: dict[str | None, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def make_ready(module: Any, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str]) -> Any:
    """The module, in inference mode, as the options and the precision of the request want it."""
    module = module.eval()
    if options["fold_bn"] == "1":
        module = fold_part(module, [])
    return place_module(module, artifact, spec, options)


def place_module(module: Any, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str]) -> Any:
    """The module laid out and cast, then moved to its device, which never holds more than one form of it."""
    if options["channels_last"] == "1":
        module = module.to(memory_format=torch.channels_last)
    module = cast_module(module, artifact, spec.precision, autocast=options["cast"] == "autocast")
    module = module.to(torch.device(spec.device))
    for part in module.modules():
        if (
            isinstance(part, torch.fx.GraphModule) and spec.device != "cpu"
        ):  # an exported program names where it was made
            for node in part.graph.nodes:
                if node.kwargs.get("device") is not None:
                    node.update_kwarg("device", torch.device(spec.device))
            part.recompile()
    return module


def fold_part(part: Any, obstacles: list[str]) -> Any:
    """The part, folded; itself if there is nothing to fold. What cannot be traced is added to `obstacles`."""
    import torch.fx
    from torch.fx.experimental.optimization import fuse

    children = part._modules  # with those that are None or have two names, which `named_children` leaves out
    if not children:
        return part
    try:
        traced = torch.fx.symbolic_trace(part)
    except Exception as error:
        obstacles.append(f"{type(part).__name__}: {find_reason(error)}")
        parts = {path: child and fold_part(child, obstacles) for path, child in children.items()}
        if all(parts[path] is child for path, child in children.items()):
            return part
        around = copy.copy(part)
        around._modules = parts
        return around
    folded = fuse(traced, no_trace=True)
    return folded if count_norms(folded) < count_norms(traced) else part


def count_norms(graph: torch.fx.GraphModule) -> int:
    """Batch norms that a traced module calls."""
    calls = (node.target for node in graph.graph.nodes if node.op == "call_module")
    return sum(isinstance(graph.get_submodule(str(path)), NORMS) for path in calls)


def find_reason(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def cast_module(module: Any, artifact: Artifact, precision: str | None, autocast: bool) -> Any:
    """The module in `precision`, with the inputs and outputs of the artifact: the casts are part of every run.

    That is what a caller with FP32 images pays, and what a graph that keeps its input types does, too.
    """
    if precision not in DTYPES or (precision == artifact.precision and not autocast):
        return module
    dtype, outputs = DTYPES[precision], [getattr(torch, s.dtype) for s in artifact.outputs]
    return _AutocastModule(module, dtype, outputs) if autocast else _CastModule(module.to(dtype), dtype, outputs)


class _CastModule(torch.nn.Module):  # type: ignore[misc]
    """A module whose weights are cast: inputs follow them on the way in, outputs come back on the way out."""

    enginebench_wraps = "_module"

    def __init__(self, module: Any, dtype: Any, outputs: list[Any]) -> None:
        super().__init__()
        self._module, self._dtype, self._outputs = module, dtype, outputs

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        answer = self._module(*(x.to(self._dtype) if x.is_floating_point() else x for x in inputs))
        return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten_tensors(answer), self._outputs, strict=True))


class _AutocastModule(_CastModule):
    """A module whose weights stay as they are; PyTorch casts around each operator that it deems safe."""

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        with torch.autocast(inputs[0].device.type, dtype=self._dtype):
            answer = self._module(*inputs)
        return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten_tensors(answer), self._outputs, strict=True))


def flatten_tensors(answer: Any) -> Iterator[Any]:
    """The tensors of what a module returned, in order."""
    return (leaf for _, leaf in list_leaves(answer) if isinstance(leaf, torch.Tensor))
