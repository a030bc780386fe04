"""PyTorch on an NVIDIA GPU: a stream of its own, pinned buffers, CUDA events. Bundles hold a copy of this file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..core.engine_api import (
    Array,
    ArtifactLike,
    BackendUnavailable,
    DeviceTimes,
    EngineSpecLike,
    Feeds,
    MeasurementError,
    ModelError,
    RunCall,
    TensorSpecLike,
    are_alike,
    check_feeds,
    check_state,
    fill_entries,
    join_shapes,
    read_index,
)
from .pytorch import TorchEngine, prepare_torch, refuse_closed
from .pytorch_module import make_ready

# Forces TF32 off in all of NVIDIA's libraries, whatever a program asks for. Source: NVIDIA, "Accelerated Computing
# with TF32", environment variable NVIDIA_TF32_OVERRIDE.
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"

# Calls before a capture: cuDNN and cuBLAS make their handles and choose their kernels, which no graph can hold.
# Source: PyTorch's notes on CUDA semantics, "CUDA Graphs", whose example makes three.
CALLS_BEFORE_CAPTURE = 3

# The flush writes a multiple of the cache: replacement is not strictly least recently used. NVBench writes it once.
FLUSH_MULTIPLE = 2
# Where the driver does not say how large the last cache is; larger than that of any GPU of today (126 MB on B200).
UNKNOWN_CACHE_BYTES = 256 << 20


def open_engine(
    artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str], module: Any
) -> CudaTorchEngine:
    """An engine on the GPU of the spec, eager or as a CUDA graph; `options` has a value for each."""
    prepare_cuda(spec, options)
    graph = spec.backend == "pytorch-cudagraph"
    return CudaTorchEngine(make_ready(module, artifact, spec, options), artifact, spec, options, graph=graph)


class CudaLane:
    """A stream of its own on one GPU; it becomes the current one of the thread whenever the engine works.

    Tests put a lane in its place that needs no GPU.
    """

    def __init__(self, index: int, waiting: str) -> None:
        self._index = index
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._raw = self._stream.cuda_stream
        self._find_current = torch._C._cuda_getCurrentRawStream
        self._waiting = waiting

    def select_stream(self) -> None:
        if self._find_current(self._index) != self._raw:
            torch.cuda.set_stream(self._stream)

    def make_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True, blocking=self._waiting == "block")

    def record(self, event: Any) -> None:
        event.record(self._stream)

    def wait(self, event: Any) -> None:
        """Wait until everything before the event is done."""
        if self._waiting == "spin":
            done = event.query
            while not done():
                pass
        else:
            event.synchronize()

    def synchronize(self) -> None:
        self._stream.synchronize()

    def make_tensor(self, spec: TensorSpecLike, shape: tuple[int, ...]) -> Any:
        """Zeros on the GPU."""
        return torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=self._device)

    def make_pinned(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def capture(self, call: Callable[[], None]) -> Callable[[], None]:
        """The launch of a graph of what `call` puts on the stream."""
        for _ in range(CALLS_BEFORE_CAPTURE):
            call()
        self.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            call()
        replay: Callable[[], None] = graph.replay
        return replay

    def make_flush(self) -> Callable[[], None]:
        """A function that empties the L2 cache: it writes twice its size and waits."""
        size = getattr(torch.cuda.get_device_properties(self._index), "L2_cache_size", 0) or UNKNOWN_CACHE_BYTES
        filler = torch.empty(FLUSH_MULTIPLE * size, dtype=torch.uint8, device=self._device)

        def flush() -> None:
            self.select_stream()
            filler.zero_()
            self.synchronize()

        return flush


def prepare_cuda(spec: EngineSpecLike, options: Mapping[str, str]) -> None:
    """Set threads, and TF32 for the whole process: off, on, or on in convolutions only (PyTorch's default)."""
    prepare_torch(spec)
    wanted = spec.precision == "tf32"
    if wanted and os.environ.get(TF32_OVERRIDE) == "0":
        raise BackendUnavailable(f"{TF32_OVERRIDE}=0 forbids TF32; unset it")
    in_products = wanted and options["defaults"] == "0"
    torch.set_float32_matmul_precision("high" if in_products else "highest")
    torch.backends.cudnn.allow_tf32 = wanted
    torch.backends.cudnn.benchmark = options["autotune"] == "1"
    if (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32) != (wanted, in_products):
        raise BackendUnavailable(f"PyTorch did not keep its TF32 setting for {spec.precision}")


class CudaTorchEngine(TorchEngine):
    """Calls a module under `inference_mode` on a stream of its own; `run` returns when the stream has done it.

    Args:
        lane: the stream; None makes one on the GPU of the spec.
        graph: what a call does is captured, and `run` launches the capture.
    """

    overlaps = True

    def __init__(
        self,
        call: Callable[..., Any],
        artifact: ArtifactLike,
        spec: EngineSpecLike,
        options: Mapping[str, str],
        *,
        lane: CudaLane | None = None,
        prepare: Callable[[RunCall], object] | None = None,
        graph: bool = False,
    ) -> None:
        self._lane = lane = lane or CudaLane(read_index(spec), options["wait"])
        self._graph = graph
        self._flush: Callable[[], None] | None = None
        self._copying = False
        self._staging_in_ns = self._staging_out_ns = 0
        self._enqueue_ns = [0]
        self._pinned: dict[str, Any] = {}  # on the host, contiguous
        self._landings: dict[str, Any] = {}  # on the GPU, contiguous; `_tensors`: as the module takes them
        self._pinned_outputs: tuple[Any, ...] = ()
        self._launch: RunCall = refuse_closed
        self._start, self._end = lane.make_event(), lane.make_event()
        self._copies = {side: (lane.make_event(), lane.make_event()) for side in ("h2d", "d2h")}
        super().__init__(call, artifact, spec, options, prepare=prepare)

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays into pinned memory and from there, on the stream, to the GPU; new shapes get new buffers.

        It returns while the copy is on its way: `run` comes after it on the same stream.
        """
        self._copy_in([feeds])

    def begin(self, samples: Sequence[Feeds]) -> None:
        self._copy_in(samples, grow=True)
        self._lane.record(self._start)
        self._launch()
        self._lane.record(self._end)
        self._copy_out()

    def is_done(self) -> bool:
        done: bool = self._copies["d2h"][1].query()
        return done

    def finish(self) -> tuple[dict[str, Array], DeviceTimes]:
        self._lane.wait(self._copies["d2h"][1])
        self._copying = False
        times = self.last_h2d_ns(), self.last_device_ns(), self.last_d2h_ns()
        return self._read_outputs(), DeviceTimes(*times)

    def fetch(self) -> dict[str, Array]:
        begin = time.perf_counter_ns()
        self._check_bound()
        self._lane.select_stream()
        self._copy_out()
        self._lane.wait(self._copies["d2h"][1])
        self._copying = False
        outputs = self._read_outputs()
        self._staging_out_ns = time.perf_counter_ns() - begin - self.last_d2h_ns()
        return outputs

    def last_device_ns(self) -> int:
        """Time between the events before and after the last run; for an eager module the GPU's waiting included."""
        return _elapsed_ns(self._start, self._end)

    def last_enqueue_ns(self) -> int:
        return self._enqueue_ns[0]

    def last_h2d_ns(self) -> int:
        """Device time of the copy in, a change of layout included."""
        return _elapsed_ns(*self._copies["h2d"])

    def last_d2h_ns(self) -> int:
        return _elapsed_ns(*self._copies["d2h"])

    def last_staging_ns(self) -> int:
        return max(0, self._staging_in_ns + self._staging_out_ns)

    def flush_cache(self) -> None:
        check_state(self._name, closed=self._call is None)
        self._flush = self._flush or self._lane.make_flush()
        self._flush()

    def close(self) -> None:
        if self._call is not None:
            self._lane.synchronize()
        super().close()
        self._pinned, self._landings, self._pinned_outputs = {}, {}, ()
        self._flush, self._launch = None, refuse_closed

    def _copy_in(self, samples: Sequence[Feeds], grow: bool = False) -> None:
        """The samples, one after another, in pinned memory, and from there on their way to the GPU.

        Args:
            grow: several may be fewer than there is room for; else there is one, and the room is its own.
        """
        begin = time.perf_counter_ns()
        check_state(self._name, closed=self._call is None)
        if grow or not are_alike(self._views, samples[0]):
            for feeds in samples:
                check_feeds(self.inputs, feeds)
            one = {name: array.shape for name, array in samples[0].items()}
            shapes = join_shapes(self._views, samples) if grow else one
            if any(self._views[name].shape != shape for name, shape in shapes.items()):
                self._allocate(shapes)
        lane, (start, end) = self._lane, self._copies["h2d"]
        lane.select_stream()
        if self._copying:  # a copy that is still on its way reads the pinned memory
            lane.synchronize()
        fill_entries(self._views, samples)
        lane.record(start)
        for name, landing in self._landings.items():
            landing.copy_(self._pinned[name], non_blocking=True)
        # From here on the copy runs on its own: the host continues meanwhile.
        self._staging_in_ns = time.perf_counter_ns() - begin
        for tensor, landing in zip(self._tensors, self._landings.values(), strict=True):
            if tensor is not landing:
                tensor.copy_(landing)
        lane.record(end)
        self._bound = self._copying = True
        self._watched = []

    def _copy_out(self) -> None:
        lane, (start, end) = self._lane, self._copies["d2h"]
        tensors = [tensor.contiguous() for tensor in self._list_outputs()]
        if [(p.shape, p.dtype) for p in self._pinned_outputs] != [(t.shape, t.dtype) for t in tensors]:
            self._pinned_outputs = tuple(lane.make_pinned(t.dtype, tuple(t.shape)) for t in tensors)
        lane.record(start)
        for pinned, tensor in zip(self._pinned_outputs, tensors, strict=True):
            pinned.copy_(tensor, non_blocking=True)
        lane.record(end)

    def _read_outputs(self) -> dict[str, Array]:
        return {
            spec.name: pinned.numpy().copy() for spec, pinned in zip(self.outputs, self._pinned_outputs, strict=True)
        }

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Allocate buffers for these shapes, and prepare calls on them."""
        lane = self._lane
        lane.select_stream()
        self._pinned_outputs = ()
        try:
            self._landings = {s.name: lane.make_tensor(s, shapes[s.name]) for s in self.inputs}
            self._tensors = tuple(map(self._lay_out, self._landings.values()))
            self._pinned = {name: lane.make_pinned(t.dtype, tuple(t.shape)) for name, t in self._landings.items()}
            self._views = {name: pinned.numpy() for name, pinned in self._pinned.items()}
            enqueue: RunCall = self._compute
            self._run = _time_run(lane, enqueue, self._start, self._end, self._enqueue_ns)
            if self._prepare is not None:
                self._prepare(self._run)
            if self._graph:
                enqueue = self._capture()
                self._run = _time_run(lane, enqueue, self._start, self._end, self._enqueue_ns)
            self._launch = enqueue
        except torch.OutOfMemoryError as error:
            sizes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
            raise MeasurementError(
                f"{self._name} runs out of device memory with {sizes}: {str(error).split('. ')[0]}. Choose a smaller "
                "--batch"
            ) from error

    def _capture(self) -> RunCall:
        try:
            return self._lane.capture(self._compute)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # The end of a capture fails as well, without naming the cause.
            reason = " ".join(str(error.__context__ or error).split("\n")[0].split())
            also = ", and pytorch-compile does with cuda_graph=0" if self._name == "pytorch-compile" else ""
            raise ModelError(
                f"{self._name} cannot capture the module as a CUDA graph: {reason}. Modules that wait for the GPU or "
                f"copy from it inside cannot be captured; pytorch runs them without a graph{also}"
            ) from error


def _elapsed_ns(start: Any, end: Any) -> int:
    """Nanoseconds between two events, once the later one is over; CUDA's resolution is about half a microsecond."""
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1_000_000)


def _time_run(lane: CudaLane, enqueue: RunCall, start: Any, end: Any, enqueue_ns: list[int]) -> RunCall:
    """The hot path: everything that it needs is local, and it allocates nothing."""
    select_stream, record, wait, clock = lane.select_stream, lane.record, lane.wait, time.perf_counter_ns

    def run() -> None:
        select_stream()
        record(start)
        begin = clock()
        enqueue()
        enqueue_ns[0] = clock() - begin
        record(end)
        wait(end)

    return run
