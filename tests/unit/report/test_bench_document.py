"""The verdict of `bench`: what the answers of both sides make of it, and what it then says."""

import re

import pytest
from msgspec.structs import replace

from enginebench.core.records import Drift, Result
from enginebench.report.bench import BenchDocument, describe_bench, format_conclusion, format_state
from enginebench.stats.diff import DiffRow, diff_results
from enginebench.stats.drift import measure_drift, refuse_drift
from two_sides import SAME, WRONG, disturb, make_drift, make_sides


def judge(sides: list[Result]) -> tuple[BenchDocument, DiffRow]:
    """The document, and the comparison that `--json`, the exit code, JUnit and the summary come from."""
    document = describe_bench(sides)
    assert document.comparison is not None
    return document, document.comparison


@pytest.mark.parametrize(("median_ms", "verdict"), [(10.0, "faster"), (20.0, "equivalent"), (40.0, "slower")])
def test_the_times_decide_where_the_outputs_agree(median_ms: float, verdict: str) -> None:
    document, row = judge(make_sides(median_ms, make_drift(**SAME)))
    assert row.verdict == verdict and row.outputs_agree is True
    assert row.failures == (("slower",) if verdict == "slower" else ())
    assert document.comparison is not None
    assert format_conclusion(document.comparison).endswith("; the outputs agree within the limits.")


@pytest.mark.parametrize(
    ("median_ms", "verdict"), [(10.0, "not_comparable"), (20.0, "not_comparable"), (40.0, "slower")]
)
def test_no_verdict_that_passes_stands_on_other_outputs(median_ms: float, verdict: str) -> None:
    document, row = judge(make_sides(median_ms, make_drift(**WRONG)))
    assert row.verdict == verdict and row.outputs_agree is False and row.ratio is not None
    assert row.failures[0] == (
        "the outputs are not within the limits: logits: error is 0.237 of the signal, limit 0.001 "
        "(SNR 12.5 dB, limit 60); logits: correlation with the reference is 0.25, limit 0.9999 "
        "(centred cosine)"
    )
    assert document.comparison is not None and document.row.agreement.outputs_agree is False
    assert format_conclusion(document.comparison).count(row.failures[0]) == 1


def test_what_differs_is_not_allowed_as_not_comparable() -> None:
    sides = make_sides(10.0, make_drift(**WRONG))
    found = diff_results(sides[:1], sides[1:], neighbours=True, same_inputs=True, allow_not_comparable=True)
    assert found.gate_failed


@pytest.mark.parametrize(
    ("drift", "why"),
    [
        (None, "the outputs were not compared: cand showed none"),
        (refuse_drift("base", ["input 'z' is missing from cand"]), "cannot be compared: input 'z' is missing"),
        (replace(make_drift(**SAME), reference="cand"), "the outputs were not compared"),
        (measure_drift({}, {}, {}, reference_id="base"), "there is no sample that both sides have outputs for"),
        # A figure that an output does not have keeps every limit: one sample has no centred cosine.
        (make_drift(snr=None, centred=None, n=1), "1 samples of logits are too few for any limit"),
    ],
)
def test_nobody_says_that_they_agree_who_has_not_compared(drift: Drift | None, why: str) -> None:
    document, row = judge(make_sides(10.0, drift))
    assert row.verdict == "not_comparable" and row.outputs_agree is None and why in row.reasons[0]
    assert row.failures == ("not comparable",)
    assert document.row.agreement.outputs_agree is not True or (drift is not None and drift.n == 1)


def test_stored_runs_were_not_compared_with_each_other() -> None:
    base, cand = make_sides(10.0, replace(make_drift(**SAME), reference="another"))
    (row,) = diff_results([base], [cand]).rows
    assert row.outputs_agree is None


RANGE = r"\d\.\d+x \(\d\.\d+ to \d\.\d+\)"
STATES = {
    f"faster {RANGE}": {"median_ms": 10.0},
    r"slower 0\.\d+x \(0\.\d+ to 0\.\d+\)": {"median_ms": 40.0},
    f"no significant difference {RANGE}": {"median_ms": 20.0},
    r"undecided: the interval reaches across the margin, ±\d(\.\d)?%": {"median_ms": 20.3, "sd": 0.05},
    "undecided: fewer than 6 trials": {"median_ms": 10.0, "processes": 3},
}


@pytest.mark.parametrize("state", STATES)
def test_a_pull_request_gets_the_verdict_in_a_line(state: str) -> None:
    said = format_state(describe_bench(make_sides(drift=make_drift(**SAME), **STATES[state])))
    assert re.fullmatch(state, said), said


def test_a_busy_runner_is_named_as_the_reason() -> None:
    base, cand = make_sides(20.3, make_drift(**SAME), sd=0.05)
    said = format_state(describe_bench([disturb(base), disturb(cand)]))
    assert re.fullmatch(r"undecided: the CPU was busy, ±\d(\.\d)?%", said), said
    document = describe_bench([disturb(base, 10), disturb(cand, 10)])  # so busy that no ratio is given
    assert document.comparison is not None and document.comparison.ratio is None
    assert format_state(document) == "undecided: the CPU was busy"


@pytest.mark.parametrize(
    ("drift", "state"),
    [(make_drift(**WRONG), "not comparable: the outputs changed"), (None, "not comparable: the reason stands below")],
)
def test_no_text_of_the_models_stands_in_the_line(drift: Drift | None, state: str) -> None:
    base, cand = make_sides(10.0, drift)
    assert format_state(describe_bench([base, replace(cand, model="@everyone")])) == state
    assert format_state(describe_bench([cand])) == "one side, no verdict"
