"""onnxruntime's quantizer on large graphs: what it finds by searching all tensors and nodes is found by name.

It searches the whole graph several times for each node, so that its time grows with the square of their number. What it
makes stays the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from onnx import ModelProto, NodeProto, TensorProto
from onnxruntime.quantization import base_quantizer, qdq_quantizer, quant_utils
from onnxruntime.quantization.onnx_model import ONNXModel
from onnxruntime.quantization.operators import conv, matmul

from enginebench.models.precision.graph import drop_unused_constants, make_consumers, remove_where

# The modules that imported the search; each has a name of its own for it.
SEARCHING = (base_quantizer, qdq_quantizer, conv, matmul)


class IndexedModel(ONNXModel):  # type: ignore[misc]  # onnxruntime has no types
    """The quantizer's model, with its tensors and nodes by name. `finish` removes the tensors that were dropped."""

    def __init__(self, model: ModelProto) -> None:
        super().__init__(model)
        self.tensors = Tensors(model.graph.initializer)
        self._index()

    def _index(self) -> None:
        self.consumers = make_consumers(self.model)
        # Several for a moment: a ReLU that is to be removed, and the node that has taken over its output.
        self.makers: dict[str, list[NodeProto]] = {}
        for node in self.model.graph.node:
            self._add_maker(node)

    def _add_maker(self, node: NodeProto) -> None:
        for name in filter(None, node.output):
            self.makers.setdefault(name, []).append(node)

    def initializer(self) -> Tensors:
        return self.tensors

    def initializer_extend(self, inits: Iterable[TensorProto]) -> None:
        for tensor in inits:
            self.tensors.add(self._check_init(tensor))

    def add_initializer(self, tensor: TensorProto) -> None:
        if tensor.name not in self.tensors.by_name:
            self.initializer_extend([tensor])

    def get_initializer(self, name: str) -> TensorProto | None:
        return self.tensors.by_name.get(name)

    def remove_initializer(self, tensor: TensorProto) -> None:
        self.tensors.drop(tensor.name)

    def add_node(self, node: NodeProto) -> None:
        super().add_node(node)
        added = self.model.graph.node[-1]
        self._add_maker(added)
        for name in filter(None, added.input):
            self.consumers.setdefault(name, []).append(added)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        doomed = {node.SerializeToString() for node in nodes_to_remove}
        if not doomed:
            return
        remove_where(self.model.graph.node, lambda node: node.SerializeToString() in doomed)
        self._index()

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        return self.consumers

    def replace_node_input(self, node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        super().replace_node_input(node, old_input_name, new_input_name)
        readers = self.consumers.pop(old_input_name, [])
        if kept := [reader for reader in readers if reader is not node]:
            self.consumers[old_input_name] = kept
        self.consumers.setdefault(new_input_name, []).extend(reader for reader in readers if reader is node)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        readers = self.consumers.pop(old_input_name, [])
        for node in readers:
            super().replace_node_input(node, old_input_name, new_input_name)
        if readers:
            self.consumers.setdefault(new_input_name, []).extend(readers)

    def replace_input_of_nodes(self, old_input_name: str, new_input_name: str, node_names_set: Set[str]) -> None:
        for node in list(self.consumers.get(old_input_name, ())):
            if node.name in node_names_set:
                self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        makers = self.makers.pop(old_output_name, [])
        for node in makers:
            super().replace_node_output(node, old_output_name, new_output_name)
        self.makers.setdefault(new_output_name, []).extend(makers)

    def clean_initializers(self) -> Any:
        self.finish()
        drop_unused_constants(self.model)
        return super().clean_initializers()

    def finish(self) -> None:
        self.tensors.remove_dropped()


class Tensors:
    """The constants of a graph by name; dropped ones stay in it until `remove_dropped`."""

    def __init__(self, stored: Any) -> None:
        self.stored, self.dropped = stored, set[str]()
        self.by_name: dict[str, TensorProto] = {tensor.name: tensor for tensor in reversed(stored)}

    def __iter__(self) -> Iterator[TensorProto]:
        return (tensor for tensor in self.stored if tensor.name not in self.dropped)

    def add(self, tensor: TensorProto) -> None:
        self.stored.append(tensor)
        self.by_name.setdefault(tensor.name, self.stored[-1])

    def drop(self, name: str) -> None:
        if self.by_name.pop(name, None) is not None:
            self.dropped.add(name)

    def remove_dropped(self) -> None:
        remove_where(self.stored, lambda tensor: tensor.name in self.dropped)
        self.dropped.clear()


def quantize_indexed(model: ModelProto, **settings: Any) -> ModelProto:
    """Return what `QDQQuantizer(model, **settings).quantize_model()` does."""
    search = quant_utils.find_by_name

    def find(name: str, items: Any) -> Any:
        return items.by_name.get(name) if isinstance(items, Tensors) else search(name, items)

    with ExitStack() as patches:
        patches.enter_context(patch.object(base_quantizer, "ONNXModel", IndexedModel))
        for module in SEARCHING:
            patches.enter_context(patch.object(module, "find_by_name", find))
        quantizer = qdq_quantizer.QDQQuantizer(model, **settings)
        made: ModelProto = quantizer.quantize_model()
    quantizer.model.finish()
    return made
