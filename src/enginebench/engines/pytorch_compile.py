"""PyTorch through torch.compile, on the CPU or on a GPU. Bundles hold a copy of this file.

Compiled, an LSTM, a GRU or an RNN is unrolled: a copy of its code for each step. A GRU of 100 steps takes minutes to
compile on a CPU, and ran for six times as long on a GPU as the one kernel that PyTorch has for it. It gets that one,
unless asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

import torch
import torch._inductor.config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node

from ..core.engine_api import ArtifactLike, EngineSpecLike, RunCall
from .pytorch import TorchEngine, prepare_torch
from .pytorch_module import make_ready

if TYPE_CHECKING:
    from .pytorch_cuda import CudaTorchEngine

# With CUDA graphs the first call runs, the second captures and the third is the first to be launched as a graph.
# Source: PyTorch, torch/_inductor/cudagraph_trees.py.
COMPILING_CALLS = 3
# After how many compilations of one function PyTorch gives up, or silently continues eagerly; names since 2.6 and
# before. Source: torch/_dynamo/config.py.
LIMITS = ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit")
MOST_COMPILATIONS = 10_000

ATTENTION = (torch.nn.functional.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
CONVOLUTION = (torch.conv2d, torch.ops.aten.conv2d.default)
# Tensor cores take channels by eights; of a picture's three, cuDNN pads the rest.
ALIGNED_CHANNELS = 8
HALVES, PATCHED = (torch.float16, torch.bfloat16), "cuda"

REASON = "recurrent layers run by PyTorch's own kernels"
# Listeners that are called when a layer that was not compiled runs.
_LISTENING: list[Callable[[Any], None]] = []


def open_engine(
    artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str], module: Any
) -> TorchEngine | CudaTorchEngine:
    """An engine that is compiled for `spec.batch`, and anew for other shapes; `options` has a value for each."""
    inductor.freezing = options["freezing"] == "1"
    # Compiling in this process leaves no worker processes behind that would share the cores with the calls.
    inductor.compile_threads = 1
    if spec.device == "cpu":
        prepare_torch(spec)
        ready = compile_module(make_ready(module, artifact, spec, options), options)
        return TorchEngine(ready, artifact, spec, options, prepare=lambda run: run())
    from .pytorch_cuda import CudaTorchEngine, prepare_cuda

    def call_often(run: RunCall) -> None:
        for _ in range(COMPILING_CALLS):
            run()

    prepare_cuda(spec, options)
    ready = compile_module(make_ready(module, artifact, spec, options), options)
    return CudaTorchEngine(ready, artifact, spec, options, prepare=call_often, graph=options["cuda_graph"] == "1")


def compile_module(module: Any, options: Mapping[str, str]) -> Any:
    """The module as `torch.compile` wraps it; nothing is compiled before its first call."""
    import torch._dynamo.config as dynamo

    # torchao has one there for x86, as soon as its quantizer is imported.
    inductor.pre_grad_custom_pass = inductor.pre_grad_custom_pass or Simplify()
    mode = None if options["mode"] == "default" else options["mode"]
    if mode == "max-autotune" and options.get("cuda_graph") == "1":
        mode = "max-autotune-no-cudagraphs"
    if hasattr(dynamo, "allow_rnn"):  # since PyTorch 2.8; without it all that comes behind such a layer runs eagerly
        dynamo.allow_rnn = True
    if options["rnn"] == "eager":
        leave_recurrent(module)
    # Every batch that is bound is compiled, and every model: one class wraps them all, and PyTorch counts by its code.
    for name in LIMITS:
        if hasattr(dynamo, name):
            setattr(dynamo, name, max(MOST_COMPILATIONS, getattr(dynamo, name)))
    return torch.compile(module, mode=mode, dynamic=False, fullgraph=compiles_whole(module, options))


class Simplify(CustomGraphPass):  # type: ignore[misc]
    """Rewrite a traced graph without changing what it computes, where PyTorch's compiler does not.

    - A mask of attention that forbids nothing is removed. transformers makes one while it is traced (5.17), and with
      its strides PyTorch has no fused kernel for it.
    - If a convolution cuts an image into patches, each patch is multiplied as a row of a matrix, for which cuDNN takes
      longer; sums are rounded in another order. In 16 bits on GPUs only. docs/gpu.md has the gain of both.
    """

    def __call__(self, graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.target in ATTENTION:
                drop_idle_mask(node)
            elif node.target in CONVOLUTION:
                multiply_patches(node)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def drop_idle_mask(node: Node) -> None:
    """Remove the mask of an attention if it is a constant that is true, or zero, everywhere."""
    argument = "attn_mask" if len(node.args) < 4 else 3
    mask = node.kwargs.get("attn_mask") if argument == "attn_mask" else node.args[3]
    waiting, needed = [mask], dict[Any, None]()
    for one in waiting:
        if not isinstance(one, Node) or one.op not in ("call_function", "call_method"):
            return
        waiting += [other for other in one.all_input_nodes if other not in needed]
        needed |= dict.fromkeys((one, *one.all_input_nodes))
    # Another user of one of them may write into it.
    if any(user not in needed and user.target not in ATTENTION for one in needed for user in one.users):
        return
    constant, copies = Graph(), dict[Node, Node]()
    for one in (each for each in node.graph.nodes if each in needed):
        copies[one] = constant.node_copy(one, copies.__getitem__)
    constant.output(copies[mask])
    before = _read_generators()
    try:
        with unset_fake_temporarily(), torch.no_grad():
            mask_value = GraphModule({}, constant)()
    except Exception:  # what was traced within vmap, for one, does not run alone
        return
    if all(map(torch.equal, before, _read_generators())) and bool(
        (mask_value if mask_value.dtype is torch.bool else mask_value == 0).all()
    ):
        if argument == "attn_mask":
            node.update_kwarg(argument, None)
        else:
            node.update_arg(argument, None)


def _read_generators() -> list[Any]:
    """The states of the random numbers: what moves them is no constant."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]


def multiply_patches(node: Node) -> None:
    """Replace a convolution whose windows neither overlap nor have gaps by a matrix product."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    default = {"bias": None, "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    by_name = default | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    image, weight = by_name["input"], by_name["weight"]
    shapes = [one.meta.get("example_value", one.meta.get("val")) for one in (image, weight)]
    if not all(shape is not None and [type(n) for n in shape.shape] == [int] * 4 for shape in shapes):
        return
    (batch, channels, height, width), (outputs, _, rows, columns) = (shape.shape for shape in shapes)
    setting = [by_name[name] for name in ("stride", "padding", "dilation", "groups")]
    plain = [tuple(one) if isinstance(one, list | tuple) else one for one in setting]
    fits = plain == [(rows, columns), (0, 0), (1, 1), 1] and not height % rows and not width % columns
    small = rows * columns > 1 and channels < ALIGNED_CHANNELS
    if not fits or not small or shapes[1].dtype not in HALVES or shapes[1].device.type != PATCHED:
        return
    down, across = height // rows, width // columns
    graph = node.graph
    with graph.inserting_before(node):

        def call(method: str, *arguments: Any) -> Node:
            made = graph.call_method(method, arguments)
            made.meta = {key: value for key, value in node.meta.items() if key not in ("example_value", "val")}
            return made

        windows = call("reshape", image, (batch, channels, down, rows, across, columns))
        order = call("permute", windows, (0, 2, 4, 1, 3, 5))
        patches = call("reshape", order, (batch, down * across, channels * rows * columns))
        matrix = call("reshape", weight, (outputs, channels * rows * columns))
        product = graph.call_function(torch.nn.functional.linear, (patches, matrix, by_name["bias"]))
        product.meta = dict(patches.meta)
        node.replace_all_uses_with(call("reshape", call("transpose", product, 1, 2), (batch, outputs, down, across)))
    name = node.name
    graph.erase_node(node)
    product.name = name  # by which its layer is found


def compiles_whole(module: Any, options: Mapping[str, str]) -> bool:
    """Whether torch.compile is to refuse a module that it cannot compile as one graph."""
    return options["fullgraph"] == "1" and (options["rnn"] == "unroll" or not any(find_recurrent(module)))


def find_recurrent(module: Any) -> Iterator[Any]:
    """PyTorch's LSTM, GRU and RNN layers in a module."""
    if isinstance(module, torch.nn.Module):
        yield from (one for one in module.modules() if isinstance(one, torch.nn.RNNBase))


def leave_recurrent(module: Any) -> None:
    """Make torch.compile skip the recurrent layers of a module, and compile the rest."""
    for layer in find_recurrent(module):
        call = partial(_call_left, layer, layer.forward)
        update_wrapper(call, layer.forward)
        try:
            layer.forward = torch.compiler.disable(call, reason=REASON)
        except TypeError:  # before PyTorch 2.8
            layer.forward = torch.compiler.disable(call)


def _call_left(layer: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    for callback in _LISTENING:
        callback(layer)
    return forward(*args, **kwargs)


@contextmanager
def listen_to_left(callback: Callable[[Any], None]) -> Iterator[None]:
    """Within the block, call `tell` with each layer that was not compiled, just before it runs."""
    _LISTENING.append(callback)
    try:
        yield
    finally:
        _LISTENING.remove(callback)
