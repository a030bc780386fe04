"""The model on ONNX Runtime's CUDA provider, bound to memory on the GPU, set as the row in bundle.json was measured.

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

import gpu
import numpy as np
import onnxruntime
import session
import trial

Arrays = dict[str, np.ndarray[Any, Any]]


class Predictor:
    """One session on a stream of its own, buffers bound once. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        engine, options = bundle["engine"], bundle["engine"]["options"]
        self._index = gpu.use_device(engine["device"])
        self._stream = gpu.Stream(spin=options.get("wait", "spin") == "spin")
        self._session = session.open_session(bundle, self._index, self._stream)
        self._first_runs = 3 if options.get("cuda_graph") == "1" else 1
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._by_host = session.find_host_inputs(self._session)
        self._buffers: dict[str, gpu.Buffers] = {}
        self._binding: Any = None
        self.run: Any = None

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs to the GPU, by way of pinned memory."""
        if gpu.need_room(self._buffers, feeds, fixed=self._first_runs > 1):
            self._allocate(feeds)
        gpu.copy_in(self._buffers, feeds, self._stream)
        session.bind_by_host(self._binding, self._buffers, self._by_host)

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        return gpu.fetch(self._buffers, [spec["name"] for spec in self._outputs], self._stream)

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _allocate(self, feeds: Arrays) -> None:
        """Buffers for these shapes, bound; runs until a CUDA graph, if there is to be one, is launched."""
        axes, binding = dict[str, int](), self._session.io_binding()
        for spec in self._inputs:
            buffers = self._buffers[spec["name"]] = gpu.Buffers(feeds[spec["name"]].shape, spec["dtype"])
            axes |= {a: n for a, n in zip(spec["shape"], buffers.host.shape, strict=True) if isinstance(a, str)}
            buffers.host[...] = feeds[spec["name"]]  # a condition is read when it is bound
            if spec["name"] not in self._by_host:
                binding.bind_input(spec["name"], "cuda", self._index, *buffers.place)
        self._binding = binding
        session.bind_by_host(binding, self._buffers, self._by_host)
        for name, dtype, shape in ((s["name"], s["dtype"], s["shape"]) for s in self._outputs):
            if name not in self._buffers:  # no run writes an input that is handed on: its own buffers hold the answer
                self._buffers[name] = gpu.Buffers(tuple(axes.get(axis, axis) for axis in shape), dtype)
            binding.bind_output(name, "cuda", self._index, *self._buffers[name].place)
        settings = onnxruntime.RunOptions()
        settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self.run = self._stream.make_run(partial(self._session._sess.run_with_iobinding, binding._iobinding, settings))
        for _ in range(self._first_runs):
            self.run()


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    return Predictor(facts.BUNDLE)


if __name__ == "__main__":
    sys.exit(trial.main(load))
