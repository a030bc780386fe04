"""Measure how far apart the outputs of two engines for the same inputs are, and whether that is within the limits.

The first axis of every output counts samples; the rest of it is the output of one sample. All sums are taken in double
precision.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import FeedError, UsageError
from enginebench.core.input_sets import name_set
from enginebench.core.protocols import Array
from enginebench.core.records import Drift, OutputDrift, Precision, ResultWarning, Slices, Task
from enginebench.core.text import count_nonfinite
from enginebench.core.warnings import make_warning
from enginebench.stats.metrics.boxes import (
    FAINT_SCORE,
    LEAST_SCORE,
    SHOWN_SCORE,
    Boxes,
    Layout,
    Matches,
    find_box_axis,
    find_layout,
    find_named,
    match_boxes,
    read_boxes,
    take_corners,
)
from enginebench.stats.metrics.decisions import LEAST_DECIDED, find_worst_group
from enginebench.stats.metrics.metric import Floats
from enginebench.stats.metrics.sequences import decode_tokens
from enginebench.stats.metrics.tasks import SEQUENTIAL, read_map
from enginebench.stats.scales import JUMP, are_scores, split_slices

# Outputs that are equal bit for bit have no finite ratio of signal to noise. JSON has no infinity, so they are given
# that of double precision's own rounding: 20 log10(2^52).
MAX_SNR_DB = 20 * math.log10(2**52)

# The names of limits: the field of `OutputDrift`, and whether more of it is better.
LIMITS: dict[str, tuple[str, bool]] = {
    "cosine": ("cosine_mean", True),
    "cosine_min": ("cosine_min", True),
    "centred_cosine": ("centred_cosine_mean", True),
    "snr": ("snr_db", True),
    "snr_min": ("snr_min_db", True),
    "top1": ("top1_agreement", True),
    "top5": ("top5_agreement", True),
    "max_abs": ("max_abs_diff", False),
    "mean_abs": ("mean_abs_diff", False),
    "mean_rel": ("mean_rel_diff", False),
    "agreement": ("agreement", True),
    "agreement_min": ("agreement_min", True),
    "agreement_faint": ("agreement_faint", True),
    "samples": ("samples", True),
}

# Noise of a network that is right may be beyond what is allowed for chance in one case of so many.
RARE = 1e-3

# The share of samples each of which must keep the limit of `snr`, where no limit of `samples` says another.
MOST_SAMPLES = 0.98

# A slice whose noise is so many times that of the usual slice is wrong by more than rounding: in 11 networks that were
# right no slice had 2.5 times (8 dB) the noise that chance explains. It is held to its own signal then, if that is at
# least this part of the usual: below it, FP32 rounds what the slice is computed from.
APART = 10.0
LEAST_SIGNAL = 0.01

# Why these. Noise of a rounding to b significant bits is about 6 b dB below the signal, and a deep network lets it
# grow by some 20 to 40 dB. Centred cosine c and noise-to-signal ratio r belong together by c = 1 / sqrt(1 + r).
# Decisions (labels, boxes, sequences) change where two scores lie closer than the noise, about as often as the noise is
# large against the signal: at 60 dB one in a thousand, at 30 dB one in thirty. Of 8 bits no more than one in ten is let
# through: a text of which a quarter of the lines read otherwise has a centred cosine of 0.91.
_DEFAULTS: dict[Precision, dict[str, float]] = {
    # 24 bits: 144 dB at best, 80 left after growth and Winograd kernels; 60 dB means that a thousandth is lost.
    # Of a single slice (a channel, a class, a token) 5 dB less: in ONNX Runtime and OpenVINO all values of 11 networks
    # have 98 dB or more against PyTorch, and no slice has 8 dB more noise than chance explains. A channel of a thousand
    # that is wrong by a hundredth has 40 dB, where all values together have 70.
    # Of the decisions of a class, or at a place, half must be kept: near ties do not keep to one of them.
    "fp32": {"snr": 60.0, "snr_min": 55.0, "centred_cosine": 0.9999, "agreement": 0.99, "agreement_min": 0.5},
    # 11 bits: 66 dB at best; 30 dB, a thirtieth of the signal, is what a sound network keeps. c at 30 dB: 0.9995.
    "tf32": {"snr": 30.0, "centred_cosine": 0.999, "agreement": 0.95},
    "fp16": {"snr": 30.0, "centred_cosine": 0.999, "agreement": 0.95},
    # 8 bits: 48 dB at best, so 20 dB by the same growth; c at 20 dB: 0.995.
    "bf16": {"snr": 20.0, "centred_cosine": 0.99, "agreement": 0.9},
    # 8 bits without an exponent: c 0.96 to 0.97 was measured on sound INT8 networks with random weights; below
    # 0.9 (6.3 dB) a fifth of the output's variance is noise. A cosine cannot see a wrong scale, which leaves 6 dB at
    # half of the right one and at one and a half of it; nor has it a value for a single sample.
    "int8": {"centred_cosine": 0.9, "snr": 6.0, "agreement": 0.9},
    # 4 bits of fraction with an exponent: the same order as int8.
    "fp8": {"centred_cosine": 0.9, "snr": 6.0, "agreement": 0.9},
    # Of weights alone: what an INT8 network must keep, one of INT4 must, too.
    "int4": {"centred_cosine": 0.9, "snr": 6.0, "agreement": 0.9},
}


AGREEMENTS = ("agreement", "agreement_min", "agreement_min_at")
# Layouts of detectors that have an entry for each place in the picture, in an order that no score decides.
UNFILTERED = ("scores", "objects", "queries")

# Two scores that each err by noise of this deviation differ by sqrt(2) of it, and 95 % of normal noise lies within
# 1.96 deviations: a margin beyond both is more than this noise explains.
NEAR_TIE = 1.96 * math.sqrt(2)

# What varies less than this between samples, relative to the outputs, is the rounding of FP32 (6e-8 each time), and
# a cosine of it means nothing.
CONSTANT = 1e-6

# The centred cosine of an error that is ten times the outputs' variation, 1 / sqrt(1 + 10**2).
FAR = 0.1


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
    agreement: float | None = None  # fraction of the reference's decisions in this sample that the candidate shares


# Decisions of a network in FP32 that rounding changes, at most: near ties are as rare as its noise is small, in 11
# networks 98 dB or more below the signal (one in 80,000).
FEW_FLIPS = 1e-4

# Of boxes with scores of 0.05 to 0.25, in any precision. In a trained detector (YOLOv8n, 108 crops of photographs) BF16
# keeps all of about 200, and INT8 that is refused, for 58 to 68 % of the shown boxes, keeps 78 to 85 % of them.
LEAST_FAINT = 0.5


def default_limits(precision: Precision | None) -> dict[str, float]:
    """Return the limits that outputs of this precision must keep against FP32: FP16 is not held to 1e-5.

    Those of the shortest format if the precision is unknown: no more was promised.
    """
    return {**_DEFAULTS[precision or LENGTHS[-1]], "agreement_faint": LEAST_FAINT}


# Tasks whose whole numbers are magnitudes, not names of classes.
MEASURING: tuple[Task, ...] = ("regression", "embedding")
# From the longest to the shortest format.
LENGTHS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "int4")
# Beyond the limits of these an engine computes another network; the others are reduced precisions.
FULL: tuple[Precision, ...] = ("fp32", "tf32")


def find_coarsest(precisions: Iterable[Precision | None]) -> Precision:
    """Return the shortest of some formats; an unknown one counts as the shortest of all."""
    return max((p or LENGTHS[-1] for p in precisions), key=LENGTHS.index)


def limits_between(
    a: Precision | None, b: Precision | None, requested: Iterable[Precision | None] = ()
) -> dict[str, float]:
    """Return the limits that outputs of two precisions must keep against each other: those of the shorter format.

    Args:
        requested: the precisions of all configurations of a run. Its reduced precisions are all held to the limits of
            the coarsest one, so that none is rejected that is nearer to the reference than one that is accepted. FP32
            and TF32 keep their own.
    """
    shorter = find_coarsest((a, b))
    return default_limits(shorter if shorter in FULL else find_coarsest((shorter, *requested)))


def measure_drift(
    reference: Mapping[str, Array],
    candidate: Mapping[str, Array],
    limits: Mapping[str, float],
    *,
    reference_id: str = "",
    n_requested: int | None = None,
    task: Task | None = None,
) -> Drift:
    """Compare the outputs of `candidate` with those of `reference`, output by output.

    Args:
        reference, candidate: name -> array of shape (samples, ...), any dtype; the same names, shapes and dtypes.
        limits: by the names in `LIMITS`; a limit on a figure that an output does not have (top-1 of an image) is not
            applied to that output.
        n_requested: samples that were to be compared; None: those that there are.
        task: what the outputs mean: boxes are matched, maps of classes and sequences decoded, and these decisions are
            compared beside the values.

    Raises:
        FeedError: names, shapes or dtypes differ; lists every difference.
        UsageError: a limit is unknown.
    """
    _check_alike(reference, candidate)
    reference, candidate = split_complex(*score_words(reference, candidate))
    options = _DriftOptions(task=task, share=limits.get("samples", MOST_SAMPLES), by_slice="snr_min" in limits)
    outputs = _measure_outputs(reference, candidate, options)
    n = min((len(np.atleast_1d(array)) for array in reference.values()), default=0)
    return apply_limits(Drift(n=n, n_requested=n_requested, outputs=outputs, reference=reference_id), limits)


def apply_limits(drift: Drift, limits: Mapping[str, float]) -> Drift:
    """Apply limits to measured differences; if no value was compared, it does not pass.

    Raises:
        UsageError: a name is none of `LIMITS`.
    """
    unknown = sorted(set(limits) - set(LIMITS))
    if unknown:
        raise UsageError(f"unknown limit {', '.join(map(repr, unknown))}; known: {', '.join(LIMITS)}")
    unmeasured = {
        name
        for name in ("agreement", "agreement_min", "agreement_faint")
        if all(getattr(output, name) is None for output in drift.outputs)
    }
    held = {name: limit for name, limit in limits.items() if name not in unmeasured}
    if all(output.centred_cosine_mean is None for output in drift.outputs):  # of one sample: the plain one is held
        held = {"cosine" if name == "centred_cosine" else name: limit for name, limit in held.items()}
    kept = all(keeps_limits(o, held) and not _lacks_partners(o, held) for o in drift.outputs)
    compared = drift.n > 0 and any(holds_values(o) for o in drift.outputs)
    kept = kept and all(further.passed for further in drift.further)  # which has limits of its own
    return replace(drift, limits=held, undecided={}, passed=compared and kept)


def score_words(
    reference: Mapping[str, Array], candidate: Mapping[str, Array]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Turn text into scores, on both sides: over all words of either side, the word that occurs has 1.

    A changed label is then a changed best class, as in a model whose outputs are scores.
    """
    sides: tuple[dict[str, Array], dict[str, Array]] = (dict(reference), dict(candidate))
    for name, array in reference.items():
        if array.dtype.kind == "U":
            words = np.unique(np.concatenate([side[name].reshape(-1) for side in sides]))
            for side in sides:
                texts = np.atleast_1d(side[name])
                side[name] = (texts.reshape(len(texts), -1, 1) == words).astype(np.float32).reshape(len(texts), -1)
    return sides


def split_complex(
    reference: Mapping[str, Array], candidate: Mapping[str, Array]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """Give complex outputs a last axis of their real and imaginary parts, on both sides."""
    first, second = (
        {n: np.stack([a.real, a.imag], axis=-1) if a.dtype.kind == "c" else a for n, a in side.items()}
        for side in (reference, candidate)
    )
    return first, second


def refuse_drift(reference_id: str, unlike: Sequence[str]) -> Drift:
    """Make the drift of outputs that were not compared with the reference, with the reasons."""
    return Drift(n=0, outputs=(), passed=False, reference=reference_id, unlike=tuple(unlike))


def list_unlike(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> list[str]:
    """List every difference in names, shapes and dtypes of two sides' outputs; empty if they may be compared."""
    problems = [f"output {name!r} is missing from the candidate" for name in reference if name not in candidate]
    problems += [f"output {name!r} is missing from the reference" for name in candidate if name not in reference]
    for name in (name for name in reference if name in candidate):
        ref, cand = reference[name], candidate[name]
        if ref.shape != cand.shape:
            problems.append(f"output {name!r} has shape {list(ref.shape)} against {list(cand.shape)}")
        if ref.dtype != cand.dtype and (ref.dtype.kind, cand.dtype.kind) != ("U", "U"):  # text of any width
            problems.append(f"output {name!r} has dtype {ref.dtype} against {cand.dtype}")
    return problems


def _check_alike(reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> None:
    if problems := list_unlike(reference, candidate):
        raise FeedError(
            f"outputs cannot be compared: {'; '.join(problems)}. "
            "Both sides must come from the same model, with the same batch and input/output types"
        )


class _DriftOptions(Struct, frozen=True, kw_only=True):
    """The task of the outputs, the fraction of samples that must keep the limits, and the layout of boxes.

    `by_slice`: single slices have a limit, too, so that boxes are also compared entry by entry where no filter of the
    model's own has chosen them.
    """

    task: Task | None
    share: float = MOST_SAMPLES
    by_slice: bool = False
    layout: Layout | None = None


def _measure_outputs(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], options: _DriftOptions
) -> tuple[OutputDrift, ...]:
    if options.task == "detection" or (options.task is None and find_named(reference)):
        layout = options.layout or find_layout(reference)
        boxes = read_boxes(reference, layout), read_boxes(candidate, layout)
        matches = match_boxes(*boxes)
        if matches.decided:  # where neither side shows a box, nothing is decided, and the numbers have to do
            read = find_named(reference) or tuple(reference)
            others = {name: (reference[name], candidate[name]) for name in reference if name not in read}
            entries = read if options.by_slice and layout.kind in UNFILTERED else ()
            return (
                _measure_boxes(
                    [side[name] for side in (reference, candidate) for name in read], boxes, matches, options
                ),
                *(
                    _measure_with_boxes(n, *o, options, reference[read[1]].shape, boxes, matches)
                    for n, o in others.items()
                ),
                *(_measure_numbers(name, reference[name], candidate[name], options) for name in entries),
            )
    return tuple(_measure_output(name, reference[name], candidate[name], options) for name in reference)


def _measure_boxes(
    arrays: Sequence[Array], boxes: tuple[Boxes, Boxes], matches: Matches, options: _DriftOptions
) -> OutputDrift:
    """Compare matched boxes: for each figure, the worse of the partners' coordinates and of their scores.

    Coordinates are in pixels and scores below 1: taken together, one would hide the other. The values of faint boxes
    count in FP32 only: where scores are rounded, another of the boxes around an object is the one that is left.
    """
    faint = match_boxes(*boxes, faint=True)
    sample, own, other = (np.concatenate([matches.pairs, faint.pairs]) if options.by_slice else matches.pairs).T
    corners = [side[sample, entries] for side, entries in zip(take_corners(boxes), (own, other), strict=True)]
    pairs = [(getattr(boxes[0], n)[sample, own], getattr(boxes[1], n)[sample, other]) for n in ("boxes", "scores")]
    parts = [_measure_differences(*pair) for pair in pairs]
    ratios = [snr for pair in pairs if (snr := _measure_snr(*pair)) is not None]
    return OutputDrift(
        name="boxes",
        mean_abs_diff=_find_largest(part.mean_abs for part in parts),
        max_abs_diff=_find_largest(part.max_abs for part in parts),
        mean_rel_diff=_find_largest(part.mean_rel for part in parts),
        snr_db=min(ratios, default=None),
        snr_min_db=_measure_corners(*corners),
        snr_min_at="corners against the sizes of boxes",
        nonfinite=sum(map(_count_nonfinite, arrays)),
        decisions="boxes",
        decided=matches.decided,
        agreement=matches.shared / matches.decided,
        agreement_faint=faint.shared / faint.decided if faint.decided >= LEAST_DECIDED else None,
    )


def _measure_corners(ref: Floats, cand: Floats) -> float | None:
    """Return the ratio of the boxes' sizes to the differences of their corners, in dB, wherever in an image they
    are."""
    sizes = ref[:, 2:] - ref[:, :2]
    signal, noise = 2 * float(np.sum(sizes**2)), float(np.sum((ref - cand) ** 2))
    if noise == 0:
        return MAX_SNR_DB if ref.size else None
    return min(MAX_SNR_DB, 10 * (math.log10(signal) - math.log10(noise))) if signal else None


def _measure_with_boxes(
    name: str,
    ref: Array,
    cand: Array,
    options: _DriftOptions,
    box_shape: tuple[int, ...],
    boxes: tuple[Boxes, Boxes],
    matches: Matches,
) -> OutputDrift:
    """Compare an output beside the boxes; one with an entry for each box, such as masks, between partners.

    The entry of a box without a partner is not compared: that box counts as a difference itself.
    """
    if ref.shape[: len(box_shape)] != box_shape:
        return _measure_output(name, ref, cand, options)
    sample, own, other = matches.pairs.T
    indices = boxes[0].indices[sample, own], boxes[1].indices[sample, other]
    if len(box_shape) == 2:  # the second axis stays, so that a sample keeps its number of axes
        partners = ref[sample, indices[0]][:, None], cand[sample, indices[1]][:, None]
    else:  # of one sample, without an axis of samples
        partners = ref[indices[0]], cand[indices[1]]
    drift = _measure_output(name, *partners, options)
    return replace(drift, nonfinite=_count_nonfinite(ref) + _count_nonfinite(cand))


def _count_nonfinite(array: Array) -> int:
    return int(np.count_nonzero(~np.isfinite(array))) if array.dtype.kind == "f" else 0


def _measure_output(name: str, reference: Array, candidate: Array, options: _DriftOptions) -> OutputDrift:
    task = options.task
    if are_labels(reference, task):
        return _measure_labels(name, reference, candidate)
    drift = _measure_numbers(name, reference, candidate, options)
    if task == "segmentation" and reference.ndim == 4:
        labels = _measure_labels(name, read_map(reference), read_map(candidate))
        decided = {field: getattr(labels, field) for field in ("decisions", "decided", *AGREEMENTS)}
        return replace(drift, **decided | {"agreement": 1.0 if labels.agreement is None else labels.agreement})
    if task in SEQUENTIAL and reference.ndim == 3:  # also the steps of all of them whose best token changed
        ref, cand = (side.reshape(-1, side.shape[2]).astype(np.float64) for side in (reference, candidate))
        whole = np.isfinite(ref).all(axis=1) & np.isfinite(cand).all(axis=1)
        flips = _count_flips(ref[whole], cand[whole])
        pairs = list(zip(decode_tokens(reference, 0), decode_tokens(candidate, 0), strict=True))
        agreement = sum(a == b for a, b in pairs) / len(pairs) if pairs else None
        if flips is not None:
            drift = _add_flips(drift, flips)
        return replace(drift, decisions="sequences", decided=len(pairs), agreement=agreement)
    return drift


def are_labels(array: Array, task: Task | None = None) -> bool:
    """Whether an output's values are names (class ids, tokens, yes and no), between which there is no distance.

    Whole numbers of 8 and 16 bits may be pixels or quantized values: they are names only if the task implies it.
    """
    if array.dtype.kind not in "biu" or task in MEASURING:
        return False
    return array.dtype.kind == "b" or array.dtype.itemsize >= 4 or task is not None


def _measure_labels(name: str, reference: Array, candidate: Array) -> OutputDrift:
    same = np.asarray(reference == candidate)
    worst = find_worst_group(reference, candidate)
    return OutputDrift(
        name=name,
        nonfinite=0,
        decisions="labels",
        decided=same.size,
        agreement=float(same.mean()) if same.size else None,
        agreement_min=worst[0] if worst else None,
        agreement_min_at=worst[1] if worst else "",
    )


def _measure_numbers(name: str, reference: Array, candidate: Array, options: _DriftOptions) -> OutputDrift:
    ref, cand = _as_rows(reference), _as_rows(candidate)
    finite = np.isfinite(ref) & np.isfinite(cand)
    # The same infinity is no difference, as in masked logits; where nothing else is left, nothing was compared.
    infinite = (ref == cand) & np.isinf(ref) & finite.any()
    whole = (finite | infinite).all(axis=1)
    a, b = (np.where(infinite, 0, side)[whole] for side in (ref, cand))
    cosines = _cosines(a, b)
    classes = reference.ndim == 2 and options.task not in MEASURING
    shape = (len(a), *reference.shape[1:])
    # A user who allows another fraction of wrong samples has decided about single ones.
    worst = find_worst_slice(a.reshape(shape), b.reshape(shape), samples=options.share == MOST_SAMPLES)
    differences = _measure_differences(ref[finite], cand[finite])
    drift = OutputDrift(
        name=name,
        mean_abs_diff=differences.mean_abs,
        max_abs_diff=differences.max_abs,
        mean_rel_diff=differences.mean_rel,
        cosine_mean=_mean(cosines),
        cosine_min=float(cosines.min()) if cosines.size else None,
        centred_cosine_mean=_measure_centred(a, b),
        snr_db=_measure_snr(ref[finite], cand[finite]),
        snr_min_db=worst[0] if worst else None,
        snr_min_at=worst[1] if worst else "",
        top1_agreement=_agreement(ref[whole], cand[whole], 1) if classes else None,
        top5_agreement=_agreement(ref[whole], cand[whole], 5) if classes else None,
        nonfinite=_count_nonfinite(ref) + _count_nonfinite(cand),
        nonfinite_alike=int(np.count_nonzero(infinite | (np.isnan(ref) & np.isnan(cand)))),
        infinite_alike=int(np.count_nonzero(infinite)),
        slices=_measure_slices(a.reshape(shape), b.reshape(shape)),
        samples=options.share,
        snr_most_db=_measure_most(a, b, options.share),
        boxes_like=options.task is None and find_box_axis(reference) is not None,
    )
    flips = _count_flips(ref[whole], cand[whole]) if classes else None
    return drift if flips is None else _add_flips(drift, flips)


def _measure_slices(ref: Floats, cand: Floats) -> Slices | None:
    """Return the worst figures over slices of similar scale; None if the output is compared as a whole, and none is
    lost."""
    split = split_slices(ref, cand)
    if split is None or (len(split.groups) < 2 and not split.lost):
        return None
    of = len(split.scale)
    worst = Slices(axis=split.axis, of=of, constant=of - len(split.order), lost=split.lost)
    groups = split.groups if len(split.groups) > 1 else []
    for group in groups:
        a, b = (_as_rows(side.take(group, split.axis)) for side in (ref, cand))
        snr, centred, size = _measure_snr(a, b) or 0.0, _measure_centred(a, b), float(np.sqrt(np.mean(a**2)))
        if split.scores[group].all() and size < LEAST_SCORE:  # held against a score that is ever looked at
            snr, centred = min(MAX_SNR_DB, snr + 20 * math.log10(LEAST_SCORE / size)), None
        if worst.snr_db is None or snr < worst.snr_db:
            worst = replace(worst, first=int(group[0]), count=len(group), snr_db=snr)
        cosines = [c for c in (centred, worst.centred_cosine_mean) if c is not None]
        worst = replace(worst, centred_cosine_mean=min(cosines, default=None))
    return worst


def _measure_most(ref: Floats, cand: Floats, share: float) -> float | None:
    """Return the signal-to-noise ratio that this fraction of the samples has at least; None for a single sample.

    These samples must also reach it together, without those far louder than the median. A sample with less than the
    usual signal is held to the usual: near zero every difference is large. Values between 0 and 1 are never loud.
    """
    scores = are_scores(ref.min(initial=0), ref.max(initial=0))
    ref, cand = scale_alike(ref, cand)
    signal, noise = (ref**2).sum(axis=1), ((ref - cand) ** 2).sum(axis=1)
    if len(ref) < 2 or not signal.any():
        return None
    usual = signal.mean() if scores else np.median(signal) or signal.mean()
    few = math.floor((1 - share) * len(signal) + 1e-9)  # may have less
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = 10 * (np.log10(np.maximum(signal, usual)) - np.log10(noise))
        most = np.argsort(ratios, kind="stable")[few:]
        quiet = most[scores | (signal[most] <= JUMP**2 * usual)]
        together = 10 * (np.log10(signal[quiet].sum()) - np.log10(noise[quiet].sum()))
    chance = _allow_for_chance(ref.shape[1])
    return float(np.clip(np.fmin(ratios[most[0]] + chance, together), -MAX_SNR_DB, MAX_SNR_DB))


def find_worst_slice(ref: Floats, cand: Floats, *, samples: bool) -> tuple[float, str] | None:
    """Return (the lowest signal-to-noise ratio of a slice of any axis in dB, the name of that slice); None without
    slices.

    One channel, class, row, token or sample that is wrong hides among many. A slice with less than the usual signal is
    held to the usual, unless it has far more noise than the others: rounding affects all alike. Few values may have
    more noise by chance.

    Args:
        samples: whether single samples are slices, too.
    """
    scores = are_scores(ref.min(initial=0), ref.max(initial=0))
    ref, cand = scale_alike(ref, cand)
    slices: list[tuple[float, str]] = []
    for axis in (axis for axis in range(0 if samples else 1, ref.ndim) if ref.shape[axis] > 1):
        rest = tuple(other for other in range(ref.ndim) if other != axis)
        signal, noise = (ref**2).sum(axis=rest), ((ref - cand) ** 2).sum(axis=rest)
        if signal.any():
            usual = signal.mean() if scores else np.median(signal) or signal.mean()
            apart = noise > APART**2 * np.median(noise)
            held = np.maximum(signal, np.where(apart, LEAST_SIGNAL**2 * usual, usual))
            with np.errstate(divide="ignore"):
                ratios = 10 * (np.log10(held) - np.log10(noise))
            worst = int(ratios.argmin())
            ratio = float(ratios[worst]) + _allow_for_chance(ref.size // len(signal), len(signal))
            slices.append((min(MAX_SNR_DB, ratio), f"slice {worst} of axis {axis}" if axis else f"sample {worst}"))
    return min(slices, default=None)


def _allow_for_chance(values: int, groups: int = 1) -> float:
    """Return by how many dB the power of normal noise in so few values exceeds its mean, in one case of a thousand.

    `groups`: the noisiest of so many is taken. Source: E. B. Wilson and M. M. Hilferty, "The distribution of
    chi-square", PNAS 17 (1931).
    """
    part = 2 / (9 * values)
    return 30 * math.log10(1 - part + NormalDist().inv_cdf(1 - RARE / groups) * math.sqrt(part))


def _measure_centred(ref: Floats, cand: Floats) -> float | None:
    """Return the mean cosine after subtracting the reference's mean output; None where its outputs hardly differ.

    With a single value per sample a cosine is only a sign, so all samples together form one vector.
    """
    if (centre := _find_centre(ref)) is None:
        return None
    a, b = ref - centre, cand - centre
    return _mean(_cosines(a.T, b.T) if ref.shape[1] == 1 else _cosines(a, b))


def _find_centre(ref: Floats) -> Floats | None:
    """Return the mean output, without those far louder; None for a single one, and for outputs that hardly differ."""
    if len(ref) < 2:
        return None
    sizes = np.abs(ref).max(axis=1, initial=0)
    scores = are_scores(ref.min(initial=0), ref.max(initial=0))
    centre: Floats = ref[sizes <= (np.inf if scores else JUMP * (np.median(sizes) or np.inf))].mean(axis=0)
    around, whole = scale_alike(ref - centre, ref)
    return centre if np.linalg.norm(around) > CONSTANT * np.linalg.norm(whole) else None


def measure_samples(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], task: Task | None = None
) -> tuple[SampleDrift, ...]:
    """Measure the differences of every sample in every output, sample by sample; arguments as in `measure_drift`."""
    _check_alike(reference, candidate)
    reference, candidate = split_complex(*score_words(reference, candidate))
    if (rows := _measure_box_samples(reference, candidate, task)) is not None:
        return tuple(rows)
    tables = [_measure_rows(name, reference[name], candidate[name], task) for name in reference]
    return tuple(row for sample in zip_longest(*tables) for row in sample if row is not None)


def _measure_box_samples(
    reference: Mapping[str, Array], candidate: Mapping[str, Array], task: Task | None
) -> list[SampleDrift] | None:
    """Match boxes sample by sample, as `measure_drift` matches those of all samples; None where no side shows any."""
    if task != "detection" and not (task is None and find_named(reference)):
        return None
    sides = (reference, candidate)
    if (named := find_named(reference)) and reference[named[1]].ndim == 1:  # one sample, without an axis of samples
        sides = ({n: a[None] for n, a in reference.items()}, {n: a[None] for n, a in candidate.items()})
    samples = [
        [{name: array[i : i + 1] for name, array in side.items()} for side in sides]
        for i in range(min(len(array) for array in sides[0].values()))
    ]
    layout = find_layout(reference)
    options = _DriftOptions(task=task, layout=layout)
    shown = [match_boxes(read_boxes(own, layout), read_boxes(other, layout)).decided for own, other in samples]
    if not any(shown):
        return None
    rows: list[SampleDrift] = []
    for i, (own, other) in enumerate(samples):
        # A sample in which neither side shows a box decides nothing, and has nothing to compare.
        nothing = OutputDrift(name="boxes", nonfinite=0)
        rows += [
            _take_sample(i, output) for output in (_measure_outputs(own, other, options) if shown[i] else (nothing,))
        ]
    return rows


def _take_sample(index: int, output: OutputDrift) -> SampleDrift:
    same = ("mean_abs_diff", "max_abs_diff", "mean_rel_diff", "snr_db", "nonfinite", "agreement")
    fields = {name: getattr(output, name) for name in same}
    return SampleDrift(index=index, output=output.name, cosine=output.cosine_mean, centred_cosine=None, **fields)


def _measure_rows(name: str, reference: Array, candidate: Array, task: Task | None) -> list[SampleDrift]:
    if are_labels(reference, task):
        pairs = enumerate(zip(np.atleast_1d(reference), np.atleast_1d(candidate), strict=True))
        return [_take_sample(i, _measure_labels(name, np.asarray(a), np.asarray(b))) for i, (a, b) in pairs]
    ref, cand = _as_rows(reference), _as_rows(candidate)
    whole = np.isfinite(ref).all(axis=1) & np.isfinite(cand).all(axis=1)
    # Of a single value a cosine is no more than the sign.
    centre = _find_centre(ref[whole]) if ref.shape[1] > 1 else None
    threshold = NEAR_TIE * _measure_noise(ref[whole], cand[whole])
    classes = reference.ndim == 2 and task not in MEASURING and ref.shape[1] > 1
    rows = []
    for i in range(len(ref)):
        a, b = ref[i : i + 1], cand[i : i + 1]
        finite = np.isfinite(a) & np.isfinite(b)
        sound = bool(finite.all())
        differences = _measure_differences(a[finite], b[finite])
        row = SampleDrift(
            index=i,
            output=name,
            mean_abs_diff=differences.mean_abs,
            max_abs_diff=differences.max_abs,
            mean_rel_diff=differences.mean_rel,
            cosine=_mean(_cosines(a, b)) if sound else None,
            centred_cosine=_mean(_cosines(a - centre, b - centre)) if sound and centre is not None else None,
            snr_db=_measure_snr(a[finite], b[finite]),
            nonfinite=_count_nonfinite(a) + _count_nonfinite(b),
        )
        if sound and classes:
            best, margin, five = (int(a.argmax()), int(b.argmax())), float(_measure_margins(a)[0]), _agreement(a, b, 5)
            row = replace(
                row,
                top1_reference=best[0],
                top1_candidate=best[1],
                top1_agrees=best[0] == best[1],
                top5_agrees=None if five is None else bool(five),
                margin=margin,
                beyond_noise=margin > threshold,
            )
        rows.append(row)
    return rows


class _Flips(NamedTuple):
    """Samples whose best class changed, those of them beyond what noise explains, and those that noise could flip."""

    all: int
    beyond_noise: int
    near_ties: int


def _count_flips(ref: Floats, cand: Floats) -> _Flips | None:
    """Count the samples whose best class changed, or could; None without samples or without a second class."""
    if not len(ref) or ref.shape[1] < 2:
        return None
    flipped = ref.argmax(axis=1) != cand.argmax(axis=1)
    sure = _measure_margins(ref) > NEAR_TIE * _measure_noise(ref, cand)
    return _Flips(all=int(flipped.sum()), beyond_noise=int((flipped & sure).sum()), near_ties=int((~sure).sum()))


def _add_flips(drift: OutputDrift, flips: _Flips) -> OutputDrift:
    return replace(drift, flips=flips.all, flips_beyond_noise=flips.beyond_noise, near_ties=flips.near_ties)


def _measure_margins(ref: Floats) -> Floats:
    """Return the best score less the second best, for every sample."""
    with np.errstate(invalid="ignore"):  # where two classes are infinite, they tie
        return np.diff(np.partition(ref, -2, axis=1)[:, -2:])[:, 0]


def _measure_noise(ref: Floats, cand: Floats) -> float:
    """Standard deviation of the differences within a sample: what moves all scores alike flips nothing."""
    within = np.subtract(cand, ref, out=np.zeros_like(ref), where=ref != cand)  # the same infinity: no difference
    within -= within.mean(axis=1, keepdims=True) if within.size else 0.0
    size = float(np.abs(within).max(initial=0))
    return size * float(np.sqrt(np.mean((within / size) ** 2))) if size else 0.0


def _as_rows(array: Array) -> Floats:
    """Return the array as (samples, values of one sample) in double precision."""
    array = np.atleast_1d(array)
    # The number of values is counted, not left to -1: of no samples it could be any.
    rows: Floats = array.reshape(len(array), math.prod(array.shape[1:])).astype(np.float64)
    return rows


class _Differences(NamedTuple):
    """Differences of the elements of an output; None without any."""

    mean_abs: float | None
    max_abs: float | None
    mean_rel: float | None


def _find_largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _measure_differences(ref: Floats, cand: Floats) -> _Differences:
    """Return absolute differences, and relative ones over the elements whose reference is not zero."""
    difference, size = np.abs(ref - cand), np.abs(ref)
    relative = difference[size > 0] / size[size > 0]
    largest = float(difference.max()) if difference.size else None
    return _Differences(mean_abs=_mean(difference), max_abs=largest, mean_rel=_mean(relative))


def scale_alike(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Divide both by the largest size in either: the squares of numbers near 1e-200 are 0, and of 1e200 infinite."""
    size = max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)) or 1.0
    return a / size, b / size


def _cosines(a: Floats, b: Floats) -> Floats:
    """Return the cosine of every sample: 1 for two samples that are all zeros, 0 for one such sample."""
    largest = (np.abs(side).max(axis=1, initial=0, keepdims=True) for side in (a, b))
    a, b = (side / np.where(size > 0, size, 1) for side, size in zip((a, b), largest, strict=True))
    size_a, size_b = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = np.einsum("ij,ij->i", a / size_a[:, None], b / size_b[:, None])
    empty = (size_a == 0) | (size_b == 0)
    bounded: Floats = np.where(empty, (size_a == size_b).astype(np.float64), np.clip(cosines, -1, 1))
    return bounded if a.shape[1] else bounded[:0]  # without a value there is nothing that could agree


def _measure_snr(ref: Floats, cand: Floats) -> float | None:
    """10 log10(signal power / power of the difference), at most `MAX_SNR_DB`; None without a signal."""
    ref, cand = scale_alike(ref, cand)
    signal, noise = float(np.sum(ref**2)), float(np.sum((ref - cand) ** 2))
    if noise == 0:
        return MAX_SNR_DB if ref.size else None
    if signal == 0:
        return None
    return min(MAX_SNR_DB, 10 * (math.log10(signal) - math.log10(noise)))


def _agreement(ref: Floats, cand: Floats, k: int) -> float | None:
    """Return the fraction of samples whose best class in `ref` is among the best k of `cand`; None where it cannot
    fail."""
    if not len(ref) or ref.shape[1] <= k:
        return None
    best = ref.argmax(axis=1)
    # A stable sort of the negated scores: of equal ones the first wins, as with argmax.
    first = np.argsort(-cand, axis=1, kind="stable")[:, :k]
    return float((first == best[:, None]).any(axis=1).mean())


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if values.size else None


def list_sample_warnings(drift: Drift) -> tuple[ResultWarning, ...]:
    """List the warnings about a comparison: missing samples, outputs that hardly differ, lost slices, unread boxes."""
    warnings = []
    if drift.n_requested is not None and drift.n < drift.n_requested:
        warnings.append(
            make_warning("partly_compared", what="outputs were compared", n=drift.n, asked=drift.n_requested)
        )
    # Finite outputs of the reference for every sample, all zero for one.
    constant = [
        o.max_abs_diff is not None and o.agreement is None and not o.nonfinite and o.centred_cosine_mean is None
        for o in drift.outputs
    ]
    if drift.n > 1 and constant and all(constant):
        warnings.append(make_warning("constant_answers", n=drift.n))
    lost = [(o.name, o.slices) for o in drift.outputs if o.slices and o.slices.lost]
    warnings += [make_warning("lost_variance", output=n, lost=s.lost, of=s.of, axis=s.axis) for n, s in lost]
    warnings += [make_warning("unread_boxes", output=o.name) for o in drift.outputs if o.boxes_like]
    return tuple(warnings)


def find_noise_warning(drift: Drift, usual: Mapping[str, float], precision: Precision) -> ResultWarning | None:
    """Return the warning about outputs that are further from the reference than those of this precision usually are."""
    worst: dict[str, tuple[str, float]] = {}
    for output in drift.outputs:
        for name, limit in usual.items():
            figure, value, _ = _find_figure(output, name)
            if value is not None and not _keeps(name, value, limit):
                worst[name] = min(worst.get(name, (figure, value)), (figure, value), key=lambda pair: pair[1])
    figures = [f"{_format_below(*worst[name])}, expected {usual[name]:g} or more" for name in worst]
    if precision == "fp32":
        figures += [
            f"{round(differing)} of {o.decided} {o.decisions} of {o.name} differ"
            for o in drift.outputs
            if (differing := (1 - (1.0 if o.agreement is None else o.agreement)) * (o.decided or 0)) > 0.5
            and differing > FEW_FLIPS * (o.decided or 0)
        ]
    if not figures:
        return None
    return make_warning("noisier_than_usual", precision=precision.upper(), found="; ".join(figures))


def _format_below(figure: str, value: float) -> str:
    """`19.4 dB`, `agreement 0.93`: rounded down, so that it never reads like the limit that it is below."""
    if figure.startswith("snr"):
        return f"{math.floor(value * 10) / 10:g} dB"
    return f"{figure.replace('_', ' ')} {math.floor(value * 1e4) / 1e4:g}"


class Exceeded(NamedTuple):
    """A reason why outputs are not within the limits."""

    short: str  # in plain words alone, for a head
    detail: str = ""  # that follows: the field's figure in brackets, or what to do

    @property
    def full(self) -> str:
        return f"{self.short}{self.detail}"


def find_exceeded(drift: Drift) -> tuple[str, ...]:
    """Explain why a drift did not pass: a full sentence for each output and limit that was not kept."""
    return tuple(reason.full for reason in list_exceeded(drift))


def list_exceeded(drift: Drift) -> list[Exceeded]:
    """List why a drift did not pass: a reason for each output and limit that was not kept."""
    reasons = []
    for output in drift.outputs:
        if output.broken:
            alike = ", the same on both sides" if output.nonfinite == 2 * output.nonfinite_alike else ""
            reasons.append(Exceeded(f"{output.name}: {count_nonfinite(output.nonfinite)}{alike}"))
    for output in drift.outputs:
        broken = _list_broken(output, drift.limits)
        small = "snr" in drift.limits and "snr" not in {name for _, name in broken}
        for figure, name in broken:
            short, detail = explain_figure(figure, name, drift.limits[name])
            if name == "centred_cosine" and small:
                detail += explain_variation(output)
            reasons.append(Exceeded(f"{output.name}: {short}", detail))
        if _lacks_partners(output, drift.limits):
            shared = f"{round((output.agreement or 0) * (output.decided or 0))} of {output.decided}"
            advice = "; the others are not computed over samples, give a limit of agreement"
            reasons.append(Exceeded(f"{output.name}: {shared} boxes have a partner", advice))
    if not any(holds_values(o) for o in drift.outputs):
        reasons.append(Exceeded("the outputs hold no values, so that nothing was compared"))
    if not reasons:  # where the usual inputs show a difference, further ones are not listed
        for further in drift.further:
            where = f"on {name_set(further.inputs)}: "
            reasons += [Exceeded(f"{where}{short}", detail) for short, detail in list_exceeded(further)]
    return reasons


# What a limit on a share of decisions says in words; `{value}` is a percentage.
_SHARES = {
    "agreement": "shares {value} of the decisions of the reference",
    "top1": "has the best class of the reference in {value} of the samples",
    "top5": "has the best class of the reference among its five in {value} of the samples",
}


class Figure(NamedTuple):
    """A figure that a limit applies to, and what it was taken over."""

    name: str  # `snr of 98% of the samples`
    value: float | None
    over: str = ""  # in plain words: `in the worst 2% of the samples`; empty: all values


def explain_figure(figure: Figure, name: str, limit: float) -> Exceeded:
    """Explain a figure and the limit `name` that it breaks, in plain words, and with the field's figure in brackets.

    `error is 0.575 of the signal in the worst 2% of the samples, limit 0.501 (SNR 4.81 dB, limit 6)`: the ratio of the
    error's size to the signal's is 10 to the power of -SNR / 20.
    """
    value = math.nan if figure.value is None else figure.value
    over = f" {figure.over}" if figure.over else ""
    if name in ("snr", "snr_min"):
        if math.isinf(value):
            words = f"the reference is 0 everywhere{over}, and these outputs are not"
            return Exceeded(words, f" (limit of SNR {limit:g} dB)")
        error, most = (10 ** (-db / 20) for db in (value, limit))
        shown, decibels = format_apart(error, most, "g", 3), format_apart(value, limit, "g", 3)
        size = f"{shown} times the signal" if error > 1 else f"{shown} of the signal"
        return Exceeded(f"error is {size}{over}, limit {most:.3g}", f" (SNR {decibels} dB, limit {limit:g})")
    if name in ("agreement_min", "agreement_faint"):
        shared = format_apart(value, limit, "%", 1)
        return Exceeded(f"shares {shared} of the decisions{over}, limit {limit:.1%}")
    if name in _SHARES and figure.name == name:
        return Exceeded(f"{_SHARES[name].format(value=format_apart(value, limit, '%', 1))}, limit {limit:.1%}")
    if name == "centred_cosine":
        words = f"correlation with the reference is {format_apart(value, limit, 'g', 3)}, limit {limit:g}"
        return Exceeded(words, f" ({figure.name.replace('_', ' ')})")
    return Exceeded(f"{figure.name} is {value:.6g}, limit {limit:g}")


def explain_variation(output: OutputDrift) -> str:
    """Explain why a small error spoils the correlation: the inputs hardly change the outputs that it is taken between.

    Centred cosine c and the error's size e, relative to the signal, give the variation: e * c / sqrt(1 - c**2). An
    error that is far larger leaves a c of chance; from 0.1 down only the bound is given.
    """
    correlation, decibels = output.centred_cosine_mean, output.snr_db
    if correlation is None or decibels is None or not math.isfinite(decibels) or correlation >= 1:
        return ""
    error = 10 ** (-decibels / 20)
    if correlation < FAR:
        varies = f"by less than {error * FAR:.2g}"
    else:
        varies = f"by about {min(error * correlation / math.sqrt(1 - correlation**2), 1):.2g}"
    return f"; error is {error:.2g} of the signal, and these inputs change the outputs {varies} of it"


def format_apart(value: float, limit: float, kind: str, digits: int) -> str:
    """Format a value that breaks a limit, with at least `digits`, and as many as show that it is not the limit."""
    text = ""
    for precision in range(digits, digits + 6):
        text = f"{value:.{precision}{kind}}"
        if text != f"{limit:.{precision}{kind}}":
            break
    return text


def format_broken(output: OutputDrift, limits: Mapping[str, float]) -> dict[str, str]:
    """Format the limits that an output breaks, by figure: `snr 38.2 below 60`, `max_abs 0.5 above 0.1`."""
    return {
        figure.name: f"{figure.name} {figure.value:.6g} {'below' if LIMITS[name][1] else 'above'} {limits[name]:g}"
        for figure, name in _list_broken(output, limits)
    }


def _list_broken(output: OutputDrift, limits: Mapping[str, float]) -> list[tuple[Figure, str]]:
    """List (figure, name of the limit) for each broken limit; that of a slice only if the whole keeps its own."""
    figures = [(_find_figure(output, name), name) for name in limits]
    broken = [(figure, name) for figure, name in figures if not _keeps(name, figure.value, limits[name])]
    names = {name for _, name in broken}
    part_of = {"snr_min": "snr", "agreement_min": "agreement"}
    return [(figure, name) for figure, name in broken if part_of.get(name) not in names]


def find_kept(drift: Drift) -> str:
    """Return one of the broken limits as the outputs would keep it, such as `agreement=0.98`; "" if none would do
    alone.

    That of the figure which the sentence on the changed outputs names.
    """
    broken = {name for output in drift.outputs for _, name in _list_broken(output, drift.limits)}
    names = [name for name in drift.limits if name in broken and LIMITS[name][1] and name != "samples"]
    # What is decided says the most, and a limit of all values more than that of a slice.
    for name in sorted(names, key=lambda name: (not name.startswith("agreement"), name == "snr_min")):
        figures = (_find_figure(output, name).value or 0.0 for output in drift.outputs)
        least = math.floor(1000 * min((f if f > 0 else 0.0 for f in figures), default=0.0)) / 1000
        if 0 < least < drift.limits[name] and all(keeps_limits(o, {name: least}) for o in drift.outputs):
            return f"{name}={least:g}"
    return ""


def holds_values(output: OutputDrift) -> bool:
    """Whether an output has anything that could be compared."""
    return bool(output.nonfinite) or output.max_abs_diff is not None or output.agreement is not None


def _find_figure(output: OutputDrift, limit: str) -> Figure:
    """Return the figure that a limit applies to: the worst over all values, over slices and over samples.

    For one sample, and for outputs that do not depend on the input, there is no centred cosine, and the plain one is
    taken. If the reference is all zeros, there is no signal above the noise of the candidate.
    """
    field = LIMITS[limit][0]
    value: float | None = getattr(output, field)
    if value is None and limit == "centred_cosine":
        return Figure("cosine", output.cosine_mean)
    if value is None and limit == "snr" and output.max_abs_diff:
        return Figure(limit, -math.inf)
    parts = {
        "snr_min": output.snr_min_at,
        "agreement_min": output.agreement_min_at,
        "agreement_faint": f"boxes with scores of {FAINT_SCORE:g} to {SHOWN_SCORE:g}",
    }
    of = f"of {parts[limit]}" if parts.get(limit) else ""
    figures = [Figure(f"{limit} {of}".strip(), value, of)]
    if s := output.slices:
        slices = f"of {s.count} of {s.of} slices of axis {s.axis}, from {s.first} on"
        figures.append(Figure(f"{limit} {slices}", getattr(s, field, None), slices))
    if limit == "snr" and output.samples is not None:
        rest = round(100 * (1 - output.samples))
        worst = f"in the worst {rest}% of the samples" if rest else "in the worst sample"
        figures.append(Figure(f"snr of {output.samples:.0%} of the samples", output.snr_most_db, worst))
    measured = [figure for figure in figures if figure.value is not None]
    return min(measured, key=lambda figure: figure.value or 0.0) if value is not None else Figure(limit, None)


def _lacks_partners(output: OutputDrift, limits: Mapping[str, float]) -> bool:
    """Whether a box has no partner and no limit allows for it; differences are those of partners only."""
    return output.decisions == "boxes" and bool(limits) and "agreement" not in limits and output.agreement != 1


def keeps_limits(output: OutputDrift, limits: Mapping[str, float]) -> bool:
    """Whether an output is within limits, by the names in `LIMITS`; one with `broken` values never is."""
    if output.broken:
        return False
    return all(_keeps(name, _find_figure(output, name).value, limit) for name, limit in limits.items())


def _keeps(name: str, value: float | None, limit: float) -> bool:
    if value is None:
        return True
    return value >= limit if LIMITS[name][1] else value <= limit
