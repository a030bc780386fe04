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
import trial

Arrays = dict[str, np.ndarray[Any, Any]]
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}


def make_settings(bundle: dict[str, Any]) -> Any:
    """Session options of the row: its batch as a constant, and no node on the CPU unless the row allowed it."""
    engine = bundle["engine"]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = engine["threads"]
    settings.inter_op_num_threads = 1
    level = LEVELS[engine["options"].get("opt", "all")]
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    settings.log_severity_level = 3  # errors only
    for axis in {s["shape"][0] for s in bundle["artifact"]["inputs"] if s["shape"] and isinstance(s["shape"][0], str)}:
        settings.add_free_dimension_override_by_name(axis, engine["batch"])
    if engine["options"].get("on_cpu", "refuse") == "refuse":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return settings


def make_provider(engine: dict[str, Any], index: int, stream: gpu.Stream) -> dict[str, str]:
    """The CUDA provider's options of the row."""
    options = engine["options"]
    return {
        "device_id": str(index),
        "use_tf32": "0" if engine["precision"] == "fp32" else "1",  # "1" also lets FP16 use its tensor cores
        "enable_cuda_graph": options.get("cuda_graph", "0"),
        "prefer_nhwc": options.get("prefer_nhwc", "0"),
        "fuse_conv_bias": options.get("fuse_conv_bias", "0"),
        "cudnn_conv_algo_search": options.get("conv_search", "exhaustive").upper(),
        "user_compute_stream": str(stream.handle),
    }


class Predictor:
    """One session on a stream of its own, buffers bound once. Call it, or bind, run and fetch."""

    def __init__(self, bundle: dict[str, Any]) -> None:
        engine = bundle["engine"]
        self._index = gpu.use_device(engine["device"])
        self._stream = gpu.Stream(spin=engine["options"].get("wait", "spin") == "spin")
        onnxruntime.preload_dlls()
        path, provider = str(facts.HERE / bundle["artifact"]["path"]), "CUDAExecutionProvider"
        wanted = (provider, make_provider(engine, self._index, self._stream))
        self._session = onnxruntime.InferenceSession(path, make_settings(bundle), providers=[wanted])
        self._session.disable_fallback()
        if self._session.get_providers()[:1] != [provider]:
            raise RuntimeError(f"ONNX Runtime gave {self._session.get_providers()}, not {provider}: see its log above")
        self._first_runs = 3 if engine["options"].get("cuda_graph") == "1" else 1
        self._inputs, self._outputs = bundle["artifact"]["inputs"], bundle["artifact"]["outputs"]
        self._buffers: dict[str, gpu.Buffers] = {}
        self.run: Any = None

    def bind(self, feeds: Arrays) -> None:
        """Copies the inputs to the GPU, by way of pinned memory."""
        if gpu.need_room(self._buffers, feeds, fixed=self._first_runs > 1):
            self._allocate(feeds)
        gpu.copy_in(self._buffers, feeds, self._stream)

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
            binding.bind_input(spec["name"], "cuda", self._index, *buffers.place)
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
