"""`tensorrt`: plans built and run through TensorRT's Python API, on a stream of their own, timed by CUDA events."""

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
from enginebench.backends.plan_store import PlanRecord, PlanStore, describe_gpu, keep_plan
from enginebench.backends.request import Option, check_request, explain_closed, explain_unbound, read_options
from enginebench.backends.tensorrt_builder import (
    LOG,
    build_plan,
    check_version,
    load_plugins,
    make_object,
    read_batches,
    require,
    require_builder,
)
from enginebench.backends.tensorrt_runtime import LEAN_NOTE, import_tensorrt, is_lean
from enginebench.backends.tensorrt_settings import (
    BUILD_OPTIONS,
    SWITCH,
    check_calib_cache,
    read_device,
    read_plugins,
    read_settings,
    read_shapes,
)
from enginebench.core.errors import ArtifactError, BackendUnavailable, MeasurementError, UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Artifact, Availability, Caveat, EngineSpec, LayerProfile, Precision, TensorSpec
from enginebench.core.shapes import fix_shapes

if TYPE_CHECKING:
    from enginebench.backends.tensorrt_settings import BuildSettings
    from enginebench.core.protocols import Array, Feeds, ModuleLoader, RunCall, ToolReader

trt = import_tensorrt()

NAME = "tensorrt"
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")

# Enough for shares that do not move; the profiler slows every layer alike.
PROFILED_RUNS = 20
PROFILER = "TensorRT's layer profiler"

OPTIONS = {
    **BUILD_OPTIONS,
    "graph": Option(default="1", choices=SWITCH, meaning="launch as a CUDA graph"),
    "spin": Option(default="1", choices=SWITCH, meaning="wait for the GPU by spinning"),
    "profile_index": Option(default="0", meaning="optimization profile to run"),
    "shapes": Option(default="", meaning="shapes to run with, NAME:1x3x224x224 (a plan alone)"),
    "calib_data": Option(default="", meaning="arrays (.npz) to calibrate on, for weak_typing in int8"),
    "host_code": Option(default="0", choices=SWITCH, meaning="run host code that a version-compatible plan carries"),
}

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

UNVERIFIED = Caveat(
    code="unverified_engine",
    message="this engine has not been run against NVIDIA's own TensorRT library",
    advice="it was checked by name against the bindings of 8.6, 10.16 and 11.4, and run over a stand-in; "
    "compare one row with trtexec before you rely on it",
)


class TensorRtBackend:
    """ONNX graphs and finished plans through TensorRT's own Python module.

    Args:
        cache_dir: folder for the timing cache.
    """

    name = NAME

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir
        self._reader: ToolReader | None = None
        self._note: Callable[[str], None] = lambda text: None

    def take_reader(self, reader: ToolReader) -> None:
        """Takes what reads the inspector's text."""
        self._reader = reader

    def take_note(self, note: Callable[[str], None]) -> None:
        """Takes where progress goes."""
        self._note = note

    def probe(self) -> Availability:
        """Available where the version is 8.6 or later and CUDA shows a GPU; the lean runtime says what it is."""
        try:
            check_version()
        except BackendUnavailable as error:
            return Availability(engine=NAME, available=False, version=trt.__version__, reason=str(error))
        count = cuda.count_devices()
        return Availability(
            engine=NAME,
            available=count > 0,
            version=trt.__version__,
            devices=tuple(f"cuda:{i}" for i in range(count)),
            reason=(LEAN_NOTE if is_lean(trt) else None) if count else cuda.explain_no_device(),
        )

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """A plan for this version, GPU and these settings: the stored one if there is one, else a new one.

        Raises:
            UsageError: an option is unknown, or this version cannot do what it asks for.
            ArtifactError: the graph cannot be parsed or built; TensorRT's own messages say why.
            BackendUnavailable: there is no GPU, or the lean runtime is all there is.
        """
        check_request(artifact, spec, ("onnx", "plan"), PRECISIONS, (spec.device,))
        options = read_options(spec, OPTIONS)
        if artifact.kind == "onnx":
            require_builder()
        cuda.use_device(read_device(spec))
        if artifact.kind == "plan":
            return self._adopt(artifact, options)
        settings = self._choose_cache(read_settings(spec, options, artifact))
        record = PlanRecord(
            onnx_sha256=artifact.sha256,
            tensorrt=trt.__version__,
            gpu=describe_gpu(settings.device),
            flags=(repr(replace(settings, timing_cache=None)), options["calib_data"]),
            engine=NAME,
        )
        build = partial(self._build, artifact, settings, options, spec.batch)
        return keep_plan(PlanStore(out_dir / "plans"), record, artifact, spec, build)

    def load(self, artifact: Artifact, spec: EngineSpec) -> TensorRtEngine:
        """The plan, ready for arrays.

        Raises:
            ArtifactError: the plan is damaged, or of another version or GPU; TensorRT's own messages say so.
            BackendUnavailable: there is no GPU.
        """
        check_request(artifact, spec, ("plan",), PRECISIONS, (spec.device,))
        options = read_options(spec, OPTIONS)
        cuda.use_device(read_device(spec))
        check_version()
        load_plugins(read_plugins(options))
        plan = load_plan(Path(artifact.path), options)
        return TensorRtEngine(plan, artifact, options, self._reader, read_device(spec))

    def _build(
        self, artifact: Artifact, settings: BuildSettings, options: dict[str, str], batch: int, plan: Path
    ) -> tuple[Caveat, ...]:
        first = artifact.inputs[0].shape[0] if artifact.inputs and artifact.inputs[0].shape else batch
        whole = first if isinstance(first, int) else batch  # a static graph takes no other
        batches = read_batches(Path(options["calib_data"]), whole) if options["calib_data"] else None
        if settings.calib_cache and (batches is None or Path(settings.calib_cache).exists()):
            check_calib_cache(Path(settings.calib_cache))
        build_plan(Path(artifact.path), settings, plan, batches=batches, note=self._note)
        guessed = settings.weak_typing and settings.precision == "int8" and not (settings.calib_cache or batches)
        return (UNVERIFIED, GUESSED_RANGES) if guessed else (UNVERIFIED,)

    def _adopt(self, artifact: Artifact, options: dict[str, str]) -> Artifact:
        """A finished plan with the inputs and outputs that it names itself."""
        load_plugins(read_plugins(options))
        engine = load_plan(Path(artifact.path), options)
        inputs, outputs = read_tensors(engine)
        return replace(
            artifact,
            inputs=tuple(fix_to_profile(engine, spec, options["profile_index"]) for spec in inputs),
            outputs=outputs,
            made_by={**artifact.made_by, "tensorrt": trt.__version__},
            caveats=(*artifact.caveats, UNVERIFIED),
        )

    def _choose_cache(self, settings: BuildSettings) -> BuildSettings:
        """The settings with a timing cache of the run, if none was named."""
        if settings.timing_cache or self._cache_dir is None:
            return settings
        return replace(settings, timing_cache=str(self._cache_dir / f"tensorrt-{trt.__version__}.timing"))


GUESSED_RANGES = Caveat(
    code="random_calibration",
    message="INT8 without calibration data or cache: TensorRT makes up the ranges",
    advice="times hold, answers do not; give calib_data or calib_cache, or quantize the graph",
)


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> TensorRtBackend:
    """The backend; it needs no module loader."""
    return TensorRtBackend(cache_dir)


def load_plan(path: Path, options: dict[str, str]) -> Any:
    """The engine of a plan.

    Raises:
        ArtifactError: TensorRT refuses it.
    """
    LOG.errors.clear()
    runtime = make_object(trt.Runtime, "no runtime can be made")
    if options["host_code"] == "1":
        runtime.engine_host_code_allowed = True
    lean = " (the lean runtime, which takes plans built with --version-compatible)" if is_lean(trt) else ""
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise ArtifactError(
            f"TensorRT cannot load {path}{lean}: {LOG.take()}. A plan belongs to the version and the kind of GPU that "
            f"it was built for; this is TensorRT {trt.__version__}"
        )
    return engine


def read_tensors(engine: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
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
        raise ArtifactError(f"tensor {name!r} is {found}, which NumPy lacks; keep inputs and outputs in FP32 or FP16")
    return DTYPES[found]


class TensorRtEngine:
    """A plan and its context. Buffers are made when shapes change; the graph, too."""

    def __init__(
        self, engine: Any, artifact: Artifact, options: dict[str, str], reader: ToolReader | None, index: int
    ) -> None:
        self._engine = engine
        self._options = options
        self._reader = reader
        self._index = index
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
            raise explain_unbound(NAME)
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
            np.copyto(self._host[name].array, array)
            self._copy_in(name)
        if self._timed is None:
            self._prepare()

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        stream = self._open_stream()
        if self._timed is None:
            raise explain_unbound(NAME)
        for spec in self.outputs:
            if spec.name in self._device:
                cuda.copy_to_host(self._host[spec.name], self._device[spec.name], stream)
        stream.synchronize()
        return {spec.name: self._host[spec.name].array.copy() for spec in self.outputs}

    def last_device_ns(self) -> int:
        """Device time of the last run, by CUDA events around it."""
        if self._timed is None:
            raise explain_unbound(NAME)
        return self._timed.last_device_ns()

    def last_enqueue_ns(self) -> int:
        """Host time that the last run took to enqueue."""
        if self._timed is None:
            raise explain_unbound(NAME)
        return self._timed.last_enqueue_ns()

    def flush_cache(self) -> None:
        """Writes over the GPU's last cache."""
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
        return replace(found, profiler=PROFILER)

    def time_layers(self, runs: int) -> dict[str, float]:
        """Layer -> mean nanoseconds a run, from a context of its own."""
        stream = self._open_stream()
        if self._timed is None:
            raise explain_unbound(NAME)
        profiler = LayerTimes()
        context = self._make_context()
        context.profiler = profiler
        self._set_shapes(context)
        self._set_addresses(context)
        for _ in range(runs):
            require(context.execute_async_v3(stream.handle), "TensorRT cannot run the plan", MeasurementError)
            stream.synchronize()
        return {name: 1e6 * ms / runs for name, ms in profiler.total_ms.items()}

    def inspect(self) -> str:
        """TensorRT's own description of the engine's layers, as JSON."""
        inspector = require(self._engine.create_engine_inspector(), "TensorRT cannot inspect the plan")
        inspector.execution_context = self._context
        return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))

    def effective_precision(self) -> dict[str, float]:
        """Shares of layer time by precision: the inspector's layers joined with a profile; empty without an inspector.

        The lean runtime has none.
        """
        if self._reader is None or not hasattr(trt, "EngineInspector"):
            return {}
        with TemporaryDirectory(prefix="enginebench-") as folder:
            return self._reader.read_precision(*self._write_profile(Path(folder))) or {}

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
        self._context = self._engine = None
        if self._filler is not None:
            self._filler.close()
            self._filler = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> TensorRtEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_stream(self) -> cuda.Stream:
        if self._stream is None:
            raise explain_closed(NAME)
        return self._stream

    def _describe(self, artifact: Artifact) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """The engine's own tensors, with the axis names of the artefact.

        Raises:
            ArtifactError: the plan is of another graph.
            UsageError: option `shapes` contradicts it.
        """
        inputs, outputs = read_tensors(self._engine)
        for found, named in ((inputs, artifact.inputs), (outputs, artifact.outputs)):
            if named and {s.name for s in found} != {s.name for s in named}:
                raise ArtifactError(
                    f"{artifact.path} has {', '.join(s.name for s in found)} where its artefact says "
                    f"{', '.join(s.name for s in named)}; build it again"
                )
        return fix_shapes(inputs, read_shapes(self._options["shapes"])), outputs

    def _make_context(self) -> Any:
        """A context on the chosen profile."""
        context = require(self._engine.create_execution_context(), "TensorRT cannot make a context", MeasurementError)
        text = self._options["profile_index"]
        if not text.isdecimal() or int(text) >= self._engine.num_optimization_profiles:
            raise UsageError(
                f"profile_index={text}: the plan has {self._engine.num_optimization_profiles} profiles, counted from 0"
            )
        stream = self._open_stream()
        require(context.set_optimization_profile_async(int(text), stream.handle), "TensorRT refuses the profile")
        stream.synchronize()
        return context

    def _allocate(self, feeds: Feeds) -> None:
        """Fresh buffers for these shapes; the run is made anew."""
        self._forget_run()
        self._open_stream().synchronize()
        self._free_buffers()
        for spec in self.inputs:
            self._make_buffers(spec, feeds[spec.name].shape)
        self._set_shapes(self._context)
        for spec in self.outputs:
            shape = tuple(int(d) for d in self._context.get_tensor_shape(spec.name))
            if min(shape, default=0) < 0:
                raise ArtifactError(
                    f"output {spec.name!r} has a shape that depends on the data, {shape}; this engine needs to know it "
                    "before the run. Engine trtexec can time such a plan"
                )
            self._make_buffers(spec, shape)
        self._set_addresses(self._context)

    def _make_buffers(self, spec: TensorSpec, shape: tuple[int, ...]) -> None:
        self._host[spec.name] = pinned = cuda.PinnedArray(shape, spec.dtype)
        if spec.dtype.startswith("float"):
            pinned.array.fill(np.nan)  # an output that no run has filled cannot pass for an answer
        if self._engine.get_tensor_location(spec.name) == trt.TensorLocation.DEVICE:
            self._device[spec.name] = cuda.DeviceBuffer(pinned.array.nbytes)

    def _set_shapes(self, context: Any) -> None:
        for spec in self.inputs:
            shape = self._host[spec.name].array.shape
            if not context.set_input_shape(spec.name, shape):
                profile = int(self._options["profile_index"])
                low, best, high = (tuple(d) for d in self._engine.get_tensor_profile_shape(spec.name, profile))
                raise ArtifactError(
                    f"input {spec.name!r} of shape {shape} lies outside the plan's profile {profile} "
                    f"(min {low}, opt {best}, max {high}): {LOG.take()}"
                )
        missing = context.infer_shapes()
        if missing:
            raise ArtifactError(f"TensorRT cannot infer shapes without values for {', '.join(missing)}")

    def _set_addresses(self, context: Any) -> None:
        for name, pinned in self._host.items():
            address = self._device[name].address if name in self._device else pinned.address
            require(context.set_tensor_address(name, address), f"TensorRT refuses the buffer of {name!r}")

    def _copy_in(self, name: str) -> None:
        if name in self._device:
            cuda.copy_to_device(self._device[name], self._host[name], self._open_stream())

    def _prepare(self) -> None:
        """One run that sets everything up, then, if asked for, the graph."""
        stream = self._open_stream()
        enqueue: Callable[[], object] = partial(self._context.execute_async_v3, stream.handle)
        require(enqueue(), "TensorRT cannot run the plan", MeasurementError)
        stream.synchronize()
        if self._options["graph"] == "1":
            self._graph = self._capture(stream, enqueue)
            enqueue = cuda.make_graph_launch(self._graph, stream)
        self._timed = cuda.TimedRun(stream, enqueue, spin=self._options["spin"] == "1")

    def _capture(self, stream: cuda.Stream, enqueue: Callable[[], object]) -> cuda.Graph:
        advice = "this plan cannot be captured as a CUDA graph; use tensorrt:graph=0, on every side of a comparison"
        try:
            return cuda.capture_graph(stream, lambda: require(enqueue(), advice, BackendUnavailable))
        except MeasurementError as error:
            raise BackendUnavailable(f"{advice}. {error}") from error

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


class LayerTimes(trt.IProfiler):  # type: ignore[misc, name-defined]
    """Sums what TensorRT reports for each layer; layers of one name are one."""

    def __init__(self) -> None:
        trt.IProfiler.__init__(self)
        self.total_ms: dict[str, float] = {}

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        self.total_ms[layer_name] = self.total_ms.get(layer_name, 0.0) + ms


def format_profile(times_ns: dict[str, float], runs: int) -> str:
    """Layer times as trtexec exports them, which is what the reader reads."""
    total = sum(times_ns.values()) or 1.0
    rows: list[dict[str, object]] = [{"count": runs}]
    for name, mean_ns in times_ns.items():
        ms = mean_ns / 1e6
        share = 100 * mean_ns / total
        rows.append({"name": name, "timeMs": ms * runs, "averageMs": ms, "medianMs": ms, "percentage": share})
    return json.dumps(rows)
