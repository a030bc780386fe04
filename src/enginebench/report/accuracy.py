"""What `accuracy` says: its document, and the same in a few lines."""

from msgspec import Struct

from enginebench.core.caveats import format_caveat
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Caveat, EngineSpec, Estimate, Score, Task
from enginebench.core.text import count_of
from enginebench.report.scores import describe_delta, describe_score
from enginebench.report.table import Section, make_notes


class AccuracyDocument(Struct, frozen=True, kw_only=True):
    """What `accuracy --json` prints. A score's `delta` is its value less the reference's."""

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
    caveats: tuple[Caveat, ...] = ()
    nonfinite: int = 0  # samples whose answers are not all finite; of any, a gate does not pass
    reference_nonfinite: int = 0


def list_accuracy(document: AccuracyDocument) -> list[Section]:
    """Every score with its interval, then the difference to the reference."""
    first, *others = describe_accuracy(document)
    return [Section(title=first, parts=tuple(make_notes(others)))]


def describe_accuracy(document: AccuracyDocument) -> list[str]:
    """The figures as sentences; shares in per cent and points."""
    engine = document.engine
    name = f"{format_engine(engine)} {format_precision(engine.precision, engine.recipe, engine.mix)}"
    lines = [f"{document.side} ({name}) on {document.n} labelled samples of {document.data}"]
    lines += [describe_score(score) for score in document.scores]
    for score, before in zip(document.scores, document.reference_scores, strict=False):
        lines.append(f"reference {document.reference}: {describe_score(before)}")
        lines += filter(None, [describe_delta(score)])
    if document.reference is not None and document.reference_nonfinite:
        lines.append(tell_nonfinite(document.reference, document.reference_nonfinite, document.n))
    return [*lines, *document.failures, *map(format_caveat, document.caveats)]


def tell_nonfinite(side: str, nonfinite: int, n: int) -> str:
    """How many of a side's answers are not finite."""
    return f"{side}: the replies to {nonfinite} of {count_of(n, 'samples')} hold values that are not finite"
