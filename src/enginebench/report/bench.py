"""The document and the lines that `bench` ends with: one row, and the verdict on two."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.limits import MARGIN
from enginebench.core.records import Machine, Result
from enginebench.report.numbers import format_latency, format_range, format_verdict
from enginebench.report.run.remarks import list_warnings
from enginebench.report.run.rows import Row, RunDocument, describe_row
from enginebench.report.run.sections import list_facts, list_others, list_tables
from enginebench.report.table import Section, make_notes
from enginebench.stats.assessment import assess_result
from enginebench.stats.compare import NOUNS, Comparison
from enginebench.stats.diff import DiffRow, diff_results

# Failures that the verdict itself says.
_SAID = ("slower", "not comparable")


class BenchDocument(Struct, frozen=True, kw_only=True):
    """What `bench --json` prints. `samples_ns` holds one list a process."""

    schema: str = "enginebench.bench/1"
    model: str
    row: Row
    samples_ns: tuple[list[int], ...]
    warmup_dropped: tuple[int, ...]
    against: Row | None = None
    comparison: DiffRow | None = None


def describe_bench(results: Sequence[Result], *, margin: float = MARGIN) -> BenchDocument:
    """The document of one result, or of two: then the first is the base and the second the candidate."""
    base, cand = (results[0] if len(results) > 1 else None), results[-1]
    comparison = against = None
    if base:
        compared = cand.drift is not None and cand.drift.reference == base.id
        against = describe_row(assess_result(_drop_own_drift(base), base, margin=margin, is_reference=compared))
        (comparison,) = diff_results([base], [cand], margin, neighbours=True, same_inputs=True).rows
    row = describe_row(assess_result(_drop_own_drift(cand), base or cand, margin=margin))
    return BenchDocument(
        model=cand.model,
        row=replace(row, outputs_agree=comparison.outputs_agree) if comparison else row,
        samples_ns=tuple(m.latency_ns for m in cand.measurements),
        warmup_dropped=tuple(m.warmup_dropped for m in cand.measurements),
        against=against,
        comparison=comparison,
    )


def _drop_own_drift(result: Result) -> Result:
    """The row without figures of its outputs where they were held against themselves: that compares nothing."""
    drift = result.drift
    return replace(result, drift=None) if drift and drift.passed and drift.reference == result.id else result


def list_bench(document: BenchDocument, machine: Machine | None = None) -> list[Section]:
    """The verdict where there are two rows, the table, the percentiles that were asked for, the warnings."""
    run = replace(list_rows(document), machine=machine)
    texts = [format_conclusion(document.comparison)] if document.comparison else []
    for name, found in document.row.percentiles_ms.items():
        sure = "" if found.supported else f", too few samples ({found.n})"
        texts.append(f"p{name}: {format_latency(found)}{sure}")
    title = " · ".join([document.model, *list_facts(run)])
    warnings = list_warnings(run)
    return [
        Section(title=title, parts=tuple(make_notes(texts))),
        *list_tables(run, wide=True),
        *list_others(run),
        *([Section(parts=(warnings,))] if warnings.lines else []),
    ]


def list_rows(document: BenchDocument) -> RunDocument:
    """The one or two rows as a table, without an answer."""
    rows = tuple(row for row in (document.against, document.row) if row is not None)
    return RunDocument(model=document.model, machine=None, spec={}, rows=rows, fastest=None, recommended=None)


def format_conclusion(comparison: Comparison) -> str:
    """The verdict in plain words, with ratio, interval and what would help."""
    told = dict.fromkeys((*comparison.reasons, *comparison.failures))
    notes = "; ".join(note for note in told if note not in _SAID)
    much = f"{format_range(comparison.ratio, 'x')} as fast" if comparison.ratio else ""
    if comparison.verdict == "not_comparable":
        return f"Verdict: not comparable: {notes}.{f' By the times alone: {much}.' if much else ''}"
    ratio = f": {much}" if much else ""
    reasons = f" ({notes})" if notes else ""
    verdict = format_verdict(comparison.verdict)
    needed = (
        f"; {comparison.trials_needed} {NOUNS[comparison.unit]} would show a difference of this size"
        if comparison.trials_needed
        else ""
    )
    agree = "; the outputs agree within the limits" if comparison.outputs_agree else ""
    return f"Verdict: {verdict}{ratio}, margin {comparison.margin:.0%}{needed}{reasons}{agree}."
