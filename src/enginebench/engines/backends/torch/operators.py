"""Operators of a PyTorch module as its profiler recorded them, each with the layer of the model that it is of."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from enginebench.core.precisions import REORDER
from enginebench.core.protocols import RunCall
from enginebench.engines.proof import NAMES, Operator, is_device_event

# How the profiler's events of a compiled graph begin. Source: PyTorch 2.13, torch/_inductor/output_code.py.
COMPILED_GRAPH = "## Call CompiledFxGraph"
GENERATED = "generated code"
# How the profiler names what goes through PyTorch's dispatcher: a library, then an operator of it.
_OPERATOR = re.compile(r"[a-z]\w*::\w+$")

# The beginning of the span around each call of a module while it is watched; its path follows.
WATCHED_MODULE = "enginebench module "
# The beginning of the span around each call of a generated kernel while it is watched; its name follows.
WATCHED_KERNEL = "enginebench kernel "
# The attribute by which a wrapper of ours names the child that it wraps; it is no part of the user's model itself.
WRAPS = "enginebench_wraps"

# Outermost operators that bring values from one type or layout to another, as the profiler names them.
CONVERSIONS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::contiguous")
# Operators that multiply, which oneDNN may compute in a shorter format than their inputs have. `lgamma` is none.
_PRODUCTS = re.compile(r"conv|linear|mm$|mm_|matmul|einsum|attention|lstm|gru")
# Operators whose kernels take integers of eight bits alone. Source: PyTorch 2.13, torch/_inductor/mkldnn_ir.py.
_INT8_KERNEL = re.compile(r"onednn::q(conv|linear)|aten::_int_mm")
# Settings of such operators, the newer ones and the older ones, that mean something else than their own name.
FP32_MODES = {"none": "fp32", "ieee": "fp32", "highest": "fp32", "high": "tf32", "medium": "bf16"}


def name_modules(call: Any) -> dict[str, Any]:
    """Path -> module, of every module of the user's that takes hooks; none where `call` is no module."""
    modules = dict(call.named_modules()) if isinstance(call, torch.nn.Module) else {}
    wrapped = find_wrapped(call)
    return {
        f"{path}.".removeprefix(wrapped).removesuffix("."): module
        for path, module in modules.items()
        if f"{path}.".startswith(wrapped) and not isinstance(module, torch.jit.ScriptModule)
    }


def find_wrapped(call: Any) -> str:
    """The path of the user's module inside of wrappers of ours, a dot behind it; empty where there are none."""
    path = ""
    while isinstance(child := getattr(call, WRAPS, None), str):
        path, call = f"{path}{child}.", getattr(call, child)
    return path


def describe_modules(modules: Mapping[str, Any]) -> dict[str, str]:
    """Path -> class of those modules that have no children: the layers of a model."""
    return {path: type(module).__name__ for path, module in modules.items() if path and not any(module.children())}


def record_launches(run: RunCall, modules: Mapping[str, Any]) -> list[Launch]:
    """The kernels of one run that launches them one by one, each with its layer."""
    run()
    with mark_modules(modules), torch.autograd.profiler.profile(use_kineto=True, use_device="cuda") as profiler:
        run()
    return read_launches(list(profiler.kineto_results.events()), describe_modules(modules))


@contextmanager
def mark_modules(modules: Mapping[str, Any]) -> Iterator[None]:
    """Meanwhile every call of these modules stands in the profiler's record as a span with its path.

    The hooks are those for all modules, not the modules' own: `TransformerEncoderLayer` leaves its fast path where
    one of its modules has a hook. Source: PyTorch 2.13, torch/nn/modules/transformer.py.
    """
    spans: list[Any] = []
    paths = {id(module): path for path, module in modules.items()}

    def open_span(module: Any, _: Any) -> None:
        if id(module) in paths:
            spans.append(torch.profiler.record_function(WATCHED_MODULE + paths[id(module)]))
            spans[-1].__enter__()

    def close_span(module: Any, *_: Any) -> None:
        if id(module) in paths:
            spans.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        if paths:
            hooks.callback(register_module_forward_pre_hook(open_span).remove)
            hooks.callback(register_module_forward_hook(close_span).remove)
        yield


def read_operator_times(events: Sequence[Any], kinds: Mapping[str, str] | None = None) -> Iterator[Operator]:
    """Every outermost operator, named after its module, every generated kernel that was marked, and what a compiled
    graph spends outside of them.
    """
    graphs = list(_list_graphs(events))
    inside_ns = 0
    for event, name, kind in list_outermost(events, kinds or {}):
        duration_ns = event.duration_ns()
        inside_ns += duration_ns if any(start <= event.start_ns() < end for start, end in graphs) else 0
        if event.name().startswith(WATCHED_KERNEL):
            yield Operator(GENERATED, float(duration_ns), name, kind)
        else:
            dtype = find_operator_dtype(event.name(), (event.dtypes() or [""])[0])
            yield Operator(dtype, float(duration_ns), name, kind)
    if graphs:
        graph_ns = sum(end - start for start, end in graphs)
        yield Operator(GENERATED, float(max(0, graph_ns - inside_ns)), GENERATED, "fused")


def _list_graphs(events: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """(start, end) of each compiled graph that is inside of no other."""
    last = 0
    for event in _sort(events):
        if event.name().startswith(COMPILED_GRAPH) and event.start_ns() >= last:
            last = event.start_ns() + event.duration_ns()
            yield event.start_ns(), last


def list_outermost(events: Sequence[Any], kinds: Mapping[str, str]) -> Iterator[tuple[Any, str, str]]:
    """(event, name of its layer, type) of each operator or marked kernel that is inside of no other, in their order."""
    namer, last, outermost = _Namer(kinds), 0, list[tuple[Any, str, str, _ModuleCall | None]]()
    for event in _sort(events):
        start_ns, end_ns = event.start_ns(), event.start_ns() + event.duration_ns()
        if event.name().startswith(WATCHED_MODULE):
            namer.begin_call(event.name().removeprefix(WATCHED_MODULE), start_ns, end_ns)
        elif start_ns < last:
            continue
        elif event.name().startswith(WATCHED_KERNEL):
            last = end_ns
            outermost.append((event, event.name().removeprefix(WATCHED_KERNEL), GENERATED, None))
        elif _OPERATOR.match(event.name()):
            last = end_ns
            outermost.append((event, *namer.name(event.name(), start_ns)))
    for event, name, kind, call in outermost:
        yield event, call.path if call is not None and namer.is_whole(call.path) else name, kind


def name_kernels(runs: Sequence[Sequence[Operator]], launches: Sequence[Launch]) -> list[list[Operator]] | None:
    """The kernels of runs, each under the layer that launched it; None where the runs launched something else.

    What only clears or copies memory keeps its name: in a graph it has another one than outside, or is not there.
    The kernels of one layer may run in another order, as cuDNN's do that are captured from several streams.
    """
    working = [launch for launch in launches if not moves_memory(launch.kernel)]
    if not all(_is_same_work([k.name for k in run if not moves_memory(k.name)], working) for run in runs):
        return None
    named = []
    for run in runs:
        ahead, kernels = iter(working), list[Operator]()
        for kernel in run:
            if not moves_memory(kernel.name):
                launch = next(ahead)
                kernel = kernel._replace(name=launch.layer, kind=launch.kind, kernel=kernel.name)
            kernels.append(kernel)
        named.append(kernels)
    return named


def _is_same_work(kernels: Sequence[str], launches: Sequence[Launch]) -> bool:
    """Whether kernels are those of the launches, layer by layer."""
    start = 0
    for _, group in groupby(launches, key=lambda launch: launch.layer):
        own = [launch.kernel for launch in group]
        if Counter(kernels[start : start + len(own)]) != Counter(own):
            return False
        start += len(own)
    return start == len(kernels)


def moves_memory(kernel: str) -> bool:
    """Whether what ran on a GPU only clears or copies memory, by its name: `Memset (Device)`, `memset32`, `Memcpy`."""
    return kernel.lower().startswith(("memset", "memcpy"))


def _sort(events: Sequence[Any]) -> list[Any]:
    return sorted(events, key=lambda e: (e.start_ns(), -e.duration_ns()))


class Launch(NamedTuple):
    """A kernel of a GPU, and the layer of the model that launched it."""

    kernel: str
    layer: str
    kind: str


def read_launches(events: Sequence[Any], kinds: Mapping[str, str]) -> list[Launch]:
    """The kernels of one run in the order of their start, each with the outermost operator that launched it."""
    host = [event for event in events if not is_device_event(event)]
    outermost = list(list_outermost(host, kinds))
    starts = [event.start_ns() for event, _, _ in outermost]
    begun = {event.correlation_id(): event.start_ns() for event in host if _OPERATOR.match(event.name())}
    kernel_launches = []
    device = [event for event in events if is_device_event(event) and not event.name().startswith(WATCHED_MODULE)]
    for event in _sort(device):  # the profiler repeats the host's spans among them
        at = begun.get(event.linked_correlation_id())
        index = bisect_right(starts, at) - 1 if at is not None else -1
        layer, kind = outermost[index][1:] if index >= 0 else (event.name(), "kernel")
        kernel_launches.append(Launch(event.name(), layer, kind))
    return kernel_launches


@dataclass
class _ModuleCall:
    """A call of a module, and how many operators ran in it."""

    path: str
    end_ns: int
    count: int = 0


class _Namer:
    """Finds the layer of an operator: the module around it, or itself with the number of its occurrence."""

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._kinds = kinds
        self._open: list[_ModuleCall] = []
        self._calls: dict[str, list[_ModuleCall]] = {}
        self._seen: Counter[tuple[str, str]] = Counter()

    def begin_call(self, path: str, start_ns: int, end_ns: int) -> None:
        """A call of a module begins."""
        self._leave(start_ns)
        self._open.append(_ModuleCall(path, end_ns))
        self._calls.setdefault(path, []).append(self._open[-1])

    def name(self, operator: str, start_ns: int) -> tuple[str, str, _ModuleCall | None]:
        """(name, type, call of the module around it) of the layer of an operator that starts now."""
        self._leave(start_ns)
        for call in self._open:
            call.count += 1
        around = self._open[-1] if self._open else None
        path = around.path if around else ""
        if path in self._kinds:
            return path, self._kinds[path], around
        kind = operator.partition("::")[2]
        self._seen[path, kind] += 1
        count = self._seen[path, kind]
        name = f"{path}: {kind}".removeprefix(": ") + (f" {count}" if count > 1 else "")
        return name, kind, around if path else None

    def is_whole(self, path: str) -> bool:
        """Whether each call of a module was a single operator, which then did all of its work, its children's too."""
        return all(call.count == 1 for call in self._calls[path])

    def _leave(self, now_ns: int) -> None:
        while self._open and self._open[-1].end_ns <= now_ns:
            self._open.pop()


def find_operator_dtype(name: str, dtype: str) -> str:
    """The type in which an operator computes: that of its first input, unless FP32 is set to be something shorter."""
    if _INT8_KERNEL.match(name):
        return "int8"
    if name in CONVERSIONS:
        return REORDER
    if not multiplies_matrices(name) or NAMES.get(dtype) != "fp32":
        return dtype
    kind = "conv" if "conv" in name else "matmul"
    settings = getattr(torch.backends.mkldnn, kind, None)
    if settings is not None:  # since PyTorch 2.9; "fp32" unless it was set
        return FP32_MODES.get(settings.fp32_precision, str(settings.fp32_precision))
    return FP32_MODES[torch.get_float32_matmul_precision()] if kind == "matmul" else "fp32"


def multiplies_matrices(operator: str) -> bool:
    """Whether an operator of PyTorch multiplies matrices, by its name."""
    return _PRODUCTS.search(operator) is not None
