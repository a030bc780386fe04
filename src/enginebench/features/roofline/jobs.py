"""Jobs of child processes: measure a device's peaks, and count the work of every node of a graph."""

from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from enginebench.core.peaks import Peak
from enginebench.core.records import Precision
from enginebench.core.shapes import TensorWork
from enginebench.runs.child.jobs import Job, KeepCall, NoteCall

# The kind of peak with which a node's multiply-accumulates are compared.
Unit = Literal["conv", "gemm"]


class NodeWork(Struct, frozen=True, kw_only=True):
    """One node of an ONNX graph.

    `read_shares` has the fraction of an input that must be read, if not all of it (a stride that skips rows, the rows
    that a Gather takes). A node that `moves` need not touch a byte: it is a view, or written in place by the node that
    makes its input.
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
    unknown: int = 0  # nodes with an output whose shape cannot be inferred; their work is not counted


class PeaksResponse(Struct, frozen=True, kw_only=True):
    peaks: tuple[Peak, ...] = field(name="ceilings")
    notes: tuple[str, ...] = ()


class PeaksJob(Job[PeaksResponse], frozen=True, kw_only=True, tag="ceilings"):
    """Measure the peaks of a device in this process."""

    timed = True

    device: str
    precisions: tuple[Precision, ...]  # empty: all that the device has instructions for
    threads: int
    budget_s: float  # for each peak in each trial
    trials: int = field(default=1, name="repetitions")
    quick: bool = False

    def perform(self, note: NoteCall, keep: KeepCall[PeaksResponse]) -> PeaksResponse:
        from enginebench.features.roofline.peaks import perform_peaks

        return perform_peaks(self, note)


class WorkJob(Job[GraphWork], frozen=True, kw_only=True, tag="work"):
    """Count the work of every node of an ONNX graph, with inputs of these shapes."""

    path: str
    shapes: dict[str, tuple[int, ...]]
    batch: int = 1  # of inputs whose shapes are not given

    def perform(self, note: NoteCall, keep: KeepCall[GraphWork]) -> GraphWork:
        from enginebench.features.roofline.counting import describe_work
        from enginebench.models.onnx.source import load_graph

        return describe_work(load_graph(Path(self.path)), self.shapes, self.batch)
