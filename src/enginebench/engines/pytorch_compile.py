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

from ..core.engine_api import Artifact, EngineSpec, RunCall
from .pytorch import TorchEngine, prepare_torch
from .pytorch_module import make_ready

if TYPE_CHECKING:
    from .pytorch_cuda import CudaTorchEngine

# With CUDA graphs the first call runs, the second captures and the third is the first to be launched as a graph.
# Source: PyTorch, torch/_inductor/cudagraph_trees.py.
COMPILING_CALLS = 3
# After how many compilations of one function PyTorch gives up, or goes on eagerly without a word; names since 2.6 and
# before. Source: torch/_dynamo/config.py.
LIMITS = ("recompile_limit", "accumulated_recompile_limit", "cache_size_limit", "accumulated_cache_size_limit")
MOST_COMPILATIONS = 10_000

REASON = "recurrent layers run by PyTorch's own kernels"
# Who wants to know when a layer runs that was left.
_LISTENING: list[Callable[[Any], None]] = []


def open_engine(
    artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], module: Any
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


def compiles_whole(module: Any, options: Mapping[str, str]) -> bool:
    """Whether torch.compile is to refuse a module that it cannot compile as one graph."""
    return options["fullgraph"] == "1" and (options["rnn"] == "unroll" or not any(find_recurrent(module)))


def find_recurrent(module: Any) -> Iterator[Any]:
    """PyTorch's LSTM, GRU and RNN layers in a module."""
    if isinstance(module, torch.nn.Module):
        yield from (one for one in module.modules() if isinstance(one, torch.nn.RNNBase))


def leave_recurrent(module: Any) -> None:
    """Has torch.compile leave the recurrent layers of a module as they are, and compile what is around them."""
    for layer in find_recurrent(module):
        call = partial(_call_left, layer, layer.forward)
        update_wrapper(call, layer.forward)
        try:
            layer.forward = torch.compiler.disable(call, reason=REASON)
        except TypeError:  # before PyTorch 2.8
            layer.forward = torch.compiler.disable(call)


def _call_left(layer: Any, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    for tell in _LISTENING:
        tell(layer)
    return forward(*args, **kwargs)


@contextmanager
def listen_to_left(tell: Callable[[Any], None]) -> Iterator[None]:
    """Meanwhile `tell` is called with each layer that was left, just before it runs."""
    _LISTENING.append(tell)
    try:
        yield
    finally:
        _LISTENING.remove(tell)
