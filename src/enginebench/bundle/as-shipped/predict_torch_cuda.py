"""The model in PyTorch on an NVIDIA GPU: eager, compiled, or as a CUDA graph, set as the row was measured.

    from predict import load

    predict = load()
    outputs = predict({"input": array})  # every input by its name, as bundle.json lists them

`python predict.py --check` compares with the row's own outputs, `python predict.py --bench` times it here.
"""

from __future__ import annotations

import facts  # first: it sets variables that NumPy and the runtime read while they are imported

# isort: split
import sys
from typing import Any

import module
import numpy as np
import torch
import trial

Arrays = dict[str, np.ndarray[Any, Any]]
COMPILING_CALLS = 3  # with CUDA graphs the first runs, the second captures, the third launches


class Predictor:
    """One module on a stream of its own, buffers bound once. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        engine = bundle["engine"]
        options, self._device = engine["options"], torch.device(engine["device"])
        torch.cuda.set_device(self._device)
        module.set_precision(engine)
        self._stream = torch.cuda.Stream(self._device)
        self._find_current = torch._C._cuda_getCurrentRawStream
        self._end = torch.cuda.Event(enable_timing=True, blocking=options.get("wait") == "block")
        self._spin = options.get("wait", "spin") == "spin"
        self._compiled, self._graph = (engine["backend"] == name for name in ("pytorch-compile", "pytorch-cudagraph"))
        ready = module.make_module(bundle, engine["device"])
        self._call = module.compile_module(ready, options) if self._compiled else ready
        self._last = options.get("channels_last") == "1"
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._pinned: dict[str, Any] = {}
        self._tensors: dict[str, Any] = {}
        self._enqueue: Any = self._infer
        self._answer: Any = None

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs to the GPU, by way of pinned memory; `run` comes after the copy on the same stream."""
        facts.check_feeds(feeds)
        torch.cuda.set_stream(self._stream)
        if any(name not in self._pinned or tuple(self._pinned[name].shape) != a.shape for name, a in feeds.items()):
            self._allocate({name: array.shape for name, array in feeds.items()})
        self._stream.synchronize()  # a copy on its way reads the pinned memory
        for name, pinned in self._pinned.items():
            np.copyto(pinned.numpy(), feeds[name], casting="no")
            self._tensors[name].copy_(pinned, non_blocking=True)

    def run(self) -> None:
        """Computes the outputs from what was bound; they are complete when it returns."""
        if self._find_current(self._device.index) != self._stream.cuda_stream:
            torch.cuda.set_stream(self._stream)
        self._enqueue()
        self._end.record(self._stream)
        if self._spin:
            while not self._end.query():
                pass
        else:
            self._end.synchronize()

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        tensors = list(module.flatten(self._answer))
        return {s["name"]: t.contiguous().cpu().numpy() for s, t in zip(self._outputs, tensors, strict=True)}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _infer(self) -> None:
        with torch.inference_mode():
            self._answer = self._call(*self._tensors.values())

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Buffers for these shapes; code is compiled and graphs are captured for them now."""
        for spec in self._inputs:
            shape, dtype = shapes[spec["name"]], getattr(torch, spec["dtype"])
            self._pinned[spec["name"]] = torch.empty(shape, dtype=dtype, pin_memory=True)
            layout = torch.channels_last if self._last and len(shape) == 4 else torch.contiguous_format
            zeros = torch.zeros(shape, dtype=dtype, device=self._device)
            self._tensors[spec["name"]] = zeros.contiguous(memory_format=layout)
        self._enqueue = self._infer
        for _ in range(COMPILING_CALLS if self._compiled or self._graph else 0):
            self.run()
        if self._graph:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._stream):
                self._infer()
            self._enqueue = graph.replay


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    return Predictor(facts.BUNDLE)


if __name__ == "__main__":
    sys.exit(trial.main(load))
