"""ONNX Runtime on the CPU, through an IOBinding whose buffers are allocated once. Bundles hold a copy of this file."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime

from ..core.engine_api import (
    TEXT,
    Array,
    ArtifactLike,
    BackendUnavailable,
    Closing,
    EngineSpecLike,
    Feeds,
    RunCall,
    check_feeds,
    check_state,
    find_axis_lengths,
    flatten_output,
    make_output,
)
from ..core.sums import keep_sums_exact, open_cpu_session

PROVIDER = "CPUExecutionProvider"

# Errors only: its warnings describe the graph optimiser's choices and would drown a child's last words.
ERRORS_ONLY = 3

# Session settings for each way of waiting. "run" keeps the speed of spinning where it pays, between the operators of
# one run, and hands the core back at its end: an engine that waits for its next call takes nothing from another.
SPINNING = {
    "run": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"},
    "always": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "0"},
    "never": {"session.intra_op.allow_spinning": "0", "session.force_spinning_stop": "1"},
}

# Source: kOrtSessionOptionsDisableSpecifiedOptimizers of ONNX Runtime.
DISABLED = "optimization.disable_specified_optimizers"
# Optimizers whose names are more than letters and digits, and the ends of those that run at two levels, or once for a
# provider. A name that ONNX Runtime does not have is passed over; all with all ends would be more than the 4,096
# characters that 1.23 takes. Source: the log of 1.23 and of 1.31, "GraphTransformer NAME modified".
UNDERSCORED = {"PadFusion": "Pad_Fusion", "MatMulBatchNormalizationFusion": "MatMul_BatchNormalization_Fusion"}
LEVELS = ("", "L1", "L2")
ENDS = {"GeluFusion": LEVELS, "LayerNormFusion": LEVELS, "TransposeOptimizer": ("", "_CPUExecutionProvider")}

OPTIMISATION = {
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


def open_engine(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> OrtEngine:
    """An engine on `spec.threads` threads; `options` has a value for each."""
    session = open_session(artifact.path, make_session_options(spec, options))
    if needs_values(session, artifact):
        return LooseOrtEngine(session, artifact, spec)
    return OrtEngine(session, artifact, spec)


def make_session_options(spec: EngineSpecLike, options: Mapping[str, str]) -> Any:
    """Session options of a spec: its threads and no others, its optimisation and spinning, a silent log."""
    # What was optimised ahead must not be optimised again: its operators are the kernels of this processor already.
    opt = "none" if options["ahead"] == "1" else options["opt"]
    settings = make_plain_options(spec.threads, opt, options["disable"])
    for key, value in SPINNING[options["spinning"]].items():
        settings.add_session_config_entry(key, value)
    # Unset, both are ONNX Runtime's own: what a program without settings gets is measured.
    if options["accuracy_level"]:
        settings.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", options["accuracy_level"])
    if options["sums"] == "exact":
        keep_sums_exact(settings)
    settings.enable_cpu_mem_arena = options["arena"] != "none"
    if options["arena"] == "shared":
        share_arena()
        settings.add_session_config_entry("session.use_env_allocators", "1")
    return settings


def make_plain_options(threads: int, opt: str, disable: str = "") -> Any:
    """Session options of any provider: threads, optimisation without the optimizers `NAME+NAME`, a silent log."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    settings.graph_optimization_level = OPTIMISATION[opt]
    settings.log_severity_level = ERRORS_ONLY
    if disable:
        settings.add_session_config_entry(DISABLED, spell_optimizers(disable))
    return settings


def spell_optimizers(names: str) -> str:
    """ONNX Runtime's own names of the optimizers `NAME+NAME`, as its setting takes them."""
    return ";".join(UNDERSCORED.get(name, name) + end for name in names.split("+") for end in ENDS.get(name, ("",)))


@cache
def share_arena() -> None:
    """Make, once, the memory arena that all sessions of this process share."""
    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    memory = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    onnxruntime.create_and_register_allocator(memory, None)


def open_session(path: str, settings: Any) -> Any:
    """Open a session on the CPU provider alone."""
    onnxruntime.disable_telemetry_events()
    session = open_cpu_session(path, settings)
    session.disable_fallback()
    if session.get_providers() != [PROVIDER]:
        raise BackendUnavailable(f"asked ONNX Runtime for {PROVIDER}, got {', '.join(session.get_providers())}")
    return session


def needs_values(session: Any, artifact: ArtifactLike) -> bool:
    """Whether something in or out has no plain buffer that could be bound: text, a sequence, a map."""
    plain = all(node.type.startswith("tensor(") for node in (*session.get_inputs(), *session.get_outputs()))
    return not plain or any(spec.dtype == TEXT for spec in (*artifact.inputs, *artifact.outputs))


class OrtEngine(Closing):
    """A session and its binding. `run` is the extension's own call with its arguments bound: no Python in between."""

    def __init__(self, session: Any, artifact: ArtifactLike, spec: EngineSpecLike) -> None:
        self.inputs: tuple[Any, ...] = tuple(artifact.inputs)
        self.outputs: tuple[Any, ...] = tuple(artifact.outputs)
        self._artifact: Any = artifact
        self._spec: Any = spec
        self._session = session
        self._binding = session.io_binding()
        self._feeds: dict[str, Array] = {}
        self._computed: dict[str, Array | None] = {}
        self._late: list[str] = []  # outputs whose shape only a run knows
        self._misdeclared = False  # one of them has another rank than the graph declares
        self._settled = False  # whether that is known for what is bound
        self._watched: list[Any] = []  # the record of runs on the bound arrays, by the tool that records
        # Not session.run_with_iobinding: that wrapper looks for WebGPU captures, which costs 0.8 us a call.
        self._run: RunCall = partial(
            session._sess.run_with_iobinding, self._binding._iobinding, onnxruntime.RunOptions()
        )

    @property
    def session(self) -> Any:
        """The session, for engines that share it."""
        check_state(self._spec.backend, closed=self._session is None)
        return self._session

    @property
    def call_nothing(self) -> RunCall:
        """A call into the extension that does nothing on a CPU: inputs in memory are ready."""
        check_state(self._spec.backend, closed=self._session is None)
        call: RunCall = self._binding._iobinding.synchronize_inputs
        return call

    @property
    def threads(self) -> int:
        """Threads of the session, read back from it."""
        return int(self.session.get_session_options().intra_op_num_threads)

    @property
    def run(self) -> RunCall:
        self._check_bound()
        if not self._settled:
            return self._run_first
        return self._run_afresh if self._misdeclared else self._run

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays into the session's buffers; new shapes get new buffers."""
        check_state(self._spec.backend, closed=self._session is None)
        check_feeds(self.inputs, feeds)
        self._watched = []
        if any(name not in self._feeds or self._feeds[name].shape != feeds[name].shape for name in feeds):
            self._allocate(feeds)
        for name, buffer in self._feeds.items():
            np.copyto(buffer, feeds[name])
        self._hand_over()
        self._release_late()

    def fetch(self) -> dict[str, Array]:
        self._check_bound()
        if self._late:
            values = self._binding.get_outputs()
            return {name: np.array(value.numpy()) for name, value in zip(self._computed, values, strict=True)}
        return {name: buffer.copy() for name, buffer in self._computed.items() if buffer is not None}

    def close(self) -> None:
        self._session = self._binding = None
        self._feeds, self._computed, self._run = {}, {}, self._check_bound

    def _check_bound(self) -> None:
        check_state(self._spec.backend, closed=self._session is None, bound=bool(self._feeds))

    def _release_late(self) -> None:
        """A run leaves its buffer bound, and other data may need a larger one."""
        for name in self._late:
            self._binding.bind_output(name, "cpu")

    def _run_first(self) -> None:
        """The first run on new shapes: it shows whether the outputs have the shapes that the graph declares.

        Some exporters declare others. ONNX Runtime then refuses the buffers made for them, and, where the rank is
        wrong, even the one that it made itself in the run before.
        """
        if self._settled:  # a caller kept this call
            self.run()
            return
        try:
            self._run()
        except Exception:
            if len(self._late) == len(self._computed):
                raise
            self._computed = dict.fromkeys(self._computed)
            self._late = list(self._computed)
            self._run_afresh()
        # ONNX Runtime 1.31 hands out the input itself for an output that is one, and leaves our buffer unwritten.
        for (name, buffer), value in zip(self._computed.items(), self._binding.get_outputs(), strict=True):
            if buffer is not None and value.data_ptr() != buffer.ctypes.data:
                self._computed[name] = None
                self._late.append(name)
        if self._late:
            try:
                self._run()
            except Exception:
                self._misdeclared = True
                self._run_afresh()
        self._settled = True

    def _run_afresh(self) -> None:
        self._release_late()
        self._run()

    def _hand_over(self) -> None:
        """Pass new values in the buffers to the session: on the CPU it reads them in place."""

    def _allocate(self, feeds: Feeds) -> None:
        """Binds fresh buffers for these shapes, in the binding that `run` already holds."""
        self._settled = self._misdeclared = False
        self._feeds = {s.name: np.empty(feeds[s.name].shape, s.dtype) for s in self.inputs}
        self._bind_inputs()
        axes = find_axis_lengths(self.inputs, feeds)
        self._computed = {s.name: make_output(s, axes) for s in self.outputs}
        self._late = [name for name, buffer in self._computed.items() if buffer is None]
        for name, buffer in self._computed.items():
            if buffer is None:
                self._binding.bind_output(name, "cpu")  # keeps its place in the order of outputs
            else:
                self._binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)

    def _bind_inputs(self) -> None:
        for name, buffer in self._feeds.items():
            self._binding.bind_input(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)


class LooseOrtEngine(OrtEngine):
    """A session whose inputs and outputs pass as values, since text, sequences and maps cannot be bound."""

    def __init__(self, session: Any, artifact: ArtifactLike, spec: EngineSpecLike) -> None:
        super().__init__(session, artifact, spec)
        self._values: list[Any] = []

    @property
    def run(self) -> RunCall:
        self._check_bound()
        return self._run_values

    def bind(self, feeds: Feeds) -> None:
        """Keep copies of the arrays; ONNX Runtime reads all but text directly from them."""
        check_state(self._spec.backend, closed=self._session is None)
        check_feeds(self.inputs, feeds)
        self._watched, self._values = [], []
        self._feeds = {
            spec.name: feeds[spec.name].astype(object) if spec.dtype == TEXT else feeds[spec.name].copy()
            for spec in self.inputs
        }
        self._run_values = partial(self._call, [spec.name for spec in self.outputs], onnxruntime.RunOptions())

    def fetch(self) -> dict[str, Array]:
        """Return the outputs of the last run as arrays: a sequence as one row, maps as one row each."""
        check_state(self._spec.backend, closed=self._session is None, bound=bool(self._values))
        return {spec.name: flatten_output(value) for spec, value in zip(self.outputs, self._values, strict=True)}

    def _call(self, names: list[str], options: Any) -> None:
        self._values = self._session._sess.run(names, self._feeds, options)
