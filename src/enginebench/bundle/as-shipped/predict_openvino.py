"""The model on OpenVINO's CPU plugin, set as the row in bundle.json was measured.

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

import numpy as np
import openvino
import trial

Arrays = dict[str, np.ndarray[Any, Any]]
# Of int8 the graph says so; in an fp16 graph "dynamic" leaves every node in its own type.
HINTS = {"fp32": "f32", "fp16": "dynamic", "bf16": "bf16", "int8": "f32"}
NEEDS = {"fp16": "FP16", "bf16": "BF16"}


def make_settings(engine: dict[str, Any]) -> dict[str, Any]:
    """The plugin's settings of the row: one request at a time, on its threads and in its precision."""
    able = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    precision = "bf16" if engine["options"].get("floats") == "bf16" else engine["precision"]
    return {
        # Asked for what it has no instructions for, the plugin would compute in another precision, silently.
        "INFERENCE_PRECISION_HINT": HINTS[precision] if NEEDS.get(precision, "FP32") in able else "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": engine["threads"],
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,
        "SCHEDULING_CORE_TYPE": "ANY_CORE",
    }


class Predictor:
    """One compiled graph and its tensors, bound once; new shapes get new ones. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        engine = bundle["engine"]
        self._settings = make_settings(engine)
        self._static = engine["options"].get("shapes", "static") == "static"
        self._model = openvino.Core().read_model(facts.HERE / bundle["artifact"]["path"])
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._views: Arrays = {}
        self._request: Any = None
        self._infer: Any = None

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs into the request's tensors."""
        facts.check_feeds(feeds)
        if any(name not in self._views or self._views[name].shape != array.shape for name, array in feeds.items()):
            self._compile({name: array.shape for name, array in feeds.items()})
        for name, view in self._views.items():
            np.copyto(view, feeds[name], casting="no")

    def run(self) -> None:
        """Computes the outputs from what was bound; nothing is copied."""
        self._infer({}, True, False)

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        names = [spec["name"] for spec in self._outputs]
        return {name: np.array(self._request.get_tensor(name).data, order="C") for name in names}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _compile(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """A graph for these shapes, if it is compiled for shapes, and tensors of OpenVINO's own."""
        if self._request is None or self._static:
            if self._static:
                self._model.reshape({name: list(shape) for name, shape in shapes.items()})
            compiled = openvino.Core().compile_model(self._model, "CPU", self._settings)
            self._request = compiled.create_infer_request()
            # Not request.infer: that wrapper checks its arguments in Python, which costs 1 us a call.
            self._infer = super(openvino.InferRequest, self._request).infer  # type: ignore[misc]
        for spec in self._inputs:
            tensor = openvino.Tensor(openvino.Type(np.dtype(spec["dtype"])), list(shapes[spec["name"]]))
            self._request.set_tensor(spec["name"], tensor)
            self._views[spec["name"]] = tensor.data


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    return Predictor(facts.BUNDLE)


if __name__ == "__main__":
    sys.exit(trial.main(load))
