"""A session of ONNX Runtime's CPU provider, set as the row was; and how values pass that no buffer could hold."""

from __future__ import annotations

from typing import Any

import facts
import numpy as np
import onnxruntime
from values import flatten_answer

Arrays = dict[str, np.ndarray[Any, Any]]
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}
WIDE_SUMS = {"avx512_vnni", "avx_vnni", "amx_int8"}
# (workers spin within a run, and stop at its end)
SPINNING = {"run": ("1", "1"), "always": ("1", "0"), "never": ("0", "1")}


def make_settings(engine: dict[str, Any]) -> Any:
    """Session options of the row: its threads, optimisation and way of waiting."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = engine["threads"]
    settings.inter_op_num_threads = 1
    settings.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    level = LEVELS[engine["options"].get("opt", "all")]
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    settings.log_severity_level = 3  # errors only
    spin, stop = SPINNING[engine["options"].get("spinning", "run")]
    settings.add_session_config_entry("session.intra_op.allow_spinning", spin)
    settings.add_session_config_entry("session.force_spinning_stop", stop)
    if not WIDE_SUMS.intersection(facts.read_instructions()):  # an older CPU, where 8-bit sums would saturate
        settings.add_session_config_entry("session.x64quantprecision", "1")
    settings.enable_cpu_mem_arena = engine["options"].get("arena", "own") != "none"
    return settings


def open_session(bundle: dict[str, Any]) -> Any:
    """The model on the CPU provider, and on no other."""
    onnxruntime.disable_telemetry_events()
    path = str(facts.HERE / bundle["artifact"]["path"])
    settings = make_settings(bundle["engine"])
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    except Exception:  # without VNNI it has no exact kernels for signed activations: sums may saturate
        settings.add_session_config_entry("session.x64quantprecision", "0")
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    session.disable_fallback()
    return session


def can_bind(session: Any) -> bool:
    """Whether everything in and out has a plain buffer: text, sequences and maps have none."""
    kinds = [node.type for node in (*session.get_inputs(), *session.get_outputs())]
    return all(kind.startswith("tensor(") and kind != "tensor(string)" for kind in kinds)


class ByValue:
    """A session whose inputs and outputs pass as values. Call it, or bind, run and fetch."""

    def __init__(self, session: Any) -> None:
        self._call, self._options = session._sess.run, onnxruntime.RunOptions()
        self._names = [node.name for node in session.get_outputs()]
        self._inputs: Arrays = {}
        self._values: list[Any] = []

    def bind(self, feeds: Arrays) -> None:
        """Keeps copies of the inputs."""
        facts.check_feeds(feeds)
        self._inputs = {n: a.astype(object) if a.dtype.kind == "U" else a.copy() for n, a in feeds.items()}

    def run(self) -> None:
        """Computes the outputs from what was bound."""
        self._values = self._call(self._names, self._inputs, self._options)

    def fetch(self) -> Arrays:
        """The outputs of the last run as arrays: a sequence as one row, maps as one row each."""
        return {name: flatten_answer(value) for name, value in zip(self._names, self._values, strict=True)}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()
