"""What the tensors of a graph range over while inputs stream through it; nothing but running figures is kept."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from enginebench.core.errors import ArtifactError, MissingDependency, UsageError
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array
from enginebench.models.precision.calibration_data import CalibrationData
from enginebench.models.precision.graph import make_consumers

try:
    import onnx
    import onnxruntime
except ModuleNotFoundError as missing:
    raise MissingDependency(str(missing.name), 'pip install "enginebench[ort]"') from missing


# Room for the intermediate tensors of one step. ResNet-50 has 106 MB of them an image, and takes 0.11 s an image one at
# a time, 0.16 s four at a time: what does not stay in the caches is paid for twice.
STEP_BYTES = 200_000_000
# Values that are binned at a time: their float64 indices stay in a second-level cache of 1 MB.
CHUNK = 1 << 16


class Step(Struct, frozen=True, kw_only=True, eq=False):
    """The watched tensors of some entries of the data."""

    tensors: dict[str, Any]  # name -> array
    done: int  # entries so far


class Observer:
    """A graph whose intermediate tensors can be watched."""

    def __init__(
        self, model: onnx.ModelProto, watched: list[str], threads: int = 0, libraries: Sequence[str] = ()
    ) -> None:
        options = onnxruntime.SessionOptions()
        register_operators(options, libraries)
        options.intra_op_num_threads = threads
        # The arena keeps the largest step for ever, and doubles while it grows.
        options.enable_cpu_mem_arena = False
        # Between two runs NumPy has the CPU for itself. Threads that spin there took a third of all CPU time:
        # ResNet-50, two cores, method entropy, 24 images: 14 s, and 9 s without.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._names = watched
        # The model with every watched tensor as an output.
        exposed = onnx.ModelProto()
        exposed.CopyFrom(model)
        outputs = {value.name for value in exposed.graph.output}
        exposed.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for name in watched
            if name not in outputs
        )
        self._session = _open_session(exposed, options)

    def watch(self, data: CalibrationData, batch: int, names: Iterable[str] | None = None) -> Iterator[Step]:
        """Every entry of the data once, as many at a time as `batch` and the memory of one step allow.

        A graph of fixed batch takes that many at a time; entries that do not fill a last one are left out.
        """
        fixed, n = 1 if data.apart else self._fixed_batch(), self.count_entries(data)
        wanted = self._names if names is None else list(names)
        size = fixed or 1
        start = 0
        while start < n:
            stop = min(start + size, n)
            tensors = self._run(data.read(start, stop), wanted)
            if fixed is None:
                entries = stop - start
                needed = sum(array.nbytes for array in tensors.values()) / entries
                size = int(max(1, min(batch, STEP_BYTES // max(needed, 1))))
            yield Step(tensors=tensors, done=stop)
            tensors.clear()  # the caller's loop variable would keep this step in memory during the next
            start = stop

    def count_entries(self, data: CalibrationData) -> int:
        """How many entries of the data the graph can take."""
        fixed = 1 if data.apart else self._fixed_batch() or 1
        if data.n < fixed:
            raise UsageError(
                f"{data.n} entries of data; the graph has a fixed batch of {fixed}. Give --n {fixed} or more"
            )
        return data.n - data.n % fixed

    def _fixed_batch(self) -> int | None:
        axis = self._session.get_inputs()[0].shape[0]
        return axis if isinstance(axis, int) else None

    def _run(self, feeds: Mapping[str, Array], names: list[str]) -> dict[str, Any]:
        try:
            return dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        except Exception as error:  # ONNX Runtime has a class of its own for every kind of failure
            raise ArtifactError(f"the graph does not run on the calibration data: {error}") from error


def _open_session(model: onnx.ModelProto, options: Any) -> Any:
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # as above
        raise ArtifactError(f"ONNX Runtime cannot load the graph to calibrate it: {error}") from error


def find_activations(model: onnx.ModelProto) -> list[str]:
    """Names of the float32 tensors that depend on an input, in the order of the graph."""
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


def find_clipped(model: onnx.ModelProto) -> set[str]:
    """Names of the tensors that only a ReLU or Clip reads: a quantizer gives them the range of what comes out of it."""
    consumers = make_consumers(model)
    outputs = {value.name for value in model.graph.output}
    return {
        name
        for name, nodes in consumers.items()
        if len(nodes) == 1
        and nodes[0].op_type in ("Relu", "Clip")
        and nodes[0].input[0] == name
        and name not in outputs
    }


def observe_ranges(
    observer: Observer, data: CalibrationData, batch: int
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """(smallest and largest value of every watched tensor that held any, names of those that held an infinity).

    An infinity can be meant, as in the mask of an attention; no range can hold it, and the tensor gets none.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for step in observer.watch(data, batch):
        for name, values in step.tensors.items():
            if values.size:
                low, high = float(values.min()), float(values.max())
                if np.isnan(low):
                    raise ArtifactError(
                        f"tensor {name!r} holds NaN among the first {step.done} entries of {data.source}. "
                        "Such a model cannot be calibrated; look for the cause in FP32 first"
                    )
                before = ranges.get(name, (low, high))
                ranges[name] = (min(before[0], low), max(before[1], high))
    infinite = [name for name, found in ranges.items() if not np.isfinite(found).all()]
    return {name: found for name, found in ranges.items() if name not in infinite}, infinite


def observe_histograms(
    observer: Observer, data: CalibrationData, batch: int, limits: Mapping[str, float], bins: int
) -> dict[str, NDArray[np.int64]]:
    """Counts of every watched tensor in equal bins over [-limit, limit].

    Args:
        limits: largest magnitude by tensor; only these are counted, and each must be above zero.
    """
    histograms = {name: np.zeros(bins, np.int64) for name in limits}
    if not limits:  # without names, the runtime would give every output
        return histograms
    for step in observer.watch(data, batch, limits):
        for name, limit in limits.items():
            _count(step.tensors[name], limit, histograms[name])
    return histograms


def _count(values: NDArray[np.float32], limit: float, counts: NDArray[np.int64]) -> None:
    bins = len(counts)
    # A little narrower, by more than float32 rounds off, so that the limit itself falls into the last bin.
    scale, half = np.float32(bins / (2 * limit) * (1 - 2.0**-20)), np.float32(bins / 2)
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        places = (flat[start : start + CHUNK] * scale + half).astype(np.intp)
        counts += np.bincount(places, minlength=bins)
