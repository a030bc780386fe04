"""What every node of a graph has to do, whoever does it: multiply-accumulates, and the tensors that it needs."""

from typing import Literal

from msgspec import Struct

# Which ceiling a node's multiply-accumulates are held against.
Unit = Literal["conv", "gemm"]


class TensorWork(Struct, frozen=True, kw_only=True):
    """One tensor: how many values, in how many bytes each, and whether it is a constant (a weight)."""

    values: int
    bytes_each: float
    constant: bool = False
    floating: bool = True  # an engine may keep it in a shorter type

    def count_bytes(self, widest: float | None = None) -> float:
        """Bytes of the tensor where no value takes more than `widest`; whole numbers stay as they are."""
        each = self.bytes_each if widest is None or not self.floating else min(widest, self.bytes_each)
        return self.values * each


class NodeWork(Struct, frozen=True, kw_only=True):
    """One node of an ONNX graph.

    `read_shares` says how much of an input must be read where that is not all of it (a stride that leaves rows out, the
    rows that a Gather takes). A node that `moves` can be done without touching a byte: a view, or a write in place by
    whoever makes its input.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    macs: int = 0
    unit: Unit | None = None
    moves: bool = False
    read_shares: dict[str, float] = {}
    scopes: tuple[str, ...] = ()  # of the PyTorch modules that it was exported from, outermost first
    operator: str = ""  # of PyTorch that it was exported from, `add_2`: several nodes where the exporter took it apart


class GraphWork(Struct, frozen=True, kw_only=True):
    """A graph, its nodes in an order in which they can run."""

    nodes: tuple[NodeWork, ...]
    tensors: dict[str, TensorWork]
    outputs: tuple[str, ...]
    unknown: int = 0  # nodes of which something has no shape that can be inferred; they count as nothing

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the whole graph."""
        return sum(node.macs for node in self.nodes)
