"""CUDA through cuda-python: streams, events, buffers and graphs, each call checked. The only file that imports it.

Bundles hold a copy of this file.

Written against `cuda.bindings.runtime` of cuda-bindings 12.9 and 13.5, whose calls used here have the same signatures.
Every call of the binding returns a tuple whose first item is the error.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import runtime

from ..core.engine_api import Array, BackendUnavailable, Closing, MeasurementError, RunCall, check_state

SUCCESS = runtime.cudaError_t.cudaSuccess
TO_DEVICE = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
TO_HOST = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
# Only what this thread does while capturing is forbidden or recorded; another engine's thread may allocate meanwhile.
CAPTURE_MODE = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal

# A flush writes a multiple of the cache: replacement is not strictly least recently used.
FLUSH_MULTIPLE = 2
REFUSED = "the engine refused to be enqueued"


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Check a call of the binding; return the values after its error: none, one, or a tuple."""
    error, *values = function(*arguments)
    if error != SUCCESS:
        raise MeasurementError(explain_error(getattr(function, "__name__", "a CUDA call"), error))
    return values[0] if len(values) == 1 else tuple(values) or None


def explain_error(name: str, error: Any) -> str:
    """CUDA's name and text of an error."""
    _, code = runtime.cudaGetErrorName(error)
    _, text = runtime.cudaGetErrorString(error)
    return f"{name} failed: {_show(code)} ({_show(text)})"


def count_devices() -> int:
    """The number of GPUs that CUDA shows; 0 without a driver."""
    error, count = runtime.cudaGetDeviceCount()
    return int(count) if error == SUCCESS else 0


def explain_no_device() -> str:
    error, _ = runtime.cudaGetDeviceCount()
    return "CUDA shows no GPU" if error == SUCCESS else explain_error("cudaGetDeviceCount", error)


def use_device(index: int) -> None:
    count = count_devices()
    if index >= count:
        reason = f"there are {count}" if count else explain_no_device()
        raise BackendUnavailable(f"GPU {index} cannot be used: {reason}")
    call(runtime.cudaSetDevice, index)


def read_name(index: int) -> str:
    return _show(call(runtime.cudaGetDeviceProperties, index).name).rstrip("\0")


class Owned:
    """A resource of CUDA, freed once by calls of the binding that take it."""

    def __init__(self, raw: Any, *free: Callable[[Any], Any]) -> None:
        self.raw, self._free = raw, free

    def close(self) -> None:
        if self.raw is not None:
            for free in self._free:
                free(self.raw)
            self.raw = None


class Stream(Owned):
    """A stream of its own, which does not wait for the default stream."""

    def __init__(self) -> None:
        raw = call(runtime.cudaStreamCreateWithFlags, runtime.cudaStreamNonBlocking)
        super().__init__(raw, runtime.cudaStreamDestroy)

    @property
    def handle(self) -> int:
        """The address that other libraries take for this stream."""
        return int(self.raw)

    def synchronize(self) -> None:
        call(runtime.cudaStreamSynchronize, self.raw)


class Event(Owned):
    """A point in a stream, with a time. `blocking`: a thread that waits for it sleeps rather than spins."""

    def __init__(self, blocking: bool = False) -> None:
        flags = runtime.cudaEventBlockingSync if blocking else runtime.cudaEventDefault
        super().__init__(call(runtime.cudaEventCreateWithFlags, flags), runtime.cudaEventDestroy)

    def record(self, stream: Stream) -> None:
        call(runtime.cudaEventRecord, self.raw, stream.raw)

    def synchronize(self) -> None:
        call(runtime.cudaEventSynchronize, self.raw)

    def query(self) -> bool:
        """Whether everything before it is done."""
        error = runtime.cudaEventQuery(self.raw)[0]
        if error == runtime.cudaError_t.cudaErrorNotReady:
            return False
        if error != SUCCESS:
            raise MeasurementError(explain_error("what was begun", error))
        return True

    def elapsed_ns(self, start: Event) -> int:
        """Device time from `start` to here. CUDA gives milliseconds with a resolution of about half a microsecond."""
        return round(float(call(runtime.cudaEventElapsedTime, start.raw, self.raw)) * 1_000_000)


class DeviceBuffer(Owned):
    """Memory on the GPU."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.address = int(call(runtime.cudaMalloc, max(1, size_bytes)))
        super().__init__(self.address, runtime.cudaFree)


class PinnedArray(Owned):
    """An array in page-locked host memory, which the GPU copies from and to without a detour."""

    def __init__(self, shape: tuple[int, ...], dtype: str) -> None:
        size = max(1, math.prod(shape) * np.dtype(dtype).itemsize)
        self.address = int(call(runtime.cudaMallocHost, size))
        super().__init__(self.address, runtime.cudaFreeHost)
        memory = (ctypes.c_byte * size).from_address(self.address)
        self.array: Array = np.ndarray(shape, dtype, buffer=memoryview(memory))

    def close(self) -> None:
        self.array = np.empty(0, self.array.dtype)  # no view of freed memory is left
        super().close()


def copy_to_device(buffer: DeviceBuffer, source: PinnedArray, stream: Stream) -> None:
    """Enqueues the copy of the whole array."""
    call(runtime.cudaMemcpyAsync, buffer.address, source.address, source.array.nbytes, TO_DEVICE, stream.raw)


def copy_to_host(target: PinnedArray, buffer: DeviceBuffer, stream: Stream) -> None:
    """Enqueues the copy of the whole array."""
    call(runtime.cudaMemcpyAsync, target.address, buffer.address, target.array.nbytes, TO_HOST, stream.raw)


class CapturedGraph(Owned):
    """Work that was captured from a stream, launched as one."""

    def __init__(self, captured: Any) -> None:
        raw = call(runtime.cudaGraphInstantiate, captured, 0)
        super().__init__(raw, runtime.cudaGraphExecDestroy, lambda _: runtime.cudaGraphDestroy(captured))


def capture_graph(stream: Stream, enqueue: Callable[[], object]) -> CapturedGraph:
    """Capture what `enqueue` puts on the stream as a graph. Call it once before: nothing is set up during capture."""
    call(runtime.cudaStreamBeginCapture, stream.raw, CAPTURE_MODE)
    try:
        enqueue()
    except BaseException:
        runtime.cudaStreamEndCapture(stream.raw)
        raise
    return CapturedGraph(call(runtime.cudaStreamEndCapture, stream.raw))


class TimedRun:
    """A call that enqueues, waits, and remembers how long the host took to enqueue and the device to compute."""

    def __init__(self, stream: Stream, enqueue: Callable[[], object], *, spin: bool = True) -> None:
        self.start, self.end = Event(), Event(blocking=not spin)
        self._enqueue_ns = [0]
        self._stream, self._enqueue = stream, enqueue
        self.call: RunCall = _make_run(stream, enqueue, self.start, self.end, self._enqueue_ns)

    def begin(self) -> None:
        """As `call`, without waiting."""
        self.start.record(self._stream)
        if not self._enqueue():
            raise MeasurementError(REFUSED)
        self.end.record(self._stream)

    def last_device_ns(self) -> int:
        return self.end.elapsed_ns(self.start)

    def last_enqueue_ns(self) -> int:
        return self._enqueue_ns[0]

    def close(self) -> None:
        self.start.close()
        self.end.close()


def make_graph_launch(graph: CapturedGraph, stream: Stream) -> Callable[[], object]:
    """The launch of a graph as a call without arguments; true when it succeeds."""
    launch, raw, handle = runtime.cudaGraphLaunch, graph.raw, stream.raw
    return lambda: launch(raw, handle)[0] == SUCCESS


def _make_run(
    stream: Stream, enqueue: Callable[[], object], start: Event, end: Event, enqueue_ns: list[int]
) -> RunCall:
    """Make the function of the timed path: everything that it needs is local, and it allocates nothing."""
    record, wait, clock = runtime.cudaEventRecord, runtime.cudaEventSynchronize, time.perf_counter_ns
    handle, begin_event, end_event = stream.raw, start.raw, end.raw

    def run() -> None:
        record(begin_event, handle)
        begin = clock()
        enqueued = enqueue()
        enqueue_ns[0] = clock() - begin
        record(end_event, handle)
        error = wait(end_event)[0]
        if error != SUCCESS or not enqueued:
            raise MeasurementError(explain_error("the run", error) if error != SUCCESS else REFUSED)

    return run


def _show(text: object) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


class DeviceEngine(Closing):
    """The base of engines with a stream, buffers on host and device, and a run between two events."""

    def __init__(self, name: str, index: int) -> None:
        self._name, self._index = name, index
        self._stream: Stream | None = Stream()
        self._host: dict[str, PinnedArray] = {}
        self._device: dict[str, DeviceBuffer] = {}
        self._timed: TimedRun | None = None
        self._filler: DeviceBuffer | None = None

    @property
    def run(self) -> RunCall:
        return self._open_run().call

    def last_device_ns(self) -> int:
        return self._open_run().last_device_ns()

    def last_enqueue_ns(self) -> int:
        return self._open_run().last_enqueue_ns()

    def flush_cache(self) -> None:
        stream = self._open_stream()
        if self._filler is None:
            size = call(runtime.cudaDeviceGetAttribute, runtime.cudaDeviceAttr.cudaDevAttrL2CacheSize, self._index)
            self._filler = DeviceBuffer(FLUSH_MULTIPLE * int(size))
        call(runtime.cudaMemsetAsync, self._filler.address, 0, self._filler.size_bytes, stream.raw)
        stream.synchronize()

    def close(self) -> None:
        self._free_buffers()
        for owned in (self._filler, self._stream):
            if owned is not None:
                owned.close()
        self._filler = self._stream = None

    def _open_stream(self) -> Stream:
        check_state(self._name, closed=self._stream is None)
        assert self._stream is not None
        return self._stream

    def _open_run(self) -> TimedRun:
        check_state(self._name, closed=self._stream is None, bound=self._timed is not None)
        assert self._timed is not None
        return self._timed

    def _free_buffers(self) -> None:
        """Free the run and its buffers; if the GPU was full, the last array has no buffer."""
        if self._timed is not None:
            self._timed.close()
        for buffer in (*self._host.values(), *self._device.values()):
            buffer.close()
        self._timed, self._host, self._device = None, {}, {}
