"""A graph taken apart: the order of its nodes, the tensors that pass between them, and graphs cut out of it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.protocols import Array
from enginebench.features.locate.program import Step, complete_steps
from enginebench.models.onnx.needs import list_read_tensors
from enginebench.models.onnx.source import load_external_data, load_graph, read_graphs, read_tensor_values
from enginebench.models.onnx.work import RANDOM
from enginebench.models.precision.graph import name_nodes


class Graph:
    """An ONNX graph as steps in an order in which they can run."""

    def __init__(self, path: Path, model: ModelProto | None = None) -> None:
        self.path, self.model = path, model or load_graph(path)
        # The names that lists of nodes for `quantize --exclude` have.
        name_nodes(self.model)
        graph = self.model.graph
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.sparse = {tensor.values.name for tensor in graph.sparse_initializer}
        fixed = {*self.constants, *self.sparse}
        self.inputs = tuple(value.name for value in graph.input if value.name not in fixed)
        self.outputs = tuple(value.name for value in graph.output)
        self.steps = tuple(map(_describe_step, graph.node))
        self.drawing = frozenset(i for i, node in enumerate(graph.node) if self._draws(node))
        self.folded = _find_folded(self.steps, fixed, self.drawing)
        self.producers = {name: i for i, step in enumerate(self.steps) for name in step.outputs}

    def cut(
        self,
        indices: Collection[int],
        wanted: Sequence[str],
        values: Mapping[str, Array],
        like: Mapping[str, Array] | None = None,
    ) -> ModelProto:
        """Return the graph of these steps that computes the tensors `wanted` from the arrays `values`.

        What no array is given for is computed in it as well: constants, and values that are no tensors. Weights are
        part of the graph, also those that lie beside its file.

        Args:
            values: also of weights, for which they stand in.
            like: arrays of the types and shapes that the tensors have, for their declarations.
        """
        indices = complete_steps(self, indices, wanted, values)
        steps = [self.steps[i] for i in indices]
        made = {name for step in steps for name in step.outputs}
        read = list(dict.fromkeys(name for step in steps for name in step.inputs if name not in made))
        graph = GraphProto(name="g")
        graph.node.extend(self.model.graph.node[i] for i in indices)
        fed = [name for name in read if name not in self.constants and name not in self.sparse]
        graph.input.extend(describe_value(name, values[name]) for name in fed)
        like = like or {}
        graph.output.extend(
            describe_value(name, like[name]) if name in like else onnx.ValueInfoProto(name=name) for name in wanted
        )
        for name in read:
            if name in self.constants and name in values:
                graph.initializer.append(numpy_helper.from_array(np.asarray(values[name]), name))
            elif name in self.constants:
                graph.initializer.append(self.constants[name])
        graph.sparse_initializer.extend(t for t in self.model.graph.sparse_initializer if t.values.name in read)
        model = ModelProto(ir_version=self.model.ir_version, graph=graph)
        model.opset_import.extend(self.model.opset_import)
        model.functions.extend(self.model.functions)
        load_external_data(model, self.path)
        return model

    def _draws(self, node: NodeProto) -> bool:
        """Whether a node draws random numbers, or one of the nodes that it is made of."""
        functions = [f for f in self.model.functions if (f.domain, f.name) == (node.domain, node.op_type)]
        inner = [part for body in (*functions, *read_graphs(node)) for part in body.node]
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]:  # its training mode
            switch = self.constants.get(node.input[2])
            values = read_tensor_values(switch, self.path) if switch is not None else None
            return values is None or bool(values.any())
        return (node.op_type in RANDOM and not node.domain) or any(map(self._draws, inner))


def _describe_step(node: NodeProto) -> Step:
    inputs = tuple(dict.fromkeys(name for name in list_read_tensors(node) if name))
    return Step(name=node.name, kind=node.op_type, inputs=inputs, outputs=tuple(name for name in node.output if name))


def _find_folded(steps: Sequence[Step], fixed: Iterable[str], drawing: Collection[int]) -> frozenset[int]:
    """Find the steps that read nothing but constants: engines fold them away, whatever is asked for."""
    constant, folded = set(fixed), set[int]()
    for i, step in enumerate(steps):
        if constant.issuperset(step.inputs) and i not in drawing:
            constant.update(step.outputs)
            folded.add(i)
    return frozenset(folded)


def describe_value(name: str, array: Array) -> onnx.ValueInfoProto:
    """The declaration of a tensor with the type and the shape of this array."""
    kind = TensorProto.STRING if array.dtype.kind in "UOS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)
