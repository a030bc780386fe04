"""The graph that PyTorch exports of a module, compiled whole or in parts, beside its operations run one by one."""

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from enginebench.core.errors import ModelError, explaining
from enginebench.core.protocols import Array, Engine
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.registry import open_backend
from enginebench.features.locate.graph_program import StoredArrays, describe_array
from enginebench.features.locate.program import Arrays, Step, complete_steps, slice_sizes
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import open_module
from enginebench.runs.child.perform.outputs import run_engine

RANDOM = torch.Tag.nondeterministic_seeded


class TorchProgram:
    """The exported graph of an artifact on an engine that compiles it; see `Program`."""

    def __init__(self, artifact: Artifact, engine: EngineSpec, feeds: Arrays, scratch: Path, note: NoteCall) -> None:
        self.artifact, self.engine, self._scratch, self._note = artifact, engine, scratch, note
        arguments = tuple(torch.from_numpy(feeds[spec.name]) for spec in artifact.inputs)
        failed = f"{artifact.model} cannot be exported, so that none of its operations can be compared"
        with explaining(ModelError, failed, Exception), torch.inference_mode():
            self._module: Any = torch.export.export(open_module(artifact), arguments, strict=False).module()
        nodes = list(self._module.graph.nodes)
        holders = [node for node in nodes if node.op == "placeholder"]
        # A placeholder is called after the argument, not after the input.
        self.inputs = tuple(node.name for node in holders)
        self._nodes = [node for node in nodes if node.op.startswith("call_") and list_users(node)]
        self.steps = tuple(map(describe_step, self._nodes))
        returned = nodes[-1].args[0]
        self.outputs = tuple(node.name for node in torch.utils._pytree.tree_leaves(returned) if node is not None)
        self.producers = {step.name: i for i, step in enumerate(self.steps)}
        self.drawing = frozenset(i for i, node in enumerate(self._nodes) if RANDOM in getattr(node.target, "tags", ()))
        # Tensors that do not depend on the inputs, and the operations that make them.
        fixed, folded = {node.name for node in nodes if node.op == "get_attr"}, set[int]()
        for i, step in enumerate(self.steps):
            if fixed.issuperset(step.inputs) and i not in self.drawing:
                fixed.add(step.name)
                folded.add(i)
        self.folded = frozenset(folded)
        self.values = StoredArrays(scratch / "reference")
        self._feeds = {name: feeds[spec.name] for name, spec in zip(self.inputs, artifact.inputs, strict=True)}
        self._sizes: dict[str, int] = {}
        self._slice_bytes = 0

    def record(self, slice_bytes: int) -> None:
        """Compute every operation of the exported graph; one tensor after the other is kept in a file."""
        self._slice_bytes = slice_bytes
        self._note("reference: operations one by one")
        self.values.add(self._feeds)
        recorder = Recorder(self._module, self._keep)
        with torch.inference_mode():
            recorder.run(*(torch.from_numpy(array) for array in self._feeds.values()))

    def _keep(self, name: str, result: Any) -> None:
        if name in self.producers and isinstance(result, torch.Tensor) and (array := to_array(result)) is not None:
            self.values.add({name: array})
            self._sizes[name] = array.nbytes

    def slice_steps(self, indices: Sequence[int]) -> list[list[int]]:
        return slice_sizes(indices, lambda i: self._sizes.get(self.steps[i].name, 0), self._slice_bytes)

    def cut(self, indices: Collection[int], wanted: Sequence[str], values: Collection[str]) -> Any:
        """Return the module of these operations that computes the tensors `wanted` from the arrays `values`."""
        chosen = [self._nodes[i] for i in complete_steps(self, indices, wanted, values)]
        made = set(chosen)
        read = dict.fromkeys(source for node in chosen for source in node.all_input_nodes if source not in made)
        weights = [node for node in read if node.op == "get_attr"]
        graph = torch.fx.Graph()
        # Placeholders come first in a graph of torch.fx.
        copies: dict[Any, Any] = {node: graph.placeholder(node.name) for node in read if node.op != "get_attr"}
        copies |= {node: graph.get_attr(node.target) for node in weights}
        for node in chosen:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        by_name = {node.name: copy for node, copy in copies.items()}
        graph.output(tuple(by_name[name] for name in wanted))
        return torch.fx.GraphModule(self._module, graph)

    @staticmethod
    def list_fed(module: Any) -> list[str]:
        return [node.name for node in module.graph.nodes if node.op == "placeholder"]

    def pick_fed(self, module: Any, values: Arrays) -> dict[str, Array]:
        """Return the arrays of a module's inputs."""
        return {name: values[name] for name in self.list_fed(module)}

    def expect(self, indices: Collection[int], wanted: Sequence[str], values: Arrays) -> Arrays:
        module = self.cut(indices, wanted, values)
        with torch.inference_mode():
            results = module(*(torch.from_numpy(array) for array in self.pick_fed(module, values).values()))
        return {name: array for name, one in zip(wanted, results, strict=True) if (array := to_array(one)) is not None}

    def compute(self, indices: Collection[int], wanted: Sequence[str], values: Arrays, like: Arrays) -> Arrays:
        module = self.cut(indices, wanted, values)
        expected = {name: like[name] for name in wanted}
        with self.load(module, values, expected, self.engine) as loaded:
            return run_engine(loaded, self.pick_fed(module, values))

    def load(self, model: Any, values: Arrays, like: Arrays, engine: EngineSpec) -> Engine:
        """Load a part in an engine; its outputs are called and shaped as `like`, in this order."""
        fed = self.pick_fed(model, values)
        artifact = replace(
            self.artifact,
            inputs=tuple(describe_array(name, array) for name, array in fed.items()),
            outputs=tuple(describe_array(name, array) for name, array in like.items()),
            allowed={},
            normalize=None,
        )
        backend: Any = open_backend(engine.backend, partial(take_module, model), self._scratch / "cache")
        return backend.load(artifact, replace(engine, shapes={}))  # type: ignore[no-any-return]


class Recorder(torch.fx.Interpreter):  # type: ignore[misc]  # no types
    """Runs a graph, and hands out what each node makes."""

    def __init__(self, module: Any, keep: Any) -> None:
        super().__init__(module)
        self._keep_result = keep

    def run_node(self, n: Any) -> Any:
        result = super().run_node(n)
        self._keep_result(n.name, result)
        return result


def take_module(module: Any, artifact: Artifact) -> Any:
    """A copy: an engine casts the weights of what it loads, and moves them to its device."""
    return copy.deepcopy(module)


def list_users(node: Any) -> list[Any]:
    """List the nodes that read what this one makes; checks of the export that nothing reads are no operations."""
    return list(node.users)


def describe_step(node: Any) -> Step:
    return Step(
        name=node.name,
        kind=str(node.target).removeprefix("aten.").removesuffix(".default"),
        inputs=tuple(dict.fromkeys(one.name for one in node.all_input_nodes)),
        outputs=(node.name,),
    )


def to_array(tensor: torch.Tensor) -> "Array | None":
    """The array of a tensor; None of a type that NumPy does not have."""
    try:
        array: Array = tensor.detach().cpu().numpy()
    except TypeError:
        return None
    return array


def name_arguments(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays of a call in order, under plain names."""
    return {f"x{i}": array for i, array in enumerate(arrays.values())}
