"""Trials that end early: how often that is wrong, what is printed then, and which rows go on."""

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.limits import LEVELS, MARGIN, MOST
from enginebench.core.records import Drift, Result
from enginebench.stats.assessment import assess_result, compare_configurations
from enginebench.stats.compare import can_change, find_level, list_open
from enginebench.stats.diff import diff_results
from enginebench.stats.intervals import Spread, quantile_of_t
from enginebench.stats.ranking import USUAL, Rules, list_relevant_pairs
from samples import make_result, make_scores
from scripts import load_script


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    return load_script("benchmarks/sequential.py")


def test_all_looks_together_miss_the_truth_as_often_as_one_should() -> None:
    """Whoever looks three times at 95 % misses in 9.6 % of all runs, and by levels of normal theory in 5.8 %."""
    values = np.random.default_rng(0).standard_normal((200_000, MOST))
    missed = np.zeros(len(values), dtype=bool)
    for trials, level in LEVELS.items():
        seen = values[:, :trials]
        error = seen.std(axis=1, ddof=1) / math.sqrt(trials)
        missed |= np.abs(seen.mean(axis=1)) > quantile_of_t((1 + level) / 2, trials - 1) * error
    assert 0.0475 < missed.mean() < 0.0525


def test_simulated_runs_keep_the_error_and_the_coverage(simulation: ModuleType) -> None:
    figures = simulation.simulate(210, early=True)
    assert simulation.list_missed(figures) == []
    assert figures["trials of a configuration"] < 8.5, "most rows end early"


def test_stored_runs_of_ten_trials_would_have_said_the_same(simulation: ModuleType) -> None:
    found = simulation.replay(np.random.default_rng(0), orders=4)
    assert found["replayed runs"] >= 28 and found["opposite verdicts"] == 0
    assert found["the same named early"] == found["USE named by ten trials"] > 20
    assert found["trials"] < 0.8 * found["trials of ten each"]


@pytest.mark.parametrize(
    ("mean", "deviation", "goes_on"),
    [
        (0.5, 0.05, False),  # faster, whatever comes
        (-0.5, 0.05, False),
        (0.0, 0.004, False),  # equivalent
        (0.06, 0.04, True),  # a little more would show it
        (-0.06, 0.04, True),
        (0.0, 0.2, False),  # ten trials show nothing here
        (0.005, 0.02, True),  # they might show that it is equivalent
    ],
)
def test_more_trials_only_where_they_can_show_something(mean: float, deviation: float, goes_on: bool) -> None:
    spread = Spread(mean=mean, error=deviation / math.sqrt(6), freedom=5, n=6)
    assert can_change(spread, 6, MARGIN) == goes_on
    assert not can_change(spread, MOST, MARGIN)


def test_a_configuration_that_ended_keeps_nobody_going(simulation: ModuleType) -> None:
    sway = 0.04 * np.array([1, -1] * 5)
    close = [simulation.make_row(name, np.exp(logs) * 1e6) for name, logs in (("a", 0 * sway), ("b", 0.06 + sway))]
    far = simulation.make_row("c", np.exp(1 + sway / 10) * 1e6)
    rows = [simulation.cut(row, 6) for row in (*close, far)]
    pairs = {frozenset(pair) for pair in ("ab", "ac", "bc")}
    assert list_open(rows, 6, MARGIN, pairs) == {"a", "b"}
    longer = [simulation.cut(row, 8) for row in close]
    assert "c" not in list_open([*longer, replace(rows[2], look=6)], 8, MARGIN, pairs)
    assert list_open([longer[0], replace(rows[1], look=6)], 8, MARGIN, pairs) == set()


def test_which_of_two_is_faster_is_asked_only_where_the_answer_names_one(simulation: ModuleType) -> None:
    """The leader, whoever is not clearly slower, and the baseline: two others that are close keep nobody going."""
    sway = 0.04 * np.array([1, -1] * 3)
    logs = {"row-0": 2 + sway / 10, "a": 0 * sway, "b": 0.06 + sway, "best": sway / 10 - 1}
    rows = [simulation.make_row(name, np.exp(log) * 1e6) for name, log in logs.items()]

    def ask(rows: Sequence[Result]) -> tuple[set[str], set[str]]:
        pairs = list_relevant_pairs(rows, 6)
        told = {row.id for row in rows if all({row.id, other.id} in pairs for other in rows if other is not row)}
        return told, list_open(rows, 6, MARGIN, pairs)

    assert ask(rows) == ({"row-0", "best"}, set())
    assert ask(rows[:3]) == ({"row-0", "a", "b"}, {"a", "b"}), "without it one of the two may lead"
    ended = [replace(row, look=6) if row.id == "best" else row for row in rows]
    assert ask(ended)[0] == {"row-0", "best"}, "who ended still leads"
    far = replace(simulation.SAME, snr_db=3.0)
    changed = replace(rows[2], drift=Drift(n=32, outputs=(far,), reference="row-0", passed=False))
    assert ask([rows[0], rows[1], changed])[1] == set(), "who changes the outputs is not taken, however close"


def test_who_changes_the_outputs_is_asked_about_where_it_may_be_taken(simulation: ModuleType) -> None:
    """By a metric, of which it may lose as much as the user says."""
    sway, far = 0.04 * np.array([1, -1] * 3), replace(simulation.SAME, snr_db=3.0)
    bad = Drift(n=32, outputs=(far,), reference="row-0", passed=False)
    logs = {"row-0": 2 + sway / 10, "a": 0 * sway, "b": 0.06 + sway}
    first, *rest = [simulation.make_row(name, np.exp(log) * 1e6) for name, log in logs.items()]

    def score(row: Result, top1: float) -> Result:
        return replace(row, scores=make_scores(top1))

    changed = [replace(row, drift=bad, requested_precision="int8") for row in rest]
    scored = [score(first, 0.99), *(score(row, 0.96) for row in changed)]

    def list_asked_about(rows: Sequence[Result], rules: Rules = USUAL) -> set[str]:
        return list_open(rows, 6, MARGIN, list_relevant_pairs(rows, 6, rules))

    assert list_asked_about([first, *changed]) == set()
    assert list_asked_about([scored[0], *(score(row, 0.985) for row in changed)]) == {"a", "b"}
    assert list_asked_about(scored, Rules(max_metric_drop=0.05)) == {"a", "b"}


def test_the_interval_is_that_of_the_look(simulation: ModuleType) -> None:
    """In the table, in a comparison of two rows and in a `diff`; a pair counts as far as both go."""
    rng = np.random.default_rng(2)
    fixed = [simulation.make_row(n, np.exp(rng.normal(i, 0.05, MOST)) * 1e6) for i, n in enumerate("ab")]
    early = [replace(simulation.cut(row, 6), look=6) for row in fixed]
    plain = [replace(row, look=None) for row in early]

    def width(ratio: object) -> float:
        return math.log(ratio.high / ratio.low)  # type: ignore[attr-defined]

    wider = quantile_of_t((1 + LEVELS[6]) / 2, 5) / quantile_of_t(0.975, 5)
    found, narrow = (compare_configurations(*rows, MARGIN).ratio for rows in (early, plain))
    assert found is not None and narrow is not None and width(found) == pytest.approx(wider * width(narrow))
    mixed = compare_configurations(replace(fixed[0], look=10), early[1], MARGIN)
    assert mixed.ratio == found and mixed.reasons == (), (
        "the trials beyond the look have no partner, and that is no doubt"
    )
    assert assess_result(early[0], None).summary.p50.level == LEVELS[6]  # type: ignore[union-attr]
    sides = [([rows[0]], [replace(rows[1], id="a")]) for rows in (early, plain)]
    diffs = [diff_results(*side, neighbours=True).rows[0].ratio for side in sides]
    assert diffs == [found, narrow]


@pytest.mark.parametrize(("looks", "level"), [((None, None), 0.95), ((6, None), LEVELS[6]), ((10, 8), LEVELS[8])])
def test_the_first_look_decides(looks: tuple[int | None, ...], level: float) -> None:
    assert find_level(*(replace(make_result("ort"), look=look) for look in looks)) == level
