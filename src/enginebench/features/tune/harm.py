"""What lower precision does to answers: noise against the signal, and the divergence of the classes' probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.core.errors import MeasurementError
from enginebench.features.tune.groups import Harm

# Of answers that are not finite: worse than any, and still a number that JSON has and that can be summed.
WORST = 1e30

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def measure_harm(reference: Mapping[str, Any], answers: Mapping[str, Any], *, logits: bool = True) -> Harm:
    """The harm over all outputs together.

    Args:
        reference: output name -> array [samples, ...] in FP32.
        answers: the same names and shapes.
        logits: whether an output of two axes has the scores of classes before a softmax; others have no divergence.
    """
    noise, signal = 0.0, 0.0
    for name, array in reference.items():
        ref, cand = _as_rows(array), _as_rows(answers[name])
        if not np.isfinite(cand).all():
            return Harm(noise=WORST, kl_nats=WORST if logits and array.ndim == 2 else None)
        noise += float(np.sum((cand - ref) ** 2))
        signal += float(np.sum((ref - ref.mean(axis=0)) ** 2)) if len(ref) > 1 else float(np.sum(ref**2))
    if not signal:
        raise MeasurementError("the outputs do not depend on the inputs, so that outputs cannot be compared")
    scores = [(_as_rows(a), _as_rows(answers[name])) for name, a in reference.items() if a.ndim == 2 and a.shape[1] > 1]
    kl = sum(measure_divergence(*pair) for pair in scores) if logits and scores else None
    return Harm(noise=noise / signal, kl_nats=kl)


def measure_divergence(reference: Floats, answers: Floats) -> float:
    """Mean Kullback-Leibler divergence KL(reference || answers) of the softmax of two sets of logits, in nats.

    To second order in the difference d it is d' F d / 2 with F = diag(p) - p p', the Fisher information of the classes.

    Source: S. Kullback, "Information Theory and Statistics" (1959), section 2.6.
    """
    from scipy.special import log_softmax

    ref, cand = (log_softmax(side, axis=1) for side in (reference, answers))
    return float(np.mean(np.sum(np.exp(ref) * (ref - cand), axis=1)))


def allow_noise(limits: Mapping[str, float]) -> float:
    """The noise over signal that the limits of drift leave room for; infinite where none of them says so.

    Centred cosine c and noise r belong together by c = 1 / sqrt(1 + r), SNR s in dB by r = 10^(-s / 10).
    """
    bounds = [math.inf]
    if 0 < (cosine := limits.get("centred_cosine", 0.0)) <= 1:
        bounds.append(cosine**-2 - 1)
    if (snr := limits.get("snr")) is not None:
        bounds.append(10 ** (-snr / 10))
    return min(bounds)


def _as_rows(array: Any) -> Floats:
    rows: Floats = np.asarray(array).reshape(len(array), -1).astype(np.float64)
    return rows
