"""Who drops out of a race and when, and when a final says that the default was beaten: scripted costs, no clock."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.limits import MARGIN
from enginebench.features.tune.race import LOOKS, Final, Race, pool_spreads
from enginebench.stats.intervals import measure_spread


def run_race(race: Race, costs: dict[str, float], sd: float = 0.0, seed: int = 0) -> Race:
    rng = np.random.default_rng(seed)
    while not race.over:
        race.add_round({name: costs[name] * math.exp(sd * rng.standard_normal()) for name in race.list_turns()})
    return race


def test_who_is_far_behind_drops_out_at_the_first_look_and_the_drop_says_why() -> None:
    race = run_race(Race(["slow", "fast", "middle"]), {"slow": 1.9, "fast": 1.0, "middle": 1.5}, sd=0.01)
    assert race.leader == "fast" and race.alive == ["fast"] and race.rounds == 2
    first = next(drop for drop in race.drops if drop.candidate == "slow")
    assert first.round == 2 and first.leader == "fast" and "slower than the leader: 0.5" in first.reason
    assert first.ratio is not None and first.ratio.high is not None and first.ratio.high < 1
    assert race.measure_leads()["slow"] == pytest.approx(1.9, rel=0.03), "over the rounds that both ran"


def test_where_processes_differ_as_much_as_candidates_nobody_is_dropped() -> None:
    race = Race(["a", "b"])
    for costs in ({"a": 1.0, "b": 1.3}, {"a": 1.3, "b": 1.1}, {"a": 1.1, "b": 1.2}):
        race.add_round(costs)
    assert race.alive == ["a", "b"]


def test_a_candidate_that_may_still_be_faster_by_more_than_the_margin_stays() -> None:
    """The best one was unlucky in the first round: two rounds of 5 % noise cannot tell, so it is not dropped."""
    race = Race(["lucky", "best", "other"])
    race.add_round({"lucky": 0.97, "best": 1.02, "other": 1.0})
    race.add_round({"lucky": 1.03, "best": 0.93, "other": 1.04})
    assert "best" in race.alive


def test_an_equal_that_cannot_be_worth_more_drops_out_and_says_so() -> None:
    race = Race(["a", "b"], looks=(4,))
    for a, b in ((1.0, 1.002), (1.002, 1.0), (1.0, 1.001), (1.001, 1.003)):
        race.add_round({"a": a, "b": b})
    (drop,) = race.drops
    assert race.alive == ["a"] and drop.ratio is not None and drop.ratio.high is not None and drop.ratio.high > 1
    assert drop.reason.startswith(f"not faster than the leader by more than {MARGIN:.1%}: ")


def test_a_race_ends_after_the_last_look_however_many_are_left() -> None:
    race = run_race(Race(["a", "b"]), {"a": 1.0, "b": 1.0}, sd=0.5)
    assert race.rounds == LOOKS[-1] and race.over


def test_rounds_go_back_and_forth_so_that_a_drift_favours_nobody() -> None:
    race = Race(["a", "b", "c"], looks=(6,))
    tick = 0
    while not race.over:
        costs = {}
        for name in race.list_turns():  # the machine becomes 2 % slower with every process
            tick += 1
            costs[name] = 1.02**tick
        race.add_round(costs)
    assert race.compare("a").mean == pytest.approx(0) and race.compare("c").mean == pytest.approx(0)


def test_who_fails_costs_itself() -> None:
    race = Race(["a", "b", "c"], first=7)
    race.add_round({"a": 1.0, "b": 2.0, "c": 1.1})
    race.fail("a", "the process was killed by SIGSEGV")
    race.add_round({"b": 2.0, "c": 1.1})
    assert race.drops[0].candidate == "a" and race.drops[0].round == 9 and race.leader == "c"
    assert race.drops[0].ratio is None and race.next_round == 9 and "a" not in race.measure_leads()
    race.fail("c", "x")
    assert race.leader is None and race.over and race.measure_leads() == {}


def test_variances_become_one_with_the_degrees_of_freedom_of_all() -> None:
    spreads = [measure_spread([x, x + width]) for x, width in ((0.0, 0.01), (1.0, 0.02), (2.0, 0.02))]
    pooled = pool_spreads(spreads)
    assert [s.mean for s in pooled] == [s.mean for s in spreads] and {s.freedom for s in pooled} == {3}
    assert [s.error for s in pooled] == [pytest.approx(math.sqrt((0.5 + 2 + 2) / 3) * 0.01 / math.sqrt(2))] * 3
    alone, single = measure_spread([1.0, 2.0, 4.0]), measure_spread([1.0])
    assert pool_spreads([alone]) == [alone] and pool_spreads([]) == []
    assert pool_spreads([single, single]) == [single, single]
    with_one = pool_spreads([alone, single])
    assert with_one[0].error == pytest.approx(alone.error) and with_one[1].error is None


def run_final(final: Final, costs: dict[str, float], sd: float = 0.005, seed: int = 0) -> Final:
    rng = np.random.default_rng(seed)
    while not final.over:
        final.add_round({name: costs[name] * math.exp(sd * rng.standard_normal()) for name in final.alive})
    return final


def test_a_challenger_that_is_ahead_beats_the_best_default() -> None:
    final = run_final(Final("new", ["a", "b"], length=10), {"new": 1.0, "a": 1.2, "b": 1.1})
    assert final.best_default == "b" and final.beaten and final.winner == "new" and final.rounds == 10
    found = final.compare("b")
    assert found is not None and found.ratio is not None and found.ratio.value == pytest.approx(1.1, rel=0.02)


def test_without_a_ratio_nobody_is_beaten() -> None:
    """The defaults starved, the challenger did not: by the costs alone it is 100 times as fast."""
    none = {"verdict": "not_comparable", "ratio": None, "ratio_validity": "not_given"}
    final = Final("new", ["a"], length=10, assess=lambda base, name, found: replace(found, **none))
    run_final(final, {"new": 1.0, "a": 100.0})
    assert not final.beaten and final.winner == "a" and final.rounds == 10


def test_what_is_clearly_faster_beats_the_default_before_a_verdict_has_its_trials() -> None:
    """Two trials of 1.46 and 3.8 ms once ended in "The default was not beaten: take the default"."""
    final = Final("new", ["a"], length=10, assess=lambda base, name, found: replace(found, clear=True))
    for _ in range(2):
        final.add_round({"new": 1.46, "a": 3.8})
    found = final.compare("a")
    assert found is not None and found.verdict == "not_shown" and final.winner == "new"


def test_a_challenger_that_was_lucky_leaves_the_default_as_the_winner() -> None:
    final = run_final(Final("new", ["a", "b"], length=10), {"new": 1.0, "a": 1.0, "b": 1.1})
    assert not final.beaten and final.winner == "a" == final.best_default and final.rounds == 10


def test_looking_twice_names_a_challenger_at_the_margin_as_rarely_as_the_level_allows() -> None:
    pairs = ((Final("new", ["a"], length=10), seed) for seed in range(300))
    finals = [run_final(final, {"new": 1.0, "a": 1 + MARGIN}, sd=0.02, seed=seed) for final, seed in pairs]
    assert sum(final.beaten for final in finals) <= 0.04 * len(finals)


def test_a_final_that_may_still_have_a_winner_goes_on_at_most_three_times_as_long() -> None:
    final = Final("new", ["a"], length=6)
    costs = [1.2, 0.9, 1.2, 0.9, 1.2, 0.9]  # of the default: ahead by 4 % on average, and not shown
    for cost in costs * 3:
        if final.over:
            break
        final.add_round({"new": 1.0, "a": cost})
    assert 6 < final.rounds <= 18 and final.over


def test_a_challenger_that_fails_in_the_final_has_not_won() -> None:
    final = Final("new", ["a"], length=6)
    for _ in range(5):
        final.add_round({"new": 1.0, "a": 2.0})
    final.fail("new", "the process was killed by SIGSEGV")
    final.add_round({"a": 2.0})
    assert final.over and not final.beaten and final.winner == "a"
