"""Scores in words: what a metric is called, its figure with its interval, what changed against a reference."""

from enginebench.core.records import Estimate, Score
from enginebench.report.numbers import format_significant
from enginebench.stats.metrics.scores import Scored, find_score
from enginebench.stats.metrics.tasks import name_metric


def format_score(row: Scored, metric: str | None, digits: int = 2, missing: str = "") -> str:
    """A row's figure by a metric: a share in per cent, anything else as it is."""
    score = find_score(row.scores, metric) if metric else None
    return missing if score is None else format_figure(score.value.value, score, digits)


def format_figure(value: float, score: Score, digits: int = 2) -> str:
    """A figure in the unit of a score: 98.50% or 0.1234."""
    return f"{value:.{digits}%}" if score.share else format_significant(value)


def describe_score(score: Score) -> str:
    """A metric with its figure and interval: "top-1 99.11% (97.74 to 99.65)"."""
    worse = "" if score.higher_is_better else ", lower is better"
    return f"{name_metric(score.metric)} {_format_estimate(score.value, score)}{worse}"


def _format_estimate(estimate: Estimate, score: Score) -> str:
    figure = format_figure(estimate.value, score)
    if estimate.low is None or estimate.high is None:
        return f"{figure} (no interval from these samples)"
    bounds = (format_figure(bound, score).removesuffix("%") for bound in (estimate.low, estimate.high))
    return f"{figure} ({' to '.join(bounds)})"


def describe_delta(score: Score) -> str | None:
    """What changed against the reference: "difference -0.22 points (-1.10 to +0.66); McNemar's p 0.5"."""
    delta = score.delta
    if delta is None:
        return None
    told = f"difference {_format_change(delta.value, score)}"
    if score.share:
        told += " points"
    if delta.low is not None and delta.high is not None:
        told += f" ({_format_change(delta.low, score)} to {_format_change(delta.high, score)})"
    return told if score.mcnemar_p is None else f"{told}; McNemar's p {score.mcnemar_p:.3g}"


def _format_change(value: float, score: Score) -> str:
    return f"{100 * value:+.2f}" if score.share else f"{value:+.4g}"
