"""Two engines' answers to the same inputs: how far apart they are, and whether that is within the limits.

The first axis of every output counts samples; the rest of it is one answer. All sums are taken in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.records import Drift, OutputDrift, Precision

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from enginebench.core.protocols import Array

    Floats = NDArray[np.float64]

# Outputs that are equal bit for bit have no finite ratio of signal to noise. JSON has no infinity, so they are given
# that of double precision's own rounding: 20 log10(2^52).
SNR_CEILING_DB = 20 * math.log10(2**52)

# The names of limits: the field of `OutputDrift`, and whether more of it is better.
LIMITS: dict[str, tuple[str, bool]] = {
    "cosine": ("cosine_mean", True),
    "cosine_min": ("cosine_min", True),
    "centred_cosine": ("centred_cosine_mean", True),
    "snr": ("snr_db", True),
    "top1": ("top1_agreement", True),
    "top5": ("top5_agreement", True),
    "max_abs": ("max_abs_diff", False),
    "mean_abs": ("mean_abs_diff", False),
    "mean_rel": ("mean_rel_diff", False),
}

# Why these. Noise of a rounding to b significant bits is about 6 b dB below the signal, and a deep network lets it
# grow by some 20 to 40 dB. Centred cosine c and noise-to-signal ratio r belong together by c = 1 / sqrt(1 + r).
_DEFAULTS: dict[Precision, dict[str, float]] = {
    # 24 bits: 144 dB at best, 80 left after growth and Winograd kernels; 60 dB means that a thousandth is lost.
    "fp32": {"snr": 60.0, "centred_cosine": 0.9999},
    # 11 bits: 66 dB at best; 30 dB, a thirtieth of the signal, is what a sound network keeps. c at 30 dB: 0.9995.
    "tf32": {"snr": 30.0, "centred_cosine": 0.999},
    "fp16": {"snr": 30.0, "centred_cosine": 0.999},
    # 8 bits: 48 dB at best, so 20 dB by the same growth; c at 20 dB: 0.995.
    "bf16": {"snr": 20.0, "centred_cosine": 0.99},
    # 8 bits without an exponent: c 0.96 to 0.97 was measured on sound INT8 networks with random weights; below
    # 0.9 (7 dB) a fifth of the output's variance is noise.
    "int8": {"centred_cosine": 0.9},
    "fp8": {"centred_cosine": 0.9},  # 4 bits of fraction with an exponent: the same order as int8
}


# Two scores that each err by noise of this deviation differ by sqrt(2) of it, and 95 % of normal noise lies within
# 1.96 deviations: a margin beyond both is more than this noise explains.
NEAR_TIE = 1.96 * math.sqrt(2)


class SampleDrift(Struct, frozen=True, kw_only=True):
    """Differences of one output in one sample. The last six are for classes only."""

    index: int
    output: str
    mean_abs_diff: float | None
    max_abs_diff: float | None
    mean_rel_diff: float | None
    cosine: float | None
    centred_cosine: float | None
    snr_db: float | None
    nonfinite: int
    top1_reference: int | None = None
    top1_candidate: int | None = None
    top1_agrees: bool | None = None
    top5_agrees: bool | None = None
    margin: float | None = None  # of the reference's best class over its second best
    beyond_noise: bool | None = None  # the margin is more than the noise of all samples explains


def default_limits(precision: Precision) -> dict[str, float]:
    """The limits that outputs of this precision must keep against FP32: an FP16 row is not held to 1e-5."""
    return dict(_DEFAULTS[precision])


def measure_drift(
    reference: Mapping[str, Array],
    candidate: Mapping[str, Array],
    limits: Mapping[str, float],
    *,
    reference_id: str = "",
) -> Drift:
    """What `candidate` answered, against `reference`, output by output.

    Args:
        reference: name -> array of shape (samples, ...), any dtype.
        candidate: the same names, shapes and dtypes.
        limits: by the names in `LIMITS`; a limit on a figure that an output does not have (top-1 of an image) is not
            applied to that output.
        reference_id: of the row that is taken as the truth.

    Raises:
        FeedError: names, shapes or dtypes differ; lists every difference.
        UsageError: a limit is unknown.
    """
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise UsageError(f"unknown limit {', '.join(map(repr, unknown))}; known: {', '.join(LIMITS)}")
    _check_alike(reference, candidate)
    outputs = tuple(_measure_output(name, reference[name], candidate[name]) for name in reference)
    n = min((len(np.atleast_1d(array)) for array in reference.values()), default=0)
    passed = bool(outputs) and n > 0 and all(_passes(output, limits) for output in outputs)
    return Drift(n=n, outputs=outputs, limits=dict(limits), passed=passed, reference=reference_id)


def _check_alike(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> None:
    problems = [f"output {name!r} is missing from the candidate" for name in reference if name not in candidate]
    problems += [f"output {name!r} is missing from the reference" for name in candidate if name not in reference]
    for name in (name for name in reference if name in candidate):
        ref, cand = reference[name], candidate[name]
        if ref.shape != cand.shape:
            problems.append(f"output {name!r} has shape {list(ref.shape)} against {list(cand.shape)}")
        if ref.dtype != cand.dtype:
            problems.append(f"output {name!r} has dtype {ref.dtype} against {cand.dtype}")
    if problems:
        raise FeedError(
            f"outputs cannot be compared: {'; '.join(problems)}. "
            "Both sides must come from the same model, with the same batch and input/output types"
        )


def _measure_output(name: str, reference: Array, candidate: Array) -> OutputDrift:
    ref, cand = _as_rows(reference), _as_rows(candidate)
    finite = np.isfinite(ref) & np.isfinite(cand)
    nonfinite = int(np.count_nonzero(~np.isfinite(ref)) + np.count_nonzero(~np.isfinite(cand)))
    whole = finite.all(axis=1)
    a, b = ref[whole], cand[whole]
    cosines = _cosines(a, b)
    centre = a.mean(axis=0) if len(a) else 0.0
    classes = reference.ndim == 2
    return OutputDrift(
        name=name,
        **_measure_differences(ref[finite], cand[finite]),
        cosine_mean=_mean(cosines),
        cosine_min=float(cosines.min()) if cosines.size else None,
        centred_cosine_mean=_mean(_cosines(a - centre, b - centre)) if len(a) > 1 else None,
        snr_db=_measure_snr(ref[finite], cand[finite]),
        top1_agreement=_agreement(a, b, 1) if classes else None,
        top5_agreement=_agreement(a, b, 5) if classes else None,
        nonfinite=nonfinite,
        **(_count_flips(a, b) if classes else {}),
    )


def measure_samples(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> tuple[SampleDrift, ...]:
    """The differences of every sample in every output, sample by sample.

    Args:
        reference: name -> array of shape (samples, ...), any dtype.
        candidate: the same names, shapes and dtypes.

    Raises:
        FeedError: names, shapes or dtypes differ; lists every difference.
    """
    _check_alike(reference, candidate)
    tables = [_measure_rows(name, reference[name], candidate[name]) for name in reference]
    return tuple(row for sample in zip_longest(*tables) for row in sample if row is not None)


def _measure_rows(name: str, reference: Array, candidate: Array) -> list[SampleDrift]:
    ref, cand = _as_rows(reference), _as_rows(candidate)
    whole = np.isfinite(ref).all(axis=1) & np.isfinite(cand).all(axis=1)
    centre = ref[whole].mean(axis=0) if whole.sum() > 1 else None
    threshold = NEAR_TIE * _measure_noise(ref[whole], cand[whole])
    classes = reference.ndim == 2
    return [
        _measure_row(i, name, a, b, centre, threshold if classes else None)
        for i, (a, b) in enumerate(zip(ref, cand, strict=True))
    ]


def _measure_row(
    index: int, name: str, ref: Floats, cand: Floats, centre: Floats | None, threshold: float | None
) -> SampleDrift:
    finite = np.isfinite(ref) & np.isfinite(cand)
    nonfinite = int(np.count_nonzero(~np.isfinite(ref)) + np.count_nonzero(~np.isfinite(cand)))
    a, b = ref[None], cand[None]
    return SampleDrift(
        index=index,
        output=name,
        **_measure_differences(ref[finite], cand[finite]),
        cosine=_mean(_cosines(a, b)) if finite.all() else None,
        centred_cosine=_mean(_cosines(a - centre, b - centre)) if finite.all() and centre is not None else None,
        snr_db=_measure_snr(ref[finite], cand[finite]),
        nonfinite=nonfinite,
        **(_compare_classes(a, b, threshold) if finite.all() and threshold is not None and ref.size > 1 else {}),
    )


def _compare_classes(ref: Floats, cand: Floats, threshold: float) -> dict[str, Any]:
    margin = float(_measure_margins(ref)[0])
    five = _agreement(ref, cand, 5)
    return {
        "top1_reference": int(ref.argmax()),
        "top1_candidate": int(cand.argmax()),
        "top1_agrees": bool(ref.argmax() == cand.argmax()),
        "top5_agrees": None if five is None else bool(five),
        "margin": margin,
        "beyond_noise": margin > threshold,
    }


def _count_flips(ref: Floats, cand: Floats) -> dict[str, int]:
    """Samples whose best class changed, those among them that the noise does not explain, and those it could flip."""
    if not len(ref) or ref.shape[1] < 2:
        return {}
    flipped = ref.argmax(axis=1) != cand.argmax(axis=1)
    sure = _measure_margins(ref) > NEAR_TIE * _measure_noise(ref, cand)
    return {
        "flips": int(flipped.sum()),
        "flips_beyond_noise": int((flipped & sure).sum()),
        "near_ties": int((~sure).sum()),
    }


def _measure_margins(ref: Floats) -> Floats:
    """The best score less the second best, of every sample."""
    best = np.partition(ref, -2, axis=1)
    margins: Floats = best[:, -1] - best[:, -2]
    return margins


def _measure_noise(ref: Floats, cand: Floats) -> float:
    """Standard deviation of the differences within a sample: what moves all scores alike flips nothing."""
    difference = cand - ref
    if not difference.size:
        return 0.0
    return float(np.sqrt(np.mean((difference - difference.mean(axis=1, keepdims=True)) ** 2)))


def _as_rows(array: Array) -> Floats:
    """(samples, values of one answer) in double precision."""
    array = np.atleast_1d(array)
    # The number of values is counted, not left to -1: of no samples it could be any.
    rows: Floats = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    return rows


def _measure_differences(ref: Floats, cand: Floats) -> dict[str, Any]:
    """Absolute differences, and relative ones over the elements whose reference is not zero."""
    difference, size = np.abs(ref - cand), np.abs(ref)
    relative = difference[size > 0] / size[size > 0]
    return {
        "mean_abs_diff": _mean(difference),
        "max_abs_diff": float(difference.max()) if difference.size else None,
        "mean_rel_diff": _mean(relative),
    }


def _cosines(a: Floats, b: Floats) -> Floats:
    """Cosine of every sample: of two answers that are nothing but zeros 1, of one such answer 0."""
    size_a, size_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.einsum("ij,ij->i", a / size_a[:, None], b / size_b[:, None])
    empty = (size_a == 0) | (size_b == 0)
    found: Floats = np.where(empty, (size_a == size_b).astype(np.float64), np.clip(cosines, -1, 1))
    return found


def _measure_snr(ref: Floats, cand: Floats) -> float | None:
    """10 log10(signal power / power of the difference), at most `SNR_CEILING_DB`; None without a signal."""
    signal, noise = float(np.sum(ref**2)), float(np.sum((ref - cand) ** 2))
    if noise == 0:
        return SNR_CEILING_DB if ref.size else None
    if signal == 0:
        return None
    return min(SNR_CEILING_DB, 10 * (math.log10(signal) - math.log10(noise)))


def _agreement(ref: Floats, cand: Floats, k: int) -> float | None:
    """Share of samples whose best class in `ref` is among the best k of `cand`; None where it cannot fail."""
    if not len(ref) or ref.shape[1] <= k:
        return None
    best = ref.argmax(axis=1)
    # A stable sort of the negated scores: of equal ones the first wins, as with argmax.
    first = np.argsort(-cand, axis=1, kind="stable")[:, :k]
    return float((first == best[:, None]).any(axis=1).mean())


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def find_exceeded(drift: Drift) -> tuple[str, ...]:
    """Why a drift did not pass: a sentence for each output and limit that was not kept."""
    sentences = [f"{o.name}: {o.nonfinite} values are not finite" for o in drift.outputs if o.nonfinite]
    for output in drift.outputs:
        for name, limit in drift.limits.items():
            value: float | None = getattr(output, LIMITS[name][0])
            if not _keeps(name, value, limit):
                sentences.append(f"{output.name}: {name} is {value:.6g}; the limit is {limit:g}")
    return tuple(sentences)


def _passes(output: OutputDrift, limits: Mapping[str, float]) -> bool:
    if output.nonfinite:
        return False
    return all(_keeps(name, getattr(output, LIMITS[name][0]), limit) for name, limit in limits.items())


def _keeps(name: str, value: float | None, limit: float) -> bool:
    if value is None:
        return True
    return value >= limit if LIMITS[name][1] else value <= limit
