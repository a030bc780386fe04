"""PyTorch on the CPU: a callable, its input buffers, its last answer. Bundles hold a copy of this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..core.engine_api import (
    Array,
    Artifact,
    ArtifactError,
    BackendUnavailable,
    Closing,
    EngineSpec,
    Feeds,
    RunCall,
    TensorSpec,
    check_feeds,
    concrete_shape,
    explain_closed,
    explain_unbound,
)
from .pytorch_module import flatten_tensors, make_ready

# Environment variables by which oneDNN computes FP32 convolutions and products in a shorter format, silently.
# Source: oneDNN developer guide, "Floating-point math mode".
MATH_MODE_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")


def open_engine(artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], module: Any) -> TorchEngine:
    """An engine on `spec.threads` threads, which are the process's from now on; `options` has a value for each."""
    prepare_torch(spec)
    return TorchEngine(
        make_ready(module, artifact, spec, options),
        artifact.inputs,
        artifact.outputs,
        name=spec.backend,
        batch=spec.batch,
        channels_last=options["channels_last"] == "1",
    )


def prepare_torch(spec: EngineSpec) -> None:
    """Sets threads and strict FP32 for the whole process."""
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


class TorchEngine(Closing):
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
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        *,
        name: str,
        batch: int,
        channels_last: bool = False,
        prepare: Callable[[RunCall], object] | None = None,
    ) -> None:
        self.inputs: tuple[Any, ...] = tuple(inputs)
        self.outputs: tuple[Any, ...] = tuple(outputs)
        self._name = name
        self._call: Callable[..., Any] | None = call
        self._channels_last = channels_last
        self._prepare = prepare
        self._bound = False
        self._answer: Any = None
        self._watched: list[Any] = []  # what was recorded of runs on what is bound, by whoever records
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

    def close(self) -> None:
        """Frees module and tensors; may be called twice."""
        self._call = self._prepare = self._answer = None
        self._tensors, self._views = (), {}

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
