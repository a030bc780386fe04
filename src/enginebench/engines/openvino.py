"""OpenVINO on the CPU, compiled for the shapes that are bound. Bundles hold a copy of this file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import openvino

from ..core.engine_api import (
    UNKNOWN_RANK,
    Array,
    ArtifactError,
    ArtifactLike,
    BackendUnavailable,
    Closing,
    EngineSpecLike,
    Feeds,
    RunCall,
    TensorSpecLike,
    check_feeds,
    check_state,
    concrete_shape,
    fits_shape,
    format_shape,
)
from .openvino_settings import CAPABILITIES, HINTS, find_hint, list_settings

NAME = "openvino"
Shared = TypeVar("Shared", bound="OpenvinoEngine")
# Values of an input that share a scale in int8@dynamic, as those of the weights do.
GROUP = 32
BF16 = HINTS["bf16"]


def open_engine(artifact: ArtifactLike, spec: EngineSpecLike, options: Mapping[str, str]) -> OpenvinoEngine:
    """An engine on `spec.threads` threads; `options` has a value for each."""
    graph = BoundGraph(read_graph(artifact), static=options["shapes"] == "static")
    return OpenvinoEngine(graph, artifact, settings=make_settings(spec, options), batch=spec.batch)


def read_graph(artifact: ArtifactLike) -> Any:
    """OpenVINO's model of a file; an input that only a Dropout reads, named after what that makes, has its own name."""
    model = openvino.Core().read_model(artifact.path)
    fed = list_fed(model)
    if len(model.inputs) == len(artifact.inputs):
        for port, spec in zip(model.inputs, artifact.inputs, strict=True):
            if spec.name not in fed:
                port.get_tensor().add_names({spec.name})
    return model


class BoundGraph:
    """A graph for the arrays of a call, which OpenVINO reads as it is.

    Args:
        whole: OpenVINO's model of it.
        static: each compiled graph is for one set of shapes; otherwise one is for all.
    """

    # The inputs whose values a graph is compiled for, beside the shapes of all.
    deciders: frozenset[str] = frozenset()

    def __init__(self, whole: Any, *, static: bool) -> None:
        self.whole, self.static = whole, static

    def read_values(self, feeds: Feeds) -> dict[str, int]:
        """The values of `deciders` in these arrays."""
        return {}

    def open(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int]) -> Any:
        """OpenVINO's model; it is right for these shapes if it is static, and for these values."""
        if self.static:
            self.whole.reshape({name: list(shape) for name, shape in shapes.items()})
        return self.whole

    def compile(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, int], settings: Mapping[str, Any]
    ) -> Any:
        return compile_model(self.open(shapes, values), settings)

    def close(self) -> None:
        self.whole = None


def read_capabilities() -> tuple[str, ...]:
    """Read the precisions that the CPU plugin reports on this machine: FP32, INT8, BF16, ..."""
    return tuple(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def make_settings(
    spec: EngineSpecLike, options: Mapping[str, str], streams: int = 1, hint: str = "latency"
) -> dict[str, Any]:
    """The plugin's settings for a spec on this CPU, for so many requests at a time, each on the spec's threads.

    With the hint `throughput` the plugin chooses the number of streams for the threads of all together.
    """
    floats = "bf16" if options["floats"] == "bf16" else str(spec.precision)  # of what is not INT8 in the graph
    hinted = find_hint(floats, read_capabilities() if floats in CAPABILITIES else ())
    settings = list_settings(streams * spec.threads, hinted)
    settings |= {"NUM_STREAMS": str(streams), "PERFORMANCE_HINT": hint.upper()}
    if hint == "throughput":
        del settings["NUM_STREAMS"]
    if spec.recipe == "dynamic":  # the graph has weights of eight bits; activations follow in each run
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = GROUP
    return settings


def compile_model(model: Any, settings: Mapping[str, Any]) -> Any:
    """Return the compiled graph, with every setting read back.

    Its floats compute in FP32 if OpenVINO has no kernel for them in BF16; `has_lost_bf16` is then true.
    """
    core = openvino.Core()
    try:
        compiled = core.compile_model(model, "CPU", dict(settings))
    except Exception:
        if settings["INFERENCE_PRECISION_HINT"] != BF16:
            raise
        # Seen with OpenVINO 2026.4 on AMX, "No suitable implementations": convolutions in INT8 whose activations have
        # zero points. In FP32 the same graph compiles.
        settings = {**settings, "INFERENCE_PRECISION_HINT": HINTS["fp32"]}
        compiled = core.compile_model(model, "CPU", dict(settings))
    expected = {
        "INFERENCE_PRECISION_HINT": settings["INFERENCE_PRECISION_HINT"],
        "INFERENCE_NUM_THREADS": str(settings["INFERENCE_NUM_THREADS"]),
        "NUM_STREAMS": settings.get("NUM_STREAMS"),
        "EXECUTION_DEVICES": "CPU",
    }
    for key, wanted in expected.items():
        if wanted is not None and (actual := format_property(compiled.get_property(key))) != wanted:
            advice = ". Is the process pinned to fewer CPUs? Lower --threads" if key == "INFERENCE_NUM_THREADS" else ""
            raise BackendUnavailable(f"asked OpenVINO for {key}={wanted}, got {actual}{advice}")
    return compiled


def has_lost_bf16(compiled: Any, settings: Mapping[str, Any]) -> bool:
    """Return whether a graph requested in BF16 was compiled in FP32, because it does not compile in BF16."""
    hint = "INFERENCE_PRECISION_HINT"
    return settings[hint] == BF16 and format_property(compiled.get_property(hint)) != BF16


def format_property(value: Any) -> str:
    """A property of the plugin as the text by which it is set."""
    if isinstance(value, openvino.Type):
        return str(value.to_string())
    return ",".join(value) if isinstance(value, (list, tuple, set)) else str(value)


def list_fed(compiled: Any) -> frozenset[str]:
    """The inputs that a graph takes; OpenVINO drops those that nothing is computed from."""
    return frozenset(name for port in compiled.inputs for name in port.get_names())


def find_ports(compiled: Any, inputs: Sequence[TensorSpecLike]) -> dict[str, Any]:
    """Return the port of each input that a graph takes, by its name.

    Compiled, an input that a graph hands out as it is has only the name of that output: its position tells which it is,
    unless others were dropped.
    """
    named = {name: port for port in compiled.inputs for name in port.get_names()}
    if len(compiled.inputs) == len(inputs):
        named = {spec.name: port for spec, port in zip(inputs, compiled.inputs, strict=True)} | named
    return {spec.name: named[spec.name] for spec in inputs if spec.name in named}


def copy_outputs(request: Any, outputs: Sequence[TensorSpecLike]) -> dict[str, Array]:
    """Return copies of the outputs of a request that has ended."""
    return {spec.name: np.array(request.get_tensor(spec.name).data, order="C") for spec in outputs}


def check_declared(
    inputs: Sequence[TensorSpecLike], outputs: Sequence[TensorSpecLike], arrays: Mapping[str, Array]
) -> None:
    """Check that outputs have the shapes that the graph declares: OpenVINO infers its own, and some are wrong.

    Where an input's first axis is open, files often declare their outputs for one entry.
    """
    first = any(spec.shape and isinstance(spec.shape[0], str) for spec in inputs)
    for spec in (output for output in outputs if UNKNOWN_RANK not in output.shape):
        shape = arrays[spec.name].shape
        if not fits_shape(("batch", *spec.shape[1:]) if first and spec.shape else spec.shape, shape):
            raise ArtifactError(
                f"OpenVINO computes output {spec.name!r} as {format_shape(shape)}, and the graph declares "
                f"{format_shape(spec.shape)}: it reads an operator in another way. Use another engine (ort), or "
                "correct the shape that the graph declares"
            )


class OpenvinoEngine(Closing):
    """A compiled graph, one request, and input tensors that OpenVINO allocated (and aligned) itself."""

    def __init__(self, graph: BoundGraph, artifact: ArtifactLike, *, settings: dict[str, Any], batch: int) -> None:
        self.inputs: tuple[Any, ...] = tuple(artifact.inputs)
        self.outputs: tuple[Any, ...] = tuple(artifact.outputs)
        self._artifact: Any = artifact
        self._graph: BoundGraph | None = graph
        self._settings = settings
        self._values: dict[str, int] = {}  # of the inputs that the compiled graph has no other value for
        self._compiled: Any = None
        self._request: Any = None
        self._infer: Callable[..., object] | None = None
        self._views: dict[str, Array] = {}
        self._bound = False
        self._declared = False  # the outputs had the shapes that the graph declares
        self._watched: list[Any] = []  # the record of runs on the bound arrays, by the tool that records
        # Where nothing says how long a dynamic axis is, or which branch is taken, the arrays do when they are bound.
        if not graph.deciders and all(
            s.sizes or all(isinstance(axis, int) for axis in s.shape[1:]) for s in self.inputs
        ):
            self._compile({s.name: concrete_shape(s, batch) for s in self.inputs}, {})

    @property
    def threads(self) -> int:
        """Threads of the compiled graph, read back from the plugin."""
        check_state(NAME, closed=self._graph is None, bound=self._compiled is not None)
        return int(self._compiled.get_property("INFERENCE_NUM_THREADS"))

    @property
    def run(self) -> RunCall:
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Copy the arrays into the request's tensors; new shapes get new ones, and a new graph if it is static."""
        graph = self._check_open()
        check_feeds(self.inputs, feeds)
        shapes, values = {name: array.shape for name, array in feeds.items()}, graph.read_values(feeds)
        if values != self._values or shapes != {name: view.shape for name, view in self._views.items()}:
            self._compile(shapes, values)
        for name, view in self._views.items():
            np.copyto(view, feeds[name])
        self._bound, self._watched = True, []

    def fetch(self) -> dict[str, Array]:
        self._check_bound()
        arrays = copy_outputs(self._request, self.outputs)
        if not self._declared:
            check_declared(self.inputs, self.outputs, arrays)
            self._declared = True
        return arrays

    @property
    def is_compiled(self) -> bool:
        """Whether the graph is compiled before arrays are bound."""
        return self._compiled is not None

    def share(self: Shared) -> Shared:
        """Return another engine of the same compiled graph, with a request and tensors of its own."""
        self._check_open()
        other = copy.copy(self)
        other._open_request()
        other._views, other._bound, other._watched = {}, False, []
        return other

    def close(self) -> None:
        self._views = {}
        if self._graph is not None:
            self._graph.close()
        self._graph = self._compiled = self._request = self._infer = None

    def _check_open(self) -> BoundGraph:
        check_state(NAME, closed=self._graph is None)
        assert self._graph is not None
        return self._graph

    def _check_bound(self) -> None:
        check_state(NAME, closed=self._graph is None, bound=self._bound)

    def _run(self) -> None:
        # No inputs: the tensors are in place. True: outputs are views, so that nothing is copied in the timed call.
        self._infer({}, True, False)  # type: ignore[misc]  # closed engines hand out no run

    def _open_request(self) -> None:
        self._request = self._compiled.create_infer_request()
        # Not request.infer: that wrapper checks its arguments in Python, which costs 1 us a call.
        self._infer = super(openvino.InferRequest, self._request).infer  # type: ignore[misc]  # no stubs

    def _compile(self, shapes: Mapping[str, tuple[int, ...]], values: dict[str, int]) -> None:
        graph = self._check_open()
        if self._compiled is None or graph.static:
            self._compiled = graph.compile(shapes, values, self._settings)
            self._open_request()
        self._values, self._declared = values, False
        tensors = {s.name: openvino.Tensor(openvino.Type(np.dtype(s.dtype)), [*shapes[s.name]]) for s in self.inputs}
        for name, port in find_ports(self._compiled, self.inputs).items():
            self._request.set_tensor(port, tensors[name])
        self._views = {name: tensor.data for name, tensor in tensors.items()}
