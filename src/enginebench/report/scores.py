"""Scores in words: the name of a metric, its figure with its interval, and its change against a reference."""

from msgspec import Struct, field

from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import EngineSpec, Estimate, ResultWarning, Score, Task
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.report.numbers import format_significant
from enginebench.report.table import Section, make_notes
from enginebench.stats.metrics.scores import Scored, find_score
from enginebench.stats.metrics.tasks import name_metric


def format_score(row: Scored, metric: str | None, digits: int = 2) -> str:
    """Format a row's figure by a metric: a fraction in per cent, anything else unchanged."""
    score = find_score(row.scores, metric) if metric else None
    return "" if score is None else format_figure(score.value.value, score, digits)


def format_figure(value: float, score: Score, digits: int = 2) -> str:
    """Format a figure in the unit of a score: 98.50% or 0.1234."""
    return f"{value:.{digits}%}" if score.share else format_significant(value)


def format_score_range(score: Score) -> str:
    """Format a metric with its figure and interval: "top-1 99.11% (97.74 to 99.65)"."""
    low, high, interval = score.value.low, score.value.high, "no interval from these samples"
    if low is not None and high is not None:
        interval = " to ".join(format_figure(bound, score).removesuffix("%") for bound in (low, high))
    worse = "" if score.higher_is_better else ", lower is better"
    return f"{name_metric(score.metric)} {format_figure(score.value.value, score)} ({interval}){worse}"


def format_delta(score: Score) -> str | None:
    """Format the change against the reference: "difference -0.22 points (-1.10 to +0.66); McNemar's p 0.5"."""
    delta = score.delta
    if delta is None:
        return None
    text = f"difference {_format_change(delta.value, score)}"
    if score.share:
        text += " points"
    if delta.low is not None and delta.high is not None:
        text += f" ({_format_change(delta.low, score)} to {_format_change(delta.high, score)})"
    return text if score.mcnemar_p is None else f"{text}; McNemar's p {score.mcnemar_p:.3g}"


def _format_change(value: float, score: Score) -> str:
    return f"{100 * value:+.2f}" if score.share else f"{value:+.4g}"


class AccuracyDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `accuracy`. A score's `delta` is its value less the reference's."""

    schema: str = "enginebench.accuracy/2"
    n: int
    top1: Estimate | None  # these four of a model that classifies
    top5: Estimate | None
    delta: Estimate | None  # of top-1: the side's less the reference's
    mcnemar_p: float | None  # of that difference
    scores: tuple[Score, ...]  # the first one decides
    side: str
    model: str | None  # whose preprocessing the data went through
    engine: EngineSpec
    data: str  # or the inputs, as the user named them
    seed: int
    preprocess_sha256: str | None
    targets: str | None = None
    task: Task | None = None
    reference: str | None = None
    reference_engine: EngineSpec | None = None
    reference_scores: tuple[Score, ...] = ()
    max_metric_drop: float | None = None  # where given, a gate
    failures: tuple[str, ...] = ()  # what fails a gate
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    nonfinite: int = 0  # samples whose outputs are not all finite; if there are any, no gate passes
    reference_nonfinite: int = 0


def list_accuracy(document: AccuracyDocument) -> list[Section]:
    """Every score with its interval, then the difference to the reference; shares in per cent and points."""
    engine = document.engine
    name = f"{format_engine(engine)} {format_precision(engine.precision, engine.recipe, engine.mix)}"
    title = f"{document.side} ({name}) on {document.n} labelled samples of {document.data}"
    lines = [format_score_range(score) for score in document.scores]
    for score, before in zip(document.scores, document.reference_scores, strict=False):
        lines.append(f"reference {document.reference}: {format_score_range(before)}")
        lines += filter(None, [format_delta(score)])
    if document.reference is not None and document.reference_nonfinite:
        lines.append(format_nonfinite(document.reference, document.reference_nonfinite, document.n))
    notes = make_notes([*lines, *document.failures, *map(format_warning, document.warnings)])
    return [Section(title=title, parts=tuple(notes))]


def format_nonfinite(side: str, nonfinite: int, n: int) -> str:
    return f"{side}: the replies to {nonfinite} of {count_of(n, 'samples')} hold values that are not finite"
