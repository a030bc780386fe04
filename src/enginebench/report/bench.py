"""The document and the report of `bench`: one configuration, or two with a verdict."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.limits import MARGIN
from enginebench.core.records import Machine, Result
from enginebench.report.numbers import format_latency, format_ms, format_range, format_significant, format_verdict
from enginebench.report.run.remarks import list_warnings
from enginebench.report.run.rows import Row, RunDocument, describe_row
from enginebench.report.run.sections import list_facts, list_others, list_tables
from enginebench.report.table import Notes, Section, Table, list_texts, make_notes, make_table
from enginebench.stats.assessment import assess_result
from enginebench.stats.compare import MIN_TRIALS, NOUNS, Comparison
from enginebench.stats.diff import DiffRow, diff_results
from enginebench.stats.life import Interference, list_interference

# Failures that the verdict itself names.
_IN_VERDICT = ("slower", "not comparable")
# Warnings that other programs took time from a side.
_BUSY = {"foreign_cpu": "the CPU was busy", "foreign_gpu": "the GPU was busy"}


class BenchDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `bench`. `samples_ns` holds one list for each process."""

    schema: str = "enginebench.bench/1"
    model: str
    row: Row
    samples_ns: tuple[list[int], ...]
    warmup_dropped: tuple[int, ...]
    against: Row | None = None
    comparison: DiffRow | None = None
    beside: tuple[Interference, ...] = ()  # of both sides, where each was also timed beside the other


def describe_bench(results: Sequence[Result], *, margin: float = MARGIN) -> BenchDocument:
    """Make the document of one result, or of two: then the first is the base and the second the candidate.

    Of configurations that were timed beside each other it is that of the last one alone.
    """
    if any(result.beside for result in results):
        own = [result for result in results if result.beside is None][-1]
        return replace(describe_bench([own], margin=margin), beside=list_interference(results))
    base, cand = (results[0] if len(results) > 1 else None), results[-1]
    comparison = against = None
    if base:
        compared = cand.drift is not None and cand.drift.reference == base.id
        against = describe_row(assess_result(_drop_own_drift(base), base, margin=margin, is_reference=compared))
        (comparison,) = diff_results([base], [cand], margin, neighbours=True, same_inputs=True).rows
    row = describe_row(assess_result(_drop_own_drift(cand), base or cand, margin=margin))
    return BenchDocument(
        model=cand.model,
        row=_with_agreement(row, comparison.outputs_agree) if comparison else row,
        samples_ns=tuple(m.latency_ns for m in cand.measurements),
        warmup_dropped=tuple(m.warmup_dropped for m in cand.measurements),
        against=against,
        comparison=comparison,
    )


def _with_agreement(row: Row, outputs_agree: bool | None) -> Row:
    return replace(row, agreement=replace(row.agreement, outputs_agree=outputs_agree))


def _drop_own_drift(result: Result) -> Result:
    """Drop the comparison of outputs with themselves, which shows nothing."""
    drift = result.drift
    return replace(result, drift=None) if drift and drift.passed and drift.reference == result.id else result


def list_bench(document: BenchDocument, machine: Machine | None = None) -> list[Section]:
    """List the verdict on two configurations, the table, the requested percentiles, the warnings."""
    run = replace(list_rows(document), machine=machine)
    texts = [format_conclusion(document.comparison)] if document.comparison else []
    for name, estimate in document.row.times.percentiles_ms.items():
        sure = "" if estimate.supported else f", too few samples ({estimate.n})"
        texts.append(f"p{name}: {format_latency(estimate)}{sure}")
    if document.beside:
        return [Section(title=" · ".join([document.model, *list_facts(run)]), parts=tuple(make_beside(document)))]
    title = " · ".join([document.model, *list_facts(run)])
    warnings = list_warnings(run)
    return [
        Section(title=title, parts=tuple(make_notes(texts))),
        *list_tables(run, wide=True),
        *list_others(run),
        *([Section(parts=(warnings,))] if warnings.lines else []),
    ]


def make_beside(document: BenchDocument) -> list[Table | Notes]:
    """Make the table of both sides: each alone, and how many times as long it takes beside the other one."""
    lines = [
        (
            one.name,
            f"{one.model}, {one.size}",
            format_ms(one.alone_ms.value) if one.alone_ms else "",
            *(format_range(ratio, "x") if ratio else "" for ratio in (one.process, one.thread)),
        )
        for one in document.beside
    ]
    columns = list_texts(("engine", "of"), ("alone", "beside, own process", "beside, one process"))
    meaning = "The mean of the calls of each alone, and how many times as long it is beside the other."
    reasons = [f"{one.name}: {reason}." for one in document.beside for reason in one.reasons]
    table: Table = make_table(columns, lines, file="beside")
    return [table, *make_notes([meaning]), *make_notes(list(dict.fromkeys(reasons)), "list")]


def list_rows(document: BenchDocument) -> RunDocument:
    """Make a table of the one or two configurations, without a head."""
    rows = tuple(row for row in (document.against, document.row) if row is not None)
    return RunDocument(model=document.model, machine=None, spec={}, rows=rows, fastest=None, recommended=None)


def format_conclusion(comparison: Comparison) -> str:
    """Format the verdict in plain words, with ratio, interval and what would help."""
    sentences = dict.fromkeys((*comparison.reasons, *comparison.failures))
    notes = "; ".join(note for note in sentences if note not in _IN_VERDICT)
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


def format_state(document: BenchDocument) -> str:
    """Format the verdict in a line without any text of the models: `faster 1.12x (1.08 to 1.16)`.

    A pull request shows it as markdown, so it is made of numbers and of words of this file alone.
    """
    comparison = document.comparison
    if comparison is None:
        return "one side, no verdict"
    ratio = f" {format_range(comparison.ratio, 'x')}" if comparison.ratio else ""
    if comparison.outputs_agree is False and comparison.verdict == "not_comparable":
        return "not comparable: the outputs changed"
    if comparison.verdict == "not_shown" or comparison.ratio_validity == "not_given":
        return f"undecided: {_explain_open(document, comparison)}"
    if comparison.verdict == "not_comparable":
        return "not comparable: the reason stands below"
    return f"{'no significant difference' if comparison.verdict == 'equivalent' else comparison.verdict}{ratio}"


def _explain_open(document: BenchDocument, comparison: Comparison) -> str:
    """Explain why the times show no verdict, with half the width of the interval."""
    seen = {warning.code for row in (document.row, document.against) if row for warning in row.warnings}
    busy = next((text for code, text in _BUSY.items() if code in seen), None)
    ratio = comparison.ratio
    if ratio is None:
        return busy or "the times of both sides were disturbed differently"
    if ratio.n < MIN_TRIALS or ratio.low is None or ratio.high is None:
        return f"fewer than {MIN_TRIALS} {NOUNS[comparison.unit]}"
    width = format_significant(50 * (ratio.high - ratio.low) / ratio.value, 2)
    return f"{busy or 'the interval reaches across the margin'}, ±{width}%"
