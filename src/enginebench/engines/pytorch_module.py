"""A PyTorch module made ready for an engine: folded, placed, laid out and cast. Bundles hold a copy of this file."""

import copy
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch

from ..core.engine_api import ArtifactLike, EngineSpecLike, concrete_shape
from ..core.trees import list_leaves

DTYPES: dict[str | None, Any] = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
# Samples that show whether a module takes a cast: its types do not depend on how many there are.
TRIED_SAMPLES = 2


def make_ready(module: Any, artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> Any:
    """The module, in inference mode, as the options and the precision of the request want it."""
    module = module.eval()
    if options["fold_bn"] == "1":
        module = fold_part(module, [])
    return place_module(module, artifact, spec, options)


def place_module(module: Any, artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> Any:
    """The module laid out and cast, then moved to its device, which never holds more than one form of it.

    One whose own code mixes types, so that it fails once it is cast, is run by torch.autocast.
    """
    if options["channels_last"] == "1":
        module = module.to(memory_format=torch.channels_last)
    tensors = [tensor.data for tensor in chain(module.parameters(), module.buffers())]
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
    if isinstance(module, _CastModule) and not isinstance(module, _AutocastModule):
        return leave_mixed_types(module, tensors, artifact, spec)
    return module


def leave_mixed_types(module: "_CastModule", tensors: list[Any], artifact: ArtifactLike, spec: EngineSpecLike) -> Any:
    """The cast module where it runs; else, where that does, its original `tensors` under torch.autocast."""
    if runs_on_zeros(module, artifact, spec):
        return module
    cast = [tensor.data for tensor in chain(module.parameters(), module.buffers())]
    restore(module, [tensor.to(torch.device(spec.device)) for tensor in tensors])
    mixed = _AutocastModule(module._module, module._dtype, module._outputs)
    mixed.mixes_types = True
    if runs_on_zeros(mixed, artifact, spec):
        return mixed
    restore(module, cast)  # types are not why it fails
    return module


def restore(module: Any, tensors: list[Any]) -> None:
    """Give the parameters and buffers of a module these values, in order."""
    for held, tensor in zip(chain(module.parameters(), module.buffers()), tensors, strict=True):
        held.data = tensor


def runs_on_zeros(module: Any, artifact: ArtifactLike, spec: EngineSpecLike) -> bool:
    """Whether the module takes a few samples of zeros without an error."""
    shapes = [concrete_shape(one, min(spec.batch, TRIED_SAMPLES)) for one in artifact.inputs]
    pairs = zip(artifact.inputs, shapes, strict=True)
    zeros = [torch.zeros(shape, dtype=getattr(torch, one.dtype), device=spec.device) for one, shape in pairs]
    try:
        with torch.inference_mode():
            module(*zeros)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # of the user's own code
        return False
    return True


def find_mixed_type(module: Any) -> str | None:
    """The precision of a module that is run by torch.autocast because it mixes types; None of any other."""
    module = getattr(module, "_orig_mod", module)  # that torch.compile wraps
    named = {dtype: name for name, dtype in DTYPES.items()}
    return named[module._dtype] if getattr(module, "mixes_types", False) else None


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


def cast_module(module: Any, artifact: ArtifactLike, precision: str | None, autocast: bool) -> Any:
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
        outputs = self._module(*(x.to(self._dtype) if x.is_floating_point() else x for x in inputs))
        return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten_tensors(outputs), self._outputs, strict=True))


class _AutocastModule(_CastModule):
    """A module whose weights stay as they are; PyTorch casts around each operator that it deems safe."""

    mixes_types = False  # whether autocast was not requested, and the module fails once it is cast

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        with torch.autocast(inputs[0].device.type, dtype=self._dtype):
            outputs = self._module(*inputs)
        return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten_tensors(outputs), self._outputs, strict=True))


def flatten_tensors(outputs: Any) -> Iterator[Any]:
    """The tensors of what a module returned, in order."""
    return (leaf for _, leaf in list_leaves(outputs) if isinstance(leaf, torch.Tensor))
