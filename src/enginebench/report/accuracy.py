"""What `accuracy` says: its document, and the same in a few lines."""

from __future__ import annotations

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Caveat, EngineSpec, Estimate
from enginebench.core.text import clean_text


class AccuracyDocument(Struct, frozen=True, kw_only=True):
    """What `accuracy --json` prints. `delta` is this top-1 less the reference's, as a share."""

    schema: str = "enginebench.accuracy/1"
    n: int
    top1: Estimate
    top5: Estimate | None
    delta: Estimate | None
    mcnemar_p: float | None
    side: str
    model: str
    engine: EngineSpec
    data: str
    seed: int
    preprocess_sha256: str | None
    reference: str | None = None
    reference_engine: EngineSpec | None = None
    reference_top1: Estimate | None = None
    caveats: tuple[Caveat, ...] = ()


def print_accuracy(document: AccuracyDocument, console: Console) -> None:
    """Prints the shares with their intervals, then the difference to the reference."""
    for sentence in describe_accuracy(document):
        console.print(Text(clean_text(sentence)), soft_wrap=True)


def describe_accuracy(document: AccuracyDocument) -> list[str]:
    """The figures as sentences, in per cent and points."""
    lines = [
        f"{document.side} ({_name(document.engine)}) on {document.n} labelled samples of {document.data}",
        f"top-1 {format_share(document.top1)}",
    ]
    if document.top5 is not None:
        lines.append(f"top-5 {format_share(document.top5)}")
    if document.delta is not None and document.reference_top1 is not None:
        lines.append(f"reference {document.reference}: top-1 {format_share(document.reference_top1)}")
        lines.append(f"difference {_format_points(document.delta)}; McNemar's p {document.mcnemar_p:.3g}")
    return lines + [f"{caveat.message}; {caveat.advice}" for caveat in document.caveats]


def format_share(estimate: Estimate) -> str:
    """A share with its interval: "99.11 % (97.74 to 99.65)"."""
    if estimate.low is None or estimate.high is None:
        return f"{100 * estimate.value:.2f} %"
    return f"{100 * estimate.value:.2f} % ({100 * estimate.low:.2f} to {100 * estimate.high:.2f})"


def _format_points(estimate: Estimate) -> str:
    low, high = 100 * (estimate.low or 0.0), 100 * (estimate.high or 0.0)
    return f"{100 * estimate.value:+.2f} points ({low:+.2f} to {high:+.2f})"


def _name(engine: EngineSpec) -> str:
    return f"{format_engine(engine)} {format_precision(engine.precision, engine.recipe)}"
