"""The document and the lines that `bench` ends with: one row, and the verdict on two."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.text import Text

from enginebench.analyze.compare import Comparison
from enginebench.analyze.validity import judge
from enginebench.core.records import Result
from enginebench.core.text import clean_text
from enginebench.report.numbers import format_range
from enginebench.report.rows import Row, RunDocument, compare_rows, describe_row
from enginebench.report.terminal import print_run


class BenchDocument(Struct, frozen=True, kw_only=True):
    """What `bench --json` prints. `samples_ns` holds one list a process."""

    schema: str = "enginebench.bench/1"
    model: str
    row: Row
    samples_ns: tuple[list[int], ...]
    warmup_dropped: tuple[int, ...]
    against: Row | None = None
    comparison: Comparison | None = None


def describe_bench(results: Sequence[Result], *, margin: float = 0.02) -> BenchDocument:
    """The document of one result, or of two: then the first is the base and the second the candidate."""
    base, cand = (results[0] if len(results) > 1 else None), results[-1]
    return BenchDocument(
        model=cand.model,
        row=describe_row(cand, base or cand, margin=margin),
        samples_ns=tuple(m.latency_ns for m in cand.measurements),
        warmup_dropped=tuple(m.warmup_dropped for m in cand.measurements),
        against=describe_row(base, base, margin=margin) if base else None,
        comparison=_compare(base, cand, margin) if base else None,
    )


def _compare(base: Result, cand: Result, margin: float) -> Comparison:
    """The comparison; samples that cannot be believed carry no verdict."""
    found = compare_rows(base, cand, margin)
    sides = (("base", base), ("candidate", cand))
    doubts = [f"the {side}'s samples are invalid" for side, r in sides if judge(r.measurements)[0] == "invalid"]
    return replace(found, verdict="not_comparable", reasons=(*found.reasons, *doubts)) if doubts else found


def print_bench(document: BenchDocument, console: Console) -> None:
    """Prints the table of one or two rows, and the verdict."""
    rows = tuple(row for row in (document.against, document.row) if row is not None)
    table = RunDocument(model=document.model, machine=None, spec={}, rows=rows, fastest=None, recommended=None)
    print_run(table, console, answer=False)
    for name, found in document.row.percentiles_ms.items():
        sure = "" if found.supported else f", too few samples ({found.n})"
        console.print(f"p{name}: {format_range(found, ' ms')}{sure}")
    if document.comparison is not None:
        console.print(Text(clean_text(state_verdict(document.comparison)), style="bold"))


def state_verdict(comparison: Comparison) -> str:
    """The verdict in one sentence, with ratio, interval and what would help."""
    ratio = f": {format_range(comparison.ratio, 'x')} as fast" if comparison.ratio else ""
    reasons = f" ({'; '.join(comparison.reasons)})" if comparison.reasons else ""
    verdict = comparison.verdict.replace("_", " ")
    needed = (
        f"; {comparison.repetitions_needed} repetitions would show a difference of this size"
        if comparison.repetitions_needed
        else ""
    )
    return f"Verdict: {verdict}{ratio}, margin {comparison.margin:.0%}{needed}{reasons}."
