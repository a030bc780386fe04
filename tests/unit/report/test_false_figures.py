"""Sentences and figures that were false: each by the smallest run that showed it."""

import pytest
from msgspec.structs import replace

from enginebench.core.records import EngineSpec, Result, ResultWarning
from enginebench.report.run.diff import format_reasons
from enginebench.report.run.head import format_head
from enginebench.report.run.remarks import list_remarks, list_warnings
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_batches, list_sections
from enginebench.report.terminal import format_text
from enginebench.stats.diff import diff_results
from enginebench.stats.drift import refuse_drift
from enginebench.stats.ranking import Rules
from samples import make_drift, make_result

AGREE = make_drift(1e-6)


def describe(*results: Result, **more: object) -> RunDocument:
    return describe_run(model="m", machine=None, spec={}, results=results, rules=Rules(**more))  # type: ignore[arg-type]


def answer(*results: Result, **more: object) -> str:
    document = describe(*results, **more)
    return " ".join([*(text for line in format_head(document) for text in line.lines), *list_remarks(document)])


@pytest.mark.parametrize("change", [{"reference": "gone"}, {"n": 0}, {"outputs": ()}])
def test_a_comparison_with_nothing_is_none(change: dict[str, object]) -> None:
    rows = [make_result(median_ms=20), make_result("ort", median_ms=10, drift=replace(AGREE, **change), seed=1)]
    document = describe(*rows)
    assert document.rows[1].agreement.outputs_agree is None
    assert document.fastest is not None and document.fastest.engine == "pytorch"


def test_a_baseline_without_outputs_is_not_the_reference() -> None:
    against = replace(AGREE, reference="ort-fp32-b1")
    rows = [
        make_result("trtexec", median_ms=5),
        make_result("ort", median_ms=20, drift=against, seed=1),
        make_result("openvino", median_ms=10, drift=against, seed=2),
    ]
    document = describe(*rows)
    assert document.rows[0].baseline == document.rows[0].id
    assert document.fastest is not None and document.fastest.engine == "openvino"


def test_the_limit_that_was_not_kept_is_named() -> None:
    rows = [make_result(accuracy=0.99), make_result("ort", median_ms=8, accuracy=0.99, drift=AGREE, seed=1)]
    assert "no configuration keeps p99 within 1 ms" in answer(*rows, p99_limit_ms=1.0)
    assert "p99" not in answer(*rows)


def test_a_p99_of_too_few_samples_is_no_proof_of_the_limit() -> None:
    few = make_result("ort", median_ms=8, processes=2, drift=AGREE, seed=1)
    assert "too few samples for a p99: whether it meets the limit is unknown" in answer(
        make_result(), few, p99_limit_ms=30.0
    )


def test_relabelled_configurations_are_a_series_of_their_own() -> None:
    fp32 = make_result("ort", median_ms=8)
    other = replace(
        make_result("ort", "fp16", median_ms=8, batch=8), engine=EngineSpec(backend="ort", precision="fp32", batch=8)
    )
    assert list_batches(describe(fp32, other).rows) == []


def test_an_unfinished_configuration_says_what_is_missing() -> None:
    document = describe(make_result(median_ms=2), make_result("ort", median_ms=3, status="partial", seed=1))
    assert ("ort fp32", "not finished: not all of its trials were measured") in list_warnings(document).lines
    failed = make_result("ort", median_ms=1, status="failed", reason="in trial 4: it was killed", processes=3)
    assert "Failed: ort: in trial 4: it was killed" in format_text(list_sections(describe(make_result(), failed)))


def test_a_warning_of_unmeasured_configurations_is_not_of_all_configurations() -> None:
    warning = ResultWarning(code="fallback", message="three nodes ran elsewhere")
    rows = [
        make_result(warnings=(warning,)),
        make_result("ort", median_ms=8, drift=AGREE, seed=1),
        make_result("openvino", status="failed", reason="died", warnings=(warning,)),
    ]
    found = dict(reversed(line) for line in list_warnings(describe(*rows)).lines)
    assert found["three nodes ran elsewhere"] == "pytorch fp32"


def test_outputs_that_are_no_longer_compared_fail_the_gate() -> None:
    base, cand = make_result("ort", drift=AGREE), make_result("ort")
    for drift in (None, refuse_drift(AGREE.reference, ["output 'y' is missing from the candidate"])):
        (row,) = diff_results([base], [replace(cand, drift=drift)], neighbours=True).rows
        assert row.failures == ("the base's outputs were compared with a reference, the candidate's were not",)
    (row,) = diff_results([base], [replace(cand, drift=replace(AGREE, reference=cand.id))], neighbours=True).rows
    assert "compared with its own alone" in format_reasons(row)


def test_a_head_for_the_calls_of_a_process_says_so() -> None:
    rows = [
        start(make_result(median_ms=20), import_s=1.0),
        start(make_result("ort", median_ms=10, drift=AGREE, seed=1), import_s=0.1),
        start(make_result("openvino", median_ms=2, drift=AGREE, seed=2), import_s=9.0),
    ]
    text = answer(*rows, for_calls=300)
    assert text.startswith("ort fp32   3.12 s for 300 calls in a new process   2.25x pytorch fp32"), text
    assert "p99" not in text
    text = answer(*rows, needs={"first-output": 1.5})
    assert text.startswith("ort fp32") and "openvino fp32 is 10" in text
    assert "takes 9.01 s to its first output; needed: 1.5 s" in text
    assert "no configuration meets all that is needed: openvino fp32 takes" in answer(*rows, needs={"memory": 1.0})


def start(result: Result, import_s: float) -> Result:
    measured = [replace(m, import_s=import_s, load_s=0.01, first_run_s=0.002) for m in result.measurements]
    return replace(result, measurements=tuple(replace(m, peak_memory_bytes=9_000_000) for m in measured))
