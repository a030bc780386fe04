"""Graphs as OpenVINO reads and writes them: from a file as it is, or rewritten where OpenVINO refuses the file."""

from __future__ import annotations

import math
import mmap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino

from enginebench.core.errors import ArtifactError, MissingDependency, UnsupportedOperator, importing
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Feeds
from enginebench.core.records import TEXT, Artifact, ResultWarning
from enginebench.core.store import open_partial
from enginebench.core.warnings import make_warning
from enginebench.engines.openvino import BoundGraph, compile_model, read_graph
from enginebench.engines.refusals import explaining_refusal

if TYPE_CHECKING:
    from onnx import GraphProto

    from enginebench.engines.backends.openvino.rewriting import Rewritable


UNCOMPILED = "OpenVINO cannot compile the graph"


class GraphSource(BoundGraph):
    """The graph of an artifact for the arrays of a call: compile what `open` gives."""

    def __init__(self, artifact: Artifact, *, static: bool) -> None:
        super().__init__(None, static=static)  # no whole: it is rewritten for each call
        self.warnings: tuple[ResultWarning, ...] = ()
        self._artifact = artifact
        self._rewritable: Rewritable | None = None
        try:
            self.whole = read_model(artifact)
        except ArtifactError as refusal:
            if not static or artifact.kind != "onnx":
                raise
            self._refusal = refusal.with_traceback(None)  # else its frames would keep the weights
            try:
                from enginebench.engines.backends.openvino.rewriting import Rewritable
            except MissingDependency as missing:
                raise type(refusal)(f"{refusal}. It could be rewritten, but {missing}") from missing
            try:
                self._rewritable = Rewritable(Path(artifact.path))
            except Exception:
                raise refusal from None
            self.deciders = self._rewritable.deciders
            self._try_one()
            operator = str(refusal).partition(":")[0] if isinstance(refusal, UnsupportedOperator) else "a node"
            self.warnings = (make_warning("rewritten_graph", operator=operator),)
        else:
            check_model_interface(artifact, self.whole)

    def _try_one(self) -> None:
        """Make OpenVINO read the graph once for inputs of the expected shapes, if these are known.

        A value that nobody names might take a branch that does not fit the shapes; such a graph is read when it is fed.
        """
        specs = self._artifact.inputs
        shaped = all(s.sizes or all(isinstance(axis, int) for axis in s.shape[1:]) for s in specs)
        if shaped and all(s.values is not None for s in specs if s.name in self.deciders):
            feeds = random_feeds(specs, 1, seed=0)
            self.open({name: array.shape for name, array in feeds.items()}, self.read_values(feeds))

    def close(self) -> None:
        super().close()
        self._rewritable = None

    def read_values(self, feeds: Feeds) -> dict[str, int]:
        return {} if self._rewritable is None else self._rewritable.read_values(feeds)

    def open(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]) -> Any:
        """As `Graph.open`."""
        if self._rewritable is None:
            return super().open(shapes, values)
        try:
            model = openvino.Core().read_model(self._rewritable.rewrite(shapes, values))
        except Exception:  # of onnx, its optimizer or OpenVINO: its message about the original file is the helpful one
            raise self._refusal from None
        check_model_interface(self._artifact, model, unused=[s.name for s in self._artifact.inputs])
        return model

    def compile(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int], settings: Mapping[str, Any]
    ) -> Any:
        with explaining_refusal(UNCOMPILED):
            return compile_model(self.open(shapes, values), settings)


def read_model(artifact: Artifact) -> Any:
    path = artifact.path
    if path.endswith(".onnx") and is_misread(Path(path)):
        raise UnsupportedOperator(
            f"QLinearConv: OpenVINO cannot read {Path(path).name}: it takes the scales of weights along the wrong axis"
        )
    with explaining_refusal(f"OpenVINO cannot read {Path(path).name}"):
        return read_graph(artifact)


def is_misread(path: Path) -> bool:
    """Return whether a file has a `QLinearConv` with a scale for each output channel.

    OpenVINO 2026.4 takes these scales along the input channels: it refuses the graph, or its outputs are wrong without
    a warning if there are as many of both. Measured beside ONNX Runtime 1.31, on one such node.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data.find(b"QLinearConv") < 0:
                return False
    except (OSError, ValueError):
        return False  # missing or empty: OpenVINO reports it
    with importing("onnx", 'pip install "enginebench[openvino]"'):
        import onnx
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception:  # protobuf has its own
        return False
    graphs = list(list_graphs(model.graph))
    lengths = {tensor.name: math.prod(tensor.dims) for graph in graphs for tensor in graph.initializer}
    nodes = [node for holder in (*graphs, *model.functions) for node in holder.node]
    return any(node.op_type == "QLinearConv" and lengths.get(node.input[4], 2) > 1 for node in nodes)


def list_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph, then all within its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from list_graphs(attribute.g)


def save_model(model: Any, target: Path) -> None:
    """Write the graph with its weights as they are (the default would halve them).

    The files are renamed once they are complete: configurations of several batches share them, and a build may be
    killed.
    """
    with explaining_refusal(f"OpenVINO cannot write {target}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_partial(target) as made:
            openvino.save_model(model, str(made / target.name), compress_to_fp16=False)
            for file in sorted(made.iterdir()):  # the weights before the graph that needs them
                file.replace(target.with_name(file.name))


def check_model_interface(artifact: Artifact, model: Any, unused: Collection[str] = ()) -> None:
    """Check that the graph's inputs and outputs are those of the artifact.

    Args:
        artifact: what a user knows of the graph.
        unused: names of inputs that need not be there: OpenVINO drops those that nothing is computed from.
    """
    for specs, ports in ((artifact.inputs, model.inputs), (artifact.outputs, model.outputs)):
        dtypes = {
            name: TEXT if port.element_type == openvino.Type.string else str(np.dtype(port.element_type.to_dtype()))
            for port in ports
            for name in port.get_names()
        }
        expected = [s for s in specs if s.name in dtypes or s.name not in unused]
        wrong = [s.name for s in expected if dtypes.get(s.name) != s.dtype]
        if wrong or len(expected) != len(ports):
            raise ArtifactError(f"{artifact.path} has {dtypes}; its artifact has {[(s.name, s.dtype) for s in specs]}")
