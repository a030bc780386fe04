"""ONNX Runtime on an NVIDIA GPU, bound to device memory, on our own stream, timed by CUDA events.

Bundles hold a copy of this file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnxruntime

from ..core.engine_api import (
    Array,
    ArtifactError,
    ArtifactLike,
    BackendUnavailable,
    EngineSpecLike,
    Feeds,
    MeasurementError,
    UsageError,
    check_feeds,
    find_axis_lengths,
    find_batch_axes,
    format_shape,
    make_output,
    read_index,
)
from . import cuda
from .ort import make_plain_options

NAME = "ort-cuda"
PROVIDER = "CUDAExecutionProvider"
# ONNX Runtime runs a graph it was asked to capture twice before it captures in the third run, so that everything has
# been allocated. Source: onnxruntime, cuda_execution_provider.cc, min_num_runs_before_cuda_graph_capture_.
RUNS_BEFORE_LAUNCH = 3


def open_engine(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> OrtCudaEngine:
    """An engine on the GPU of the spec; `options` has a value for each."""
    return OrtCudaEngine(artifact, spec, options, make_cuda_session_options(artifact, spec, options))


def make_cuda_session_options(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> Any:
    """Session options: the batch as a constant, so that shapes are folded away and no node is left for the CPU."""
    settings = make_plain_options(spec.threads, options["opt"], options["disable"])
    batch_axes = find_batch_axes(artifact.inputs)
    for axis in {s.shape[i] for s in artifact.inputs if (i := batch_axes[s.name]) is not None}:
        if isinstance(axis, str):
            settings.add_free_dimension_override_by_name(axis, spec.batch)
    if options["on_cpu"] == "refuse":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return settings


def make_provider_options(spec: EngineSpecLike, options: Mapping[str, str], stream: cuda.Stream) -> dict[str, str]:
    """The CUDA provider's options; TF32 is always set, because the provider's own default is on.

    Only FP32 switches it off: the provider reads `use_tf32` as "tensor cores may be used" and, without it, withholds
    them from FP16 and BF16 convolutions too. What is left in FP32 in such a graph may round as TF32 does, to the ten
    bits of FP16.
    Source: onnxruntime, core/providers/cuda/nn/conv.cc (deselect_numeric_notes).
    """
    return {
        "device_id": str(read_index(spec)),
        "use_tf32": "0" if spec.precision == "fp32" else "1",
        "enable_cuda_graph": options["cuda_graph"],
        "prefer_nhwc": options["prefer_nhwc"],
        "fuse_conv_bias": options["fuse_conv_bias"],
        "cudnn_conv_algo_search": options["conv_search"].upper(),
        "user_compute_stream": str(stream.handle),
    }


def open_cuda_session(path: str, settings: Any, wanted: dict[str, str]) -> Any:
    """A session on the CUDA provider, whose settings were read back."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is not None:  # finds CUDA and cuDNN where pip put them
        preload()
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=[(PROVIDER, wanted)])
    except Exception as error:
        if "fallback to CPU" in str(error):
            raise BackendUnavailable(
                f"{path}: some nodes fall back to the CPU, which copies data back and forth in every run. "
                f"To measure that anyway: {NAME}:on_cpu=allow"
            ) from error
        raise ArtifactError(f"ONNX Runtime cannot load {path}: {error}") from error
    session.disable_fallback()
    providers = session.get_providers()
    if providers[:1] != [PROVIDER]:
        raise BackendUnavailable(
            f"asked ONNX Runtime for {PROVIDER} and got {', '.join(providers)}: its libraries (CUDA, cuDNN) were not "
            "found. Its own log above names them"
        )
    kept = session.get_provider_options().get(PROVIDER, {})
    for name in ("use_tf32", "enable_cuda_graph", "prefer_nhwc", "fuse_conv_bias"):
        if kept.get(name, wanted[name]) != wanted[name]:
            raise BackendUnavailable(f"ONNX Runtime was given {name}={wanted[name]} and kept {kept[name]}")
    return session


def find_host_inputs(session: Any, *, graph: bool) -> tuple[str, ...]:
    """The inputs that ONNX Runtime wants in host memory: of CPU nodes, of shapes and conditions, of no node at all.

    What is bound elsewhere is copied there at once, and what comes later into the same buffer is not seen: such inputs
    are bound anew for each sample. Before ONNX Runtime 1.23.1, which does not say, these are all inputs.
    Source: onnxruntime, core/session/IOBinding.cc (BindInput).
    """
    names = tuple(value.name for value in session.get_inputs())
    read_memory = getattr(session, "get_input_memory_infos", None)
    if read_memory is None and graph:
        raise BackendUnavailable(
            f"{NAME}:cuda_graph=1 needs ONNX Runtime 1.23.1 or later: {onnxruntime.__version__} does not say "
            "which inputs the CPU reads, whose first values a captured run keeps"
        )
    if read_memory is None:
        return names
    host_inputs = tuple(name for name, memory in zip(names, read_memory(), strict=True) if memory.name != "Cuda")
    if host_inputs and graph:
        raise BackendUnavailable(
            f"{NAME}:cuda_graph=1 would keep the first values of {', '.join(host_inputs)}, which the CPU reads; "
            "give cuda_graph=0"
        )
    return host_inputs


class OrtCudaEngine(cuda.DeviceEngine):
    """A session bound to memory on the device. `run` returns when the stream has done what the session enqueued."""

    def __init__(self, artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str], settings: Any) -> None:
        self.inputs: tuple[Any, ...] = tuple(artifact.inputs)
        self.outputs: tuple[Any, ...] = tuple(artifact.outputs)
        self._options = options
        cuda.use_device(read_index(spec))
        super().__init__(NAME, read_index(spec))
        try:
            wanted = make_provider_options(spec, options, self._open_stream())
            self.session: Any = open_cuda_session(artifact.path, settings, wanted)
            self._by_host = find_host_inputs(self.session, graph=options["cuda_graph"] == "1")
        except BaseException:
            super().close()
            raise
        self._binding: Any = None
        self._graph = options["cuda_graph"] == "1"
        self._copies = {side: (cuda.Event(), cuda.Event()) for side in ("h2d", "d2h")}
        self._copying = False
        self._watched: list[Any] = []  # the record of runs on the bound arrays, by the tool that records
        self._staging_in_ns = self._staging_out_ns = 0

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays into pinned memory and from there, on the stream, to the GPU; new shapes get new buffers.

        It returns while the copy is on its way: `run` comes after it on the same stream.
        """
        begin = time.perf_counter_ns()
        stream = self._open_stream()
        check_feeds(self.inputs, feeds)
        self._watched = []
        if any(name not in self._host or self._host[name].array.shape != feeds[name].shape for name in feeds):
            try:
                self._allocate(feeds)
            except MeasurementError as error:  # a GPU that is full: what did not fit
                raise MeasurementError(f"{NAME} cannot allocate buffers for {_name_shapes(feeds)}: {error}") from error
        elif self._copying:  # a copy that is still on its way reads the pinned memory
            stream.synchronize()
        for name, array in feeds.items():
            np.copyto(self._host[name].array, array)
        start, end = self._copies["h2d"]
        start.record(stream)
        for name in feeds:
            cuda.copy_to_device(self._device[name], self._host[name], stream)
        end.record(stream)
        self._copying = True
        if self._timed is None:
            self._prepare(feeds)
        else:
            self._bind_by_host()
        self._staging_in_ns = time.perf_counter_ns() - begin

    def fetch(self) -> dict[str, Array]:
        begin = time.perf_counter_ns()
        stream = self._open_stream()
        self._open_run()
        start, end = self._copies["d2h"]
        start.record(stream)
        for spec in self.outputs:
            cuda.copy_to_host(self._host[spec.name], self._device[spec.name], stream)
        end.record(stream)
        end.synchronize()
        outputs = {spec.name: self._host[spec.name].array.copy() for spec in self.outputs}
        self._staging_out_ns = time.perf_counter_ns() - begin - end.elapsed_ns(start)
        return outputs

    def last_enqueue_ns(self) -> int:
        """Host time that the last run took to enqueue; 0 for a CUDA graph, whose launch waits inside ONNX Runtime."""
        return super().last_enqueue_ns() if not self._graph else 0

    def last_h2d_ns(self) -> int:
        """Device time of the copy in; waits for it."""
        start, end = self._copies["h2d"]
        end.synchronize()
        return end.elapsed_ns(start)

    def last_d2h_ns(self) -> int:
        start, end = self._copies["d2h"]
        return end.elapsed_ns(start)

    def last_staging_ns(self) -> int:
        return max(0, self._staging_in_ns + self._staging_out_ns)

    def close(self) -> None:
        if self._stream is None:
            return
        self._stream.synchronize()
        self.session = self._binding = None
        for event in (*self._copies["h2d"], *self._copies["d2h"]):
            event.close()
        super().close()

    def _allocate(self, feeds: Feeds) -> None:
        if self._graph and self._host:
            raise UsageError(
                f"{NAME}:cuda_graph=1 keeps the shapes of its first inputs; load the engine again for other shapes"
            )
        self._open_stream().synchronize()
        self._free_buffers()
        axes = find_axis_lengths(self.inputs, feeds)
        first = {spec.name: feeds[spec.name] for spec in self.inputs}
        for spec in self.outputs:
            if spec.name in first:  # an input passed on as output, which no run writes: its buffers hold the output
                continue
            buffer = make_output(spec, axes)  # NaN: a buffer that no run has filled is never taken for an output
            if buffer is None:
                raise ArtifactError(
                    f"output {spec.name!r} has a shape that only a run knows, {spec.shape}; {NAME} needs it "
                    "before the run"
                )
            first[spec.name] = buffer
        for name, array in first.items():
            self._host[name] = cuda.PinnedArray(array.shape, array.dtype.name)
            self._device[name] = cuda.DeviceBuffer(array.nbytes)
            np.copyto(self._host[name].array, array)

    def _prepare(self, feeds: Feeds) -> None:
        """Binds the buffers, and runs until a graph, if there is to be one, is launched rather than captured."""
        stream = self._open_stream()
        self._binding = binding = self.session.io_binding()
        for name in (spec.name for spec in self.inputs if spec.name not in self._by_host):
            array, buffer = self._host[name].array, self._device[name]
            binding.bind_input(name, "cuda", self._index, array.dtype.type, array.shape, buffer.address)
        self._bind_by_host()
        for spec in self.outputs:
            array, buffer = self._host[spec.name].array, self._device[spec.name]
            binding.bind_output(spec.name, "cuda", self._index, array.dtype.type, array.shape, buffer.address)
        settings = onnxruntime.RunOptions()
        # Otherwise every run would wait for the GPU inside ONNX Runtime, and the enqueue time could not be seen.
        settings.add_run_config_entry("disable_synchronize_execution_providers", "1")
        run_bound = partial(self.session._sess.run_with_iobinding, binding._iobinding, settings)

        def enqueue() -> bool:
            run_bound()
            return True

        self._timed = cuda.TimedRun(stream, enqueue, spin=self._options["wait"] == "spin")
        try:
            for _ in range(RUNS_BEFORE_LAUNCH if self._graph else 1):
                self._timed.call()
        except MeasurementError:
            raise
        except Exception as error:
            reason = str(error).splitlines()[0][:300]
            raise MeasurementError(
                f"ONNX Runtime cannot run the graph on the GPU with {_name_shapes(feeds)}: {reason}"
            ) from error

    def _bind_by_host(self) -> None:
        for name in self._by_host:
            array = self._host[name].array
            self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _name_shapes(feeds: Feeds) -> str:
    """`image 256x3x224x224`."""
    return ", ".join(f"{name} {format_shape(array.shape)}" for name, array in feeds.items())
