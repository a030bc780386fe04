"""The PyTorch module of this bundle with its weights, prepared as the row had it: folded, laid out and cast."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import facts
import numpy as np
import torch
import trees

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def make_module(bundle: dict[str, Any], device: str) -> Any:
    """The module on `device`, in inference mode, taking the inputs in order."""
    engine, spec = bundle["engine"], bundle["module"]
    for variable in ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"):
        if os.environ.get(variable, "STRICT").upper() != "STRICT":
            raise facts.Refused(f"{variable} makes PyTorch compute FP32 in a shorter format; unset it")
    module, call = build(spec)
    with np.load(facts.HERE / bundle["artifact"]["path"], allow_pickle=False) as stored:
        module.load_state_dict({name: torch.from_numpy(stored[name]) for name in stored.files}, strict=True)
    module = (Flat(module, call) if spec["flat"] else module).eval()
    if engine["options"].get("fold_bn") == "1":
        module = fold(module)
    module = module.to(torch.device(device))
    if engine["options"].get("channels_last") == "1":
        module = module.to(memory_format=torch.channels_last)
    dtype = DTYPES.get(engine["precision"])
    if dtype is None:
        return module
    types = [getattr(torch, output["dtype"]) for output in bundle["artifact"]["outputs"]]
    autocast = engine["options"].get("cast") == "autocast"
    return Autocast(module, dtype, types) if autocast else Cast(module.to(dtype), dtype, types)


def set_threads(threads: int) -> None:
    """The row's threads, for the whole process."""
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)


def set_precision(engine: dict[str, Any]) -> None:
    """On a GPU: threads, and TF32 for the whole process: on in a row of TF32, off in every other."""
    set_threads(engine["threads"])
    tf32, options = engine["precision"] == "tf32", engine["options"]
    in_products = tf32 and options.get("defaults", "0") == "0"
    torch.set_float32_matmul_precision("high" if in_products else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = options.get("autotune") == "1"


def compile_module(ready: Any, options: dict[str, str]) -> Any:
    """The module as torch.compile wraps it; it compiles at the first call of each shape."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    if hasattr(dynamo, "allow_rnn"):
        dynamo.allow_rnn = True
    recurrent = [one for one in ready.modules() if isinstance(one, torch.nn.RNNBase)]
    left = options.get("rnn") != "unroll"
    for layer in recurrent if left else ():  # they run by PyTorch's own kernels
        layer.forward = torch.compiler.disable(layer.forward)
    inductor.freezing = options.get("freezing") == "1"
    inductor.compile_threads = 1  # workers would stay, and share the cores with the calls
    mode, full = options.get("mode", "default"), options.get("fullgraph", "1") == "1"
    full = full and not (left and recurrent)
    return torch.compile(ready, mode=None if mode == "default" else mode, dynamic=False, fullgraph=full)


def build(spec: dict[str, Any]) -> tuple[Any, Any]:
    """(the module as its own code makes it, without weights that matter; how it is called, None: with the tensors)."""
    if spec["kind"] == "torchvision":
        return import_torchvision().models.get_model(spec["name"], weights=None), None
    if spec["kind"] == "timm":
        import_torchvision()
        return importlib.import_module("timm").create_model(spec["name"], pretrained=False, **spec["arguments"]), None
    made = importlib.import_module(spec["file"].removesuffix(".py"))
    for part in spec["name"].split("."):
        made = getattr(made, part)
    module, given, further = trees.split_made(made())  # type: ignore[operator]
    if given is None:
        return module, None
    positional, keywords = trees.read_call(module.forward, given)
    return module, trees.make_template((positional, {**keywords, **further}))


def import_torchvision() -> Any:
    """torchvision, also where its wheel is of another build than PyTorch's: then its operators are declared by name."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, arguments in (("nms", "Tensor dets, Tensor scores"), ("qnms", "Tensor dets, Tensor scores")):
        library.define(f"{name}({arguments}, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # a declaration lives as long as its library
    return importlib.import_module("torchvision")


def flatten(answer: Any) -> Iterator[Any]:
    """The tensors of what a module returned, in order."""
    return (leaf for _, leaf in trees.list_leaves(answer) if isinstance(leaf, torch.Tensor))


class Flat(torch.nn.Module):  # type: ignore[misc]
    """A module that takes its tensors in a row and answers with one tensor or a flat tuple of tensors."""

    def __init__(self, module: Any, call: Any) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: Any) -> Any:
        if self.call is None:
            answer = self.module(*inputs)
        else:
            rest = iter(inputs)
            positional, keywords = trees.map_leaves(self.call, lambda leaf: next(rest) if leaf is trees.HOLE else leaf)
            answer = self.module(*positional, **keywords)
        tensors = [leaf for _, leaf in trees.list_leaves(answer) if isinstance(leaf, torch.Tensor)]
        return tensors[0] if len(tensors) == 1 else tuple(tensors)


class Cast(torch.nn.Module):  # type: ignore[misc]
    """A module with cast weights: inputs are cast on the way in, outputs on the way out."""

    def __init__(self, module: Any, dtype: Any, outputs: list[Any]) -> None:
        super().__init__()
        self.inner, self.dtype, self.outputs = module, dtype, outputs

    def forward(self, *inputs: Any) -> Any:
        cast = [x.to(self.dtype) if x.is_floating_point() else x for x in inputs]
        return self.finish(self.inner(*cast))

    def finish(self, answer: Any) -> Any:
        return tuple(tensor.to(dtype) for tensor, dtype in zip(flatten(answer), self.outputs, strict=True))


class Autocast(Cast):
    """A module whose weights stay as they are; PyTorch casts around each operator that it deems safe."""

    def forward(self, *inputs: Any) -> Any:
        with torch.autocast(inputs[0].device.type, dtype=self.dtype):
            answer = self.inner(*inputs)
        return self.finish(answer)


def fold(part: Any) -> Any:
    """The module without batch norms that directly follow a convolution or linear layer, where torch.fx can trace."""
    from torch.fx.experimental.optimization import fuse

    if not part._modules:
        return part
    try:
        traced = torch.fx.symbolic_trace(part)
    except Exception:  # what cannot be traced stays, with its children folded
        around = copy.copy(part)
        around._modules = {name: child and fold(child) for name, child in part._modules.items()}
        return around
    folded = fuse(traced, no_trace=True)
    return folded if count_norms(folded) < count_norms(traced) else part


def count_norms(graph: Any) -> int:
    calls = (node.target for node in graph.graph.nodes if node.op == "call_module")
    return sum(isinstance(graph.get_submodule(str(path)), NORMS) for path in calls)
