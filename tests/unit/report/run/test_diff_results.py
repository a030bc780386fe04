"""Two runs row by row: partners, verdicts, the gate, and how it reads."""

import pytest
from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.stats.diff import diff_results, pair_results
from samples import make_result


def test_slower_fails_the_gate() -> None:
    document = diff_results([make_result(median_ms=10)], [make_result(median_ms=11)])
    assert (document.verdict, document.gate_failed) == ("slower", True)


def test_not_shown_passes_the_gate_and_says_how_many_repetitions() -> None:
    noisy = {"sd": 0.06, "processes": 6}
    document = diff_results([make_result(median_ms=10, **noisy)], [make_result(median_ms=9.3, seed=9, **noisy)])
    assert (document.verdict, document.gate_failed) == ("not_shown", False)
    assert (document.rows[0].repetitions_needed or 0) > 6


@pytest.mark.parametrize("allowed", [True, False])
def test_not_comparable_fails_the_gate_unless_allowed(allowed: bool) -> None:
    base, cand = [make_result("ort"), make_result("pytorch")], [make_result("ort", seed=1)]
    document = diff_results(base, cand, allow_not_comparable=allowed)
    row = document.rows[1]
    assert (row.verdict, row.reasons) == ("not_comparable", ("only the base has this configuration",))
    assert (document.verdict, document.gate_failed) == ("not_comparable", not allowed)


def test_two_single_rows_are_partners_whatever_they_are() -> None:
    row = diff_results([make_result("pytorch", median_ms=20)], [make_result("ort", median_ms=10)]).rows[0]
    assert (row.id, row.verdict) == ("pytorch-fp32-b1 -> ort-fp32-b1", "faster")


def test_other_batch_is_the_reason_not_a_missing_row() -> None:
    base = [make_result("ort"), make_result("openvino")]
    cand = [make_result("ort", batch=8), make_result("openvino", seed=1)]
    rows = diff_results(base, cand).rows
    assert (rows[0].verdict, rows[0].reasons) == ("not_comparable", ("batch: 1 against 8",))


def test_ambiguous_leftovers_have_no_partner() -> None:
    base = [make_result("ort", batch=1), make_result("ort", batch=2)]
    assert [b for b, _ in pair_results(base, [make_result("ort", batch=4), make_result("pytorch")])][:2] == [None, None]


def test_rows_that_were_measured_in_turns_had_the_same_machine() -> None:
    def at(kernel_ns: int, begin: int) -> Result:
        row = make_result("ort")
        turns = [
            replace(m, reference_ns=[kernel_ns] * 5, started_utc=f"2026-11-23T06:{begin + i:02}:00Z")
            for i, m in enumerate(row.measurements)
        ]
        return replace(row, measurements=tuple(turns))

    said = {}
    for begin in (0, 30):
        document = diff_results([at(1000, 0)], [at(1500, begin)])
        said[begin] = "; ".join(document.rows[0].reasons)
    assert "both were measured interleaved" in said[0] and "measure both together" not in said[0]
    assert "measure both together" in said[30]
