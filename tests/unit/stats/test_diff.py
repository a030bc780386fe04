"""Two runs row by row: partners, and what fails the gate: time, lost accuracy, other outputs or precisions."""

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import EngineSpec, MeasureSpec, Result
from enginebench.stats.diff import DiffRow, diff_results, pair_results
from samples import make_drift, make_result, make_scores


def make_row(**changes: object) -> Result:
    row = make_result("ort", "int8", accuracy=0.99)
    return replace(row, **{"effective_precision": {"int8": 0.9, "fp32": 0.1}, **changes})


def gate(cand: Result, **options: float | None) -> DiffRow:
    document = diff_results([make_row()], [cand], **options)  # type: ignore[arg-type]
    (row,) = document.rows
    assert document.gate_failed == bool(row.failures)
    return row


def test_the_same_row_passes_and_another_scope_fails() -> None:
    row = gate(make_row())
    assert (row.verdict, row.failures, row.metric_change) == ("equivalent", (), 0.0)
    row = gate(make_row(measure=MeasureSpec(scope="pipelined")))
    assert (row.verdict, row.failures) == ("not_comparable", ("not comparable",))


@pytest.mark.parametrize(
    ("top1", "limit", "fails"), [(0.98, 0.01, False), (0.9799, 0.01, True), (0.9799, None, True), (0.98, 0.005, True)]
)
def test_lost_accuracy_fails_beyond_the_limit(top1: float, limit: float | None, fails: bool) -> None:
    row = gate(make_row(scores=make_scores(top1)), max_metric_drop=limit)
    assert bool(row.failures) == fails
    assert row.metric == "top1" and row.metric_change == pytest.approx(top1 - 0.99)
    assert not fails or "top-1 fell by" in row.failures[0]


def test_accuracy_on_other_data_says_nothing() -> None:
    row = gate(make_row(scores=make_scores(0.5, n=100)))
    assert row.metric_change is None and row.failures == ()
    assert "measured on 450 samples of the base, 100 of the candidate" in row.reasons[0]


def test_a_metric_that_rises_when_it_is_worse() -> None:

    kind = {"metric": "m:mae", "higher_is_better": False, "share": False}
    base, worse, better = (make_row(scores=make_scores(value, **kind)) for value in (200.0, 203.0, 150.0))
    (row,) = diff_results([base], [worse]).rows
    assert row.failures == ("mae went from 200 to 203, worse by more than 2",)
    assert diff_results([base], [worse], max_metric_drop=3.0).rows[0].failures == ()
    assert diff_results([base], [better]).rows[0].failures == ()


def test_another_metric_than_the_first_may_decide() -> None:
    base = make_row(scores=(*make_scores(0.99), *make_scores(0.9, metric="f1")))
    cand = make_row(scores=(*make_scores(0.99), *make_scores(0.5, metric="f1")))
    assert diff_results([base], [cand]).rows[0].failures == ()
    (row,) = diff_results([base], [cand], metric="f1").rows
    assert row.failures == ("F1 fell by 40.00 points, more than 1",) and row.metric_change == pytest.approx(-0.4)
    with pytest.raises(UsageError, match="--metric map: no configuration has such a score; there are top1, f1"):
        diff_results([base], [cand], metric="map")


def test_accuracy_that_was_left_out_fails() -> None:
    assert "the candidate has none" in gate(make_row(scores=())).failures[0]


def test_outputs_that_no_longer_agree_fail() -> None:
    row = gate(make_row(drift=make_drift(1.0, passed=False)))
    assert row.failures == ("outputs no longer agree with the reference within the limits",)


def test_another_precision_than_before_fails() -> None:
    relabelled = make_row(engine=EngineSpec(backend="ort", precision="fp32"))
    assert gate(relabelled).failures == ("precision changed: int8 ran before, fp32 now",)
    assert "in int8 before, in fp32 now" in gate(make_row(effective_precision={"fp32": 0.8, "int8": 0.2})).failures[0]
    other = make_row(requested_precision="fp16", engine=EngineSpec(backend="ort", precision="fp16"))
    assert gate(other).failures == ()


def test_a_missing_row_fails_for_that_reason_alone() -> None:
    other = make_row(id="c", engine=EngineSpec(backend="openvino", precision="int8"))
    document = diff_results([make_row(), make_row(id="b")], [make_row(), other])
    assert [row.failures for row in document.rows] == [(), ("not comparable",), ("not comparable",)]
    assert not diff_results([make_row(), make_row(id="b")], [make_row()], allow_not_comparable=True).gate_failed


def test_a_row_that_no_engine_takes_fails_no_gate() -> None:
    gone = make_row(id="pytorch", status="skipped", reason="8 bits are of graphs", measurements=())
    document = diff_results([make_row(), gone], [make_row(), gone])
    assert not document.gate_failed and document.verdict == "equivalent"
    row = next(row for row in document.rows if row.id == "pytorch")
    assert row.skipped and row.reasons == ("skipped on both sides: 8 bits are of graphs",)


def test_a_row_that_was_measured_before_may_not_be_skipped_now() -> None:
    gone = make_row(status="skipped", reason="not installed", measurements=())
    assert gate(gone).failures[0] == "not comparable"
    assert gate(make_row(status="failed", reason="no", measurements=())).failures[0] == "not comparable"


def test_a_row_that_fails_now_fails_the_gate_whatever_is_allowed() -> None:
    failed = make_row(status="failed", reason="no", measurements=())
    assert gate(failed, allow_not_comparable=True).failures == ("the base was measured, the candidate failed",)
    assert not diff_results([failed], [failed], allow_not_comparable=True).gate_failed


def test_another_model_is_told() -> None:
    assert gate(make_row()).reasons == ()
    assert gate(make_row(model="n")).reasons == ("the models differ: resnet18 against n",)


def test_nothing_but_skipped_rows_is_no_pass() -> None:
    gone = make_row(status="skipped", reason="no", measurements=())
    document = diff_results([gone], [gone])
    assert document.gate_failed and document.verdict == "not_comparable"
    assert not diff_results([gone], [gone], allow_not_comparable=True).gate_failed


def test_not_shown_passes_the_gate_and_says_how_many_repetitions() -> None:
    noisy = {"sd": 0.06, "processes": 6}
    document = diff_results([make_result(median_ms=10, **noisy)], [make_result(median_ms=9.3, seed=9, **noisy)])
    assert (document.verdict, document.gate_failed) == ("not_shown", False)
    assert (document.rows[0].repetitions_needed or 0) > 6


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
