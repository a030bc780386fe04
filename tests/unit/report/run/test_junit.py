"""JUnit XML: what fails, what is skipped, and that names are text."""

from xml.etree import ElementTree

from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.report.run.diff import format_junit
from enginebench.stats.diff import diff_results
from samples import make_result


def parse(base: list[Result], cand: list[Result], **options: bool) -> ElementTree.Element:
    root = ElementTree.fromstring(format_junit(diff_results(base, cand, **options)))  # type: ignore[arg-type]
    (suite,) = root
    return suite


def test_one_case_a_row() -> None:
    base = [make_result("ort"), make_result("pytorch", median_ms=20), make_result("openvino")]
    cand = [make_result("ort", median_ms=12), make_result("pytorch", median_ms=20, seed=1)]
    suite = parse(base, cand)
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["3", "2", "0", "0"]
    slower, same, missing = suite
    assert slower.find("failure").get("message") == "slower"  # type: ignore[union-attr]
    assert same.find("failure") is None and "equivalent" in (same.findtext("system-out") or "")
    assert missing.find("failure").text == "only the base has this configuration"  # type: ignore[union-attr]


def test_what_shows_nothing_is_skipped() -> None:
    noisy = {"sd": 0.06, "processes": 6}
    (case,) = parse([make_result(median_ms=10, **noisy)], [make_result(median_ms=9.3, seed=9, **noisy)])  # type: ignore[arg-type]
    assert "trials would show it" in (case.find("skipped").get("message") or "")  # type: ignore[union-attr]
    (case,) = parse([make_result(batch=1)], [make_result(batch=2)], allow_not_comparable=True)
    assert case.find("skipped") is not None and case.find("failure") is None


def test_names_are_text() -> None:
    evil = 'a"]]><x>\x1b\x00&'
    (case,) = parse([replace(make_result(), id=evil)], [make_result(status="failed", reason=evil)])
    assert (case.get("name") or "").startswith('a"]]><x>&')


def test_no_rows_are_a_failure_and_nothing_but_skipped_ones_is_one_beside_them() -> None:
    suite = parse([], [])
    assert suite.get("tests") == suite.get("failures") == "1"
    gone = [make_result("ort", status="skipped", reason="no")]
    suite = parse(gone, gone)
    assert (suite.get("tests"), suite.get("skipped"), suite.get("failures")) == ("2", "1", "1")
    row, nothing = suite
    assert row.find("skipped") is not None and nothing.find("failure") is not None
