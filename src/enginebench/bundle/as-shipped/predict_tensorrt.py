"""The plan on TensorRT, on a stream of its own, set as the row in bundle.json was measured.

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
import tensorrt
import trial

Arrays = dict[str, np.ndarray[Any, Any]]


class Predictor:
    """One plan, one context, buffers bound once; new shapes get new ones. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any], force: bool = False) -> None:
        self._options = bundle["engine"]["options"]
        gpu.check_name(gpu.use_device(bundle["engine"]["device"]), force)
        self._stream = gpu.Stream(spin=self._options.get("spin", "1") == "1")
        self._logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        tensorrt.init_libnvinfer_plugins(self._logger, "")
        self._runtime = tensorrt.Runtime(self._logger)
        if self._options.get("host_code") == "1":
            self._runtime.engine_host_code_allowed = True
        plan = (facts.HERE / bundle["artifact"]["path"]).read_bytes()
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise facts.Refused("TensorRT cannot load the plan; it belongs to one version and one kind of GPU")
        self._context = self._engine.create_execution_context()
        profile = int(self._options.get("profile_index") or 0)
        self._context.set_optimization_profile_async(profile, self._stream.handle)
        self._stream.synchronize()
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._buffers: dict[str, gpu.Buffers] = {}
        self.run: Any = None

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs to the GPU, by way of pinned memory."""
        if gpu.need_room(self._buffers, feeds):
            self._allocate(feeds)
        gpu.copy_in(self._buffers, feeds, self._stream)
        if self.run is None:
            self._prepare()

    def fetch(self) -> Arrays:
        """Copies of the outputs of the last run."""
        found = gpu.fetch(self._buffers, [spec["name"] for spec in self._outputs], self._stream)
        return {spec["name"]: found[spec["name"]].astype(spec["dtype"], copy=False) for spec in self._outputs}

    def __call__(self, feeds: Arrays) -> Arrays:
        """The outputs by name, for the inputs by name."""
        self.bind(feeds)
        self.run()
        return self.fetch()

    def _allocate(self, feeds: Arrays) -> None:
        for spec in self._inputs:
            shape = feeds[spec["name"]].shape
            if not self._context.set_input_shape(spec["name"], shape):
                raise ValueError(f"input {spec['name']!r} of shape {shape} lies outside of the plan's profile")
            self._buffers[spec["name"]] = gpu.Buffers(shape, self._find_type(spec))
        for spec in self._outputs:
            shape = tuple(int(d) for d in self._context.get_tensor_shape(spec["name"]))
            self._buffers[spec["name"]] = gpu.Buffers(shape, self._find_type(spec))
        for name, buffers in self._buffers.items():
            self._context.set_tensor_address(name, buffers.address)
        self.run = None

    def _find_type(self, spec: dict[str, Any]) -> str:
        """The type in the plan: TensorRT 8.6 makes INT32 of the graph's INT64."""
        short = self._engine.get_tensor_dtype(spec["name"]) == tensorrt.DataType.INT32
        return "int32" if short else str(spec["dtype"])

    def _prepare(self) -> None:
        """One run that sets everything up, then the CUDA graph, if the row had one."""
        enqueue: Any = partial(self._context.execute_async_v3, self._stream.handle)
        if not enqueue():
            raise RuntimeError("TensorRT cannot run the plan")
        self._stream.synchronize()
        graph = self._options.get("graph", "1") == "1"
        self.run = self._stream.make_run(self._stream.capture(enqueue) if graph else enqueue)


def load(force: bool = False) -> Predictor:
    """The model, ready. `force` goes on where files, versions or machine are not those of the row, and says so."""
    facts.check(force)
    return Predictor(facts.BUNDLE, force)


if __name__ == "__main__":
    sys.exit(trial.main(load))
