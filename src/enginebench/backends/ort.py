"""`ort`: ONNX Runtime on the CPU, through an IOBinding whose buffers are allocated once."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from enginebench.backends.layers import summarize_layers
from enginebench.backends.precision import REORDER, Operator, count_watched_runs, prove_precision
from enginebench.backends.request import (
    Option,
    check_graph_precision,
    check_request,
    explain_closed,
    explain_unbound,
    read_options,
)
from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Artifact, Availability, EngineSpec, LayerProfile, Precision, TensorSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds, ModuleLoader, RunCall

NAME = "ort"
PROVIDER = "CPUExecutionProvider"
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
REASONS: dict[Precision, str] = {
    # Seen with ONNX Runtime 1.31: a BF16 graph does not load, "Could not find an implementation for Conv(22)".
    "bf16": "ONNX Runtime's CPU provider has no BF16 convolution or matrix product",
    "fp8": "ONNX Runtime's CPU provider has no FP8 convolution or matrix product",
}

# Errors only: its warnings describe the graph optimiser's choices and would drown a child's last words.
ERRORS_ONLY = 3

OPTIONS = {
    "spinning": Option(
        default="run",
        choices=("run", "always", "never"),
        meaning="when worker threads wait by spinning: inside a run, also between runs, or never",
    ),
    "opt": Option(
        default="all", choices=("all", "extended", "basic", "none"), meaning="how far the graph is optimised"
    ),
}

# Session settings for each way of waiting. "run" keeps the speed of spinning where it pays, between the operators of
# one run, and hands the core back at its end: an engine that waits for its next call takes nothing from another.
SPINNING = {
    "run": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"},
    "always": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "0"},
    "never": {"session.intra_op.allow_spinning": "0", "session.force_spinning_stop": "1"},
}

OPTIMISATION = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

# ONNX Runtime's names of element types that NumPy has, too.
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

# Kernels that compute in another type than that of their first input.
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "ReorderInput", "ReorderOutput")
INT8_KERNELS = ("DynamicQuantizeMatMul",)
KERNEL_TIME = "_kernel_time"
PROFILER = "ONNX Runtime's profiler"


class OrtBackend:
    """ONNX artefacts on ONNX Runtime's CPU provider."""

    name = NAME

    def probe(self) -> Availability:
        """Available where the CPU provider is compiled in; says the runtime's version."""
        found = PROVIDER in onnxruntime.get_available_providers()
        return Availability(
            engine=NAME,
            available=found,
            version=onnxruntime.__version__,
            devices=("cpu",) if found else (),
            reason=None if found else f"this build of onnxruntime has no {PROVIDER}",
        )

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artefact as it is: ONNX Runtime optimises while it loads. Refuses what `load` would refuse."""
        check_request(artifact, spec, ("onnx",), PRECISIONS, reasons=REASONS)
        check_graph_precision(artifact, spec)
        read_options(spec, OPTIONS)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtEngine:
        """An engine on `spec.threads` threads.

        Raises:
            ArtifactError: the file is no graph that ONNX Runtime can run, its inputs are not the artefact's, or it is
                in another precision.
            BackendUnavailable: the CPU provider was dropped, or the precision is not one of this engine's.
            UsageError: an option is unknown.
        """
        check_request(artifact, spec, ("onnx",), PRECISIONS, reasons=REASONS)
        check_graph_precision(artifact, spec)
        session = open_session(artifact, make_session_options(spec))
        check_interface(artifact.inputs, session.get_inputs(), artifact.path)
        check_interface(artifact.outputs, session.get_outputs(), artifact.path)
        return OrtEngine(session, artifact, spec)


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> OrtBackend:
    """The backend; it needs neither a module loader nor a cache."""
    return OrtBackend()


def make_session_options(spec: EngineSpec) -> Any:
    """Session options of a spec: its threads and no others, its optimisation and spinning, a silent log."""
    options = read_options(spec, OPTIONS)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = spec.threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = OPTIMISATION[options["opt"]]
    settings.log_severity_level = ERRORS_ONLY
    for key, value in SPINNING[options["spinning"]].items():
        settings.add_session_config_entry(key, value)
    return settings


def open_session(artifact: Artifact, settings: Any) -> Any:
    """A session on the CPU provider and on nothing else."""
    onnxruntime.disable_telemetry_events()
    try:
        session = onnxruntime.InferenceSession(artifact.path, settings, providers=[PROVIDER])
    except Exception as error:
        raise ArtifactError(f"ONNX Runtime cannot load {artifact.path}: {error}") from error
    session.disable_fallback()
    if session.get_providers() != [PROVIDER]:
        raise BackendUnavailable(f"asked ONNX Runtime for {PROVIDER} and got {', '.join(session.get_providers())}")
    return session


def check_interface(specs: tuple[TensorSpec, ...], found: list[Any], path: str) -> None:
    """Returns if the session's inputs (or outputs) have the names and dtypes that the artefact names.

    Raises:
        ArtifactError: they differ, or a type has no NumPy counterpart.
    """
    expected = {s.name: s.dtype for s in specs}
    actual = {node.name: DTYPES.get(node.type, node.type) for node in found}
    if expected != actual:
        raise ArtifactError(f"{path} has {actual} where its artefact says {expected}; export it again")


class OrtEngine:
    """A session and its binding. `run` is the extension's own call with its arguments bound: no Python in between."""

    def __init__(self, session: Any, artifact: Artifact, spec: EngineSpec) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._artifact = artifact
        self._spec = spec
        self._session = session
        self._binding = session.io_binding()
        self._feeds: dict[str, Array] = {}
        self._answers: dict[str, Array | None] = {}
        self._late: list[str] = []  # outputs whose shape only a run knows
        self._watched: list[list[Operator]] = []  # runs under the profiler, on what is bound
        # Not session.run_with_iobinding: that wrapper looks for WebGPU captures, which costs 0.8 us a call.
        self._run: RunCall | None = partial(
            session._sess.run_with_iobinding, self._binding._iobinding, onnxruntime.RunOptions()
        )

    @property
    def call_nothing(self) -> RunCall:
        """A call into the extension that does nothing on a CPU: inputs that lie in memory need no waiting for."""
        self._open_session()
        call: RunCall = self._binding._iobinding.synchronize_inputs
        return call

    @property
    def threads(self) -> int:
        """Threads of the session, read back from it."""
        return int(self._open_session().get_session_options().intra_op_num_threads)

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound."""
        self._open_session()
        if self._run is None or not self._feeds:
            raise explain_unbound(NAME)
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays into the session's buffers; new shapes get new buffers."""
        self._open_session()
        check_feeds(self.inputs, feeds)
        self._watched = []
        if any(name not in self._feeds or self._feeds[name].shape != feeds[name].shape for name in feeds):
            self._allocate(feeds)
        for name, buffer in self._feeds.items():
            np.copyto(buffer, feeds[name])
        for name in self._late:  # a run leaves its buffer bound, and other data may need a larger one
            self._binding.bind_output(name, "cpu")

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        self._open_session()
        if not self._feeds:
            raise explain_unbound(NAME)
        if self._late:
            values = self._binding.get_outputs()
            return {name: np.array(value.numpy()) for name, value in zip(self._answers, values, strict=True)}
        return {name: buffer.copy() for name, buffer in self._answers.items() if buffer is not None}

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the profiler of a session of its own.

        Its times are inflated by the profiler, so that only their shares are used; this session is not touched.
        """
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """The kernels as layers, from the same record as the proof of precision."""
        return summarize_layers(self._watch(), PROFILER)

    def close(self) -> None:
        """Frees the session; may be called twice."""
        self._session = self._binding = self._run = None
        self._feeds, self._answers = {}, {}

    def __enter__(self) -> OrtEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler; the session that is timed is not touched."""
        self._open_session()
        if not self._feeds:
            raise explain_unbound(NAME)
        if not self._watched:
            self._watched = read_kernel_times(record_profile(self._artifact, self._spec, self._feeds))
        return self._watched

    def _open_session(self) -> Any:
        if self._session is None:
            raise explain_closed(NAME)
        return self._session

    def _allocate(self, feeds: Feeds) -> None:
        """Binds fresh buffers for these shapes, in the binding that `run` already holds."""
        self._feeds = {s.name: np.empty(feeds[s.name].shape, s.dtype) for s in self.inputs}
        for name, buffer in self._feeds.items():
            self._binding.bind_input(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        axes = name_axes(self.inputs, feeds)
        self._answers = {s.name: make_answer(s, axes) for s in self.outputs}
        self._late = [name for name, answer in self._answers.items() if answer is None]
        for name, answer in self._answers.items():
            if answer is None:
                self._binding.bind_output(name, "cpu")  # keeps its place in the order of outputs
            else:
                self._binding.bind_output(name, "cpu", 0, answer.dtype.type, answer.shape, answer.ctypes.data)


def record_profile(artifact: Artifact, spec: EngineSpec, feeds: Feeds) -> list[dict[str, Any]]:
    """The events that ONNX Runtime's profiler wrote about a few runs on these arrays."""
    settings = make_session_options(spec)
    settings.enable_profiling = True
    with TemporaryDirectory(prefix="enginebench-") as folder:
        settings.profile_file_prefix = str(Path(folder) / "profile")
        session = open_session(artifact, settings)
        start = time.perf_counter()
        session.run(None, dict(feeds))
        for _ in range(count_watched_runs(time.perf_counter() - start)):
            session.run(None, dict(feeds))
        events: list[dict[str, Any]] = json.loads(Path(session.end_profiling()).read_bytes())
    return events


def read_kernel_times(events: list[dict[str, Any]]) -> list[list[Operator]]:
    """Every kernel, for each run but the first.

    Source: the Chrome trace that ONNX Runtime 1.31 writes; kernels are `Node` events that end in `_kernel_time`, and
    a `model_run` lasts as long as its kernels.
    """
    starts = sorted(e["ts"] for e in events if e.get("name") == "model_run")
    runs: list[list[Operator]] = [[] for _ in starts]
    for event in events:
        run = bisect_right(starts, event.get("ts", 0)) - 1
        if run >= 0 and event.get("cat") == "Node" and event["name"].endswith(KERNEL_TIME):
            kind = event["args"]["op_name"]
            name = event["name"].removesuffix(KERNEL_TIME) or kind  # a node need not have a name
            runs[run].append(Operator(find_kernel_dtype(event["args"]), 1e3 * event["dur"], name, kind))
    return runs[1:]


def find_kernel_dtype(args: dict[str, Any]) -> str:
    """The element type in which a kernel computes: that of its first input, unless it converts from one to another."""
    if args["op_name"] in CONVERSIONS:
        return REORDER
    if args["op_name"] in INT8_KERNELS:
        return "int8"
    types = [dtype for entry in args["input_type_shape"] for dtype in entry]
    return types[0] if types else "none"


def name_axes(inputs: tuple[TensorSpec, ...], feeds: Feeds) -> dict[str, int]:
    """Length of every named axis, as the bound arrays have it."""
    return {
        axis: length
        for spec in inputs
        for axis, length in zip(spec.shape, feeds[spec.name].shape, strict=True)
        if isinstance(axis, str)
    }


def make_answer(spec: TensorSpec, axes: dict[str, int]) -> Array | None:
    """A buffer for an output, or None where its shape is known only after the run.

    Floats start as NaN, so that an output that no run has filled cannot pass for an answer.
    """
    shape = [axes.get(axis, -1) if isinstance(axis, str) else axis for axis in spec.shape]
    if min(shape, default=0) < 0:
        return None
    dtype = np.dtype(spec.dtype)
    return np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)
