"""Trials that resemble the ones before them: how much wider the interval is, and which verdicts are withheld."""

import math
from types import ModuleType

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.limits import LEVELS, MARGIN
from enginebench.core.records import Measurement
from enginebench.stats.assessment import add_ratio_validity
from enginebench.stats.compare import can_change, compare, compare_apart, count_needed, decide_verdict
from enginebench.stats.intervals import (
    Spread,
    estimate_autocorrelation,
    is_correlated,
    measure_series,
    measure_spread,
    widen_error,
)
from scripts import load_script

RUNS = 300
NAMES = ("base", "candidate")


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    return load_script("benchmarks/verdicts.py")


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ["normal", "two states", "rare slow processes", "spikes"])
def test_independent_trials_keep_their_coverage(verdicts: ModuleType, name: str, early: bool) -> None:
    tally = verdicts.count_noise(verdicts.INDEPENDENT[name], RUNS, early=early)
    assert tally.covered >= 0.93 and tally.wrong <= 0.05
    assert tally.trials < 8.5 or not early, "most pairs end early"


@pytest.mark.parametrize("n", [6, 8, 10, 20])
def test_independent_trials_have_hardly_wider_intervals(n: int) -> None:
    series = np.random.default_rng(0).normal(size=(10_000, n)).tolist()
    errors = [(measure_series(values).error or 0.0) / (measure_spread(values).error or 1.0) for values in series]
    assert min(errors) == 1 and np.mean(errors) <= 1.1 and np.median(errors) == 1


@pytest.mark.parametrize("name", ["drifting machine", "warming machine"])
def test_alternating_rounds_cancel_what_the_machine_does(verdicts: ModuleType, name: str) -> None:
    tally = verdicts.count_noise(verdicts.SHARED[name], RUNS, early=True)
    assert tally.covered >= 0.93 and tally.wrong <= 0.05


def test_the_same_order_in_every_round_would_not(verdicts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "order_round", lambda sides, number: sides)
    assert verdicts.count_noise(verdicts.draw_warming, RUNS, early=True).covered < 0.8


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", ["each side AR(1) 0.8", "each side a random walk"])
def test_equal_sides_that_drift_apart_are_called_different_half_as_often(
    verdicts: ModuleType, name: str, early: bool
) -> None:
    draw, most = verdicts.OWN[name]
    assert verdicts.count_noise(draw, RUNS, early=early).equal_called_different <= most


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 6), (0.3, 6), (0.8, 10), (0.95, 40)])
def test_the_error_is_widened_by_what_a_matrix_of_correlations_gives(correlation: float, n: int) -> None:
    matrix = correlation ** np.abs(np.subtract.outer(np.arange(n), np.arange(n)))
    of_mean = matrix.sum() / n**2
    centred = np.eye(n) - 1 / n
    of_values = np.trace(centred @ matrix) / (n - 1)
    assert widen_error(correlation, n) == pytest.approx(math.sqrt(of_mean / (of_values / n)))


def test_autocorrelation_by_hand() -> None:
    assert estimate_autocorrelation([1, 2, 3, 4]) == pytest.approx((1.5 * 0.5 - 0.5 * 0.5 + 0.5 * 1.5) / 5)
    assert estimate_autocorrelation([1, -1] * 3) == pytest.approx(-5 / 6)
    assert estimate_autocorrelation([2.0] * 6) == 0


@pytest.mark.parametrize("chance", [0.05, 0.01])
@pytest.mark.parametrize("n", [6, 10])
def test_independent_trials_are_called_correlated_as_rarely_as_said(n: int, chance: float) -> None:
    series = np.random.default_rng(0).normal(size=(20_000, n)).tolist()
    found = sum(is_correlated(estimate_autocorrelation(values), n, chance) for values in series) / len(series)
    assert found <= 1.2 * chance


def test_values_that_swing_back_and_few_values_stay_as_they_are() -> None:
    for values in ([0.1, -0.1] * 4, [0.1, 0.2, 0.3, 0.4], [0.1], [0.2] * 6):
        plain, series = measure_spread(values), measure_series(values)
        assert (series.mean, series.error, series.caution) == (plain.mean, plain.error, 1.0)


def make_side(logs: list[float]) -> list[Measurement]:
    return [
        Measurement(clock="host", latency_ns=[round(1e7 * math.exp(log))] * 3, blocks=(), stop_rule="settled", trial=i)
        for i, log in enumerate(logs)
    ]


# Candidate logs whose pairs grow apart: plainly faster by Student's t, but by a drift and not by a difference.
DRIFTING = [-0.024, -0.029, -0.034, -0.039, -0.044, -0.049, -0.054, -0.059, -0.064, -0.069]
SHUFFLED = [DRIFTING[i] for i in (0, 9, 1, 8, 2, 7, 3, 6, 4, 5)]


def test_a_drift_between_the_sides_gets_no_verdict_and_says_why() -> None:
    base = make_side([0.0] * 10)
    steady = compare(base, make_side(SHUFFLED))
    drifting = compare(base, make_side(DRIFTING))
    assert (steady.verdict, drifting.verdict) == ("faster", "not_shown")
    assert drifting.ratio is not None and steady.ratio is not None
    assert drifting.ratio.value == pytest.approx(steady.ratio.value)
    assert drifting.ratio.low is not None and steady.ratio.low is not None
    assert drifting.ratio.low < steady.ratio.low and (drifting.autocorrelation or 0) > 0.6
    trusted = add_ratio_validity(drifting, base, make_side(DRIFTING), NAMES)
    assert (trusted.ratio_validity, trusted.clear) == ("low", False)
    assert "neighbouring trials resemble each other, autocorrelation 0.7" in trusted.ratio_reason


def test_a_large_difference_is_shown_all_the_same() -> None:
    base, cand = make_side([0.0] * 10), make_side([log - 1 for log in DRIFTING])
    found = add_ratio_validity(compare(base, cand), base, cand, NAMES)
    assert (found.verdict, found.ratio_validity, found.clear) == ("faster", "low", True)


def test_six_trials_that_may_be_correlated_do_not_end_early() -> None:
    """A little autocorrelation of few trials is estimated too low; a verdict that is not certain waits for more."""
    calm = [0.046, 0.033, 0.048, 0.035, 0.047, 0.032]
    wavy = [0.032, 0.035, 0.047, 0.048, 0.046, 0.033]
    assert sorted(calm) == sorted(wavy)
    shown, waiting, clear = (measure_series(values) for values in (calm, wavy, [10 * value for value in wavy]))
    assert [decide_verdict(spread, MARGIN, LEVELS[6])[0] for spread in (shown, clear)] == ["faster"] * 2
    assert [can_change(spread, 6, MARGIN) for spread in (shown, waiting, clear)] == [False, True, False]


def test_a_verdict_that_is_withheld_names_the_autocorrelation() -> None:
    spread = Spread(mean=0.03, error=0.0035, freedom=9, n=10, correlation=0.3, caution=1.5)
    verdict, why = decide_verdict(spread, MARGIN)
    assert verdict == "not_shown"
    assert "resemble each other (autocorrelation 0.30)" in why and "1.5 times as wide" in why
    assert decide_verdict(replace(spread, caution=1.0), MARGIN) == ("faster", "")
    assert (count_needed(spread, MARGIN) or 0) > 10


def test_runs_made_apart_allow_for_the_drift_of_each_side() -> None:
    base, cand = make_side([0.0, 0.001] * 5), make_side(DRIFTING)
    found, steady = compare_apart(base, cand), compare_apart(base, make_side(SHUFFLED))
    assert found.ratio is not None and steady.ratio is not None
    assert (found.autocorrelation or 0) > 0.6 and (found.ratio.low or 0) < (steady.ratio.low or 0)
    assert (found.verdict, steady.verdict) == ("not_shown", "faster")


def test_builds_have_no_order() -> None:
    """Each build's value is a mean over the whole run: its neighbours are not those in time."""
    sides = (make_side([0.0] * 10), make_side(DRIFTING))
    built = [[replace(m, build=m.trial) for m in side] for side in sides]
    assert compare(*built).autocorrelation is None and compare(*built).verdict == "faster"


def test_margin_is_that_of_the_tool(verdicts: ModuleType) -> None:
    assert verdicts.MARGIN == MARGIN
