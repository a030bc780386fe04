"""Calibrate a graph: find the range of every tensor over data, in memory that does not grow with the data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import ArtifactError, UsageError, explaining, importing
from enginebench.core.operators import register_operators
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact
from enginebench.core.text import inflect, list_some
from enginebench.core.warnings import make_warning
from enginebench.models.precision.calibration import Calibration, Method, TensorRange, check_preprocess
from enginebench.models.precision.calibration_data import CalibrationData, hash_while_reading
from enginebench.models.precision.graph import (
    hash_weights,
    load_whole_graph,
    make_consumers,
    prepare_graph,
    read_versions,
)

with importing("{}", 'pip install "enginebench[ort]"'):
    import onnx
    import onnxruntime

Counts: TypeAlias = NDArray[np.int64]

# Bins on each side of zero, and steps of a signed 8-bit number on one side.
# Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017, session S7310: 2048 bins, 128 levels.
BINS_PER_SIDE = 2048
LEVELS = 128
# The lowest of the percentiles compared in H. Wu et al., arXiv:2004.09602, is 99.9.
MOST_CLIPPED = 0.001
# Cuts one value in ten thousand: inside the span (99.9 to 99.9999) that is compared in H. Wu et al., "Integer
# quantization for deep learning inference", arXiv:2004.09602.
DEFAULT_PERCENTILE = 99.99
# A tensor whose values are all below this holds no information: its bins would be narrower than the smallest float32.
SMALLEST_LIMIT = float(np.finfo(np.float32).tiny) * 2 * BINS_PER_SIDE
# Room for the intermediate tensors of one step. ResNet-50 has 106 MB of them an image, and takes 0.11 s an image one at
# a time, 0.16 s four at a time: data that leaves the caches is fetched twice.
STEP_BYTES = 200_000_000
# Values that are binned at a time: their float64 indices stay in a second-level cache of 1 MB.
CHUNK = 1 << 16


def choose_by_entropy(counts: Counts, limit: float) -> float:
    """Return the threshold T at which cutting to [-T, T] and rounding to 8 bits keeps most of the distribution.

    Numbers of bins from 128 up are tried; the one of least Kullback-Leibler divergence between the clipped distribution
    and its rounded form wins. The divergence compares shapes, and calls it perfect to clip everything to one value
    (logits, or inputs of few levels); so that only thresholds are tried that clip at most one value in a thousand.

    Returns:
        The threshold, in the tensor's unit; `limit` where cutting gains nothing.

    Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017, session S7310.
    """
    magnitudes = fold_signs(counts)
    beyond = magnitudes.sum() - np.cumsum(magnitudes)
    first = int(np.argmax(beyond <= MOST_CLIPPED * magnitudes.sum())) + 1
    # The first bin holds the exact zeros of every ReLU. Zero is represented without error at any scale, so these zeros
    # do not bear on the scale, and would outweigh everything else.
    magnitudes[0] = magnitudes[1]
    sizes = range(max(first, LEVELS), len(magnitudes) + 1)
    divergences = [_measure_divergence(magnitudes, size) for size in sizes]
    best = int(np.argmin(divergences))
    if not np.isfinite(divergences[best]):
        return limit
    return sizes[best] * limit / len(magnitudes)


def fold_signs(counts: Counts) -> Counts:
    """Return the counts of magnitudes, smallest first, from counts over both signs."""
    half = len(counts) // 2
    return counts[half:] + counts[:half][::-1]


def _measure_divergence(magnitudes: Counts, size: int) -> float:
    """Return KL(P || Q), in nats: P is the first `size` bins with the rest added to the last, Q is P in 128 levels.

    Infinite where Q holds nothing in a bin that P fills.
    """
    kept = magnitudes[:size]
    clipped = kept.astype(np.float64)
    clipped[-1] += magnitudes[size:].sum()
    starts = (np.arange(LEVELS) * size) // LEVELS
    filled = kept > 0
    mass = np.add.reduceat(kept, starts).astype(np.float64)
    share = mass / np.maximum(np.add.reduceat(filled.astype(np.int64), starts), 1)
    rounded = np.repeat(share, np.diff(np.append(starts, size))) * filled
    used = clipped > 0
    if clipped.sum() == 0 or (rounded[used] == 0).any():
        return float("inf")
    p, q = clipped[used] / clipped.sum(), rounded[used] / rounded.sum()
    return float(np.sum(p * np.log(p / q)))


def choose_by_percentile(counts: Counts, limit: float, percentile: float) -> tuple[float, float]:
    """Return the range (low, high) that holds `percentile` percent of all values, with equal parts cut at both ends."""
    total = int(counts.sum())
    # A fraction such as 99.99 / 100 is not exact as a float; the slack keeps 100 % of n values from becoming n - 1.
    spare = int((1 - percentile / 100) / 2 * total + 1e-9)
    cumulative = np.cumsum(counts)
    first = int(np.searchsorted(cumulative, spare, side="right"))
    last = int(np.searchsorted(cumulative, total - spare, side="left"))
    width = 2 * limit / len(counts)
    return first * width - limit, (last + 1) * width - limit


class Observer:
    """A graph whose intermediate tensors can be watched."""

    def __init__(
        self, model: onnx.ModelProto, watched: list[str], threads: int = 0, libraries: Sequence[str] = ()
    ) -> None:
        options = onnxruntime.SessionOptions()
        register_operators(options, libraries)
        options.intra_op_num_threads = threads
        # Ranges are taken of the tensors of the graph as it is written: a fused node may compute others.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
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
        kind = onnx.TensorProto.FLOAT
        more = [onnx.helper.make_tensor_value_info(name, kind, None) for name in watched if name not in outputs]
        exposed.graph.output.extend(more)
        with explaining(ArtifactError, "ONNX Runtime cannot load the graph to calibrate it"):
            self._session: Any = onnxruntime.InferenceSession(
                exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )

    def watch(
        self, data: CalibrationData, batch: int, names: Iterable[str] | None = None
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield (watched tensors of some entries, number of entries so far), every entry of the data once.

        A step has as many entries as `batch` and the memory allow; with a fixed batch of the graph exactly that many,
        and entries that do not fill a last batch are left out.
        """
        fixed, n = 1 if data.apart else self._fixed_batch(), self.count_entries(data)
        requested_names = self._names if names is None else list(names)
        size = fixed or 1
        start = 0
        while start < n:
            stop = min(start + size, n)
            tensors = self._run(data.read(start, stop), requested_names)
            if fixed is None:
                entries = stop - start
                needed = sum(array.nbytes for array in tensors.values()) / entries
                size = int(max(1, min(batch, STEP_BYTES // max(needed, 1))))
            yield tensors, stop
            tensors.clear()  # the caller's loop variable would keep this step in memory during the next
            start = stop

    def count_entries(self, data: CalibrationData) -> int:
        """Return the number of entries of the data that the graph can take."""
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
        # Inputs are not asked for: as an output, ONNX Runtime 1.23 returns memory of one that is freed by then.
        computed = [name for name in names if name not in feeds]
        with explaining(ArtifactError, "the graph does not run on the calibration data"):
            tensors = self._session.run(computed, dict(feeds)) if computed else []
        return {**{name: feeds[name] for name in names if name in feeds}, **dict(zip(computed, tensors, strict=True))}


def calibrate(
    artifact: Artifact,
    data: CalibrationData,
    *,
    method: Method = "minmax",
    percentile: float | None = None,
    batch: int = 16,
    threads: int = 0,
) -> Calibration:
    """Return the range of every float tensor of an FP32 graph over the data.

    `minmax` reads the data once, the others twice: bins need a range before they can be filled.

    Args:
        method: minmax keeps all values; entropy and percentile cut off rare extremes.
        percentile: per cent of the values to keep, above 50 and up to 100; 99.99 if None. For method percentile only.
        batch: entries at a time, at most; fewer where the tensors of one step would need more than 200 MB.
        threads: of ONNX Runtime; 0 is its own choice.
    """
    _check_request(artifact, method, percentile, batch)
    model = load_whole_graph(Path(artifact.path))
    weights = hash_weights(model)
    prepared = prepare_graph(model, artifact.operator_libraries, artifact.inputs)
    del model
    watched = find_activations(prepared)
    if not watched:
        raise UsageError(
            f"{artifact.path}: nothing that the graph computes is FP32; ranges are taken from an FP32 graph. "
            "Export the model in float32"
        )
    observer = Observer(prepared, watched, threads, artifact.operator_libraries)
    hashed, read_hash = hash_while_reading(data)
    observed, infinite = observe_ranges(observer, hashed, batch)
    data_sha256 = read_hash()
    ranges = {name: TensorRange(low=low, high=high) for name, (low, high) in observed.items()}
    cut = (percentile or DEFAULT_PERCENTILE) if method == "percentile" else None
    if method != "minmax":
        ranges = _cut_ranges(observer, data, batch, ranges, find_clipped(prepared), cut)
    which = "which gets no range" if len(infinite) == 1 else "which get no range"
    noun = inflect(len(infinite), "tensors")
    what = f"{noun}, {which}, so that nodes that need one stay in FP32: {list_some(infinite)}"
    warnings = [make_warning("nonfinite", count=len(infinite), what=what)] if infinite else []
    calibration = Calibration(
        model=artifact.model,
        model_sha256=artifact.sha256,
        weights_sha256=weights,
        method=method,
        percentile=cut,
        n=observer.count_entries(data),
        source=data.source,
        data_sha256=data_sha256,
        preprocess_sha256=data.preprocess_sha256,
        seed=data.seed,
        ranges=ranges,
        made_by=read_versions(("onnx", "numpy", "onnxruntime")),
        warnings=(*data.warnings, *warnings),
    )
    check_preprocess(calibration, artifact.model, artifact.preprocess_sha256)
    return calibration


def _check_request(artifact: Artifact, method: str, percentile: float | None, batch: int) -> None:
    if artifact.kind != "onnx":
        raise UsageError(
            f"{artifact.path} is of kind {artifact.kind}; ranges are taken from an ONNX graph. Export it first"
        )
    if artifact.precision != "fp32":
        raise UsageError(f"{artifact.path} is {artifact.precision} already; ranges are taken from an FP32 graph")
    if method not in get_args(Method):
        raise UsageError(f"unknown method {method!r}; known: {', '.join(get_args(Method))}")
    if percentile is not None and method != "percentile":
        raise UsageError(f"--percentile has no effect with --method {method}; leave it out")
    if percentile is not None and not 50 < percentile <= 100:
        raise UsageError(f"percentile {percentile:g} must be above 50 and at most 100")
    if batch < 1:
        raise UsageError(f"batch {batch} must be at least 1")


def _cut_ranges(
    observer: Observer,
    data: CalibrationData,
    batch: int,
    ranges: dict[str, TensorRange],
    clipped: set[str],
    percentile: float | None,
) -> dict[str, TensorRange]:
    """Return the ranges without rare extremes, by entropy, or by percentile where one is given.

    Tensors that the graph itself clips next keep their range.
    """
    limits = {
        name: tensor_range.largest
        for name, tensor_range in ranges.items()
        if tensor_range.largest > SMALLEST_LIMIT and name not in clipped
    }
    histograms = observe_histograms(observer, data, batch, limits, 2 * BINS_PER_SIDE)
    cut = dict(ranges)
    for name, counts in histograms.items():
        if percentile is None:
            high = choose_by_entropy(counts, limits[name])
            low = -high
        else:
            low, high = choose_by_percentile(counts, limits[name], percentile)
        cut[name] = TensorRange(low=max(ranges[name].low, low), high=min(ranges[name].high, high))
    return cut


def find_activations(model: onnx.ModelProto) -> list[str]:
    """Return the names of the float32 tensors that depend on an input, in the order of the graph."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    constants = {tensor.name for tensor in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in constants]
    alive = set(names)
    for node in model.graph.node:
        if alive.intersection(node.input) or any(a.type == onnx.AttributeProto.GRAPH for a in node.attribute):
            alive.update(node.output)
            names.extend(node.output)
    return [name for name in names if name and types.get(name) == onnx.TensorProto.FLOAT]


def find_clipped(model: onnx.ModelProto) -> set[str]:
    """Return the names of tensors that only a ReLU or Clip reads: a quantizer gives them the range of its output."""
    consumers = make_consumers(model)
    outputs = {value.name for value in model.graph.output}
    single = {name: nodes[0] for name, nodes in consumers.items() if len(nodes) == 1 and name not in outputs}
    return {name for name, node in single.items() if node.op_type in ("Relu", "Clip") and node.input[0] == name}


def observe_ranges(
    observer: Observer, data: CalibrationData, batch: int
) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """Return (smallest and largest value of every watched tensor, names of tensors that held an infinity).

    An infinity can be intended, as in the mask of an attention; no range can hold it, so such a tensor gets none.
    Empty tensors get none, either.
    """
    ranges: dict[str, tuple[float, float]] = {}
    for tensors, done in observer.watch(data, batch):
        for name, values in tensors.items():
            if values.size:
                low, high = float(values.min()), float(values.max())
                if np.isnan(low):
                    raise ArtifactError(
                        f"tensor {name!r} holds NaN among the first {done} entries of {data.source}. "
                        "Such a model cannot be calibrated; look for the cause in FP32 first"
                    )
                before = ranges.get(name, (low, high))
                ranges[name] = (min(before[0], low), max(before[1], high))
    infinite = [name for name, ends in ranges.items() if not np.isfinite(ends).all()]
    return {name: ends for name, ends in ranges.items() if name not in infinite}, infinite


def observe_histograms(
    observer: Observer, data: CalibrationData, batch: int, limits: Mapping[str, float], bins: int
) -> dict[str, NDArray[np.int64]]:
    """Return the histogram of every watched tensor, in equal bins over [-limit, limit].

    Args:
        limits: largest magnitude by tensor; only these are counted, and each must be above zero.
    """
    histograms = {name: np.zeros(bins, np.int64) for name in limits}
    if not limits:  # without names, the runtime would give every output
        return histograms
    for tensors, _ in observer.watch(data, batch, limits):
        for name, limit in limits.items():
            _count(tensors[name], limit, histograms[name])
    return histograms


def _count(values: NDArray[np.float32], limit: float, counts: NDArray[np.int64]) -> None:
    bins = len(counts)
    # A little narrower, by more than float32 rounds off, so that the limit itself falls into the last bin.
    scale, half = np.float32(bins / (2 * limit) * (1 - 2.0**-20)), np.float32(bins / 2)
    flat = values.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        bins_of_values = (flat[start : start + CHUNK] * scale + half).astype(np.intp)
        counts += np.bincount(bins_of_values, minlength=bins)
