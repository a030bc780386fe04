"""`ort`: ONNX Runtime on the CPU, through an IOBinding whose buffers are allocated once."""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from msgspec.structs import replace

from enginebench.backends.onnxruntime.entries import ORT
from enginebench.backends.onnxruntime.values import flatten_answer
from enginebench.backends.proof.layer_records import summarize_layers
from enginebench.backends.proof.precision import Operator, count_watched_runs, prove_precision, settle_moves
from enginebench.backends.refusals import explain_refusal
from enginebench.backends.request import (
    check_graph_precision,
    check_request,
    explain_closed,
    explain_unbound,
    read_options,
)
from enginebench.core.errors import ArtifactError, BackendUnavailable, UsageError
from enginebench.core.feeds import check_feeds, join_samples
from enginebench.core.operators import register_operators
from enginebench.core.precisions import REORDER
from enginebench.core.records import TEXT, Artifact, Availability, EngineSpec, LayerProfile, Precision, TensorSpec
from enginebench.core.store import hash_files
from enginebench.core.streams import Clock, Ended, StreamsSpec, collect_ended, fail_request
from enginebench.core.sums import keep_sums_exact, open_cpu_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from enginebench.core.protocols import Array, Feeds, RunCall

NAME, OPTIONS = ORT.name, ORT.options
PROVIDER = "CPUExecutionProvider"
PRECISIONS: tuple[Precision, ...] = ("fp32", "fp16", "int8")
REASONS: dict[Precision, str] = {
    # Seen with ONNX Runtime 1.31: a BF16 graph does not load, "Could not find an implementation for Conv(22)".
    "bf16": "ONNX Runtime's CPU provider has no BF16 convolution or matrix product",
    "fp8": "ONNX Runtime's CPU provider has no FP8 convolution or matrix product",
}

# Errors only: its warnings describe the graph optimiser's choices and would drown a child's last words.
ERRORS_ONLY = 3

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
    "tensor(string)": TEXT,
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

# Kernels that compute in another type than that of their first input.
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "ReorderInput", "ReorderOutput")
INT8_KERNELS = ("DynamicQuantizeMatMul",)
# Kernels that run graphs of their own; the kernels of those stand in the record too, and their time inside of theirs.
CONTAINERS = ("If", "Loop", "Scan")
KERNEL_TIME = "_kernel_time"
# In an artifact's `made_by`: its graph is the one that ONNX Runtime optimised.
AHEAD = "onnxruntime, optimised ahead"
PROFILER = "ONNX Runtime's profiler"


class OrtBackend:
    """ONNX artifacts on ONNX Runtime's CPU provider."""

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
        """The artifact as it is: ONNX Runtime optimises while it loads. Refuses what `load` would refuse.

        With `ahead=1` the graph as it was optimised here, for this processor, as a file of its own.
        """
        check_request(artifact, spec, ("onnx",), PRECISIONS, reasons=REASONS, text=True)
        check_graph_precision(artifact, spec)
        return save_optimised(artifact, spec, out_dir) if read_options(spec, OPTIONS)["ahead"] == "1" else artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtEngine:
        """An engine on `spec.threads` threads.

        Raises:
            ArtifactError: ONNX Runtime cannot run the file, its inputs are not the artifact's, or it is
                in another precision.
            BackendUnavailable: the CPU provider was dropped, or the engine does not run the precision.
            UsageError: an option is unknown.
        """
        check_request(artifact, spec, ("onnx",), PRECISIONS, reasons=REASONS, text=True)
        check_graph_precision(artifact, spec)
        session = open_session(artifact, make_session_options(spec))
        check_interface(artifact.inputs, session.get_inputs(), artifact.path)
        check_interface(artifact.outputs, session.get_outputs(), artifact.path)
        engine = LooseOrtEngine if needs_values(session, artifact) else OrtEngine
        return engine(session, artifact, spec)

    def load_several(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> list[OrtEngine]:
        """An engine for each spec: over a session of its own or, with `sessions=one`, all over the first one's."""
        first = self.load(artifact, specs[0])
        if read_options(specs[0], OPTIONS)["sessions"] == "each":
            return [first, *(self.load(artifact, spec) for spec in specs[1:])]
        return [first, *(type(first)(first.session, artifact, spec) for spec in specs[1:])]

    def open_streams(
        self, artifact: Artifact, spec: EngineSpec, wanted: StreamsSpec, clock: Clock
    ) -> OrtAsyncStreams | None:
        """With `sessions=async` one session on the threads of all streams, called by `run_async`; else None.

        Raises:
            UsageError: it would have a single thread: the caller's own counts as one of them and computes nothing.
        """
        if read_options(spec, OPTIONS)["sessions"] != "async":
            return None
        threads = spec.threads * wanted.streams
        if threads < 2:
            raise UsageError(f"{NAME}:sessions=async needs two threads in all; raise --threads or --streams")
        engine = self.load(artifact, replace(spec, threads=threads))
        return OrtAsyncStreams(engine.session, artifact, wanted.streams, clock)


def create_backend() -> OrtBackend:
    """The backend."""
    return OrtBackend()


def make_session_options(spec: EngineSpec) -> Any:
    """Session options of a spec: its threads and no others, its optimisation and spinning, a silent log."""
    options = read_options(spec, OPTIONS)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = spec.threads
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # What was optimised ahead must not be optimised again: its operators are the kernels of this processor already.
    settings.graph_optimization_level = OPTIMISATION["none" if options["ahead"] == "1" else options["opt"]]
    settings.log_severity_level = ERRORS_ONLY
    for key, value in SPINNING[options["spinning"]].items():
        settings.add_session_config_entry(key, value)
    keep_sums_exact(settings)
    settings.enable_cpu_mem_arena = options["arena"] != "none"
    if options["arena"] == "shared":
        share_arena()
        settings.add_session_config_entry("session.use_env_allocators", "1")
    return settings


def save_optimised(artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
    """The graph as ONNX Runtime optimises it for this processor, in a file of its own."""
    if artifact.made_by.get(AHEAD):
        return artifact
    level = read_options(spec, OPTIONS)["opt"]
    target = out_dir / f"{Path(artifact.path).stem}.optimised-{level}.onnx"
    target.parent.mkdir(parents=True, exist_ok=True)
    settings = make_session_options(replace(spec, options={**spec.options, "ahead": "0"}))
    settings.optimized_model_filepath = str(target)
    open_session(artifact, settings)
    sha256, files = hash_files([target], out_dir)
    return replace(
        artifact,
        path=str(target),
        sha256=sha256,
        files=files,
        parent_sha256=artifact.sha256,
        made_by={AHEAD: onnxruntime.__version__},
    )


@cache
def share_arena() -> None:
    """Makes the memory that all sessions of this process take theirs from, once."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(place, None)


def open_session(artifact: Artifact, settings: Any) -> Any:
    """A session on the CPU provider and on nothing else.

    Raises:
        ArtifactError: ONNX Runtime cannot load the graph; names the operator first where it is one.
        BackendUnavailable: the provider was dropped.
        UsageError: a library of operators cannot be loaded.
    """
    onnxruntime.disable_telemetry_events()
    register_operators(settings, artifact.operator_libraries)
    try:
        session = open_cpu_session(artifact.path, settings)
    except Exception as error:
        raise explain_refusal(f"ONNX Runtime cannot load {artifact.path}", error) from error
    session.disable_fallback()
    if session.get_providers() != [PROVIDER]:
        raise BackendUnavailable(f"asked ONNX Runtime for {PROVIDER}, got {', '.join(session.get_providers())}")
    return session


def check_interface(specs: tuple[TensorSpec, ...], found: list[Any], path: str) -> None:
    """Checks that the session's inputs (or outputs) have the artifact's names and dtypes.

    Raises:
        ArtifactError: they differ, or a type has no NumPy counterpart.
    """
    expected = {s.name: s.dtype for s in specs}
    actual = {node.name: name_dtype(node.type) for node in found}
    if expected != actual:
        raise ArtifactError(f"{path} has {actual} where its artifact says {expected}; export it again")


def name_dtype(kind: str) -> str:
    """The dtype of a value's elements, also of those in a sequence or a map."""
    found = re.search(r"tensor\(\w+\)", kind)
    return DTYPES.get(found[0], kind) if found else kind


def needs_values(session: Any, artifact: Artifact) -> bool:
    """Whether something in or out has no plain buffer that could be bound: text, a sequence, a map."""
    plain = all(node.type.startswith("tensor(") for node in (*session.get_inputs(), *session.get_outputs()))
    return not plain or any(spec.dtype == TEXT for spec in (*artifact.inputs, *artifact.outputs))


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
        self._misdeclared = False  # one of them has another rank than the graph says
        self._settled = False  # whether that is known for what is bound
        self._watched: list[list[Operator]] = []  # runs under the profiler, on what is bound
        # Not session.run_with_iobinding: that wrapper looks for WebGPU captures, which costs 0.8 us a call.
        self._run: RunCall | None = partial(
            session._sess.run_with_iobinding, self._binding._iobinding, onnxruntime.RunOptions()
        )

    @property
    def session(self) -> Any:
        """The session, for engines that share it."""
        return self._open_session()

    @property
    def call_nothing(self) -> RunCall:
        """A call into the extension that does nothing on a CPU: inputs in memory are ready."""
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
            raise explain_unbound(self._spec.backend)
        if not self._settled:
            return self._run_first
        return self._run_afresh if self._misdeclared else self._run

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays into the session's buffers; new shapes get new buffers."""
        self._open_session()
        check_feeds(self.inputs, feeds)
        self._watched = []
        if any(name not in self._feeds or self._feeds[name].shape != feeds[name].shape for name in feeds):
            self._allocate(feeds)
        for name, buffer in self._feeds.items():
            np.copyto(buffer, feeds[name])
        self._hand_over()
        self._release_late()

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        self._open_session()
        if not self._feeds:
            raise explain_unbound(self._spec.backend)
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

    def _release_late(self) -> None:
        """A run leaves its buffer bound, and other data may need a larger one."""
        for name in self._late:
            self._binding.bind_output(name, "cpu")

    def _run_first(self) -> None:
        """The first run on new shapes: it shows whether the outputs have the shapes that the graph declares.

        Some exporters declare others. ONNX Runtime then refuses the buffers made for them, and, where the rank is
        wrong, even the one that it made itself in the run before.
        """
        assert self._run is not None
        if self._settled:  # somebody kept this call
            self.run()
            return
        try:
            self._run()
        except Exception:
            if len(self._late) == len(self._answers):
                raise
            self._answers = dict.fromkeys(self._answers)
            self._late = list(self._answers)
            self._run_afresh()
        self._drop_unwritten()
        if self._late:
            try:
                self._run()
            except Exception:
                self._misdeclared = True
                self._run_afresh()
        self._settled = True

    def _drop_unwritten(self) -> None:
        """Takes outputs from the runtime where it put a buffer of its own in place of ours, which it did not write.

        ONNX Runtime 1.31 does so with an output that is an input of the graph: it hands out the input itself.
        """
        for (name, answer), value in zip(self._answers.items(), self._binding.get_outputs(), strict=True):
            if answer is not None and value.data_ptr() != answer.ctypes.data:
                self._answers[name] = None
                self._late.append(name)

    def _run_afresh(self) -> None:
        assert self._run is not None
        self._release_late()
        self._run()

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler; the session that is timed is not touched."""
        self._open_session()
        if not self._feeds:
            raise explain_unbound(self._spec.backend)
        if not self._watched:
            self._watched = self._record()
        return self._watched

    def _record(self) -> list[list[Operator]]:
        settings = make_session_options(self._spec)
        return read_kernel_times(record_profile(partial(open_session, self._artifact), settings, self._feeds))

    def _hand_over(self) -> None:
        """Tells the session of new values in the buffers: on the CPU it reads them where they are."""

    def _open_session(self) -> Any:
        if self._session is None:
            raise explain_closed(self._spec.backend)
        return self._session

    def _allocate(self, feeds: Feeds) -> None:
        """Binds fresh buffers for these shapes, in the binding that `run` already holds."""
        self._settled = self._misdeclared = False
        self._feeds = {s.name: np.empty(feeds[s.name].shape, s.dtype) for s in self.inputs}
        self._bind_inputs()
        axes = name_axes(self.inputs, feeds)
        self._answers = {s.name: make_answer(s, axes) for s in self.outputs}
        self._late = [name for name, answer in self._answers.items() if answer is None]
        for name, answer in self._answers.items():
            if answer is None:
                self._binding.bind_output(name, "cpu")  # keeps its place in the order of outputs
            else:
                self._binding.bind_output(name, "cpu", 0, answer.dtype.type, answer.shape, answer.ctypes.data)

    def _bind_inputs(self) -> None:
        for name, buffer in self._feeds.items():
            self._binding.bind_input(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)


class OrtAsyncStreams:
    """A session whose runs are begun and come back by a call from one of its own threads."""

    def __init__(self, session: Any, artifact: Artifact, depth: int, clock: Clock) -> None:
        self.depth = depth
        self._session, self._inputs, self._clock = session, artifact.inputs, clock
        self._names = [spec.name for spec in artifact.outputs]
        self._ended: SimpleQueue[Ended] = SimpleQueue()

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        started_ns = self._clock()
        try:
            feeds = join_samples(samples)
            check_feeds(self._inputs, feeds)
            self._session.run_async(self._names, feeds, self._finish, (ticket, started_ns))
        except Exception as error:  # each runtime has its own
            self._ended.put(fail_request(ticket, started_ns, self._clock(), error))

    def _finish(self, arrays: list[Array], begun: tuple[int, int], error: str) -> None:
        now = self._clock()
        if error:
            self._ended.put(fail_request(*begun, now, RuntimeError(error)))
        else:
            self._ended.put(Ended(*begun, now, now, dict(zip(self._names, arrays, strict=True))))

    def collect(self, wait: bool) -> list[Ended]:
        return collect_ended(self._ended, wait)

    def close(self) -> None:
        """Frees the session; may be called twice."""
        self._session = None


class LooseOrtEngine(OrtEngine):
    """A session whose inputs and answers pass as values, since text, sequences and maps cannot be bound."""

    def __init__(self, session: Any, artifact: Artifact, spec: EngineSpec) -> None:
        super().__init__(session, artifact, spec)
        self._values: list[Any] = []

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound."""
        self._open_session()
        if not self._feeds:
            raise explain_unbound(self._spec.backend)
        return self._run_values

    def bind(self, feeds: Feeds) -> None:
        """Keeps copies of the arrays; ONNX Runtime reads them where they are, text apart."""
        self._open_session()
        check_feeds(self.inputs, feeds)
        self._watched, self._values = [], []
        self._feeds = {
            spec.name: feeds[spec.name].astype(object) if spec.dtype == TEXT else feeds[spec.name].copy()
            for spec in self.inputs
        }
        self._run_values = partial(self._call, [spec.name for spec in self.outputs], onnxruntime.RunOptions())

    def fetch(self) -> dict[str, Array]:
        """The answers of the last run as arrays: a sequence as one row, maps as one row each."""
        self._open_session()
        if not self._values:
            raise explain_unbound(self._spec.backend)
        return {spec.name: flatten_answer(value) for spec, value in zip(self.outputs, self._values, strict=True)}

    def _call(self, names: list[str], options: Any) -> None:
        self._values = self._session._sess.run(names, self._feeds, options)


def record_profile(open_watched: Callable[[Any], Any], settings: Any, feeds: Feeds) -> list[dict[str, Any]]:
    """The events that ONNX Runtime's profiler wrote about a few runs of a session of its own.

    Args:
        open_watched: opens the session with `settings`.
        settings: session options that no other session has.
        feeds: what it is run on.
    """
    settings.enable_profiling = True
    with TemporaryDirectory(prefix="enginebench-") as folder:
        settings.profile_file_prefix = str(Path(folder) / "profile")
        session = open_watched(settings)
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
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(KERNEL_TIME)]
    for event, own_us in zip(kernels, subtract_nested(kernels), strict=True):
        run = bisect_right(starts, event["ts"]) - 1
        if run >= 0:
            kind = event["args"]["op_name"]
            name = event["name"].removesuffix(KERNEL_TIME) or kind  # a node need not have a name
            runs[run].append(Operator(find_kernel_dtype(event["args"]), 1e3 * own_us, name, kind))
    return [settle_moves(run) for run in runs[1:]]


def subtract_nested(kernels: list[dict[str, Any]]) -> list[float]:
    """The microseconds of each kernel without those of the kernels of its own graph, which are listed themselves."""
    own = [float(kernel["dur"]) for kernel in kernels]
    around: list[int] = []  # containers that are running, the innermost last
    for index in sorted(range(len(kernels)), key=lambda i: (kernels[i]["ts"], -kernels[i]["dur"])):
        kernel = kernels[index]
        while around and kernel["ts"] >= kernels[around[-1]]["ts"] + kernels[around[-1]]["dur"]:
            around.pop()
        if around:
            own[around[-1]] = max(0.0, own[around[-1]] - kernel["dur"])
        if kernel["args"]["op_name"] in CONTAINERS:
            around.append(index)
    return own


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
