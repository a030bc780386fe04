"""An ONNX graph on an engine, beside its reference: the graph as it is written, without any optimizer."""

import math
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import ModelProto, TensorProto

from enginebench.core.errors import ArtifactError, EngineBenchError, UsageError
from enginebench.core.judging import hash_file
from enginebench.core.protocols import Array, Backend, Engine, Loadable
from enginebench.core.records import TEXT, Artifact, EngineSpec, TensorSpec
from enginebench.core.shapes import drop_plan_shapes
from enginebench.engines.abilities import ComputesOutputs
from enginebench.features.locate.graphs import Graph
from enginebench.features.locate.program import Arrays, slice_sizes
from enginebench.models.onnx.reference import GraphReference
from enginebench.models.onnx.source import LARGEST_PROTOBUF_BYTES
from enginebench.models.onnx.tensors import fix_inputs, infer_tensors
from enginebench.runs.child.jobs import NoteCall
from enginebench.runs.child.opening import build_graph, open_for
from enginebench.runs.child.perform.outputs import run_engine

# Of a tensor whose shape cannot be inferred, as a part of a slice.
UNKNOWN_SHARE = 16
# Types that arrays in files do not have: 8-bit floats, 16-bit ones with the range of 32, values of less than a byte.
_ODD = ("BFLOAT16", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2")
NOT_IN_NUMPY = {kind for name, kind in TensorProto.DataType.items() if name.startswith(_ODD)}


class StoredArrays(Mapping[str, Array]):
    """Arrays in files, of which only those that are used are in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, dict[str, Path]()
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, arrays: Arrays) -> None:
        for name, array in arrays.items():
            # What is no tensor, as a sequence, has no file: it is computed where it is needed.
            if isinstance(array, np.ndarray | np.generic):
                self._files[name] = self._folder / f"{len(self._files)}.npy"
                kept = np.asarray(array)
                np.save(self._files[name], kept.astype(str) if kept.dtype.kind == "O" else kept, allow_pickle=False)

    def __getitem__(self, name: str) -> Array:
        array: Array = np.load(self._files[name], allow_pickle=False)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


class GraphProgram(Graph):
    """The graph of an artifact on an engine; see `Program`."""

    def __init__(self, artifact: Artifact, engine: EngineSpec, scratch: Path, note: NoteCall) -> None:
        super().__init__(Path(artifact.path))
        self.artifact, self.engine, self._scratch, self._note = artifact, engine, scratch, note
        self.values = StoredArrays(scratch / "reference")
        self._backends: dict[str, Backend] = {}
        self._slice_bytes, self._sizes = 0, dict[str, int]()
        self._types = self._infer_types()

    def record(self, feeds: Arrays, slice_bytes: int) -> None:
        """Compute every tensor of the reference that there is no array for, in slices of so many bytes, each step
        once."""
        self.values.add(feeds)
        self._slice_bytes, self._sizes = slice_bytes, self._infer_sizes(feeds)
        left = [i for i, step in enumerate(self.steps) if i not in self.folded and not set(step.outputs) <= set(feeds)]
        # Types that NumPy does not have are computed where they are needed.
        slices, unkept = self.slice_steps(left), {name for name, kind in self._types.items() if kind in NOT_IN_NUMPY}
        for i, indices in enumerate(slices):
            self._note(f"reference: slice {i + 1} of {len(slices)}")
            wanted = [name for index in indices for name in self.steps[index].outputs if name not in unkept]
            if not wanted:
                continue
            self.values.add(self.expect(indices, wanted, self.values))

    def slice_steps(self, indices: Sequence[int]) -> list[list[int]]:
        unknown = self._slice_bytes // UNKNOWN_SHARE

        def measure(index: int) -> int:
            return sum(self._sizes.get(name, unknown) for name in self.steps[index].outputs)

        return slice_sizes(indices, measure, self._slice_bytes)

    def expect(self, indices: Collection[int], wanted: Sequence[str], values: Arrays) -> Arrays:
        return self.refer(self.cut(indices, wanted, values), values)

    def compute(self, indices: Collection[int], wanted: Sequence[str], values: Arrays, like: Arrays) -> Arrays:
        return self.run(self.cut(indices, wanted, values, like), values, like, self.engine)

    def refer(self, model: ModelProto, values: Arrays) -> Arrays:
        """Return the outputs of a graph as it is written: what is in FP16 is rounded behind each node.

        ONNX Runtime computes FP16 on a CPU in FP32, and keeps FP32 between nodes, also of what it gives out in FP16.
        """
        if TensorProto.FLOAT16 not in self._types.values():
            return self._refer_at_once(model, values)
        graph, arrays, made = Graph(self.path, model), self.pick_fed(model, values), dict[str, Array]()
        for index, step in enumerate(graph.steps):
            if index in graph.folded and not set(step.outputs) & set(graph.outputs):
                continue  # part of each cut that reads it
            made.update(self._refer_at_once(graph.cut([index], step.outputs, arrays), arrays))
            # Others, as sequences, are no inputs: they are computed in each cut that reads them.
            arrays.update(
                (name, made[name])
                for name in step.outputs
                if isinstance(made[name], np.ndarray) and self._types.get(name) not in NOT_IN_NUMPY
            )
        return {name: made[name] for name in graph.outputs}

    def _refer_at_once(self, model: ModelProto, values: Arrays) -> Arrays:
        reference = GraphReference(self.write(model), self.artifact.operator_libraries)
        return reference.run(self.pick_fed(model, values))

    def run(self, model: ModelProto, values: Arrays, like: Arrays, engine: EngineSpec) -> Arrays:
        """Return the outputs of a graph on an engine.

        Raises:
            EngineBenchError: the engine cannot run it.
        """
        backend, built, spec = self._build(model, values, like, engine)
        feeds = self.pick_fed(model, values)
        if isinstance(backend, ComputesOutputs):  # a program of its own
            return backend.compute_outputs(built, spec, [feeds])
        with self._open(backend, built, spec) as loaded:
            return run_engine(loaded, feeds)

    def load(self, model: ModelProto, values: Arrays, like: Arrays, engine: EngineSpec) -> Engine:
        """Load a graph in an engine; its outputs have the types and shapes of `like`."""
        return self._open(*self._build(model, values, like, engine))

    def loads_file(self, engine: EngineSpec) -> bool:
        """Whether an engine takes the file itself: what is cut out of it has names of its own for all nodes."""
        try:
            backend = open_for(engine, str(self._scratch))
            built = build_graph(backend, self.artifact, engine, str(self._scratch), lambda text: None)
            if isinstance(backend, Loadable):
                backend.load(built, engine).close()
        except EngineBenchError:
            return False
        return True

    @staticmethod
    def _open(backend: Backend, built: Artifact, spec: EngineSpec) -> Engine:
        if not isinstance(backend, Loadable):
            raise UsageError(f"engine {backend.name} cannot be called again and again, so that its time is not known")
        return backend.load(built, spec)

    def _build(
        self, model: ModelProto, values: Arrays, like: Arrays, engine: EngineSpec
    ) -> tuple[Backend, Artifact, EngineSpec]:
        # Shapes are for the inputs of the whole graph; those of a part are fixed in it.
        spec = replace(drop_plan_shapes(engine), shapes={})
        fed, path = self.pick_fed(model, values), self.write(model)
        artifact = replace(
            self.artifact,
            path=str(path),
            sha256=hash_file(path),  # by which a builder of plans finds what it has built
            files=(),
            inputs=tuple(describe_array(name, array) for name, array in fed.items()),
            outputs=tuple(describe_array(value.name, like[value.name]) for value in model.graph.output),
            allowed={},
            preprocess_sha256=None,
        )
        backend = self._backends.setdefault(engine.backend, open_for(spec, str(self._scratch)))
        if not isinstance(backend, Loadable | ComputesOutputs):
            raise UsageError(f"engine {engine.backend} hands out no outputs, so that none can be judged")
        return backend, build_graph(backend, artifact, spec, str(self._scratch), lambda text: None), spec

    @staticmethod
    def pick_fed(model: ModelProto, values: Arrays) -> dict[str, Array]:
        """Return the arrays of a graph's inputs."""
        return {value.name: values[value.name] for value in model.graph.input}

    def write(self, model: ModelProto) -> Path:
        """Write a graph to a file of its own, which takes the place of the last one."""
        folder = self._scratch / "cut"
        shutil.rmtree(folder, ignore_errors=True)  # engines that are loaded have it in memory
        folder.mkdir(parents=True)
        path = folder / "cut.onnx"
        big = model.ByteSize() > LARGEST_PROTOBUF_BYTES
        onnx.save_model(model, str(path), save_as_external_data=big, location="cut.data")
        return path

    def _infer_types(self) -> dict[str, int]:
        """The types of the tensors, as numbers of ONNX, as far as they can be inferred."""
        if self.model.ByteSize() > LARGEST_PROTOBUF_BYTES:  # which only a file can be
            inferred = self._scratch / "inferred.onnx"
            onnx.shape_inference.infer_shapes_path(str(self.write(self.model)), str(inferred))
            graph = onnx.load(str(inferred), load_external_data=False).graph
        else:
            graph = onnx.shape_inference.infer_shapes(self.model).graph
        weights = {tensor.name: tensor.data_type for tensor in graph.initializer}
        values = (*graph.input, *graph.value_info, *graph.output)
        return weights | {value.name: value.type.tensor_type.elem_type for value in values}

    def _infer_sizes(self, feeds: Arrays) -> dict[str, int]:
        try:
            fixed = fix_inputs(self.model, {name: array.shape for name, array in feeds.items()}, 1)
            return {name: math.ceil(work.count_bytes()) for name, (work, _) in infer_tensors(fixed).items()}
        except ArtifactError:
            return {}


def describe_array(name: str, array: Array) -> TensorSpec:
    return TensorSpec(name=name, dtype=TEXT if array.dtype.kind == "U" else str(array.dtype), shape=array.shape)
