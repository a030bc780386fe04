"""Compute shares, rates and bounds from the times of every stage between file and label, without I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import EngineSpec, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.quantiles import median, min_samples, nearest_rank

STAGES = ("decode", "preprocess", "copy_in", "compute", "copy_out", "postprocess")

NS_PER_MS = 1e6


class BatchStage(Struct, frozen=True, kw_only=True):
    """One stage over a whole batch, by the host's clock; `share` is of the sum of all stages' means."""

    name: str
    p50_ms: float
    p99_ms: float
    mean_ms: float
    share: float


class DeviceMedians(Struct, frozen=True, kw_only=True):
    """Medians by the device's own clock: both copies and the computation."""

    h2d_ms: float
    compute_ms: float
    d2h_ms: float


class StagesDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `stages`. `bounds_per_s` is what each side could do if the other took no time."""

    schema: str = "enginebench.stages/1"
    model: str
    engine: str
    precision: str
    device: str
    batch: int
    threads: int
    images: str
    n_images: int
    image_bytes: dict[str, int]
    batches: int
    stages: tuple[BatchStage, ...]
    total_p50_ms: float
    total_p99_ms: float
    serial_per_s: float
    overlapped_per_s: float
    overlap_gain: float
    decoders: int
    lanes: int
    bounds_per_s: dict[str, float]
    device_times: DeviceMedians | None
    top_classes: tuple[int, ...]
    engine_version: str | None = None
    takes_bytes: bool = False  # its first nodes normalise, in `compute`
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    others: tuple[StagesDocument, ...] = ()  # the other engines of the same call, in the order given


def describe_stages(
    *,
    model: str,
    engine: EngineSpec,
    stages_ns: Mapping[str, Sequence[int]],
    device_ns: Mapping[str, Sequence[int]],
    overlapped_per_s: float,
    decoders: int,
    lanes: int,
    images: str,
    image_bytes: Sequence[int],
    top_classes: Sequence[int] = (),
    engine_version: str | None = None,
    warnings: tuple[ResultWarning, ...] = (),
) -> StagesDocument:
    """Make the document of both measurements.

    Args:
        stages_ns: stage -> nanoseconds of each batch, one stage after another.
        device_ns: `h2d`, `compute` and `d2h` -> nanoseconds of each batch by the device's clock; empty on a CPU.
    """
    batch = engine.batch
    means_ms = {name: float(np.mean(stages_ns[name])) / NS_PER_MS for name in STAGES}
    totals_ms = sorted(sum(times) / NS_PER_MS for times in zip(*(stages_ns[name] for name in STAGES), strict=True))
    total_ms, sizes = sum(means_ms.values()), sorted(image_bytes)
    serial_per_s = batch * 1000 / total_ms
    bounds = bound_rates(means_ms, batch, decoders)
    medians_ms = {f"{name}_ms": median([t / NS_PER_MS for t in times]) for name, times in device_ns.items()}
    own, n, of_bound = [], len(totals_ms), overlapped_per_s / min(bounds.values())
    if n < (needed := min_samples(0.99)):
        own.append(make_warning("too_few_samples", n=n, units="batches", percentile="99", needed=needed))
    if of_bound > 1 + MARGIN:
        own.append(
            make_warning("beats_bound", what="the time of the pipeline", limit="its stages alone", share=of_bound)
        )
    return StagesDocument(
        model=model,
        engine=format_engine(engine),
        precision=format_precision(engine.precision, engine.recipe),
        device=engine.device,
        batch=batch,
        threads=engine.threads,
        images=images,
        n_images=len(sizes),
        image_bytes={"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]},
        batches=len(totals_ms),
        stages=tuple(_describe_stage(name, stages_ns[name], means_ms[name] / total_ms) for name in STAGES),
        total_p50_ms=median(totals_ms),
        total_p99_ms=nearest_rank(totals_ms, 0.99),
        serial_per_s=serial_per_s,
        overlapped_per_s=overlapped_per_s,
        overlap_gain=overlapped_per_s / serial_per_s,
        decoders=decoders,
        lanes=lanes,
        bounds_per_s=bounds,
        device_times=DeviceMedians(**medians_ms) if device_ns else None,
        top_classes=tuple(top_classes),
        engine_version=engine_version,
        warnings=(*warnings, *own),
    )


def bound_rates(means_ms: Mapping[str, float], batch: int, decoders: int) -> dict[str, float]:
    """Return images per second of the decoding threads alone, and of the engine alone with its copies hidden."""
    host_ms = (means_ms["decode"] + means_ms["preprocess"]) / batch
    copies_ms = means_ms["copy_in"] + means_ms["copy_out"] + means_ms["postprocess"]
    return {
        "decode_and_preprocess": decoders * 1000 / host_ms,
        "engine": batch * 1000 / max(means_ms["compute"], copies_ms),
    }


def _describe_stage(name: str, times_ns: Sequence[int], share: float) -> BatchStage:
    times_ms = sorted(t / NS_PER_MS for t in times_ns)
    p50_ms, p99_ms, mean_ms = median(times_ms), nearest_rank(times_ms, 0.99), float(np.mean(times_ms))
    return BatchStage(name=name, p50_ms=p50_ms, p99_ms=p99_ms, mean_ms=mean_ms, share=share)
