"""Read a plan's own description: its tensors, its profile, and, while it runs, its layers."""

import json
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, MeasurementError
from enginebench.core.precisions import UNKNOWN
from enginebench.core.records import Artifact, EngineSpec, LayerProfile, ShapeRange, TensorSpec
from enginebench.core.shapes import NAMELESS, find_plan_shapes, fix_shapes, name_axes
from enginebench.core.store import open_temporary
from enginebench.engines.abilities import PlanReader
from enginebench.engines.proof import can_watch, prove_precision, watch_kernels
from enginebench.engines.tensorrt import PlanEngine, find_dtype
from enginebench.engines.tensorrt_library import Library

# Enough for shares that do not move; the profiler slows every layer alike.
PROFILED_RUNS = 20


def read_tensors(trt: Any, engine: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """(inputs, outputs) of an engine; a dynamic axis is named `batch` if it is the first, else after its tensor."""
    sides: dict[bool, list[TensorSpec]] = {True: [], False: []}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        is_input = engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        axes = [int(length) if length >= 0 else NAMELESS[0] for length in tuple(engine.get_tensor_shape(name))]
        shape = name_axes(name, axes)
        sides[is_input].append(TensorSpec(name=name, dtype=find_dtype(engine, name), shape=shape))
    return tuple(sides[True]), tuple(sides[False])


def adopt_tensors(trt: Any, plan: Any, artifact: Artifact, options: dict[str, str]) -> Artifact:
    """A finished plan with the inputs and outputs that it names itself, and the shapes that its profile allows.

    Axes for which the profile leaves no choice are fixed. Where there is no such profile, inputs stay as they are.
    """
    inputs, outputs = read_tensors(trt, plan)
    index, requested_shapes = options["profile_index"], find_plan_shapes(options)
    has_profile = index.isdecimal() and int(index) < plan.num_optimization_profiles
    fixed, allowed = [], {}
    for spec in inputs:
        if has_profile and any(isinstance(axis, str) for axis in spec.shape):
            low, best, high = (tuple(map(int, side)) for side in plan.get_tensor_profile_shape(spec.name, int(index)))
            if spec.name not in requested_shapes:
                allowed[spec.name] = ShapeRange(smallest=low, largest=high, best=best)
            shape = (a if a == b else axis for axis, a, b in zip(spec.shape, low, high, strict=True))
            spec = replace(spec, shape=tuple(shape))
        fixed.append(spec)
    return replace(artifact, inputs=tuple(fixed), outputs=outputs, allowed=allowed)


def list_plan_tensors(
    trt: Any, plan: Any, artifact: Artifact, options: dict[str, str]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The engine's own tensors; INT64 where the graph has it, of which TensorRT 8.6 makes INT32."""
    inputs, outputs = read_tensors(trt, plan)
    for actual, expected in ((inputs, artifact.inputs), (outputs, artifact.outputs)):
        if expected and {s.name for s in actual} != {s.name for s in expected}:
            raise ArtifactError(
                f"{artifact.path} has {', '.join(s.name for s in actual)} where its artifact has "
                f"{', '.join(s.name for s in expected)}; build it again"
            )
    long = {s.name for s in (*artifact.inputs, *artifact.outputs) if s.dtype == "int64"}
    inputs, outputs = (
        tuple(replace(s, dtype="int64") if s.dtype == "int32" and s.name in long else s for s in side)
        for side in (inputs, outputs)
    )
    return fix_shapes(inputs, find_plan_shapes(options)), outputs


class WatchedPlanEngine(PlanEngine):
    """The engine of an artifact, and what TensorRT's inspector and profiler say of it; `reader` reads their text."""

    def __init__(
        self,
        library: Library,
        plan: Any,
        artifact: Artifact,
        spec: EngineSpec,
        options: dict[str, str],
        reader: PlanReader | None,
        **others: Any,
    ) -> None:
        self._reader = reader
        inputs, outputs = list_plan_tensors(library.trt, plan, artifact, options)
        super().__init__(library, plan, inputs, outputs, spec, options, **others)

    def profile_layers(self) -> LayerProfile:
        """Profile the engine's layers; the profiler slows them down, so that they sum to more than a run."""
        if self._reader is None:
            raise MeasurementError("no reader for TensorRT's layers was handed in; open the engine through a run")
        with open_temporary() as folder:
            profile = self._reader.read_layers(*self._write_profile(folder))
        return replace(profile, profiler=f"{self._library.title}'s layer profiler")

    def time_layers(self, runs: int) -> dict[str, float]:
        """Layer -> mean nanoseconds a run, from the one context: a second on the same profile is refused."""
        self._open_run()
        stream = self._open_stream()
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
        with open_temporary() as folder:
            shares = self._reader.read_precision(*self._write_profile(folder)) or {}
        if not shares.get(UNKNOWN) or not can_watch():
            return shares
        kernels = prove_precision(watch_kernels(self.run))
        return kernels if kernels and kernels.get(UNKNOWN, 0.0) < shares[UNKNOWN] else shares

    def _write_profile(self, folder: Path) -> tuple[Path, Path]:
        """(layers, times) as files of trtexec's form; profiled once for what was bound."""
        layers, profile = folder / "layers.json", folder / "profile.json"
        self._watched = self._watched or self.time_layers(PROFILED_RUNS)
        layers.write_text(self.inspect(), encoding="utf-8")
        total, rows = sum(self._watched.values()) or 1.0, list[dict[str, object]]([{"count": PROFILED_RUNS}])
        for name, ns in self._watched.items():
            times = {"timeMs": ns / 1e6 * PROFILED_RUNS, "averageMs": ns / 1e6, "medianMs": ns / 1e6}
            rows.append({"name": name, **times, "percentage": 100 * ns / total})
        profile.write_text(json.dumps(rows), encoding="utf-8")
        return layers, profile


def make_layer_times(trt: Any) -> Any:
    """A profiler that sums what TensorRT reports for each layer; layers of one name are one."""

    class LayerTimes(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.total_ms: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.total_ms[layer_name] = self.total_ms.get(layer_name, 0.0) + ms

    return LayerTimes()
