"""What the tensors of a graph range over while inputs stream through it; nothing but running figures is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from enginebench.core.errors import ArtifactError, MissingDependency, UsageError
from enginebench.models.precision.calibration_data import CalibrationData

try:
    import onnx
    import onnxruntime
except ModuleNotFoundError as missing:
    raise MissingDependency(str(missing.name), 'pip install "enginebench[ort]"') from missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Array

# Room for the intermediate tensors of one step. ResNet-50 has 105 MB of them an image; its weights, the runtime's own
# buffers and the interpreter take 0.5 GB, which leaves a wide margin below 2 GB.
STEP_BYTES = 400_000_000
# Values that are binned at a time: their float64 indices stay in a second-level cache of 1 MB.
CHUNK = 1 << 16


class Step(Struct, frozen=True, kw_only=True, eq=False):
    """The watched tensors of some entries of the data."""

    tensors: dict[str, Any]  # name -> array
    done: int  # entries so far


class Observer:
    """A graph whose intermediate tensors can be watched.

    Args:
        model: an FP32 graph with inferred types.
        watched: names of its tensors.
        threads: of ONNX Runtime; 0 is its own choice.
    """

    def __init__(self, model: onnx.ModelProto, watched: list[str], threads: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # The arena keeps the largest step for ever, and doubles while it grows.
        options.enable_cpu_mem_arena = False
        options.log_severity_level = 3
        self._names = watched
        self._session = _open_session(_expose(model, watched), options)

    def watch(self, data: CalibrationData, batch: int) -> Iterator[Step]:
        """Every entry of the data once, as many at a time as `batch` and the memory of one step allow.

        A graph of fixed batch takes that many at a time; entries that do not fill a last one are left out.

        Raises:
            UsageError: fewer entries than the graph's fixed batch.
            ArtifactError: the graph does not run on this data.
        """
        fixed, n = self._fixed_batch(), self.count_entries(data)
        size = fixed or 1
        start = 0
        while start < n:
            stop = min(start + size, n)
            tensors = self._run(data.read(start, stop))
            if fixed is None:
                size = _choose_size(tensors, stop - start, batch)
            yield Step(tensors=tensors, done=stop)
            tensors.clear()  # the caller's loop variable would keep this step in memory during the next
            start = stop

    def count_entries(self, data: CalibrationData) -> int:
        """How many entries of the data the graph can take.

        Raises:
            UsageError: none, as they do not fill its fixed batch.
        """
        fixed = self._fixed_batch() or 1
        if data.n < fixed:
            raise UsageError(
                f"{data.n} entries of data; the graph has a fixed batch of {fixed}. Give --n {fixed} or more"
            )
        return data.n - data.n % fixed

    def _fixed_batch(self) -> int | None:
        axis = self._session.get_inputs()[0].shape[0]
        return axis if isinstance(axis, int) else None

    def _run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        try:
            return dict(zip(self._names, self._session.run(self._names, dict(feeds)), strict=True))
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            raise ArtifactError(f"the graph does not run on the calibration data: {error}") from error


def _choose_size(tensors: Mapping[str, Any], entries: int, batch: int) -> int:
    needed = sum(array.nbytes for array in tensors.values()) / entries
    return int(max(1, min(batch, STEP_BYTES // max(needed, 1))))


def _expose(model: onnx.ModelProto, watched: list[str]) -> onnx.ModelProto:
    """The model with every watched tensor as an output."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    outputs = {value.name for value in exposed.graph.output}
    exposed.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in watched
        if name not in outputs
    )
    return exposed


def _open_session(model: onnx.ModelProto, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise ArtifactError(f"ONNX Runtime cannot load the graph to calibrate it: {error}") from error


def find_activations(model: onnx.ModelProto) -> list[str]:
    """Names of the float32 tensors that depend on an input, in the order of the graph.

    Args:
        model: with inferred types.
    """
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    alive = set(names)
    for node in model.graph.node:
        if alive.intersection(node.input) or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
            alive.update(node.output)
            names.extend(node.output)
    return [name for name in names if name and types.get(name) == onnx.TensorProto.FLOAT]


def observe_ranges(observer: Observer, data: CalibrationData, batch: int) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of every watched tensor that held any.

    Raises:
        ArtifactError: a value is not finite; names the tensor.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for step in observer.watch(data, batch):
        for name, values in step.tensors.items():
            if values.size:
                low, high = float(values.min()), float(values.max())
                if not np.isfinite(low) or not np.isfinite(high):
                    raise ArtifactError(
                        f"tensor {name!r} holds values that are not finite ({low} to {high}) among the first "
                        f"{step.done} entries of {data.source}. Such a model cannot be calibrated; "
                        "look for them in FP32 first"
                    )
                before = ranges.get(name, (low, high))
                ranges[name] = (min(before[0], low), max(before[1], high))
    return ranges


def observe_histograms(
    observer: Observer, data: CalibrationData, batch: int, limits: Mapping[str, float], bins: int
) -> dict[str, NDArray[np.int64]]:
    """Counts of every watched tensor in equal bins over [-limit, limit].

    Args:
        observer: the graph.
        data: what streams through it.
        batch: entries at a time, at most.
        limits: largest magnitude by tensor; only these are counted, and each must be above zero.
        bins: how many.
    """
    histograms = {name: np.zeros(bins, np.int64) for name in limits}
    for step in observer.watch(data, batch):
        for name, limit in limits.items():
            _count(step.tensors[name], limit, histograms[name])
    return histograms


def _count(values: NDArray[np.float32], limit: float, counts: NDArray[np.int64]) -> None:
    bins = len(counts)
    scale, half = np.float32(bins / (2 * limit)), np.float32(bins / 2)
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        places = (flat[start : start + CHUNK] * scale + half).astype(np.intp)
        counts += np.bincount(np.clip(places, 0, bins - 1, out=places), minlength=bins)
