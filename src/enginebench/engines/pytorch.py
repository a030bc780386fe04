"""PyTorch on the CPU: a callable, its input buffers, its last output. Bundles hold a copy of this file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..core.engine_api import (
    Array,
    ArtifactError,
    ArtifactLike,
    BackendUnavailable,
    Closing,
    EngineSpecLike,
    Feeds,
    RunCall,
    UsageError,
    check_feeds,
    check_state,
    concrete_shape,
)
from .pytorch_module import flatten_tensors, make_ready

# Environment variables by which oneDNN computes FP32 convolutions and products in a shorter format, silently.
# Source: oneDNN developer guide, "Floating-point math mode".
MATH_MODE_VARIABLES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")


def open_engine(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str], module: Any) -> TorchEngine:
    """An engine on `spec.threads` threads, which are the process's from now on; `options` has a value for each."""
    prepare_torch(spec)
    return TorchEngine(make_ready(module, artifact, spec, options), artifact, spec, options)


def prepare_torch(spec: EngineSpecLike) -> None:
    """Set threads and strict FP32 for the whole process."""
    for variable in MATH_MODE_VARIABLES:
        mode = os.environ.get(variable, "STRICT").upper()
        if mode != "STRICT":
            raise BackendUnavailable(f"{variable}={mode} makes PyTorch compute FP32 in a shorter format; unset it")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(spec.threads)
    try:
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)
    except RuntimeError as error:  # PyTorch takes this setting once, before its first parallel work
        raise BackendUnavailable(
            "PyTorch's inter-op threads were already set; load the engine in a new process"
        ) from error
    if torch.get_num_threads() != spec.threads:
        raise BackendUnavailable(f"asked PyTorch for {spec.threads} threads, got {torch.get_num_threads()}")


class TorchEngine(Closing):
    """Calls a module under `inference_mode`; on the CPU its outputs are complete when the call returns.

    Args:
        call: the module, compiled or not; takes the artifact's inputs in their order and returns its outputs.
        spec: its batch is that of the first buffers.
        prepare: called with a run whenever there are buffers of new shapes (a compiler compiles then, not in `run`).
    """

    def __init__(
        self,
        call: Callable[..., Any],
        artifact: ArtifactLike,
        spec: EngineSpecLike,
        options: Mapping[str, str],
        *,
        prepare: Callable[[RunCall], object] | None = None,
    ) -> None:
        self.inputs: tuple[Any, ...] = tuple(artifact.inputs)
        self.outputs: tuple[Any, ...] = tuple(artifact.outputs)
        self._name = spec.backend
        self._call: Callable[..., Any] | None = call
        self._layout = torch.channels_last if options["channels_last"] == "1" else torch.contiguous_format
        self._prepare = prepare
        self._run: RunCall = self._compute
        self._bound = False
        self._result: Any = None
        self._watched: list[Any] = []  # the record of runs on the bound arrays, by the tool that records
        self._tensors: tuple[Any, ...] = ()
        self._views: dict[str, Array] = {}
        self._allocate({s.name: concrete_shape(s, spec.batch) for s in artifact.inputs})

    @property
    def threads(self) -> int:
        """Threads of one operator, read back from PyTorch."""
        return int(torch.get_num_threads())

    @property
    def run(self) -> RunCall:
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays into the engine's tensors; new shapes get new tensors."""
        check_state(self._name, closed=self._call is None)
        check_feeds(self.inputs, feeds)
        if any(self._views[name].shape != array.shape for name, array in feeds.items()):
            self._allocate({name: array.shape for name, array in feeds.items()})
        for name, view in self._views.items():
            np.copyto(view, feeds[name])
        self._bound, self._watched = True, []

    def fetch(self) -> dict[str, Array]:
        self._check_bound()
        pairs = zip(self.outputs, self._list_outputs(), strict=True)
        return {spec.name: np.array(tensor.numpy(), order="C") for spec, tensor in pairs}

    def count_least_ns(self) -> float:
        """Return the CPU time of a call on one thread, which waits for no other, over all threads; 0: unknown.

        It is unknown for code compiled for all threads. On one thread PyTorch has other kernels for 1x1 convolutions,
        up to twice as slow; it has those of many threads for one that is dilated, which is the same.
        """
        threads, times, points = self.threads, list[int](), _find_points(self._call) if self.threads > 1 else []
        dilations = [point.dilation for point in points or ()]
        for point in points or ():
            point.dilation = (2,) * len(point.dilation)
        torch.set_num_threads(1)
        while points is not None and not self._prepare and len(times) < 4 and sum(times) < 1_000_000_000:
            start = time.thread_time_ns()
            self.run()
            times.append(time.thread_time_ns() - start)
        torch.set_num_threads(threads)
        for point, dilation in zip(points or (), dilations, strict=True):
            point.dilation = dilation
        return min(times, default=0) / threads

    def close(self) -> None:
        self._call = self._prepare = self._result = None
        self._tensors, self._views, self._run = (), {}, refuse_closed

    def _check_bound(self) -> None:
        check_state(self._name, closed=self._call is None, bound=self._bound)

    def _compute(self) -> None:
        with torch.inference_mode():
            self._result = self._call(*self._tensors)  # type: ignore[misc]  # closed engines hand out no run

    def _list_outputs(self) -> list[Any]:
        """Return the tensors of the last run, one for each output."""
        tensors: list[Any] = list(flatten_tensors(self._result))
        if len(tensors) != len(self.outputs):
            raise ArtifactError(f"the module returned {len(tensors)} tensors; its artifact names {len(self.outputs)}")
        return tensors

    def _lay_out(self, tensor: Any) -> Any:
        """The tensor with its channels last, if the engine is to have them so and it has four dimensions."""
        return tensor.contiguous(memory_format=self._layout) if tensor.dim() == 4 else tensor

    def _allocate(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        plain = (torch.zeros(shapes[s.name], dtype=getattr(torch, s.dtype)) for s in self.inputs)
        self._tensors = tuple(map(self._lay_out, plain))
        self._views = {s.name: t.numpy() for s, t in zip(self.inputs, self._tensors, strict=True)}
        if self._prepare is not None:
            self._prepare(self._run)


def refuse_closed() -> None:
    """The run of an engine that is closed."""
    raise UsageError("the engine is closed; load it again")


def _find_points(call: Any) -> list[Any] | None:
    """The 1x1 convolutions of a module; None where some are no modules, as in an exported graph."""
    parts = [*call.modules()] if isinstance(call, torch.nn.Module) else []
    points = [m for m in parts if isinstance(m, torch.nn.Conv1d | torch.nn.Conv2d) and {*m.kernel_size} == {1}]
    weights = {p for m in parts for p in m.parameters(recurse=False) if p.dim() == 4 and {*p.shape[2:]} == {1}}
    return points if len(weights) == sum(isinstance(m, torch.nn.Conv2d) for m in points) else None
