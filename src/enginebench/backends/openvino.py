"""`openvino`: OpenVINO on the CPU, in the precision that was asked for, compiled for the shapes that are bound."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from msgspec.structs import replace

from enginebench.backends.layers import summarize_layers
from enginebench.backends.precision import REORDER, Operator, count_watched_runs, prove_precision
from enginebench.backends.request import (
    FORCE,
    Option,
    check_graph_precision,
    check_instructions,
    check_request,
    explain_closed,
    explain_unbound,
    read_options,
)
from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.feeds import check_feeds
from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    EngineSpec,
    LayerProfile,
    Precision,
    TensorSpec,
)
from enginebench.core.shapes import concrete_shape
from enginebench.core.store import hash_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from enginebench.core.protocols import Array, Feeds, ModuleLoader, RunCall

NAME = "openvino"
KINDS: tuple[ArtifactKind, ...] = ("onnx", "openvino")

# OpenVINO's inference precision for each of ours. Without it the plugin takes the shortest that the CPU knows
# (bfloat16 with AMX, half on Arm), and FP32 would be a label only. INT8 lies in the graph; the hint is for the rest.
HINTS: dict[Precision, str] = {"fp32": "f32", "fp16": "f16", "bf16": "bf16", "int8": "f32"}
# What the plugin must say of itself before a hint is given. Without "FP16" it would answer f16 with BF16, silently.
CAPABILITIES: dict[Precision, str] = {"fp16": "FP16", "bf16": "BF16"}

OPTIONS = {
    "shapes": Option(
        default="static",
        choices=("static", "dynamic"),
        meaning="compile for the bound shapes, again for new ones; or once for all",
    ),
    "force": FORCE,
}

# Nodes that bring values from one type or layout to another.
CONVERSIONS = ("Reorder", "Convert", "FakeQuantize")

# Makes a compiled graph count the time of its nodes; never in the graph that is timed, since counting costs time.
COUNT = {"PERF_COUNT": True}
PROFILER = "OpenVINO's performance counters"


class OpenvinoBackend:
    """ONNX artefacts, or OpenVINO's own, on the CPU plugin."""

    name = NAME

    def probe(self) -> Availability:
        """Available where the CPU plugin loads; says the runtime's version."""
        devices = openvino.Core().available_devices
        found = "CPU" in devices
        return Availability(
            engine=NAME,
            available=found,
            version=openvino.__version__,
            devices=("cpu",) if found else (),
            reason=None if found else f"OpenVINO's CPU plugin did not load; devices: {', '.join(devices) or 'none'}",
        )

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The graph in OpenVINO's own form (`.xml` and `.bin`, weights not shortened), written to `out_dir`.

        Raises:
            ArtifactError: the graph cannot be read or is in another precision, or the files cannot be written.
            BackendUnavailable: the precision cannot be had here.
        """
        check_openvino_request(artifact, spec)
        if artifact.kind == "openvino":
            return artifact
        target = out_dir / f"{Path(artifact.path).stem}.xml"
        save_model(read_model(artifact.path), target)
        sha256, files = hash_files([target, target.with_suffix(".bin")], out_dir)
        return replace(
            artifact,
            kind="openvino",
            path=str(target),
            sha256=sha256,
            files=files,
            parent_sha256=artifact.sha256,
            made_by={"openvino": openvino.__version__},
        )

    def load(self, artifact: Artifact, spec: EngineSpec) -> OpenvinoEngine:
        """An engine on `spec.threads` threads, compiled for `spec.batch`.

        Raises:
            ArtifactError: the graph cannot be read or compiled, or its inputs are not the artefact's.
            BackendUnavailable: the plugin did not take a setting (precision, threads).
            UsageError: an option is unknown.
        """
        options = check_openvino_request(artifact, spec)
        model = read_model(artifact.path)
        check_interface(artifact, model)
        return OpenvinoEngine(
            model,
            artifact,
            settings=make_settings(spec),
            batch=spec.batch,
            static=options["shapes"] == "static",
        )


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> OpenvinoBackend:
    """The backend; it needs no module loader, and `build` keeps what is worth keeping."""
    return OpenvinoBackend()


def check_openvino_request(artifact: Artifact, spec: EngineSpec) -> dict[str, str]:
    """The options of a request that this engine can take.

    Raises:
        ArtifactError, BackendUnavailable, UsageError: as `OpenvinoBackend.load` says.
    """
    check_request(artifact, spec, KINDS, tuple(HINTS))
    check_graph_precision(artifact, spec)
    options = read_options(spec, OPTIONS)
    if spec.precision == "bf16":
        check_instructions(spec, "BF16" in read_capabilities(), options["force"] == "1")
    return options


def read_capabilities() -> tuple[str, ...]:
    """What the CPU plugin says it computes in here: FP32, INT8, BF16, ..."""
    return tuple(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def choose_hint(precision: Precision) -> str:
    """The inference precision to ask for: FP32 where the plugin cannot compute in the other, which the proof shows."""
    needs = CAPABILITIES.get(precision)
    return HINTS[precision] if needs is None or needs in read_capabilities() else HINTS["fp32"]


def make_settings(spec: EngineSpec) -> dict[str, Any]:
    """The plugin's settings for one request at a time, on the spec's threads and in its precision.

    Threads go where the process is allowed to run: the harness pins, not the plugin. Hyper-threads and small cores
    count as threads, so that the number asked for can be had.
    """
    return {
        "INFERENCE_PRECISION_HINT": choose_hint(spec.precision),
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": spec.threads,
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,
        "SCHEDULING_CORE_TYPE": "ANY_CORE",
    }


def read_model(path: str) -> Any:
    """The graph of a file."""
    try:
        return openvino.Core().read_model(path)
    except Exception as error:
        raise ArtifactError(f"OpenVINO cannot read {path}: {_first_line(error)}") from error


def save_model(model: Any, target: Path) -> None:
    """Writes the graph with its weights as they are (the default would halve them)."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        openvino.save_model(model, str(target), compress_to_fp16=False)
    except Exception as error:
        raise ArtifactError(f"OpenVINO cannot write {target}: {_first_line(error)}") from error


def compile_model(model: Any, settings: dict[str, Any]) -> Any:
    """The compiled graph, with every setting read back.

    Raises:
        ArtifactError: the plugin cannot compile the graph.
        BackendUnavailable: it compiled with another precision, thread count or device.
    """
    try:
        compiled = openvino.Core().compile_model(model, "CPU", settings)
    except Exception as error:
        raise ArtifactError(f"OpenVINO cannot compile the graph: {_first_line(error)}") from error
    expected = {
        "INFERENCE_PRECISION_HINT": settings["INFERENCE_PRECISION_HINT"],
        "INFERENCE_NUM_THREADS": str(settings["INFERENCE_NUM_THREADS"]),
        "NUM_STREAMS": "1",
        "EXECUTION_DEVICES": "CPU",
    }
    for key, wanted in expected.items():
        found = show_property(compiled.get_property(key))
        if found != wanted:
            advice = ". Is the process pinned to fewer CPUs? Lower --threads" if key == "INFERENCE_NUM_THREADS" else ""
            raise BackendUnavailable(f"asked OpenVINO for {key}={wanted} and got {found}{advice}")
    return compiled


def show_property(value: Any) -> str:
    """A property of the plugin as the text by which it is set."""
    if isinstance(value, openvino.Type):
        return str(value.to_string())
    return ",".join(value) if isinstance(value, (list, tuple, set)) else str(value)


def check_interface(artifact: Artifact, model: Any) -> None:
    """Returns if the graph's inputs and outputs are those of the artefact.

    Raises:
        ArtifactError: a name or a dtype differs.
    """
    for specs, ports in ((artifact.inputs, model.inputs), (artifact.outputs, model.outputs)):
        found = {name: str(np.dtype(port.element_type.to_dtype())) for port in ports for name in port.get_names()}
        wrong = [s.name for s in specs if found.get(s.name) != s.dtype]
        if wrong or len(specs) != len(ports):
            raise ArtifactError(f"{artifact.path} has {found}; its artefact says {[(s.name, s.dtype) for s in specs]}")


def _first_line(error: Exception) -> str:
    """The last line of OpenVINO's message: the ones before it are places in its sources."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


def record_profile(compiled: Any, feeds: Feeds) -> list[list[Any]]:
    """The counters of every node, for each of a few runs on these arrays after one that is not counted."""
    request = compiled.create_infer_request()
    start = time.perf_counter()
    request.infer(dict(feeds))
    runs: list[list[Any]] = []
    for _ in range(count_watched_runs(time.perf_counter() - start)):
        request.infer(dict(feeds))
        runs.append(request.get_profiling_info())
    return runs


def read_node_times(counters: list[Any]) -> Iterator[Operator]:
    """Every node that ran.

    Source: the CPU plugin of OpenVINO 2026.4 ends a node's `exec_type` with the type it computes in
    (`brgconv_avx512_1x1_f32`, `jit_avx512_I8`).
    """
    for counter in counters:
        if counter.status == openvino.ProfilingInfo.Status.EXECUTED:
            dtype = REORDER if counter.node_type in CONVERSIONS else counter.exec_type.rpartition("_")[2]
            time_ns = counter.real_time.total_seconds() * 1e9
            yield Operator(dtype, time_ns, counter.node_name, counter.node_type)


class OpenvinoEngine:
    """A compiled graph, one request, and input tensors that OpenVINO allocated (and aligned) itself."""

    def __init__(
        self,
        model: Any,
        artifact: Artifact,
        *,
        settings: dict[str, Any],
        batch: int,
        static: bool,
    ) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._path = artifact.path
        self._model = model
        self._settings = settings
        self._static = static
        self._compiled: Any = None
        self._request: Any = None
        self._infer: Callable[..., object] | None = None
        self._views: dict[str, Array] = {}
        self._bound = False
        self._watched: list[list[Operator]] = []  # runs under the counters, on what is bound
        self._compile({s.name: concrete_shape(s, batch) for s in self.inputs})

    @property
    def threads(self) -> int:
        """Threads of the compiled graph, read back from the plugin."""
        self._check_open()
        return int(self._compiled.get_property("INFERENCE_NUM_THREADS"))

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound."""
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays into the request's tensors; new shapes get new ones, and a new graph if it is static."""
        self._check_open()
        check_feeds(self.inputs, feeds)
        if any(self._views[name].shape != array.shape for name, array in feeds.items()):
            self._compile({name: array.shape for name, array in feeds.items()})
        for name, view in self._views.items():
            np.copyto(view, feeds[name])
        self._bound, self._watched = True, []

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        self._check_bound()
        return {s.name: np.array(self._request.get_tensor(s.name).data, order="C") for s in self.outputs}

    def effective_precision(self) -> dict[str, float]:
        """Shares of node time by precision, from the performance counters of a compiled graph of its own."""
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """The nodes as layers, from the same record as the proof of precision."""
        return summarize_layers(self._watch(), PROFILER)

    def close(self) -> None:
        """Frees graph and request; may be called twice."""
        self._views = {}
        self._model = self._compiled = self._request = self._infer = None

    def __enter__(self) -> OpenvinoEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> list[list[Operator]]:
        """A few runs of a compiled graph that counts; the one that is timed is not touched."""
        self._check_bound()
        if not self._watched:
            model, feeds = read_model(self._path), {name: view.copy() for name, view in self._views.items()}
            if self._static:
                model.reshape({name: list(array.shape) for name, array in feeds.items()})
            runs = record_profile(compile_model(model, self._settings | COUNT), feeds)
            self._watched = [list(read_node_times(counters)) for counters in runs]
        return self._watched

    def _check_open(self) -> None:
        if self._request is None:
            raise explain_closed(NAME)

    def _check_bound(self) -> None:
        self._check_open()
        if not self._bound:
            raise explain_unbound(NAME)

    def _run(self) -> None:
        # No inputs: the tensors are in place. True: outputs are views, so that nothing is copied in the timed call.
        self._infer({}, True, False)  # type: ignore[misc]  # closed engines hand out no run

    def _compile(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if self._compiled is None or self._static:
            if self._static:
                self._model.reshape({name: list(shape) for name, shape in shapes.items()})
            self._compiled = compile_model(self._model, self._settings)
            self._request = self._compiled.create_infer_request()
            # Not request.infer: that wrapper checks its arguments in Python, which costs 1 us a call.
            self._infer = super(openvino.InferRequest, self._request).infer  # type: ignore[misc]  # no stubs
        self._views = {s.name: self._set_tensor(s, shapes[s.name]) for s in self.inputs}

    def _set_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> Array:
        """Gives the request a tensor of its own; returns the view by which it is filled."""
        tensor = openvino.Tensor(openvino.Type(np.dtype(spec.dtype)), list(shape))
        self._request.set_tensor(spec.name, tensor)
        view: Array = tensor.data
        return view
