"""A plan of TensorRT that runs: on a stream of its own, from buffers of its own, timed by CUDA events.

Bundles hold a copy of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core.engine_api import (
    Array,
    ArtifactError,
    ArtifactLike,
    DeviceTimes,
    EngineSpecLike,
    FeedError,
    Feeds,
    MeasurementError,
    TensorSpecLike,
    UsageError,
    are_alike,
    check_feeds,
    fill_entries,
    join_shapes,
    read_index,
)
from . import cuda
from .tensorrt_library import Library, import_tensorrt, is_lean

# What 8.6 makes of INT64.
NARROWED = "TensorRT before 9, which reads INT64 as INT32, does not take"

# TensorRT's names of element types that NumPy has, too.
DTYPES = {"FLOAT": "float32", "HALF": "float16"} | {n.upper(): n for n in ("int8", "int32", "int64", "uint8", "bool")}


def open_engine(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> PlanEngine:
    """The plan on the GPU of the spec; `options` has a value for each."""
    library = Library(import_tensorrt())
    cuda.use_device(read_index(spec))
    library.load_plugins(())
    plan = load_plan(library, Path(artifact.path), options)
    return PlanEngine(library, plan, artifact.inputs, artifact.outputs, spec, options)


def name_gpu(spec: EngineSpecLike) -> str:
    """Return the name of a spec's GPU: a plan belongs to the kind of GPU for which it was built."""
    return cuda.read_name(read_index(spec))


def load_plan(library: Library, path: Path, options: Mapping[str, str]) -> Any:
    runtime = library.make(library.trt.Runtime, "a runtime")
    if options["host_code"] == "1":
        runtime.engine_host_code_allowed = True
    if options.get("dla"):  # else a plan for a DLA core is not loaded
        runtime.DLA_core = int(options["dla"])
    lean = " (the lean runtime, which takes plans built with --version-compatible)" if is_lean(library.trt) else ""
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise ArtifactError(
            f"TensorRT cannot load {path}{lean}: {library.log.take()}. A plan belongs to the version and the kind of "
            f"GPU that it was built for; this is TensorRT {library.version}"
        )
    return engine


def find_dtype(engine: Any, name: str) -> str:
    """NumPy's name of a tensor's element type."""
    if (dtype := engine.get_tensor_dtype(name).name) not in DTYPES:
        raise ArtifactError(
            f"tensor {name!r} is {dtype}, which NumPy does not have; keep inputs and outputs in FP32 or FP16"
        )
    return DTYPES[dtype]


class PlanEngine(cuda.DeviceEngine):
    """A plan and its context. Buffers are made when shapes change; the graph, too."""

    overlaps = True

    def __init__(
        self,
        library: Library,
        plan: Any,
        inputs: Sequence[TensorSpecLike],
        outputs: Sequence[TensorSpecLike],
        spec: EngineSpecLike,
        options: Mapping[str, str],
        *,
        create_context: Callable[[], Any] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(spec.backend, read_index(spec))
        self._library = library
        self._engine = plan
        self._options = options
        self._create_context = create_context or plan.create_execution_context
        self._on_close = on_close
        self.inputs: tuple[Any, ...] = tuple(inputs)
        self.outputs: tuple[Any, ...] = tuple(outputs)
        self._context = self._make_context()
        # Around the copies in, and behind those out.
        self._events = cuda.Event(), cuda.Event(), cuda.Event(options["spin"] == "0")
        self._graph: cuda.CapturedGraph | None = None
        self._views: dict[str, Array] = {}  # of the inputs, in pinned memory
        self._copying = False
        self._watched: dict[str, float] = {}  # the record of runs on the bound arrays, by the tool that records

    def bind(self, feeds: Feeds) -> None:
        self._fill([feeds])
        self._copy_in()
        self._prepare()

    def begin(self, samples: Sequence[Feeds]) -> None:
        """Bind all samples as one batch, as `bind` does; then enqueue the run and the copies out, too."""
        stream, (first, copied, last) = self._open_stream(), self._events
        self._fill(samples, grow=True)
        first.record(stream)
        self._copy_in()
        copied.record(stream)
        self._prepare()
        self._open_run().begin()
        self._copy_out()
        last.record(stream)

    def is_done(self) -> bool:
        return self._events[-1].query()

    def finish(self) -> tuple[dict[str, Array], DeviceTimes]:
        timed, (first, copied, last) = self._open_run(), self._events
        last.synchronize()
        self._copying = False
        times = copied.elapsed_ns(first), timed.last_device_ns(), last.elapsed_ns(timed.end)
        return self._read_outputs(), DeviceTimes(*times)

    def fetch(self) -> dict[str, Array]:
        self._open_run()
        self._copy_out()
        self._open_stream().synchronize()
        self._copying = False
        return self._read_outputs()

    def close(self) -> None:
        self._free_buffers()
        for event in self._events:
            event.close()
        if self._stream is not None:
            self._on_close()
        self._context = self._engine = None
        super().close()

    def _fill(self, samples: Sequence[Feeds], grow: bool = False) -> None:
        """The samples, one after another, in pinned memory.

        Args:
            grow: several may be fewer than there is room for; else there is one, and the room is its own.
        """
        stream = self._open_stream()
        self._watched = {}
        if grow or not are_alike(self._views, samples[0]):
            self._check(samples, grow)
        if self._copying:  # a copy that is still on its way reads the pinned memory
            stream.synchronize()
        fill_entries(self._views, samples)

    def _copy_in(self) -> None:
        stream = self._open_stream()
        for name in self._views:
            if name in self._device:
                cuda.copy_to_device(self._device[name], self._host[name], stream)
        self._copying = True

    def _check(self, samples: Sequence[Feeds], grow: bool) -> None:
        """Refuse arrays that the plan does not take, and make room for those of other shapes."""
        for feeds in samples:
            check_feeds(self.inputs, feeds)
        one = {name: array.shape for name, array in samples[0].items()}
        shapes = join_shapes(self._views, samples) if grow else one
        if any(name not in self._views or self._views[name].shape != shape for name, shape in shapes.items()):
            self._allocate(shapes)
        for name, array in ((name, array) for feeds in samples for name, array in feeds.items()):
            dtype = self._views[name].dtype
            if dtype != array.dtype and not np.array_equal(array.astype(dtype), array):
                raise FeedError(f"input {name!r} holds {array.flat[np.abs(array).argmax()]}, which {NARROWED}")

    def _copy_out(self) -> None:
        stream = self._open_stream()
        for spec in self.outputs:
            if spec.name in self._device:
                cuda.copy_to_host(self._host[spec.name], self._device[spec.name], stream)

    def _read_outputs(self) -> dict[str, Array]:
        return {spec.name: self._host[spec.name].array.astype(spec.dtype) for spec in self.outputs}

    def _make_context(self) -> Any:
        """A context on the chosen profile."""
        context = self._library.require(self._create_context(), "cannot create a context", MeasurementError)
        text = self._options["profile_index"]
        if not text.isdecimal() or int(text) >= self._engine.num_optimization_profiles:
            raise UsageError(
                f"profile_index={text}: the plan has {self._engine.num_optimization_profiles} profiles, counted from 0"
            )
        stream = self._open_stream()
        self._library.require(context.set_optimization_profile_async(int(text), stream.handle), "refuses the profile")
        stream.synchronize()
        return context

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Fresh buffers for these shapes; the run is made anew."""
        self._open_stream().synchronize()
        self._free_buffers()
        for spec in self.inputs:
            self._make_buffers(spec, shapes[spec.name])
            if not self._context.set_input_shape(spec.name, shapes[spec.name]):
                profile = int(self._options["profile_index"])
                low, best, high = (tuple(d) for d in self._engine.get_tensor_profile_shape(spec.name, profile))
                raise ArtifactError(
                    f"input {spec.name!r} of shape {shapes[spec.name]} lies outside the plan's profile {profile} "
                    f"(min {low}, opt {best}, max {high}): {self._library.log.take()}"
                )
        if missing := self._context.infer_shapes():
            raise ArtifactError(f"{self._library.title} cannot infer shapes without values for {', '.join(missing)}")
        for spec in self.outputs:
            shape = tuple(int(d) for d in self._context.get_tensor_shape(spec.name))
            if min(shape, default=0) < 0:
                raise ArtifactError(
                    f"output {spec.name!r} has a shape that depends on the data, {shape}; this engine needs to know it "
                    "before the run. Engine trtexec can time such a plan"
                )
            self._make_buffers(spec, shape)
        self._views = {spec.name: self._host[spec.name].array for spec in self.inputs}
        for name, pinned in self._host.items():
            address = self._device[name].address if name in self._device else pinned.address
            self._library.require(self._context.set_tensor_address(name, address), f"refuses the buffer of {name!r}")

    def _make_buffers(self, spec: TensorSpecLike, shape: tuple[int, ...]) -> None:
        self._host[spec.name] = pinned = cuda.PinnedArray(shape, find_dtype(self._engine, spec.name))
        # A buffer that no run has filled is never taken for an output.
        pinned.array.fill(np.nan if spec.dtype.startswith("float") and spec in self.outputs else 0)
        if self._engine.get_tensor_location(spec.name) == self._library.trt.TensorLocation.DEVICE:
            self._device[spec.name] = cuda.DeviceBuffer(pinned.array.nbytes)

    def _prepare(self) -> None:
        """Run once on new buffers, which sets everything up; then make the graph, if it is requested."""
        if self._timed is not None:
            return
        stream = self._open_stream()
        enqueue: Callable[[], object] = partial(self._context.execute_async_v3, stream.handle)
        self._library.require(enqueue(), "cannot run the plan", MeasurementError)
        stream.synchronize()
        if self._options["graph"] == "1":
            if kept := ", ".join(spec.name for spec in self.inputs if spec.name not in self._device):
                raise ArtifactError(
                    f"{self._name}:graph=1 would keep the first values of {kept}, which the host reads; give graph=0"
                )
            self._graph = self._capture(stream, enqueue)
            enqueue = cuda.make_graph_launch(self._graph, stream)
        self._timed = cuda.TimedRun(stream, enqueue, spin=self._options["spin"] == "1")

    def _capture(self, stream: cuda.Stream, enqueue: Callable[[], object]) -> cuda.CapturedGraph:
        what = f"cannot capture this plan as a CUDA graph; use {self._name}:graph=0, on every side of a comparison"
        refusal = ArtifactError(f"{self._library.title} {what}")
        can_capture = getattr(self._context, "is_stream_capturable", None)  # of TensorRT for RTX alone
        if can_capture is not None and not can_capture(stream.handle):
            raise refusal
        try:
            return cuda.capture_graph(stream, lambda: self._library.require(enqueue(), what))
        except MeasurementError as error:
            raise ArtifactError(f"{refusal}. {error}") from error

    def _free_buffers(self) -> None:
        super()._free_buffers()
        self._views = {}
        if self._graph is not None:
            self._graph.close()
        self._graph = None
