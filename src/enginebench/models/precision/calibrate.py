"""A graph and data to a calibration: the range of every tensor, in memory that does not grow with the data."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from numpy.typing import NDArray

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact
from enginebench.core.text import list_some
from enginebench.models.precision.calibration import Calibration, Method, TensorRange, check_preprocess
from enginebench.models.precision.calibration_data import CalibrationData, hash_while_reading
from enginebench.models.precision.graph import hash_weights, load_whole_graph, prepare_graph
from enginebench.models.precision.observe import (
    Observer,
    find_activations,
    find_clipped,
    observe_histograms,
    observe_ranges,
)

if TYPE_CHECKING:
    Counts = NDArray[np.int64]


# Bins on each side of zero, and steps of a signed 8-bit number on one side.
# Source: S. Migacz, "8-bit inference with TensorRT", GTC 2017, session S7310: 2048 bins, 128 levels.
BINS_PER_SIDE = 2048
LEVELS = 128
# The lowest of the percentiles compared in H. Wu et al., arXiv:2004.09602, is 99.9.
MOST_CLIPPED = 0.001


def choose_by_entropy(counts: Counts, limit: float) -> float:
    """The threshold T at which cutting to [-T, T] and rounding to 8 bits keeps most of the distribution.

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
    # The first bin holds the exact zeros of every ReLU. Zero is represented without error at any scale, so that they
    # say nothing about the scale, and would drown everything else.
    magnitudes[0] = magnitudes[1]
    sizes = range(max(first, LEVELS), len(magnitudes) + 1)
    divergences = [_measure_divergence(magnitudes, size) for size in sizes]
    best = int(np.argmin(divergences))
    if not np.isfinite(divergences[best]):
        return limit
    return sizes[best] * limit / len(magnitudes)


def fold_signs(counts: Counts) -> Counts:
    """Counts of magnitudes, smallest first, from counts over both signs."""
    half = len(counts) // 2
    return counts[half:] + counts[:half][::-1]


def _measure_divergence(magnitudes: Counts, size: int) -> float:
    """KL(P || Q) in nats: P the first `size` bins with all beyond added to the last, Q the same bins in 128 levels.

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
    """The range (low, high) that holds `percentile` per cent of all values; as much is cut off on either side."""
    total = int(counts.sum())
    # A float of a share such as 99.99 / 100 is not exact; the slack keeps 100 % of n values from becoming n - 1.
    spare = int((1 - percentile / 100) / 2 * total + 1e-9)
    cumulative = np.cumsum(counts)
    first = int(np.searchsorted(cumulative, spare, side="right"))
    last = int(np.searchsorted(cumulative, total - spare, side="left"))
    width = 2 * limit / len(counts)
    return first * width - limit, (last + 1) * width - limit


# Cuts one value in ten thousand: inside the span (99.9 to 99.9999) that is compared in H. Wu et al., "Integer
# quantization for deep learning inference", arXiv:2004.09602.
DEFAULT_PERCENTILE = 99.99
# Below this a tensor is empty of information, and bins of it are narrower than the smallest normal float32.
SMALLEST_LIMIT = float(np.finfo(np.float32).tiny) * 2 * BINS_PER_SIDE


def calibrate(
    artifact: Artifact,
    data: CalibrationData,
    *,
    method: Method = "minmax",
    percentile: float | None = None,
    batch: int = 16,
    threads: int = 0,
) -> Calibration:
    """Ranges of every float tensor of an FP32 graph over the data.

    `minmax` reads the data once, the others twice: bins need a range before they can be filled.

    Args:
        method: minmax keeps all that was seen; entropy and percentile cut off rare extremes.
        percentile: per cent of the values to keep, above 50 and up to 100; 99.99 if None. For method percentile only.
        batch: entries at a time, at most; fewer where the tensors of one step would need more than 200 MB.
        threads: of ONNX Runtime; 0 is its own choice.
    """
    cut = _check_request(artifact, method, percentile, batch)
    model = load_whole_graph(Path(artifact.path))
    weights = hash_weights(model)
    prepared = prepare_graph(model, artifact.operator_libraries)
    del model
    watched = find_activations(prepared)
    if not watched:
        raise UsageError(
            f"{artifact.path}: nothing that the graph computes is FP32; ranges are taken from an FP32 graph. "
            "Export the model in float32"
        )
    observer = Observer(prepared, watched, threads, artifact.operator_libraries)
    hashed, read_hash = hash_while_reading(data)
    seen, infinite = observe_ranges(observer, hashed, batch)
    data_sha256 = read_hash()
    ranges = {name: TensorRange(low=low, high=high) for name, (low, high) in seen.items()}
    if method != "minmax":
        cut_at = cut if method == "percentile" else None
        ranges = _cut_ranges(observer, data, batch, ranges, find_clipped(prepared), cut_at)
    doubts = [make_caveat("nonfinite.tensors", count=len(infinite), names=list_some(infinite))] if infinite else []
    calibration = Calibration(
        model=artifact.model,
        model_sha256=artifact.sha256,
        weights_sha256=weights,
        method=method,
        percentile=cut if method == "percentile" else None,
        n=observer.count_entries(data),
        source=data.source,
        data_sha256=data_sha256,
        preprocess_sha256=data.preprocess_sha256,
        seed=data.seed,
        ranges=ranges,
        made_by={name: version(name) for name in ("onnx", "numpy")} | {"onnxruntime": _read_runtime_version()},
        caveats=(*data.caveats, *doubts),
    )
    check_preprocess(calibration, artifact.model, artifact.preprocess_sha256)
    return calibration


def _read_runtime_version() -> str:
    import onnxruntime  # under any of its distributions: onnxruntime, onnxruntime-gpu, ...

    return str(onnxruntime.__version__)


def _check_request(artifact: Artifact, method: str, percentile: float | None, batch: int) -> float:
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
    return DEFAULT_PERCENTILE if percentile is None else percentile


def _cut_ranges(
    observer: Observer,
    data: CalibrationData,
    batch: int,
    ranges: dict[str, TensorRange],
    clipped: set[str],
    percentile: float | None,
) -> dict[str, TensorRange]:
    """The ranges without rare extremes, but for tensors that the graph itself clips next.

    By entropy, or by percentile where one is given.
    """
    limits = {
        name: found.largest for name, found in ranges.items() if found.largest > SMALLEST_LIMIT and name not in clipped
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
