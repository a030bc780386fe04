"""Where torch.compile hands a module back to Python, and whether it may: at an LSTM, a GRU or an RNN it may."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from enginebench.engines.pytorch_compile import REASON

# How a break is told that `leave_recurrent` made. Source: PyTorch 2.6 to 2.13, torch/_dynamo/variables/functions.py;
# versions before 2.8 cannot even pass by such a layer. Source: torch/_dynamo/variables/builder.py.
_MEANT = re.compile(rf"{REASON}|disable.*<function (?:RNN|LSTM|GRU)\.forward|RNN, GRU,? (?:or )?LSTM", re.DOTALL)


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
