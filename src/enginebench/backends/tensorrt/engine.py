"""A plan that runs: on a stream of its own, from buffers of its own, timed by CUDA events."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from enginebench.backends import cuda
from enginebench.backends.proof.kernels import can_watch, watch_kernels
from enginebench.backends.proof.precision import prove_precision
from enginebench.backends.request import explain_closed, explain_unbound
from enginebench.backends.tensorrt.library import Library
from enginebench.backends.tensorrt.settings import read_device, read_shapes
from enginebench.core.errors import ArtifactError, FeedError, MeasurementError, UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.precisions import UNKNOWN
from enginebench.core.records import Artifact, EngineSpec, LayerProfile, ShapeRange, TensorSpec
from enginebench.core.shapes import fix_shapes

if TYPE_CHECKING:
    from enginebench.backends.abilities import ToolReader
    from enginebench.core.protocols import Array, Feeds, RunCall

# Enough for shares that do not move; the profiler slows every layer alike.
PROFILED_RUNS = 20

# What 8.6 makes of INT64.
NARROWED = "TensorRT before 9, which reads INT64 as INT32, does not take"

# TensorRT's names of element types that NumPy has, too.
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "UINT8": "uint8",
    "BOOL": "bool",
}


def read_tensors(trt: Any, engine: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """(inputs, outputs) of an engine; a dynamic axis is named `batch` if it is the first, else after its tensor."""
    sides: dict[bool, list[TensorSpec]] = {True: [], False: []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        sides[is_input].append(
            TensorSpec(name=name, dtype=find_dtype(engine, name), shape=read_shape(engine.get_tensor_shape(name), name))
        )
    return tuple(sides[True]), tuple(sides[False])


def fix_to_profile(engine: Any, spec: TensorSpec, index: str) -> TensorSpec:
    """The input with the axes fixed for which the profile leaves no choice; as it is if there is no such profile."""
    if all(isinstance(axis, int) for axis in spec.shape) or not index.isdecimal():
        return spec
    if int(index) >= engine.num_optimization_profiles:
        return spec
    low, _, high = engine.get_tensor_profile_shape(spec.name, int(index))
    shape = (int(a) if a == b else axis for axis, a, b in zip(spec.shape, tuple(low), tuple(high), strict=True))
    return replace(spec, shape=tuple(shape))


def read_allowed(engine: Any, inputs: tuple[TensorSpec, ...], options: dict[str, str]) -> dict[str, ShapeRange]:
    """The shapes that the profile allows each open input that is given none; empty if there is no such profile."""
    index, told = options["profile_index"], read_shapes(options["shapes"])
    if not index.isdecimal() or int(index) >= engine.num_optimization_profiles:
        return {}
    found = {}
    for spec in inputs:
        if spec.name not in told and any(isinstance(axis, str) for axis in spec.shape):
            low, best, high = (tuple(map(int, side)) for side in engine.get_tensor_profile_shape(spec.name, int(index)))
            found[spec.name] = ShapeRange(smallest=low, largest=high, best=best)
    return found


def read_shape(dims: Any, name: str) -> tuple[int | str, ...]:
    """TensorRT's dimensions with names for those that are -1."""
    return tuple(
        int(d) if d >= 0 else ("batch" if place == 0 else f"{name}_axis{place}") for place, d in enumerate(tuple(dims))
    )


def find_dtype(engine: Any, name: str) -> str:
    """NumPy's name of a tensor's element type.

    Raises:
        ArtifactError: NumPy has no such type.
    """
    found = engine.get_tensor_dtype(name).name
    if found not in DTYPES:
        raise ArtifactError(
            f"tensor {name!r} is {found}, which NumPy does not have; keep inputs and outputs in FP32 or FP16"
        )
    return DTYPES[found]


class PlanEngine:
    """A plan and its context. Buffers are made when shapes change; the graph, too.

    Args:
        library: whose plan it is.
        artifact: what the plan is to be.
        spec: how it is run.
        options: those of `spec` and the defaults of all others.
        reader: of the inspector's text.
        create_context: makes a context of the plan, where the plan alone does not know how.
        on_close: called before the plan is freed.
    """

    def __init__(
        self,
        library: Library,
        plan: Any,
        artifact: Artifact,
        spec: EngineSpec,
        options: dict[str, str],
        reader: ToolReader | None,
        *,
        create_context: Callable[[], Any] | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._library = library
        self._name = spec.backend
        self._engine = plan
        self._options = options
        self._reader = reader
        self._index = read_device(spec)
        self._create_context = create_context or plan.create_execution_context
        self._on_close = on_close
        self._filler: cuda.DeviceBuffer | None = None
        self.inputs, self.outputs = self._describe(artifact)
        self._stream: cuda.Stream | None = cuda.Stream()
        self._context = self._make_context()
        self._host: dict[str, cuda.PinnedArray] = {}
        self._device: dict[str, cuda.DeviceBuffer] = {}
        self._graph: cuda.Graph | None = None
        self._timed: cuda.TimedRun | None = None
        self._layer_times: dict[str, float] = {}

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound, and returns when they are complete."""
        self._open_stream()
        if self._timed is None:
            raise explain_unbound(self._name)
        return self._timed.call

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays to the GPU, through pinned memory; new shapes get new buffers."""
        stream = self._open_stream()
        check_feeds(self.inputs, feeds)
        self._layer_times = {}
        if any(name not in self._host or self._host[name].array.shape != feeds[name].shape for name in feeds):
            self._allocate(feeds)
        else:
            stream.synchronize()  # a copy that is still on its way reads the pinned memory
        for name, array in feeds.items():
            pinned = self._host[name].array
            np.copyto(pinned, array)
            if pinned.dtype != array.dtype and not np.array_equal(pinned, array):
                raise FeedError(f"input {name!r} holds {array.flat[np.abs(array).argmax()]}, which {NARROWED}")
            self._copy_in(name)
        if self._timed is None:
            self._prepare()

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        stream = self._open_stream()
        if self._timed is None:
            raise explain_unbound(self._name)
        for spec in self.outputs:
            if spec.name in self._device:
                cuda.copy_to_host(self._host[spec.name], self._device[spec.name], stream)
        stream.synchronize()
        return {spec.name: self._host[spec.name].array.astype(spec.dtype) for spec in self.outputs}

    def last_device_ns(self) -> int:
        """Device time of the last run, by CUDA events around it."""
        if self._timed is None:
            raise explain_unbound(self._name)
        return self._timed.last_device_ns()

    def last_enqueue_ns(self) -> int:
        """Host time that the last run took to enqueue."""
        if self._timed is None:
            raise explain_unbound(self._name)
        return self._timed.last_enqueue_ns()

    def flush_cache(self) -> None:
        """Overwrites the GPU's last-level cache."""
        self._filler = cuda.flush_cache(self._filler, self._index, self._open_stream())

    def profile_layers(self) -> LayerProfile:
        """The engine's layers; a profiler slows whatever it watches, so that they sum to more than a run.

        Raises:
            MeasurementError: no reader was handed in.
        """
        if self._reader is None:
            raise MeasurementError("no reader for TensorRT's layers was handed in; open the engine through a run")
        with TemporaryDirectory(prefix="enginebench-") as folder:
            found = self._reader.read_layers(*self._write_profile(Path(folder)))
        return replace(found, profiler=f"{self._library.title}'s layer profiler")

    def time_layers(self, runs: int) -> dict[str, float]:
        """Layer -> mean nanoseconds a run, from the one context: a second on the same profile is refused."""
        stream = self._open_stream()
        if self._timed is None:
            raise explain_unbound(self._name)
        self._context.profiler = profiler = make_layer_times(self._library.trt)
        try:
            for _ in range(runs):
                ran = self._context.execute_async_v3(stream.handle)
                self._library.require(ran, "cannot run the plan", MeasurementError)
                stream.synchronize()
        finally:
            self._context.profiler = None  # it slows whatever it watches
        return {name: 1e6 * ms / runs for name, ms in profiler.total_ms.items()}

    def inspect(self) -> str:
        """TensorRT's own description of the engine's layers, as JSON."""
        inspector = self._library.require(self._engine.create_engine_inspector(), "cannot inspect the plan")
        inspector.execution_context = self._context
        return str(inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON))

    def effective_precision(self) -> dict[str, float]:
        """Shares of time by precision: the inspector's layers joined with a profile; empty without an inspector.

        The lean runtime has none. Where layers do not say it, the names of kernels may, if PyTorch can record them.
        """
        if self._reader is None or not hasattr(self._library.trt, "EngineInspector"):
            return {}
        with TemporaryDirectory(prefix="enginebench-") as folder:
            found = self._reader.read_precision(*self._write_profile(Path(folder))) or {}
        if not found.get(UNKNOWN) or not can_watch():
            return found
        kernels = prove_precision(watch_kernels(self.run))
        return kernels if kernels and kernels.get(UNKNOWN, 0.0) < found[UNKNOWN] else found

    def _write_profile(self, folder: Path) -> tuple[Path, Path]:
        """(layers, times) as files of trtexec's form; profiled once for what was bound."""
        layers, profile = folder / "layers.json", folder / "profile.json"
        self._layer_times = self._layer_times or self.time_layers(PROFILED_RUNS)
        layers.write_text(self.inspect(), encoding="utf-8")
        profile.write_text(format_profile(self._layer_times, PROFILED_RUNS), encoding="utf-8")
        return layers, profile

    def close(self) -> None:
        """Frees everything on the GPU; may be called twice."""
        self._forget_run()
        self._free_buffers()
        if self._stream is not None:
            self._on_close()
        self._context = self._engine = None
        if self._filler is not None:
            self._filler.close()
            self._filler = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> PlanEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_stream(self) -> cuda.Stream:
        if self._stream is None:
            raise explain_closed(self._name)
        return self._stream

    def _describe(self, artifact: Artifact) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """The engine's own tensors; INT64 where the graph has it, of which TensorRT 8.6 makes INT32."""
        inputs, outputs = read_tensors(self._library.trt, self._engine)
        for found, named in ((inputs, artifact.inputs), (outputs, artifact.outputs)):
            if named and {s.name for s in found} != {s.name for s in named}:
                raise ArtifactError(
                    f"{artifact.path} has {', '.join(s.name for s in found)} where its artifact says "
                    f"{', '.join(s.name for s in named)}; build it again"
                )
        long = {s.name for s in (*artifact.inputs, *artifact.outputs) if s.dtype == "int64"}
        inputs, outputs = (
            tuple(replace(s, dtype="int64") if s.dtype == "int32" and s.name in long else s for s in side)
            for side in (inputs, outputs)
        )
        return fix_shapes(inputs, read_shapes(self._options["shapes"])), outputs

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

    def _allocate(self, feeds: Feeds) -> None:
        """Fresh buffers for these shapes; the run is made anew."""
        self._forget_run()
        self._open_stream().synchronize()
        self._free_buffers()
        for spec in self.inputs:
            self._make_buffers(spec, feeds[spec.name].shape)
        self._set_shapes()
        for spec in self.outputs:
            shape = tuple(int(d) for d in self._context.get_tensor_shape(spec.name))
            if min(shape, default=0) < 0:
                raise ArtifactError(
                    f"output {spec.name!r} has a shape that depends on the data, {shape}; this engine needs to know it "
                    "before the run. Engine trtexec can time such a plan"
                )
            self._make_buffers(spec, shape)
        self._set_addresses()

    def _make_buffers(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        self._host[spec.name] = pinned = cuda.PinnedArray(shape, find_dtype(self._engine, spec.name))
        if spec.dtype.startswith("float"):
            pinned.array.fill(np.nan)  # an output that no run has filled cannot pass for an answer
        if self._engine.get_tensor_location(spec.name) == self._library.trt.TensorLocation.DEVICE:
            self._device[spec.name] = cuda.DeviceBuffer(pinned.array.nbytes)

    def _set_shapes(self) -> None:
        for spec in self.inputs:
            shape = self._host[spec.name].array.shape
            if not self._context.set_input_shape(spec.name, shape):
                profile = int(self._options["profile_index"])
                low, best, high = (tuple(d) for d in self._engine.get_tensor_profile_shape(spec.name, profile))
                raise ArtifactError(
                    f"input {spec.name!r} of shape {shape} lies outside the plan's profile {profile} "
                    f"(min {low}, opt {best}, max {high}): {self._library.log.take()}"
                )
        missing = self._context.infer_shapes()
        if missing:
            raise ArtifactError(f"{self._library.title} cannot infer shapes without values for {', '.join(missing)}")

    def _set_addresses(self) -> None:
        for name, pinned in self._host.items():
            address = self._device[name].address if name in self._device else pinned.address
            self._library.require(self._context.set_tensor_address(name, address), f"refuses the buffer of {name!r}")

    def _copy_in(self, name: str) -> None:
        if name in self._device:
            cuda.copy_to_device(self._device[name], self._host[name], self._open_stream())

    def _prepare(self) -> None:
        """One run that sets everything up, then, if asked for, the graph."""
        stream = self._open_stream()
        enqueue: Callable[[], object] = partial(self._context.execute_async_v3, stream.handle)
        self._library.require(enqueue(), "cannot run the plan", MeasurementError)
        stream.synchronize()
        if self._options["graph"] == "1":
            self._refuse_host_inputs()
            self._graph = self._capture(stream, enqueue)
            enqueue = cuda.make_graph_launch(self._graph, stream)
        self._timed = cuda.TimedRun(stream, enqueue, spin=self._options["spin"] == "1")

    def _refuse_host_inputs(self) -> None:
        """Checks that every input is read on the GPU: a graph would keep the first values of those the host reads."""
        kept = ", ".join(spec.name for spec in self.inputs if spec.name not in self._device)
        if kept:
            raise ArtifactError(
                f"{self._name}:graph=1 would keep the first values of {kept}, which the host reads; give graph=0"
            )

    def _capture(self, stream: cuda.Stream, enqueue: Callable[[], object]) -> cuda.Graph:
        what = f"cannot capture this plan as a CUDA graph; use {self._name}:graph=0, on every side of a comparison"
        refusal = ArtifactError(f"{self._library.title} {what}")
        ask = getattr(self._context, "is_stream_capturable", None)  # of TensorRT for RTX alone
        if ask is not None and not ask(stream.handle):
            raise refusal
        try:
            return cuda.capture_graph(stream, lambda: self._library.require(enqueue(), what))
        except MeasurementError as error:
            raise ArtifactError(f"{refusal}. {error}") from error

    def _free_buffers(self) -> None:
        for pinned in self._host.values():
            pinned.close()
        for buffer in self._device.values():
            buffer.close()
        self._host, self._device = {}, {}

    def _forget_run(self) -> None:
        if self._timed is not None:
            self._timed.close()
        if self._graph is not None:
            self._graph.close()
        self._timed = self._graph = None


def make_layer_times(trt: Any) -> Any:
    """A profiler that sums what TensorRT reports for each layer; layers of one name are one."""

    class LayerTimes(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.total_ms: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.total_ms[layer_name] = self.total_ms.get(layer_name, 0.0) + ms

    return LayerTimes()


def format_profile(times_ns: dict[str, float], runs: int) -> str:
    """Layer times as trtexec exports them, which is what the reader reads."""
    total = sum(times_ns.values()) or 1.0
    rows: list[dict[str, object]] = [{"count": runs}]
    for name, mean_ns in times_ns.items():
        ms = mean_ns / 1e6
        share = 100 * mean_ns / total
        rows.append({"name": name, "timeMs": ms * runs, "averageMs": ms, "medianMs": ms, "percentage": share})
    return json.dumps(rows)
