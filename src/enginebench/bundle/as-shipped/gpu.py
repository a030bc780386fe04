"""CUDA by way of cuda-python: a stream, buffers on both sides, and a run that is waited for."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import facts
import numpy as np
from cuda.bindings import runtime

SUCCESS = runtime.cudaError_t.cudaSuccess


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call of the binding returns behind its error."""
    error, *values = function(*arguments)
    if error != SUCCESS:
        raise RuntimeError(f"{function.__name__} failed: {runtime.cudaGetErrorString(error)[1]!r}")
    return values[0] if values else None


def use_device(device: str) -> int:
    """The N of `cuda:N`, which is the current GPU from now on."""
    index = int(device.partition(":")[2] or 0)
    call(runtime.cudaSetDevice, index)
    return index


def check_name(index: int, force: bool) -> None:
    """Checks that this is the kind of GPU that the plan was built for."""
    name = call(runtime.cudaGetDeviceProperties, index).name
    found = name.decode().rstrip("\0") if isinstance(name, bytes) else str(name)
    wanted = facts.BUNDLE["gpu"]
    facts.settle([f"the plan was built for {wanted}; here is {found}"] if wanted not in (None, found) else [], force)


class Buffers:
    """One tensor in page-locked host memory, and its copy on the GPU."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        address = int(call(runtime.cudaMallocHost, size))
        memory = (ctypes.c_byte * size).from_address(address)
        self.host: np.ndarray[Any, Any] = np.ndarray(shape, dtype, buffer=memoryview(memory))
        self.address = int(call(runtime.cudaMalloc, size))
        self._host_address = address

    @property
    def place(self) -> tuple[Any, tuple[int, ...], int]:
        """Element type, shape and address on the GPU."""
        return self.host.dtype.type, self.host.shape, self.address

    def copy_in(self, array: np.ndarray[Any, Any], stream: Stream) -> None:
        np.copyto(self.host, array, casting="same_kind")
        if self.host.dtype != array.dtype and not np.array_equal(self.host, array):
            raise ValueError(f"the engine reads {array.dtype} as {self.host.dtype}, and a value is too large for that")
        kind = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        call(runtime.cudaMemcpyAsync, self.address, self._host_address, self.host.nbytes, kind, stream.raw)

    def copy_out(self, stream: Stream) -> None:
        kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        call(runtime.cudaMemcpyAsync, self._host_address, self.address, self.host.nbytes, kind, stream.raw)

    def close(self) -> None:
        self.host = np.empty(0)
        call(runtime.cudaFreeHost, self._host_address)
        call(runtime.cudaFree, self.address)


def need_room(buffers: dict[str, Buffers], feeds: dict[str, np.ndarray[Any, Any]], fixed: bool = False) -> bool:
    """Whether buffers are to be made for these shapes; those of others are freed, unless addresses are `fixed`."""
    facts.check_feeds(feeds)
    if all(name in buffers and buffers[name].host.shape == array.shape for name, array in feeds.items()):
        return False
    if fixed and buffers:
        raise ValueError("a CUDA graph of ONNX Runtime keeps the shapes of its first inputs; load it again for others")
    while buffers:
        buffers.popitem()[1].close()
    return True


def copy_in(buffers: dict[str, Buffers], feeds: dict[str, np.ndarray[Any, Any]], stream: Stream) -> None:
    """Enqueues the copies of the inputs, once those before them no longer read the pinned memory."""
    stream.synchronize()
    for name, array in feeds.items():
        buffers[name].copy_in(array, stream)


def fetch(buffers: dict[str, Buffers], names: list[str], stream: Stream) -> dict[str, np.ndarray[Any, Any]]:
    """Copies of the outputs, by way of pinned memory."""
    for name in names:
        buffers[name].copy_out(stream)
    stream.synchronize()
    return {name: buffers[name].host.copy() for name in names}


class Stream:
    """A stream of its own, and the event by which a run is waited for."""

    def __init__(self, spin: bool) -> None:
        self.raw = call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        flags = runtime.cudaEventDefault if spin else runtime.cudaEventBlockingSync
        self._end = call(runtime.cudaEventCreateWithFlags, flags)

    @property
    def handle(self) -> int:
        return int(self.raw)

    def synchronize(self) -> None:
        call(runtime.cudaStreamSynchronize, self.raw)

    def make_run(self, enqueue: Callable[[], object]) -> Callable[[], None]:
        """A call that enqueues, and returns when that is done."""
        record, wait, raw, end = runtime.cudaEventRecord, runtime.cudaEventSynchronize, self.raw, self._end

        def run() -> None:
            enqueue()
            record(end, raw)
            error = wait(end)[0]
            if error != SUCCESS:
                raise RuntimeError(f"the run failed: {runtime.cudaGetErrorString(error)[1]!r}")

        return run

    def capture(self, enqueue: Callable[[], object]) -> Callable[[], object]:
        """The launch of a CUDA graph of what `enqueue` puts on the stream."""
        mode = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        call(runtime.cudaStreamBeginCapture, self.raw, mode)
        enqueue()
        graph = call(runtime.cudaGraphInstantiate, call(runtime.cudaStreamEndCapture, self.raw), 0)
        launch, raw = runtime.cudaGraphLaunch, self.raw
        return lambda: launch(graph, raw)
