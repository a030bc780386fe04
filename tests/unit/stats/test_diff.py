"""Two runs row by row: partners, and what fails the gate: time, lost accuracy, other outputs or precisions."""

import pytest
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import EngineSpec, MeasureSpec, Result
from enginebench.report.bench import format_conclusion
from enginebench.report.markdown import format_sections
from enginebench.report.run.diff import list_diff
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


def test_the_same_configuration_passes_and_another_scope_fails() -> None:
    row = gate(make_row())
    assert (row.verdict, row.failures, row.metric_change, row.reasons) == ("equivalent", (), 0.0, ())
    row = gate(make_row(measure=MeasureSpec(scope="pipelined")))
    assert (row.verdict, row.failures) == ("not_comparable", ("not comparable",))


def test_accuracy_on_other_data_says_nothing() -> None:
    row = gate(make_row(scores=make_scores(0.5, n=100)))
    assert row.metric_change is None and row.failures == ()
    assert "measured on 450 samples of the base, 100 of the candidate" in row.reasons[0]


def test_another_metric_than_the_first_may_decide() -> None:
    base = make_row(scores=(*make_scores(0.99), *make_scores(0.9, metric="f1")))
    cand = make_row(scores=(*make_scores(0.99), *make_scores(0.5, metric="f1")))
    assert diff_results([base], [cand]).rows[0].failures == ()
    (row,) = diff_results([base], [cand], metric="f1").rows
    assert row.failures == ("F1 fell by 40.00 points, more than 1",) and row.metric_change == pytest.approx(-0.4)
    with pytest.raises(UsageError, match="--metric map: no configuration has such a score; there are top1, f1"):
        diff_results([base], [cand], metric="map")


NEVER_RAN = {"status": "failed", "reason": "no", "measurements": ()}


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"scores": ()}, "the candidate has none"),  # although the base has
        ({"drift": make_drift(1.0, passed=False)}, "outputs no longer agree with the reference within the limits"),
        ({"engine": EngineSpec(backend="ort", precision="fp32")}, "precision changed: int8 ran before, fp32 now"),
        ({"effective_precision": {"fp32": 0.8, "int8": 0.2}}, "in int8 before, in fp32 now"),
        ({"requested_precision": "fp16", "engine": EngineSpec(backend="ort", precision="fp16")}, None),
        ({"status": "skipped", "reason": "not installed", "measurements": ()}, "not comparable"),
        (NEVER_RAN, "not comparable"),
        ({"model": "n"}, None),
    ],
)
def test_what_was_not_so_before_fails(changes: dict[str, object], failure: str | None) -> None:
    row = gate(make_row(**changes))
    assert failure in row.failures[0] if failure else row.failures == ()
    assert row.reasons == ("the models differ: resnet18 against n",) or "model" not in changes


def test_a_configuration_that_no_engine_takes_fails_no_gate() -> None:
    gone = make_row(id="pytorch", status="skipped", reason="8 bits are of graphs", measurements=())
    document = diff_results([make_row(), gone], [make_row(), gone])
    assert not document.gate_failed and document.verdict == "equivalent"
    row = next(row for row in document.rows if row.id == "pytorch")
    assert row.skipped and row.reasons == ("skipped on both sides: 8 bits are of graphs",)


def test_a_configuration_that_fails_now_fails_the_gate_whatever_is_allowed() -> None:
    failed = make_row(**NEVER_RAN)
    assert gate(failed, allow_not_comparable=True).failures == ("the base was measured, the candidate failed",)
    assert not diff_results([failed], [failed], allow_not_comparable=True).gate_failed


def test_nothing_but_skipped_configurations_is_no_pass() -> None:
    gone = make_row(status="skipped", reason="no", measurements=())
    document = diff_results([gone], [gone])
    assert document.gate_failed and document.verdict == "not_comparable"
    assert not diff_results([gone], [gone], allow_not_comparable=True).gate_failed


def test_inconclusive_passes_the_gate_and_gives_the_trials_needed() -> None:
    noisy = {"sd": 0.06, "processes": 6}
    document = diff_results([make_result(median_ms=10, **noisy)], [make_result(median_ms=9.3, seed=9, **noisy)])
    assert (document.verdict, document.gate_failed) == ("not_shown", False)
    assert (document.rows[0].trials_needed or 0) > 6


def test_two_single_configurations_are_partners_and_ambiguous_leftovers_have_none() -> None:
    row = diff_results([make_result("pytorch", median_ms=20)], [make_result("ort", median_ms=10)]).rows[0]
    assert (row.id, row.verdict) == ("pytorch-fp32-b1 -> ort-fp32-b1", "faster")
    base = [make_result("ort", batch=1), make_result("ort", batch=2)]
    assert [b for b, _ in pair_results(base, [make_result("ort", batch=4), make_result("pytorch")])][:2] == [None, None]


def test_configurations_that_were_measured_in_turns_had_the_same_machine() -> None:
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


def test_runs_of_two_models_say_so_first_and_alone_where_nothing_can_be_compared() -> None:
    base, other = make_row(), make_row(model="n")
    comparable = list_diff(diff_results([base], [other]))
    assert comparable[0].title == "the models differ: resnet18 against n" and len(comparable) == 2
    assert "models differ" not in format_sections(comparable[1:])
    apart = replace(other, engine=replace(other.engine, batch=8))
    (only,) = list_diff(diff_results([base], [apart]))
    assert (only.title, only.parts) == ("the models differ: resnet18 against n", ())
    assert list_diff(diff_results([base], [base]))[0].title.startswith("equivalent")


def test_a_bench_of_two_models_says_so_before_what_follows_from_it() -> None:
    base = make_row(drift=None)
    other = make_row(model="n", drift=replace(make_drift(1.0, passed=False), reference=base.id))
    row = diff_results([base], [other], neighbours=True, same_inputs=True).rows[0]
    assert row.reasons[0] == "the models differ: resnet18 against n" and len(row.reasons) > 1
    assert row.failures[0].startswith("the outputs are not within the limits")  # what the gate fails for
    assert format_conclusion(row).startswith("Verdict: not comparable: the models differ: resnet18 against n; ")
