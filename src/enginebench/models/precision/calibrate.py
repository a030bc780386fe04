"""A graph and data to a calibration: the range of every tensor, in memory that does not grow with the data."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import get_args

import numpy as np

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, Caveat
from enginebench.models.precision.calibration import (
    Calibration,
    Method,
    TensorRange,
    check_preprocess,
)
from enginebench.models.precision.calibration_data import CalibrationData, hash_while_reading
from enginebench.models.precision.graph import hash_weights, load_whole_graph, prepare_graph
from enginebench.models.precision.observe import (
    Observer,
    find_activations,
    find_clipped,
    observe_histograms,
    observe_ranges,
)
from enginebench.models.precision.thresholds import BINS_PER_SIDE, choose_by_entropy, choose_by_percentile

# Cuts one value in ten thousand: inside the span (99.9 to 99.9999) that is compared in H. Wu et al., "Integer
# quantization for deep learning inference", arXiv:2004.09602.
DEFAULT_PERCENTILE = 99.99
# Names that a message lists before it counts the rest.
LISTED = 8
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
        artifact: of kind "onnx".
        data: inputs of the graph.
        method: minmax keeps all that was seen; entropy and percentile cut off rare extremes.
        percentile: per cent of the values to keep, above 50 and up to 100; 99.99 if None. For method percentile only.
        batch: entries at a time, at most; fewer where the tensors of one step would need more than 200 MB.
        threads: of ONNX Runtime; 0 is its own choice.

    Raises:
        UsageError: an unknown method, a percentile without use or out of range, or no FP32 in the graph.
        ArtifactError: the data was prepared for another model, the graph does not run on it, or a value is NaN.
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
        caveats=(*data.caveats, *_explain_infinite(infinite)),
    )
    check_preprocess(calibration, artifact.model, artifact.preprocess_sha256)
    return calibration


def _explain_infinite(names: list[str]) -> list[Caveat]:
    if not names:
        return []
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [make_caveat("nonfinite.tensors", count=len(names), names=f"{', '.join(names[:LISTED])}{more}")]


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
