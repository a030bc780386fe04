"""The verdict of `bench`: what the answers of both sides make of it, and what it then says."""

from typing import Any

import pytest
from msgspec.structs import replace

import samples
from enginebench.core.records import Drift, Result
from enginebench.report.bench import BenchDocument, describe_bench, format_conclusion
from enginebench.stats.diff import DiffRow, diff_results
from enginebench.stats.drift import limits_between, measure_drift, refuse_drift
from samples import make_result

SAME = {"snr": 140.0, "centred": 1.0}
WRONG = {"snr": 12.5, "centred": 0.25}


def make_drift(*, snr: float | None, centred: float | None, largest: float = 0.5, n: int = 32) -> Drift:
    limits = limits_between("fp32", "fp32")
    made = samples.make_drift(largest)
    output = replace(made.outputs[0], cosine_mean=centred, centred_cosine_mean=centred, snr_db=snr)
    passed = (snr is None or snr >= limits["snr"]) and (centred is None or centred >= limits["centred_cosine"])
    return replace(made, n=n, outputs=(output,), limits=limits, passed=passed, reference="base")


def make_sides(median_ms: float, drift: Drift | None, **fields: Any) -> list[Result]:
    """A base that takes 20 ms, and a candidate."""
    own = make_drift(**SAME, largest=0)
    base = replace(make_result(median_ms=20.0), id="base", drift=own)
    return [base, replace(make_result(median_ms=median_ms, seed=1, **fields), id="cand", drift=drift)]


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
        "(SNR 12.5 dB, limit 60); logits: its variation follows that of the reference by 0.25, limit 0.9999 "
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
