"""Over random runs no path leads from "not compared" to "agrees", from a part to all; and steps grow as rows do."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import fromstring

from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.report.bench import describe_bench
from enginebench.report.csv_table import format_csv
from enginebench.report.run.columns import list_fields
from enginebench.report.run.diff import format_junit, format_reasons
from enginebench.report.run.head import format_head, name_configurations
from enginebench.report.run.rows import Row, RunDocument, describe_run
from enginebench.report.run.sections import find_largest, list_batches, list_sections
from enginebench.runs.folder import RunRecord, read_results
from enginebench.runs.reporting import describe_stored
from enginebench.stats.diff import diff_results
from enginebench.stats.ranking import Rules
from reports import draw, show, write_markdown
from samples import make_drift, make_result
from stored_run import write_run
from strategies import runs

TRIES = settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
WARNINGS = {"unproved_precision", "failed_proof", "low_effective_precision", "relabelled"}


def describe(results: Sequence[Result], **more: object) -> RunDocument:
    return describe_run(model="m", machine=None, spec={}, results=results, rules=Rules(**more))  # type: ignore[arg-type]


def find_reference(result: Result, results: Sequence[Result]) -> str | None:
    """The row of the same batch that most rows were compared with, the first of several."""
    group = [r for r in results if r.engine.batch == result.engine.batch]
    known = {r.id for r in group}
    votes = Counter(r.drift.reference for r in group if r.drift and r.drift.n and r.drift.reference in known)
    return max((r.id for r in group if votes[r.id]), key=lambda name: votes[name], default=None)


def was_compared(result: Result, results: Sequence[Result]) -> bool:
    """Whether outputs of it were held against those of another row that is there, by the record alone."""
    group = {r.id for r in results if r.engine.batch == result.engine.batch}
    drift = result.drift
    return drift is not None and drift.n > 0 and drift.reference in group - {result.id}


def may_agree(result: Result, row: Row, results: Sequence[Result]) -> bool:
    reference = find_reference(result, results)
    if reference in (result.id, None) and not was_compared(result, results):
        return reference == result.id or row.id == row.baseline
    return was_compared(result, results) and result.drift is not None and result.drift.passed


def show_all(document: RunDocument) -> str:
    return draw(list_sections(document, warnings=True), 300)


@TRIES
@given(runs())
def test_what_was_not_compared_never_agrees_and_says_so(results: list[Result]) -> None:
    document = describe(results)
    for result, row in zip(results, document.rows, strict=True):
        if row.agreement.outputs_agree:
            assert was_compared(result, results) or find_reference(result, results) == result.id
            assert result.drift is not None and result.drift.passed and result.drift.n
        named = [h for h in document.headlines if h.id == row.id]
        if not may_agree(result, row, results) and not any(r.scores for r in results):
            assert all(headline.outputs in ("changed", "not_judged") for headline in named)
        if not was_compared(result, results) and find_reference(result, results) != result.id:
            assert (
                row.agreement.max_abs_diff is None and row.agreement.cosine is None
            )  # no figure of a comparison that was not made
            assert not row.pareto or row.scores or find_reference(result, results) is None
    if any(row.n and row.agreement.outputs_agree is None and not row.is_reference for row in document.rows):
        assert "outputs were not compared" in show_all(document)
        assert "outputs were not compared" in write_markdown(document)


@TRIES
@given(runs())
def test_a_label_is_proved_or_warned_about(results: list[Result]) -> None:
    document = describe(results)
    text = show_all(document)
    for row in document.rows:
        codes = {warning.code for warning in row.warnings}
        proved = (row.effective_precision or {}).get(row.precision, 0.0) >= 0.5
        if row.n and row.requested_precision != "fp32" and not proved:
            assert codes & WARNINGS
        if row.n and row.precision != row.requested_precision:
            assert f"(not {row.requested_precision})" in text or row.p50_ms is None


@TRIES
@given(runs())
def test_n_is_what_was_used(results: list[Result]) -> None:
    document = describe(results)
    listed = list(csv.DictReader(io.StringIO(format_csv(list_fields(), document.rows), newline="")))
    for result, row, cells in zip(results, document.rows, listed, strict=True):
        n = sum(len(m.latency_ns) for m in result.measurements)
        assert (row.n, int(cells["n"])) == (n, n)
        assert row.p99_ms is None or row.p99_ms.n == n
        bench = describe_bench([result])
        assert sum(map(len, bench.samples_ns)) == bench.row.n == n


@TRIES
@given(runs())
def test_a_part_of_the_samples_is_not_all_and_accuracy_is_recommended_on_the_same_alone(results: list[Result]) -> None:
    document = describe(results)
    for result, row in zip(results, document.rows, strict=True):
        group = [r for r in results if r.engine.batch == result.engine.batch]
        told = " ".join(warning.message for warning in row.warnings)
        known = {r.id for r in group}
        most = max(
            (r.drift.n for r in group if was_compared(r, results) and r.drift and r.drift.reference in known), default=0
        )
        if was_compared(result, results) and result.drift and result.drift.n < most:
            assert f"compared on {result.drift.n} of " in told
        counted = max((r.scores[0].value.n for r in group if r.scores), default=0)
        if result.scores and result.scores[0].value.n < counted:
            assert f"measured on {result.scores[0].value.n} of {counted} samples" in told
    if document.recommended_by == "metric" and document.recommended:
        rows = {row.id: row for row in document.rows}
        chosen = rows[document.recommended.id]
        known = [r for r in rows.values() if r.scores and r.precision == r.requested_precision == "fp32"]
        assert chosen.scores
        assert any(r.scores[0].value.n == chosen.scores[0].value.n for r in known)


@TRIES
@given(runs())
def test_winners_are_measured_and_marked(results: list[Result]) -> None:
    document = describe(results)
    rows = {row.id: row for row in document.rows}
    text = str(format_head(document))
    for ref in filter(None, (document.fastest, document.recommended)):
        row = rows[ref.id]
        assert row.n
        named = any(headline.id == row.id for headline in document.headlines)  # of equals another one may be
        assert row.status == "ok" or not named or f"({row.status})" in text
        assert not row.modelled or "modelled" in text
    for headline in document.headlines:
        assert headline.validity != "valid" or rows[headline.id].validity == "valid"
    for row in document.rows:
        assert not row.pareto or (row.status == "ok" and row.validity != "invalid" and not row.modelled)


@TRIES
@given(runs())
def test_every_report_begins_with_the_three_lines(results: list[Result]) -> None:
    document = describe(results)
    labels = [line.label for line in format_head(document)]
    assert labels == ["USE", "OUTPUTS", "TRUST"]
    timed = {(r.engine.batch, r.measure.scope) for r in results if r.status != "failed" and r.measurements}
    assert {(h.batch, h.scope) for h in document.headlines} == timed  # one is named wherever anything was timed
    for headline in document.headlines:
        row = next(row for row in document.rows if row.id == headline.id)
        assert name_configurations(document.rows)[row.id] in str(format_head(document))
        assert headline.ratio is None or headline.ratio_validity in ("good", "medium", "low")
        if headline.outputs in ("same", "within_limits") and not any(r.scores for r in results):
            assert may_agree(next(r for r in results if r.id == row.id), row, results)


@TRIES
@given(runs())
def test_unfinished_configurations_say_so_wherever_their_figures_stand(results: list[Result]) -> None:
    document = describe(results, p99_limit_ms=100.0)
    unfinished = [row for row in document.rows if row.n and row.status != "ok"]
    for text in (show_all(document), write_markdown(document)):
        assert all(f"({row.status})" in text for row in unfinished)
    for series in list_batches(document.rows):
        assert getattr(find_largest(series, 100.0), "status", "ok") == "ok"


@TRIES
@given(runs(3), runs(3))
def test_a_comparison_passes_only_what_it_compared(base: list[Result], cand: list[Result]) -> None:
    document = diff_results(base, cand, neighbours=True)
    cases = list(fromstring(format_junit(document)).iter("testcase"))
    assert len(cases) == len(document.rows) + all(row.skipped for row in document.rows)  # that nothing was compared
    sides = {r.id: r for r in base}, {r.id: r for r in cand}
    for row, case in zip(document.rows, cases, strict=False):
        names = row.id.split(" -> ")
        old, new = sides[0].get(names[0]), sides[1].get(names[-1])
        passed = case.find("failure") is None and case.find("skipped") is None
        assert passed == (not row.failures and row.verdict not in ("not_shown", "not_comparable"))
        if row.verdict in ("faster", "equivalent", "slower"):
            assert old and new and old.status == new.status == "ok"
            if all(m.clock == "modelled" for m in (*old.measurements, *new.measurements)):
                assert "modelled" in format_reasons(row)
        if old and new and passed:
            if old.drift and old.drift.passed and old.drift.n:
                held = old.drift.reference != old.id  # against another row: of itself alone nothing was shown
                assert (new.drift is not None and new.drift.passed) or _is_reference(new, cand) or not held
                assert (
                    new.drift is None
                    or new.drift.reference != new.id
                    or old.drift.reference == old.id
                    or ("its own alone" in format_reasons(row))
                )
            if old.scores:
                assert new.scores
                assert new.scores[0].value.n == old.scores[0].value.n or "top-1 was not compared" in format_reasons(row)


def _is_reference(result: Result, results: Sequence[Result]) -> bool:
    return any(r.drift and r.drift.reference == result.id for r in results if r.id != result.id)


def make_rows(count: int) -> list[Result]:
    """Rows of one setting: every other one in a shorter precision, each with outputs that were compared."""
    rows = []
    for i in range(count):
        precision = "int8" if i % 2 else "fp32"
        row = make_result("ort", precision, 10.0 + i / 100, drift=make_drift(1e-3), accuracy=0.9, processes=2)
        engine = replace(row.engine, options={"x": str(i // 2)})
        rows.append(replace(row, id=f"{row.id}-{i}", engine=engine))
    return rows


def count_calls(work: Callable[[], object]) -> int:
    count = 0

    def listen(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(listen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def count_steps(record: RunRecord, results: list[Result]) -> list[int]:
    record = replace(record, rows=tuple(row.id for row in results))
    document = describe_stored(record, results)
    return [
        count_calls(lambda: describe_stored(record, results)),
        count_calls(lambda: show(document, 100)),
        count_calls(lambda: write_markdown(document)),
        count_calls(lambda: format_csv(list_fields(), document.rows)),
    ]


def test_twice_as_many_rows_take_twice_as_many_steps(tmp_path: Path) -> None:
    record, results = read_results(write_run(tmp_path / "r", make_rows(160)))
    count_steps(record, results[:4])  # what is made once is not counted
    few, many = count_steps(record, results[:80]), count_steps(record, results)
    assert [round(b / a, 1) <= 2.1 for a, b in zip(few, many, strict=True)] == [True] * 4, (few, many)
