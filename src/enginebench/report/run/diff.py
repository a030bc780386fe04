"""A comparison of two runs as sections: every row with its verdict, ratio and reasons; then the verdict over all."""

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from enginebench.core.features import find_each
from enginebench.core.text import clean_text
from enginebench.report.numbers import format_range, format_ratio, format_verdict
from enginebench.report.table import Column, Section, make_notes, make_table
from enginebench.stats.compare import NOUNS
from enginebench.stats.diff import DiffDocument, DiffRow
from enginebench.stats.metrics.tasks import name_metric

_COLUMNS = (
    Column("configuration", lambda row: row.id),
    Column("verdict", lambda row: format_verdict(row.verdict)),
    Column(
        "base / candidate",
        lambda row: format_ratio(row.ratio) if row.ratio else "-",
        align="right",
        span=lambda row: (row.ratio.low, row.ratio.value, row.ratio.high) if row.ratio else None,
        spare=1,
    ),
    Column("why", lambda row: explain_diff_row(row), when=lambda rows: any(map(explain_diff_row, rows))),
)


def list_diff(document: DiffDocument, *, gate: bool = False) -> list[Section]:
    ended = f", gate {'failed' if document.gate_failed else 'passed'}" if gate else ""
    verdict = f"{document.verdict.replace('_', ' ')} (margin {document.margin:.1%}{ended})"
    changes = make_notes([text for state in find_each("offers", "diff_notes") for text in state(document)], "list")
    return [Section(title=verdict, parts=(make_table(_COLUMNS, document.rows, file="diff"), *changes))]


def explain_diff_row(row: DiffRow) -> str:
    """Why a row has its verdict, what would decide an open one, and by how much a metric changed."""
    why = list(row.reasons)
    if row.metric and row.metric_change and not any(name_metric(row.metric) in text for text in row.failures):
        why.append(f"{name_metric(row.metric)} {row.metric_change:+.4g}")
    if row.repetitions_needed:
        why.append(f"about {row.repetitions_needed} {NOUNS[row.unit]} would show it")
    why += [text for text in row.failures if text not in ("slower", "not comparable", *row.reasons)]
    return "; ".join(why)


def format_junit(document: DiffDocument) -> str:
    """The XML: a row that fails the gate is a failure, one that shows nothing is skipped, the others pass.

    Source: the schema of Jenkins' xunit plugin (junit-10.xsd), which GitLab, Azure and GitHub's actions read, too.
    """
    suite = Element("testsuite", name="enginebench diff")
    for row in document.rows:
        case = SubElement(suite, "testcase", classname="enginebench", name=clean_text(row.id))
        why = clean_text(explain_diff_row(row))
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
