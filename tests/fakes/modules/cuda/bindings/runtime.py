"""cuda-python's runtime on host memory: what is enqueued is done at once, or recorded while a stream is captured.

Names, argument order and the tuple that each call returns are those of cuda-bindings 12.9 and 13.5. `live` counts
what was made and not yet destroyed. `FAKE_CUDA_DEVICES` is the number of GPUs (1);
`FAKE_CUDA_FAULT=capture` breaks captures.
"""

import ctypes
import enum
import os
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

cudaEventDefault, cudaEventBlockingSync, cudaStreamDefault, cudaStreamNonBlocking = 0, 1, 0, 1
live: Counter[str] = Counter()
memory: dict[int, ctypes.Array] = {}
filled: list[int] = []


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorInsufficientDriver = 35
    cudaErrorNotReady = 600
    cudaErrorStreamCaptureUnsupported = 900


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaDeviceAttr(enum.IntEnum):
    cudaDevAttrL2CacheSize = 38


class cudaStreamCaptureMode(enum.IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


OK = cudaError_t.cudaSuccess
INVALID = cudaError_t.cudaErrorInvalidValue


class _Stream:
    all: dict[int, "_Stream"] = {}

    def __init__(self) -> None:
        self.recorded: list[Callable[[], None]] | None = None
        self.broken = False
        _Stream.all[id(self)] = self

    def __int__(self) -> int:
        return id(self)

    def enqueue(self, work: Callable[[], None]) -> None:
        if self.recorded is None:
            work()
        else:
            self.recorded.append(work)


class _Event:
    time_ns = 0


class _Graph:
    def __init__(self, work: list[Callable[[], None]]) -> None:
        self.work = work


def find_stream(handle: int) -> _Stream:
    """The stream behind the number that TensorRT is given."""
    return _Stream.all[handle]


def break_capture(stream: _Stream) -> bool:
    """Whether this stream captures and must not succeed."""
    if stream.recorded is not None and os.environ.get("FAKE_CUDA_FAULT") == "capture":
        stream.broken = True
        return True
    return False


def cudaGetErrorName(error):
    return OK, error.name.encode()


def cudaGetErrorString(error):
    return OK, b"the fake says so"


def cudaGetDeviceCount():
    count = int(os.environ.get("FAKE_CUDA_DEVICES", "1"))
    return (OK, count) if count else (cudaError_t.cudaErrorInsufficientDriver, None)


def cudaGetDeviceProperties(device):
    return OK, SimpleNamespace(name=b"Fake GPU")


def cudaSetDevice(device):
    return (OK if device < int(os.environ.get("FAKE_CUDA_DEVICES", "1")) else INVALID,)


def cudaStreamCreateWithFlags(flags):
    live["stream"] += 1
    return OK, _Stream()


def cudaStreamDestroy(stream):
    live["stream"] -= 1
    del _Stream.all[id(stream)]
    return (OK,)


def succeed(_):
    return (OK,)


cudaStreamSynchronize = cudaEventSynchronize = cudaEventQuery = succeed


def cudaEventCreateWithFlags(flags):
    live["event"] += 1
    return OK, _Event()


def _destroy(_, kind):
    live[kind] -= 1
    return (OK,)


cudaEventDestroy = partial(_destroy, kind="event")
cudaGraphDestroy, cudaGraphExecDestroy = partial(_destroy, kind="graph"), partial(_destroy, kind="graph_exec")


def cudaEventRecord(event, stream):
    event.time_ns = time.perf_counter_ns()
    return (OK,)


def cudaEventElapsedTime(start, end):
    return OK, (end.time_ns - start.time_ns) / 1e6


def _allocate(size, kind):
    live[kind] += 1
    block = (ctypes.c_byte * size)()
    memory[ctypes.addressof(block)] = block
    return OK, ctypes.addressof(block)


def _free(address, kind):
    live[kind] -= 1
    return (OK,) if memory.pop(address, None) is not None else (INVALID,)


cudaMalloc, cudaMallocHost = partial(_allocate, kind="device"), partial(_allocate, kind="host")
cudaFree, cudaFreeHost = partial(_free, kind="device"), partial(_free, kind="host")


def cudaDeviceGetAttribute(attr, device):
    return OK, 1000


def cudaMemsetAsync(devPtr, value, count, stream):
    if devPtr not in memory or count > len(memory[devPtr]):
        return (INVALID,)
    filled.append(count)
    stream.enqueue(lambda: ctypes.memset(devPtr, value, count))
    return (OK,)


def cudaMemcpy(dst, src, count, kind):
    device = dst if kind == cudaMemcpyKind.cudaMemcpyHostToDevice else src
    if device not in memory or count > len(memory[device]):
        return (INVALID,)
    ctypes.memmove(dst, src, count)
    return (OK,)


def cudaMemcpyAsync(dst, src, count, kind, stream):
    if dst not in memory or src not in memory or count > min(len(memory[dst]), len(memory[src])):
        return (INVALID,)
    stream.enqueue(lambda: ctypes.memmove(dst, src, count))
    return (OK,)


def cudaStreamBeginCapture(stream, mode):
    stream.recorded = []
    return (OK,)


def cudaStreamEndCapture(stream):
    work, stream.recorded = stream.recorded or [], None
    broken, stream.broken = stream.broken, False
    if broken:
        return cudaError_t.cudaErrorStreamCaptureUnsupported, None
    live["graph"] += 1
    return OK, _Graph(work)


def cudaGraphInstantiate(graph, flags):
    live["graph_exec"] += 1
    return OK, graph


def cudaGraphLaunch(graph, stream):
    for work in graph.work:
        work()
    return (OK,)
