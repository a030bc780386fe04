"""Where torch.compile hands a module back to Python, and whether it may: at an LSTM, a GRU or an RNN it may.

Compiled, such a layer is unrolled: a copy of its code for each step. A GRU of 100 steps takes minutes to compile on a
CPU, and ran for six times as long on a GPU as the one kernel that PyTorch has for it. It gets that one, unless asked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, update_wrapper
from typing import Any

import torch

_REASON = "recurrent layers run by PyTorch's own kernels"
# Who wants to know when a layer runs that was left.
_LISTENING: list[Callable[[Any], None]] = []
# How a break is told that `leave_recurrent` made. Source: PyTorch 2.6 to 2.13, torch/_dynamo/variables/functions.py;
# versions before 2.8 cannot even pass by such a layer. Source: torch/_dynamo/variables/builder.py.
_MEANT = re.compile(rf"{_REASON}|disable.*<function (?:RNN|LSTM|GRU)\.forward|RNN, GRU,? (?:or )?LSTM", re.DOTALL)


def compiles_whole(module: Any, options: Mapping[str, str]) -> bool:
    """Whether torch.compile is to refuse a module that it cannot compile as one graph.

    Args:
        module: the user's, or a wrapper around it.
        options: of `pytorch-compile`.
    """
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
            layer.forward = torch.compiler.disable(call, reason=_REASON)
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


@contextmanager
def refuse_breaks() -> Iterator[None]:
    """What is compiled inside of the block is compiled as one graph, but for recurrent layers.

    Raises:
        RuntimeError: at the end: there was another break, or nothing has been compiled at all.
    """
    from torch._dynamo.utils import counters

    before = Counter(counters["graph_break"])
    yield
    breaks = Counter(counters["graph_break"]) - before
    for reason in breaks:
        if not _MEANT.search(reason):
            raise RuntimeError(reason)
    if breaks and not counters["stats"]["unique_graphs"]:  # of this process: some may have been compiled before
        raise RuntimeError("beside LSTM, GRU and RNN, which run by PyTorch's own kernels, there is nothing to compile")
