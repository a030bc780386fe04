"""The model on ONNX Runtime's CPU provider, set as the row in bundle.json was measured.

    from predict import load

    predict = load()
    outputs = predict({"input": array})  # every input by its name, as bundle.json lists them

`python predict.py --check` compares with the row's own outputs, `python predict.py --bench` times it here.
"""

from __future__ import annotations

import facts  # first: it sets variables that NumPy and the runtime read while they are imported

# isort: split
import sys
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import session_cpu
import trial

Arrays = dict[str, np.ndarray[Any, Any]]


class Predictor:
    """One session with its buffers bound once; new shapes get new buffers. Call it, or bind, run and fetch."""

    def __init__(self, opened: Any, bundle: dict[str, Any]) -> None:
        self._binding = opened.io_binding()
        self._specs, self._results = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._inputs: Arrays = {}
        self._answers: Arrays = {}
        self._late: list[str] = []  # outputs whose shape only a run knows
        # The extension's own call: the wrapper around it looks for WebGPU captures, which costs 0.8 us a call.
        call = opened._sess.run_with_iobinding
        self.run = partial(call, self._binding._iobinding, onnxruntime.RunOptions())

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs into the session's buffers."""
        facts.check_feeds(feeds)
        if any(name not in self._inputs or self._inputs[name].shape != feeds[name].shape for name in feeds):
            self._allocate(feeds)
        for name, buffer in self._inputs.items():
            np.copyto(buffer, feeds[name], casting="no")
        for name in self._late:
            self._binding.bind_output(name, "cpu")

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        if not self._late:
            return {name: buffer.copy() for name, buffer in self._answers.items()}
        values = self._binding.get_outputs()
        return {s["name"]: np.array(value.numpy()) for s, value in zip(self._results, values, strict=True)}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _allocate(self, feeds: Arrays) -> None:
        """Buffers for these shapes, bound for all runs to come."""
        axes: dict[str, int] = {}
        for spec in self._specs:
            buffer = self._inputs[spec["name"]] = np.empty(feeds[spec["name"]].shape, spec["dtype"])
            axes |= {axis: n for axis, n in zip(spec["shape"], buffer.shape, strict=True) if isinstance(axis, str)}
            self._binding.bind_input(spec["name"], "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        self._late = [s["name"] for s in self._results if any(isinstance(axes.get(a, a), str) for a in s["shape"])]
        for name, dtype, shape in ((s["name"], s["dtype"], s["shape"]) for s in self._results):
            if name in self._late:
                self._binding.bind_output(name, "cpu")
                continue
            fresh = np.zeros([axes.get(axis, axis) for axis in shape], dtype)
            # No run writes an input that is handed on: its own buffer holds the answer.
            buffer = self._answers[name] = self._inputs.get(name, fresh)
            self._binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)


def load(force: bool = False) -> Predictor | session_cpu.ByValue:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    opened = session_cpu.open_session(facts.BUNDLE)
    return Predictor(opened, facts.BUNDLE) if session_cpu.can_bind(opened) else session_cpu.ByValue(opened)


if __name__ == "__main__":
    sys.exit(trial.main(load))
