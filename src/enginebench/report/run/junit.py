"""A comparison as JUnit XML, which CI servers show as tests: one case a row."""

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from enginebench.core.text import clean_text
from enginebench.report.numbers import format_range, format_verdict
from enginebench.report.run.diff import explain_diff_row
from enginebench.stats.diff import DiffDocument, DiffRow


def format_junit(document: DiffDocument, name: str = "enginebench diff") -> str:
    """The XML: a row that fails the gate is a failure, one that shows nothing is skipped, the others pass.

    Source: the schema of Jenkins' xunit plugin (junit-10.xsd), which GitLab, Azure and GitHub's actions read, too.
    """
    suite = Element("testsuite", name=clean_text(name))
    cases = [_add_case(suite, row) for row in document.rows]
    if all(row.skipped for row in document.rows):
        cases.append(_add_nothing(suite, document))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.set("errors", "0")
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_case(suite: Element, row: DiffRow) -> Element:
    case = SubElement(suite, "testcase", classname="enginebench", name=clean_text(row.id))
    why = clean_text(explain_diff_row(row))
    if row.failures:
        SubElement(case, "failure", type=row.verdict, message=clean_text("; ".join(row.failures))).text = why
    elif row.verdict in ("not_shown", "not_comparable"):
        SubElement(case, "skipped", message=f"{format_verdict(row.verdict)}: {why}")
    ratio = f", base / candidate {format_range(row.ratio, 'x')}" if row.ratio else ""
    SubElement(case, "system-out").text = f"{format_verdict(row.verdict)}{ratio}"
    return case


def _add_nothing(suite: Element, document: DiffDocument) -> Element:
    case = SubElement(suite, "testcase", classname="enginebench", name="rows")
    if document.gate_failed:
        SubElement(case, "failure", type="not_comparable", message="there are no configurations to compare")
    return case
