"""The model in PyTorch on the CPU, eager or through torch.compile, set as the row in bundle.json was measured.

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


class Predictor:
    """One module and its input tensors, bound once; new shapes get new tensors. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        engine = bundle["engine"]
        torch.set_float32_matmul_precision("highest")  # FP32 that is FP32
        module.set_threads(engine["threads"])
        ready = module.make_module(bundle, "cpu")
        compiled = engine["backend"] == "pytorch-compile"
        self._call = module.compile_module(ready, engine["options"]) if compiled else ready
        self._channels_last = engine["options"].get("channels_last") == "1"
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._tensors: tuple[Any, ...] = ()
        self._views: Arrays = {}
        self._answer: Any = None
        if compiled:  # now, and not in the first call
            self._allocate({s["name"]: fill_axes(s["shape"], engine["batch"]) for s in self._inputs})
            self.run()

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs into the module's tensors."""
        facts.check_feeds(feeds)
        if any(name not in self._views or self._views[name].shape != array.shape for name, array in feeds.items()):
            self._allocate({name: array.shape for name, array in feeds.items()})
        for name, view in self._views.items():
            np.copyto(view, feeds[name], casting="no")

    def run(self) -> None:
        """Computes the outputs from what was bound."""
        with torch.inference_mode():
            self._answer = self._call(*self._tensors)

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        tensors = list(module.flatten(self._answer))
        pairs = zip(self._outputs, tensors, strict=True)
        return {spec["name"]: np.array(tensor.numpy(), order="C") for spec, tensor in pairs}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _allocate(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self._tensors = tuple(self._make_tensor(s["dtype"], shapes[s["name"]]) for s in self._inputs)
        self._views = {s["name"]: tensor.numpy() for s, tensor in zip(self._inputs, self._tensors, strict=True)}

    def _make_tensor(self, dtype: str, shape: tuple[int, ...]) -> Any:
        last = self._channels_last and len(shape) == 4
        layout = torch.channels_last if last else torch.contiguous_format
        return torch.zeros(shape, dtype=getattr(torch, dtype)).contiguous(memory_format=layout)


def fill_axes(shape: list[int | str], batch: int) -> tuple[int, ...]:
    """The shape with its open axes at the row's batch."""
    return tuple(axis if isinstance(axis, int) else batch for axis in shape)


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    return Predictor(facts.BUNDLE)


if __name__ == "__main__":
    sys.exit(trial.main(load))
