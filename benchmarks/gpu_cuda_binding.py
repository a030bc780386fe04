"""What `engines/cuda.py` does on a real GPU, as JSON: streams, events, buffers, graphs, and what the loop adds.

Needs a GPU, Python 3.11 or later, cuda-bindings (12.9 or 13), numpy and msgspec; neither TensorRT nor PyTorch:

    PYTHONPATH=src python3 benchmarks/gpu_cuda_binding.py

Every check raises when it fails. `added_us` is what our loop adds to the enqueue: the median time of one iteration
around an empty CUDA graph, less that of a bare iteration (launch, one event, wait), in turns of a hundred calls each;
target: under 5 us. `left_us` takes away only the launch and the device's own time, and so still holds how long the GPU
needs to begin and the host to see the end, which no loop can avoid.

The claims of docs/tensorrt.md rest on this.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib import metadata

import numpy as np
from cuda.bindings import runtime

from enginebench.core.errors import BackendUnavailable, MeasurementError
from enginebench.engines import cuda

TARGET_US = 5.0
CALLS = 20_000
TURN = 100
WARM_CALLS = 1000
SIZE_BYTES = 64 << 20


def check_round_trip() -> dict[str, object]:
    """Host to device to host through pinned memory, timed by events."""
    stream, start, end = cuda.Stream(), cuda.Event(), cuda.Event(blocking=True)
    source = cuda.PinnedArray((SIZE_BYTES // 4,), "float32")
    target = cuda.PinnedArray((SIZE_BYTES // 4,), "float32")
    buffer = cuda.DeviceBuffer(SIZE_BYTES)
    source.array[:] = np.arange(SIZE_BYTES // 4, dtype=np.float32)
    target.array.fill(np.nan)
    times = {}
    for name, copy in (
        ("to_device", lambda: cuda.copy_to_device(buffer, source, stream)),
        ("to_host", lambda: cuda.copy_to_host(target, buffer, stream)),
    ):
        copy()
        stream.synchronize()
        start.record(stream)
        copy()
        end.record(stream)
        end.synchronize()
        times[f"{name}_gb_per_s"] = round(SIZE_BYTES / end.elapsed_ns(start), 2)
    assert np.array_equal(source.array, target.array), "the bytes that came back are others"
    for thing in (source, target, buffer, start, end, stream):
        thing.close()
        thing.close()
    return times


def check_graph() -> dict[str, object]:
    """A captured copy runs when it is launched, and not when it is captured."""
    stream = cuda.Stream()
    source, target = cuda.PinnedArray((1024,), "int32"), cuda.PinnedArray((1024,), "int32")
    buffer = cuda.DeviceBuffer(source.array.nbytes)

    def copy_through() -> None:
        cuda.copy_to_device(buffer, source, stream)
        cuda.copy_to_host(target, buffer, stream)

    source.array[:], target.array[:] = 7, 0
    graph = cuda.capture_graph(stream, copy_through)
    stream.synchronize()
    assert not target.array.any(), "capturing ran the work"
    cuda.make_graph_launch(graph, stream)()
    stream.synchronize()
    assert (target.array == 7).all(), "the launch did not run the work"
    timed = cuda.TimedRun(stream, cuda.make_graph_launch(graph, stream))
    source.array[:] = 8
    timed.call()
    assert (target.array == 8).all(), "run returned before the work was done"
    answer = {"device_ns": timed.last_device_ns(), "enqueue_ns": timed.last_enqueue_ns()}
    for thing in (timed, graph, buffer, source, target, stream):
        thing.close()
    return answer


def check_errors() -> dict[str, object]:
    """What is wrong has CUDA's own name in its message."""
    messages = {}
    try:
        cuda.call(runtime.cudaSetDevice, 4096)
    except MeasurementError as error:
        messages["call"] = str(error)
    try:
        cuda.use_device(4096)
    except BackendUnavailable as error:
        messages["device"] = str(error)
    stream = cuda.Stream()
    try:
        cuda.capture_graph(stream, lambda: cuda.call(runtime.cudaStreamSynchronize, stream.raw))
    except MeasurementError as error:
        messages["capture"] = str(error)
    runtime.cudaGetLastError()
    cuda.Stream().close()  # the device is usable after a broken capture
    assert len(messages) == 3, messages
    return messages


def measure_loop(spin: bool) -> dict[str, object]:
    """An iteration of our loop around an empty graph beside a bare one: launch, wait."""
    stream = cuda.Stream()
    graph = cuda.capture_graph(stream, lambda: None)
    launch = cuda.make_graph_launch(graph, stream)
    timed = cuda.TimedRun(stream, launch, spin=spin)
    done = cuda.Event(blocking=not spin)
    bare = make_bare_run(launch, stream, done)
    ours_ns, bare_ns, launch_ns, device_ns = [], [], [], []
    time_calls(timed.call, WARM_CALLS)
    for _ in range(CALLS // TURN):
        bare_ns += time_calls(bare, TURN)
        ours_ns += time_calls(timed.call, TURN)
        launch_ns.append(timed.last_enqueue_ns())
        device_ns.append(timed.last_device_ns())
    for thing in (done, timed, graph, stream):
        thing.close()
    ours, alone, enqueue, device = (statistics.median(v) / 1000 for v in (ours_ns, bare_ns, launch_ns, device_ns))
    return {
        "iteration_us": round(ours, 3),
        "bare_us": round(alone, 3),
        "launch_us": round(enqueue, 3),
        "device_us": round(device, 3),
        "left_us": round(ours - enqueue - device, 3),
        "added_us": round(ours - alone, 3),
        "target_us": TARGET_US,
        "met": ours - alone < TARGET_US,
    }


def make_bare_run(launch: Callable[[], object], stream: cuda.Stream, done: cuda.Event) -> Callable[[], None]:
    """The least that ends with the work done: launch, one event, wait for it as our loop does (busily or asleep)."""
    record, wait, event, handle = runtime.cudaEventRecord, runtime.cudaEventSynchronize, done.raw, stream.raw

    def run() -> None:
        launch()
        record(event, handle)
        wait(event)

    return run


def time_calls(run: Callable[[], object], calls: int) -> list[int]:
    """Nanoseconds of each of so many calls."""
    clock, samples = time.perf_counter_ns, []
    for _ in range(calls):
        begin = clock()
        run()
        samples.append(clock() - begin)
    return samples


def measure_calls() -> dict[str, float]:
    """Median microseconds of single calls of the binding, to see where an iteration goes."""
    stream, event = cuda.Stream(), cuda.Event()
    calls = {
        "event_record": lambda: runtime.cudaEventRecord(event.raw, stream.raw),
        "event_synchronize": lambda: runtime.cudaEventSynchronize(event.raw),
        "stream_synchronize": lambda: runtime.cudaStreamSynchronize(stream.raw),
    }
    answer = {}
    for name, work in calls.items():
        samples = []
        for _ in range(2000):
            begin = time.perf_counter_ns()
            work()
            samples.append(time.perf_counter_ns() - begin)
        answer[name] = round(statistics.median(samples) / 1000, 3)
    event.close()
    stream.close()
    return answer


def main() -> int:
    cuda.use_device(0)
    document = {
        "cuda_bindings": metadata.version("cuda-bindings"),
        "runtime_version": cuda.call(runtime.cudaRuntimeGetVersion),
        "driver_version": cuda.call(runtime.cudaDriverGetVersion),
        "devices": cuda.count_devices(),
        "python": sys.version.split()[0],
        "round_trip": check_round_trip(),
        "graph": check_graph(),
        "errors": check_errors(),
        "calls_us": measure_calls(),
        "loop_spin": measure_loop(spin=True),
        "loop_blocking": measure_loop(spin=False),
    }
    print(json.dumps(document, indent=2))
    return 0 if document["loop_spin"]["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
