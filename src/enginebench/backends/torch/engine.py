"""The engine behind every `pytorch*` backend on the CPU: a callable, its input buffers, its last answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from enginebench.backends.proof.layer_records import summarize_layers
from enginebench.backends.proof.precision import Operator, prove_precision
from enginebench.backends.request import explain_closed, explain_unbound
from enginebench.backends.torch.operators import (
    describe_modules,
    mark_modules,
    name_modules,
    read_operator_times,
    record_profile,
)
from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.feeds import check_feeds
from enginebench.core.records import EngineSpec, LayerProfile, TensorSpec
from enginebench.core.shapes import concrete_shape
from enginebench.core.trees import list_leaves

if TYPE_CHECKING:
    from enginebench.backends.torch.generated import GeneratedCode
    from enginebench.core.protocols import Array, Feeds, RunCall

# Environment variables by which oneDNN computes FP32 convolutions and products in a shorter format, silently.
# Source: oneDNN developer guide, "Floating-point math mode".
MATH_MODE_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")

PROFILER = "PyTorch's profiler"
EAGER_NOTE = "layers are modules; an operator outside of a module that has no children is one of its own"
COMPILED_NOTE = "layers are modules, or several where torch.compile made one kernel of them"
PLAIN_NOTE = "layers are operators and generated kernels: {why}"


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
        channels_last: bool = False,
        prepare: Callable[[RunCall], None] | None = None,
        generated: GeneratedCode | None = None,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._name = name
        self._call: Callable[..., Any] | None = call
        self._channels_last = channels_last
        self._prepare, self._generated = prepare, generated
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
        """Modules as layers, from the same record as the proof of precision."""
        runs = self._watch()
        if self._generated is None:
            return summarize_layers(runs, PROFILER, (EAGER_NOTE,))
        runs, why = self._generated.name_layers(runs, self._tensors)
        return summarize_layers(runs, PROFILER, (PLAIN_NOTE.format(why=why) if why else COMPILED_NOTE,))

    def close(self) -> None:
        """Frees module and tensors; may be called twice."""
        self._call = self._prepare = self._generated = self._answer = None
        self._tensors, self._views = (), {}

    def __enter__(self) -> TorchEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler. An eager module has hooks meanwhile, which say whose operators are whose, and
        of a compiled one the kernels are marked."""
        self._check_bound()
        if not self._watched:
            modules = {} if self._generated else name_modules(self._call)
            with self._generated.mark() if self._generated else mark_modules(modules):
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


def make_tensor(dtype: str, shape: tuple[int, ...], channels_last: bool) -> Any:
    """A tensor of zeros; with `channels_last`, one of four dimensions has its channels last."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    layout = torch.channels_last if channels_last and len(shape) == 4 else torch.contiguous_format
    return torch.zeros(shape, dtype=kind).contiguous(memory_format=layout)


def flatten_tensors(answer: Any) -> Iterator[Any]:
    """The tensors of what a module returned, in order."""
    return (leaf for _, leaf in list_leaves(answer) if isinstance(leaf, torch.Tensor))
