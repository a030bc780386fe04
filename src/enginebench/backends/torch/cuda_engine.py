"""The engine behind every `pytorch*` backend on an NVIDIA GPU: a stream of its own, pinned buffers, CUDA events."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from enginebench.backends.proof.kernels import KERNELS, PROFILER, watch_kernels
from enginebench.backends.proof.layer_records import summarize_layers
from enginebench.backends.proof.precision import Operator, prove_precision
from enginebench.backends.request import check_request, explain_closed, explain_unbound, read_options
from enginebench.backends.torch.cast import REASONS
from enginebench.backends.torch.engine import COMPILED_NOTE, EAGER_NOTE, flatten_tensors, prepare_torch
from enginebench.backends.torch.module import load_ready_module
from enginebench.backends.torch.operators import name_kernels, name_modules, record_launches
from enginebench.core.entry import Option
from enginebench.core.errors import ArtifactError, BackendUnavailable, MeasurementError, ModelError, UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Artifact, Availability, EngineSpec, LayerProfile, Precision, TensorSpec
from enginebench.core.shapes import concrete_shape

if TYPE_CHECKING:
    from enginebench.backends.torch.generated import GeneratedCode
    from enginebench.core.protocols import Array, Feeds, ModuleLoader, RunCall

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")

# Forces TF32 off in all of NVIDIA's libraries, whatever a program asks for. Source: NVIDIA, "Accelerated Computing
# with TF32", environment variable NVIDIA_TF32_OVERRIDE.
TF32_OVERRIDE = "NVIDIA_TF32_OVERRIDE"

OTHER_LAUNCHES = "those of a run outside of the graph are others, which leaves their modules unknown"

# Calls before a capture: cuDNN and cuBLAS make their handles and choose their kernels, which no graph can hold.
# Source: PyTorch's notes on CUDA semantics, "CUDA Graphs", whose example makes three.
CALLS_BEFORE_CAPTURE = 3

# The flush writes a multiple of the cache: replacement is not strictly least recently used. NVBench writes it once.
FLUSH_MULTIPLE = 2
# Where the driver does not say how large the last cache is; larger than that of any GPU of today (126 MB on B200).
UNKNOWN_CACHE_BYTES = 256 << 20


class Lane(Protocol):
    """A stream of a device, and what is done on it. Tests put a lane in its place that needs no GPU."""

    def enter(self) -> None: ...

    def make_event(self) -> Any: ...

    def record(self, event: Any) -> None: ...

    def wait(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def make_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> Any: ...

    def make_pinned(self, dtype: Any, shape: tuple[int, ...]) -> Any: ...

    def capture(self, call: Callable[[], None]) -> Callable[[], None]: ...

    def make_flush(self) -> Callable[[], None]: ...


class CudaLane:
    """A stream of its own on one GPU; it becomes the current one of the thread whenever the engine works.

    Args:
        waiting: `spin`, `driver` or `block`.
    """

    def __init__(self, index: int, waiting: str) -> None:
        self._index = index
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._raw = self._stream.cuda_stream
        self._find_current = torch._C._cuda_getCurrentRawStream
        self._waiting = waiting

    def enter(self) -> None:
        if self._find_current(self._index) != self._raw:
            torch.cuda.set_stream(self._stream)

    def make_event(self) -> Any:
        return torch.cuda.Event(enable_timing=True, blocking=self._waiting == "block")

    def record(self, event: Any) -> None:
        event.record(self._stream)

    def wait(self, event: Any) -> None:
        """Waits until everything before the event is done."""
        if self._waiting == "spin":
            done = event.query
            while not done():
                pass
        else:
            event.synchronize()

    def synchronize(self) -> None:
        self._stream.synchronize()

    def make_tensor(self, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
        """Zeros on the GPU."""
        return torch.zeros(shape, dtype=getattr(torch, spec.dtype), device=self._device)

    def make_pinned(self, dtype: Any, shape: tuple[int, ...]) -> Any:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

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
            self.enter()
            filler.zero_()
            self.synchronize()

        return flush


def probe_cuda() -> tuple[str, ...]:
    """The GPUs that PyTorch sees, as `cuda:N`; none without a driver or in a build without CUDA."""
    if not torch.cuda.is_available():
        return ()
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


def explain_no_cuda() -> str:
    """Why PyTorch sees no GPU."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return "PyTorch sees no NVIDIA GPU; is the driver installed (nvidia-smi)?"


def probe_gpu_engine(name: str) -> Availability:
    """Availability of an engine that needs a GPU."""
    devices = probe_cuda()
    return Availability(
        engine=name,
        available=bool(devices),
        version=str(torch.__version__),
        devices=devices,
        reason=None if devices else explain_no_cuda(),
        fix=None if devices else "pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu130",
    )


def is_cuda(spec: EngineSpec) -> bool:
    """Whether a spec names an NVIDIA GPU."""
    return spec.device.partition(":")[0] == "cuda"


def read_device_index(spec: EngineSpec) -> int:
    """The N of `cuda:N`.

    Raises:
        UsageError: the device has another form.
        BackendUnavailable: there is no such GPU.
    """
    kind, _, index = spec.device.partition(":")
    if kind != "cuda" or not (index or "0").isdecimal():
        raise UsageError(f"device {spec.device!r}: expected cpu or cuda:N")
    devices = probe_cuda()
    if f"cuda:{int(index or 0)}" not in devices:
        why = f"there is {', '.join(devices)}" if devices else explain_no_cuda()
        raise BackendUnavailable(f"{spec.backend} cannot run on {spec.device}: {why}")
    return int(index or 0)


def check_cuda_request(artifact: Artifact, spec: EngineSpec, known: Mapping[str, Option]) -> dict[str, str]:
    """The options of a request that PyTorch can take on this GPU.

    Raises:
        ArtifactError: it is not a torch artifact.
        BackendUnavailable: the precision or the GPU is not available.
        UsageError: an option is unknown, or contradicts the precision.
    """
    check_request(artifact, spec, ("torch",), PRECISIONS, (spec.device,), reasons=REASONS)
    options = read_options(spec, known)
    if options["defaults"] == "1" and spec.precision != "tf32":
        raise UsageError(
            f"{spec.backend}:defaults=1 is what PyTorch does by default, with TF32 in convolutions: "
            f"its precision is tf32, not {spec.precision}"
        )
    read_device_index(spec)
    return options


def prepare_cuda(spec: EngineSpec, options: Mapping[str, str]) -> None:
    """Sets threads, and TF32 for the whole process: off, on, or on in convolutions only as PyTorch has it.

    Raises:
        BackendUnavailable: the environment forbids TF32, or a setting did not hold.
    """
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


def load_cuda_engines(
    artifact: Artifact,
    specs: Sequence[EngineSpec],
    known: Mapping[str, Option],
    loader: ModuleLoader | None,
    *,
    graph: bool = False,
) -> list[CudaTorchEngine]:
    """An engine for each spec; they share the module, and each has a stream of its own.

    Raises:
        ArtifactError, BackendUnavailable, UsageError: as `check_cuda_request` and `load_ready_module` say.
    """
    first = specs[0]
    options = check_cuda_request(artifact, first, known)
    prepare_cuda(first, options)
    index = read_device_index(first)
    module = load_ready_module(artifact, first, options, loader, first.device)
    return [
        CudaTorchEngine(
            module,
            artifact.inputs,
            artifact.outputs,
            name=spec.backend,
            batch=spec.batch,
            lane=CudaLane(index, options["wait"]),
            channels_last=options["channels_last"] == "1",
            graph=graph,
        )
        for spec in specs
    ]


class CudaTorchEngine:
    """Calls a module under `inference_mode` on a stream of its own; `run` returns when the stream has done it.

    Args:
        call: the module, compiled or not, on the GPU; takes the inputs in the order of `inputs`.
        inputs, outputs: those of the artifact. Outputs are matched by position.
        name: of the engine, for messages.
        batch: for the first buffers.
        channels_last: four-dimensional inputs lie in the GPU's memory with their channels last.
        prepare: called with a run whenever there are buffers of new shapes (a compiler compiles then, not in `run`).
        graph: what a call does is captured, and `run` launches the capture.
        generated: what the compiler said of its code; None where nothing is compiled.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        name: str,
        batch: int,
        lane: Lane,
        channels_last: bool = False,
        prepare: Callable[[RunCall], None] | None = None,
        graph: bool = False,
        generated: GeneratedCode | None = None,
    ) -> None:
        self.inputs, self.outputs = inputs, outputs
        self._name, self._lane = name, lane
        self._call: Callable[..., Any] | None = call
        self._channels_last, self._prepare, self._graph = channels_last, prepare, graph
        self._generated = generated
        self._answer: Any = None
        self._flush: Callable[[], None] | None = None
        self._bound = self._copying = False
        self._staging_in_ns = self._staging_out_ns = 0
        self._enqueue_ns = [0]
        self._watched: list[list[Operator]] = []  # runs under the profiler, on what is bound
        self._pinned: dict[str, Any] = {}  # on the host, contiguous
        self._landings: dict[str, Any] = {}  # on the GPU, contiguous
        self._tensors: dict[str, Any] = {}  # on the GPU, as the module takes them
        self._views: dict[str, Array] = {}
        self._answers: tuple[Any, ...] = ()
        self._run: RunCall = _refuse
        self._launch: Callable[[], None] = _refuse
        self._start, self._end = lane.make_event(), lane.make_event()
        self._copies = {side: (lane.make_event(), lane.make_event()) for side in ("h2d", "d2h")}
        self._allocate({s.name: concrete_shape(s, batch) for s in inputs})

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound."""
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays into pinned memory and from there, on the stream, to the GPU; new shapes get new buffers.

        It returns while the copy is on its way: `run` comes after it on the same stream.
        """
        begin = time.perf_counter_ns()
        self._check_open()
        check_feeds(self.inputs, feeds)
        if any(tuple(self._pinned[name].shape) != array.shape for name, array in feeds.items()):
            self._allocate({name: array.shape for name, array in feeds.items()})
        lane, (start, end) = self._lane, self._copies["h2d"]
        lane.enter()
        if self._copying:  # a copy that is still on its way reads the pinned memory
            lane.synchronize()
        for name, view in self._views.items():
            np.copyto(view, feeds[name])
        lane.record(start)
        for name, landing in self._landings.items():
            landing.copy_(self._pinned[name], non_blocking=True)
        # From here on the copy has a clock of its own: what the host still does, it does meanwhile.
        self._staging_in_ns = time.perf_counter_ns() - begin
        for name, landing in self._landings.items():
            if self._tensors[name] is not landing:
                self._tensors[name].copy_(landing)
        lane.record(end)
        self._bound = self._copying = True
        self._watched = []

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run, by way of pinned memory."""
        begin = time.perf_counter_ns()
        self._check_bound()
        lane, (start, end) = self._lane, self._copies["d2h"]
        lane.enter()
        buffers = self._find_answer_buffers()
        lane.record(start)
        for pinned, tensor in buffers:
            pinned.copy_(tensor, non_blocking=True)
        lane.record(end)
        lane.wait(end)
        answer = {s.name: pinned.numpy().copy() for s, (pinned, _) in zip(self.outputs, buffers, strict=True)}
        self._staging_out_ns = time.perf_counter_ns() - begin - _elapsed_ns(start, end)
        return answer

    def last_device_ns(self) -> int:
        """Time between the events before and after the last run; for an eager module the GPU's waiting included."""
        return _elapsed_ns(self._start, self._end)

    def last_enqueue_ns(self) -> int:
        """Host time that the last run took to enqueue."""
        return self._enqueue_ns[0]

    def last_h2d_ns(self) -> int:
        """Device time of the copy in, a change of layout included."""
        return _elapsed_ns(*self._copies["h2d"])

    def last_d2h_ns(self) -> int:
        """Device time of the copy out."""
        return _elapsed_ns(*self._copies["d2h"])

    def last_staging_ns(self) -> int:
        """Host time of the last `bind`, and of the last `fetch` without its copy."""
        return max(0, self._staging_in_ns + self._staging_out_ns)

    def flush_cache(self) -> None:
        """Overwrites the GPU's last-level cache."""
        self._check_open()
        if self._flush is None:
            self._flush = self._lane.make_flush()
        self._flush()

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the names of the kernels that CUPTI recorded."""
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """Modules as layers, from the kernels of the same record as the proof of precision; kernels where it cannot
        be told which module launched them.
        """
        runs = self._watch()
        named, note = self._name_compiled(runs) if self._generated else self._name_launched(runs)
        return summarize_layers(named, PROFILER, (note,))

    def _name_compiled(self, runs: list[list[Operator]]) -> tuple[list[list[Operator]], str]:
        assert self._generated is not None
        self._lane.enter()
        named, why = self._generated.name_layers(runs, tuple(self._tensors.values()))
        return named, f"{KERNELS}: {why}" if why else COMPILED_NOTE

    def _name_launched(self, runs: list[list[Operator]]) -> tuple[list[list[Operator]], str]:
        """The layers of kernels, from one more run that launches them one by one under the profiler."""
        try:
            named = name_kernels(runs, record_launches(self._call_once, name_modules(self._call)))
        except torch.OutOfMemoryError:
            return runs, f"{KERNELS}: there is no memory for a run outside of the graph"
        return (named, EAGER_NOTE) if named else (runs, f"{KERNELS}: {OTHER_LAUNCHES}")

    def _call_once(self) -> None:
        """Calls the module and waits; the answer of the last run stays what it is."""
        self._lane.enter()
        with torch.inference_mode():
            self._call(*self._tensors.values())  # type: ignore[misc]  # `_check_bound` was called
        self._lane.synchronize()

    def _watch(self) -> list[list[Operator]]:
        self._check_bound()
        self._watched = self._watched or watch_kernels(self._run_quietly)
        return self._watched

    def close(self) -> None:
        """Frees module and tensors; may be called twice."""
        if self._call is not None:
            self._lane.synchronize()
        self._call = self._prepare = self._generated = self._answer = self._flush = None
        self._pinned, self._landings, self._tensors, self._views, self._answers = {}, {}, {}, {}, ()
        self._run = self._launch = _refuse

    def __enter__(self) -> CudaTorchEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._call is None:
            raise explain_closed(self._name)

    def _check_bound(self) -> None:
        self._check_open()
        if not self._bound:
            raise explain_unbound(self._name)

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Fresh buffers for these shapes, and whatever has to be made for them."""
        lane = self._lane
        lane.enter()
        self._answers = ()
        with explain_memory(self._name, shapes):
            self._landings = {s.name: lane.make_tensor(s, shapes[s.name]) for s in self.inputs}
            self._tensors = {name: self._lay_out(tensor) for name, tensor in self._landings.items()}
            self._pinned = {name: lane.make_pinned(t.dtype, tuple(t.shape)) for name, t in self._landings.items()}
            self._views = {name: pinned.numpy() for name, pinned in self._pinned.items()}
            self._make_run()

    def _lay_out(self, tensor: Any) -> Any:
        if not (self._channels_last and tensor.dim() == 4):
            return tensor
        return tensor.contiguous(memory_format=torch.channels_last)

    def _make_run(self) -> None:
        enqueue = self._enqueue
        self._run = _time_run(self._lane, enqueue, self._start, self._end, self._enqueue_ns)
        if self._prepare is not None:
            self._prepare(self._run)
        if self._graph:
            enqueue = self._capture()
            self._run = _time_run(self._lane, enqueue, self._start, self._end, self._enqueue_ns)
        self._launch = enqueue

    def _run_quietly(self) -> None:
        """A run that waits in one call: of one that spins CUPTI records every look, thousands in each run."""
        self._lane.enter()
        self._launch()
        self._lane.synchronize()

    def _capture(self) -> Callable[[], None]:
        try:
            return self._lane.capture(self._enqueue)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = " ".join(str(error).split("\n")[0].split())
            raise ModelError(
                f"{self._name} cannot capture the module as a CUDA graph: {reason}. Modules that wait for the GPU or "
                "copy from it inside cannot be captured; pytorch runs them without a graph"
            ) from error

    def _enqueue(self) -> None:
        with torch.inference_mode():
            self._answer = self._call(*self._tensors.values())  # type: ignore[misc]  # closed engines hand out no run

    def _find_answer_buffers(self) -> list[tuple[Any, Any]]:
        """(pinned buffer, tensor on the GPU) of every output."""
        tensors = [t.contiguous() for t in flatten_tensors(self._answer)]
        if len(tensors) != len(self.outputs):
            raise ArtifactError(f"the module returned {len(tensors)} tensors; its artifact names {len(self.outputs)}")
        if [(p.shape, p.dtype) for p in self._answers] != [(t.shape, t.dtype) for t in tensors]:
            self._answers = tuple(self._lane.make_pinned(t.dtype, tuple(t.shape)) for t in tensors)
        return list(zip(self._answers, tensors, strict=True))


class explain_memory:
    """Turns a GPU that is full into an error that says what did not fit."""

    def __init__(self, name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._name, self._shapes = name, shapes

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in self._shapes.items())
            reason = str(error).split(". ")[0]
            raise MeasurementError(
                f"{self._name} runs out of device memory with {shapes}: {reason}. Choose a smaller --batch"
            ) from error


def _elapsed_ns(start: Any, end: Any) -> int:
    """Nanoseconds between two events, once the later one is over; CUDA's resolution is about half a microsecond."""
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1_000_000)


def _refuse() -> None:
    raise UsageError("the engine is closed; load it again")


def _time_run(lane: Lane, enqueue: Callable[[], None], start: Any, end: Any, enqueue_ns: list[int]) -> RunCall:
    """The hot path: everything that it needs is local, and it allocates nothing."""
    enter, record, wait, clock = lane.enter, lane.record, lane.wait, time.perf_counter_ns

    def run() -> None:
        enter()
        record(start)
        begin = clock()
        enqueue()
        enqueue_ns[0] = clock() - begin
        record(end)
        wait(end)

    return run
