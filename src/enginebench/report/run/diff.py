"""A comparison of two runs as sections: every row with its verdict, ratio and reasons; then the verdict over all."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from enginebench.core.features import find_hooks
from enginebench.core.hooks import DiffNotes
from enginebench.core.text import clean_text
from enginebench.report.numbers import format_before_after, format_range, format_ratio, format_verdict
from enginebench.report.table import Column, Section, make_notes, make_table
from enginebench.stats.compare import NOUNS
from enginebench.stats.diff import MODELS_DIFFER, ONE_SIDE, DiffDocument, DiffRow
from enginebench.stats.metrics.tasks import name_metric

_COLUMNS = (
    Column("verdict", lambda row: format_verdict(row.verdict)),
    Column(
        "base / candidate",
        lambda row: format_ratio(row.ratio) if row.ratio else "-",
        align="right",
        when=lambda rows: any(row.ratio for row in rows),
        span=lambda row: (row.ratio.low, row.ratio.value, row.ratio.high) if row.ratio else None,
        spare=1,
    ),
    Column(
        "p50",
        lambda row: format_before_after(row.p50_ms.before, row.p50_ms.after),
        when=lambda rows: all(row.p50_ms for row in rows),
        align="right",
        spare=2,
    ),
)


def list_diff(document: DiffDocument, *, gate: bool = False) -> list[Section]:
    """The table; settings that all ids end in, and reasons that all rows have, stand once or not at all."""
    ended = f", gate {'failed' if document.gate_failed else 'passed'}" if gate else ""
    verdict = f"{format_verdict(document.verdict)} (margin {document.margin:.1%}{ended})"
    changes = [text for state in find_hooks(DiffNotes) for text in state(document)]
    rows = document.rows if len(document.rows) > 1 else ()
    ends = takewhile(lambda parts: len(set(parts)) == 1, zip(*(row.id.split("-")[:1:-1] for row in rows), strict=False))
    tail = "".join(f"-{parts[0]}" for parts in [*ends][::-1])
    whys = {row.id: format_reasons(row).split("; ") for row in document.rows}
    first = []
    if models := _find_other_models(whys):
        first = [Section(title=models, parts=())]
        shows = gate or any(row.ratio or row.metric_change for row in document.rows)
        if document.verdict == "not_comparable" and not shows:
            return first
        whys = {name: [text for text in why if text != models] for name, why in whys.items()}
    first_why = whys[rows[0].id] if rows else []
    shared = [text for text in first_why if text and all(text in why for why in whys.values())]

    def explain(row: DiffRow) -> str:
        return "; ".join(text for text in whys[row.id] if text not in shared)

    columns = (
        Column("configuration", lambda row: row.id.removesuffix(tail), lambda row: row.id),
        *_COLUMNS,
        Column("why", explain, when=lambda rows: any(map(explain, rows))),
    )
    notes = make_notes([*(f"all: {text}" for text in shared), *changes], "list")
    return [*first, Section(title=verdict, parts=(make_table(columns, document.rows, file="diff"), *notes))]


def _find_other_models(whys: Mapping[str, Sequence[str]]) -> str | None:
    """Return that two runs are of different models, if that is so for every shared configuration; else None."""
    differences = [
        [text for text in why if text.startswith(MODELS_DIFFER)] for why in whys.values() if ONE_SIDE not in why[0]
    ]
    named = {text for texts in differences for text in texts}
    return named.pop() if len(named) == 1 and all(differences) else None


def format_reasons(row: DiffRow) -> str:
    """Format why a row has its verdict, what would decide an open one, and by how much a metric changed."""
    why = list(row.reasons)
    if row.metric and row.metric_change and not any(name_metric(row.metric) in text for text in row.failures):
        why.append(f"{name_metric(row.metric)} {row.metric_change:+.4g}")
    if row.trials_needed:
        why.append(f"about {row.trials_needed} {NOUNS[row.unit]} would show it")
    why += [text for text in row.failures if text not in ("slower", "not comparable", *row.reasons)]
    return "; ".join(why)


def format_junit(document: DiffDocument) -> str:
    """Format JUnit XML: a row that fails the gate is a failure, an inconclusive one is skipped, the others pass.

    Source: the schema of Jenkins' xunit plugin (junit-10.xsd), which GitLab, Azure and GitHub's actions read, too.
    """
    suite = Element("testsuite", name="enginebench diff")
    for row in document.rows:
        case = SubElement(suite, "testcase", classname="enginebench", name=clean_text(row.id))
        why = clean_text(format_reasons(row))
        if row.failures:
            SubElement(case, "failure", type=row.verdict, message=clean_text("; ".join(row.failures))).text = why
        elif row.verdict in ("not_shown", "not_comparable"):
            SubElement(case, "skipped", message=f"{format_verdict(row.verdict)}: {why}")
        ratio = f", base / candidate {format_range(row.ratio, 'x')}" if row.ratio else ""
        SubElement(case, "system-out").text = f"{format_verdict(row.verdict)}{ratio}"
    if all(row.skipped for row in document.rows):
        case = SubElement(suite, "testcase", classname="enginebench", name="rows")
        if document.gate_failed:
            SubElement(case, "failure", type="not_comparable", message="there are no configurations to compare")
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("*/failure"))))
    suite.set("skipped", str(len(suite.findall("*/skipped"))))
    suite.set("errors", "0")
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"
