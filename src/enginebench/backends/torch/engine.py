"""The engine behind every `pytorch*` backend on the CPU: a callable, its input buffers, its last answer."""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from enginebench.backends.proof.layer_records import summarize_layers
from enginebench.backends.proof.precision import NAMES, Operator, count_watched_runs, prove_precision
from enginebench.backends.request import explain_closed, explain_unbound
from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.feeds import check_feeds
from enginebench.core.precisions import REORDER
from enginebench.core.records import EngineSpec, LayerProfile, TensorSpec
from enginebench.core.shapes import concrete_shape
from enginebench.core.trees import list_leaves

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds, RunCall

# Environment variables by which oneDNN computes FP32 convolutions and products in a shorter format, silently.
# Source: oneDNN developer guide, "Floating-point math mode".
MATH_MODE_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")

# How the profiler's events of a compiled graph begin. Source: PyTorch 2.13, torch/_inductor/output_code.py.
COMPILED_GRAPH = "## Call CompiledFxGraph"
GENERATED = "generated code"

PROFILER = "PyTorch's profiler"
EAGER_NOTE = "layers are modules; an operator outside of a module that has no children is one of its own"
COMPILED_NOTE = f"layers are operators; what torch.compile generated is one layer, {GENERATED!r}"

# The span around each run that is watched.
WATCHED_RUN = "enginebench run"
# The beginning of the span around each call of a module while it is watched; its path follows.
WATCHED_MODULE = "enginebench module "
# The only child of the wrappers in `torch_cast`.
CAST_CHILD = "_module"

# Outermost operators that bring values from one type or layout to another, as the profiler names them.
CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous")
# Parts of the names of operators that oneDNN may compute in a shorter format than their inputs have.
PRODUCTS = ("conv", "linear", "matmul", "mm", "lstm", "gru")
# Settings of such operators, the newer ones and the older ones, that mean something else than their own name.
FP32_MODES = {"none": "fp32", "ieee": "fp32", "highest": "fp32", "high": "tf32", "medium": "bf16"}


def prepare_torch(spec: EngineSpec) -> None:
    """Sets threads and strict FP32 for the whole process.

    Raises:
        BackendUnavailable: the environment makes FP32 something else, or the thread counts cannot be set any more.
    """
    for variable in MATH_MODE_VARIABLES:
        mode = os.environ.get(variable, "STRICT").upper()
        if mode != "STRICT":
            raise BackendUnavailable(f"{variable}={mode} makes PyTorch compute FP32 in a shorter format; unset it")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    _set_threads(spec.threads)


def _set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
    except RuntimeError as error:  # PyTorch takes this setting once, before its first parallel work
        raise BackendUnavailable(
            "PyTorch's inter-op threads were already set; load the engine in a new process"
        ) from error
    if torch.get_num_threads() != threads:
        raise BackendUnavailable(f"asked PyTorch for {threads} threads, got {torch.get_num_threads()}")


class TorchEngine:
    """Calls a module under `inference_mode`; on the CPU its outputs are complete when the call returns.

    Args:
        call: the module, compiled or not; takes the inputs in the order of `inputs`.
        inputs, outputs: those of the artifact. Outputs are matched by position.
        batch: for the first buffers.
        channels_last: four-dimensional inputs lie in memory with their channels last.
        prepare: called with a run whenever there are buffers of new shapes (a compiler compiles then, not in `run`).
    """

    def __init__(
        self,
        call: Callable[..., Any],
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        name: str,
        batch: int,
        channels_last: bool = False,
        prepare: Callable[[RunCall], None] | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._name = name
        self._call: Callable[..., Any] | None = call
        self._channels_last = channels_last
        self._prepare = prepare
        self._bound = False
        self._answer: Any = None
        self._watched: list[list[Operator]] = []  # runs under the profiler, on what is bound
        self._tensors: tuple[Any, ...] = ()
        self._views: dict[str, Array] = {}
        self._allocate({s.name: concrete_shape(s, batch) for s in inputs})

    @property
    def threads(self) -> int:
        """Threads of one operator, read back from PyTorch."""
        return int(torch.get_num_threads())

    @property
    def run(self) -> RunCall:
        """The call that computes the outputs from what was bound."""
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copies the arrays into the engine's tensors; new shapes get new tensors."""
        self._check_open()
        check_feeds(self.inputs, feeds)
        if any(self._views[name].shape != array.shape for name, array in feeds.items()):
            self._allocate({name: array.shape for name, array in feeds.items()})
        for name, view in self._views.items():
            np.copyto(view, feeds[name])
        self._bound, self._watched = True, []

    def fetch(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        self._check_bound()
        tensors: list[Any] = list(flatten_tensors(self._answer))
        if len(tensors) != len(self.outputs):
            raise ArtifactError(f"the module returned {len(tensors)} tensors; its artifact names {len(self.outputs)}")
        return {s.name: np.array(t.numpy(), order="C") for s, t in zip(self.outputs, tensors, strict=True)}

    def effective_precision(self) -> dict[str, float]:
        """Shares of operator time by precision, from PyTorch's profiler and its settings as they are after the run.

        "unknown" is the time inside a compiled graph for which no operator answers: generated kernels leave no types
        in the record.
        """
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """Modules as layers, of a compiled graph operators; from the same record as the proof of precision."""
        return summarize_layers(self._watch(), PROFILER, (COMPILED_NOTE if self._prepare else EAGER_NOTE,))

    def close(self) -> None:
        """Frees module and tensors; may be called twice."""
        self._call = self._prepare = self._answer = None
        self._tensors, self._views = (), {}

    def __enter__(self) -> TorchEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler. An eager module has hooks meanwhile, which say whose operators are whose."""
        self._check_bound()
        if not self._watched:
            modules = {} if self._prepare else name_modules(self._call)
            with mark_modules(modules):
                recorded = record_profile(self._run)
            self._watched = [list(read_operator_times(events, describe_modules(modules))) for events in recorded]
        return self._watched

    def _check_open(self) -> None:
        if self._call is None:
            raise explain_closed(self._name)

    def _check_bound(self) -> None:
        self._check_open()
        if not self._bound:
            raise explain_unbound(self._name)

    def _run(self) -> None:
        with torch.inference_mode():
            self._answer = self._call(*self._tensors)  # type: ignore[misc]  # closed engines hand out no run

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._tensors = tuple(make_tensor(s.dtype, shapes[s.name], self._channels_last) for s in self.inputs)
        self._views = {s.name: t.numpy() for s, t in zip(self.inputs, self._tensors, strict=True)}
        if self._prepare is not None:
            self._prepare(self._run)


def record_profile(run: RunCall) -> list[list[Any]]:
    """The events of each of a few runs, after one that is not counted, as PyTorch's profiler (Kineto) recorded them."""
    start = time.perf_counter()
    run()
    count = count_watched_runs(time.perf_counter() - start)
    # What torch.profiler wraps; the wrapper imports the whole of torch.compile, which takes a second or more.
    with torch.autograd.profiler.profile(use_kineto=True, record_shapes=True) as profiler:
        for _ in range(count):
            with torch.profiler.record_function(WATCHED_RUN):
                run()
    return split_runs(list(profiler.kineto_results.events()))


def split_runs(events: list[Any]) -> list[list[Any]]:
    """The events inside of each span that is named `WATCHED_RUN`."""
    starts = sorted(e.start_ns() for e in events if e.name() == WATCHED_RUN)
    runs: list[list[Any]] = [[] for _ in starts]
    for event in events:
        run = bisect_right(starts, event.start_ns()) - 1
        if run >= 0 and event.name() != WATCHED_RUN:
            runs[run].append(event)
    return runs


def name_modules(call: Any) -> dict[str, Any]:
    """Path -> module, of every module in `call` that takes hooks; none where it is no module."""
    found = dict(call.named_modules()) if isinstance(call, torch.nn.Module) else {}
    # The wrapper that casts inputs is no part of the user's model.
    if all(path.partition(".")[0] == CAST_CHILD for path in found if path):
        found = {path.removeprefix(CAST_CHILD).removeprefix("."): module for path, module in found.items()}
    return {path: module for path, module in found.items() if not isinstance(module, torch.jit.ScriptModule)}


def describe_modules(modules: Mapping[str, Any]) -> dict[str, str]:
    """Path -> class of those modules that have no children: the layers of a model."""
    return {path: type(module).__name__ for path, module in modules.items() if path and not any(module.children())}


@contextmanager
def mark_modules(modules: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile every call of these modules stands in the profiler's record as a span with its path."""
    spans: list[Any] = []

    def open_span(path: str) -> None:
        spans.append(torch.profiler.record_function(WATCHED_MODULE + path))
        spans[-1].__enter__()

    with ExitStack() as hooks:
        for path, module in modules.items():
            before = module.register_forward_pre_hook(lambda module, inputs, path=path: open_span(path))
            hooks.callback(before.remove)
            after = module.register_forward_hook(lambda *_: spans.pop().__exit__(None, None, None))
            hooks.callback(after.remove)
        yield


def read_operator_times(events: list[Any], kinds: Mapping[str, str] | None = None) -> Iterator[Operator]:
    """Every outermost operator, named after its module, and what a compiled graph spends outside of them.

    Args:
        events: of one run.
        kinds: path -> class of the modules that are layers; operators of others are layers of their own.
    """
    namer = _Namer(kinds or {})
    graph_ns, inside_ns, graph_end_ns, operator_end_ns = 0, 0, 0, 0
    for event in sorted(events, key=lambda e: (e.start_ns(), -e.duration_ns())):
        start_ns, duration_ns = event.start_ns(), event.duration_ns()
        if event.name().startswith(WATCHED_MODULE):
            namer.enter(event.name().removeprefix(WATCHED_MODULE), start_ns, start_ns + duration_ns)
        elif event.name().startswith(COMPILED_GRAPH) and start_ns >= graph_end_ns:
            graph_ns, graph_end_ns = graph_ns + duration_ns, start_ns + duration_ns
        elif event.name().startswith("aten::") and start_ns >= operator_end_ns:
            operator_end_ns = start_ns + duration_ns
            inside_ns += duration_ns if start_ns < graph_end_ns else 0
            dtype = find_operator_dtype(event.name(), (event.dtypes() or [""])[0])
            yield Operator(dtype, float(duration_ns), *namer.name(event.name(), start_ns))
    if graph_ns:
        yield Operator(GENERATED, float(max(0, graph_ns - inside_ns)), GENERATED, "fused")


class _Namer:
    """Finds the layer of an operator: the module around it, or itself with the number of its occurrence."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._open: list[tuple[str, int]] = []
        self._seen: Counter[tuple[str, str]] = Counter()

    def enter(self, path: str, start_ns: int, end_ns: int) -> None:
        """A call of a module begins."""
        self._leave(start_ns)
        self._open.append((path, end_ns))

    def name(self, operator: str, start_ns: int) -> tuple[str, str]:
        """(name, type) of the layer of an operator that starts now."""
        self._leave(start_ns)
        path = self._open[-1][0] if self._open else ""
        if path in self._kinds:
            return path, self._kinds[path]
        kind = operator.removeprefix("aten::")
        self._seen[path, kind] += 1
        count = self._seen[path, kind]
        return f"{path}: {kind}".removeprefix(": ") + (f" {count}" if count > 1 else ""), kind

    def _leave(self, now_ns: int) -> None:
        while self._open and self._open[-1][1] <= now_ns:
            self._open.pop()


def find_operator_dtype(name: str, dtype: str) -> str:
    """The type in which an operator computes: that of its first input, unless FP32 is set to be something shorter."""
    if name in CONVERSIONS:
        return REORDER
    is_product = any(part in name for part in PRODUCTS)
    return (
        read_fp32_mode("conv" if "conv" in name else "matmul") if is_product and NAMES.get(dtype) == "fp32" else dtype
    )


def read_fp32_mode(kind: Literal["conv", "matmul"]) -> str:
    """In what PyTorch computes FP32 convolutions or products on the CPU just now: "fp32", unless somebody set it."""
    settings = getattr(torch.backends.mkldnn, kind, None)
    if settings is not None:  # since PyTorch 2.9
        return FP32_MODES.get(settings.fp32_precision, str(settings.fp32_precision))
    return FP32_MODES[torch.get_float32_matmul_precision()] if kind == "matmul" else "fp32"


def make_tensor(dtype: str, shape: tuple[int, ...], channels_last: bool) -> Any:
    """A tensor of zeros; with `channels_last`, one of four dimensions has its channels last."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    layout = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
    return torch.zeros(shape, dtype=kind).contiguous(memory_format=layout)


def flatten_tensors(answer: Any) -> Iterator[Any]:
    """The tensors of what a module returned, in order."""
    return (leaf for _, leaf in list_leaves(answer) if isinstance(leaf, torch.Tensor))
