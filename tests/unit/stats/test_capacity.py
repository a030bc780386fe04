"""The search for a capacity: where it ends, what it does not believe, and what its verdicts say."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import Capacity
from enginebench.stats.capacity import CapacitySearch, agrees_with_probes, compare_capacities, join_capacities
from enginebench.stats.queueing import Limit

LIMIT = Limit(ms=10.0)


def search(first: float, true: float, *, lies: dict[int, bool] | None = None, most: int = 60) -> CapacitySearch:
    """A search on an engine that carries `true`; the probe of a number in `lies` answers that instead."""
    found = CapacitySearch(first, LIMIT)
    while (rate := found.next_rate()) is not None and len(found.probes) < most:
        number = len(found.probes)
        found.add(rate, (lies or {}).get(number, rate <= true))
    assert len(found.probes) < most
    return found


@pytest.mark.parametrize("first", [1.0, 60.0, 99.0, 101.0, 5000.0])
def test_the_ends_hold_the_truth_and_lie_within_five_per_cent(first: float) -> None:
    found = search(first, 100.0).describe(ended_early=False)
    assert found.passes_qps is not None and found.fails_qps is not None
    assert found.passes_qps <= 100.0 < found.fails_qps <= 1.05 * found.passes_qps
    assert found.ended == "settled"


def test_an_engine_that_holds_the_limit_nowhere_is_asked_down_to_idleness_and_no_further() -> None:
    found = search(100.0, 0.0)
    assert min(probe.qps for probe in found.probes) == pytest.approx(1.0)
    ended = found.describe(ended_early=False)
    assert ended.passes_qps is None and ended.ended == "nothing passes"
    rough = CapacitySearch(100.0, LIMIT, votes=1, lowest_share=0.1)
    while (rate := rough.next_rate()) is not None:
        rough.add(rate, False)
    assert min(probe.qps for probe in rough.probes) == pytest.approx(10.0)
    assert rough.describe(ended_early=False).ended == "nothing passes"


def test_few_probes_are_needed_though_both_ends_are_asked_twice() -> None:
    found = search(60.0, 100.0)
    counts = [sum(probe.qps == end for probe in found.probes) for end in found.find_ends()]
    assert counts == [2, 2] and len(found.probes) <= 12


@pytest.mark.parametrize("liar", range(8))
def test_one_probe_that_lies_is_repeated_and_not_believed(liar: int) -> None:
    """A burst of a neighbour fails a rate that holds, or a lucky minute passes one that does not."""
    honest = search(60.0, 100.0)
    wrong = not honest.probes[liar].passed
    found = search(60.0, 100.0, lies={liar: wrong})
    passes, fails = found.find_ends()
    assert passes is not None and fails is not None
    assert passes <= 100.0 < fails <= 1.06 * passes, found.probes


def test_rates_that_contradict_each_other_are_asked_again() -> None:
    found = CapacitySearch(100.0, LIMIT)
    found.add(100.0, False)
    found.add(200.0, True)
    assert found.next_rate() in (100.0, 200.0)


def test_time_that_runs_out_leaves_the_ends_as_they_stand() -> None:
    found = CapacitySearch(60.0, LIMIT)
    found.add(60.0, True)
    ended = found.describe(ended_early=True)
    assert (ended.passes_qps, ended.fails_qps, ended.ended) == (60.0, None, "budget")


def test_a_late_generator_at_an_end_is_reported() -> None:
    found = CapacitySearch(60.0, LIMIT)
    found.add(60.0, True, suspect=True)
    assert found.describe(ended_early=True).suspect
    found.add(90.0, True)
    assert not found.describe(ended_early=True).suspect


def test_ends_that_the_probes_do_not_show_are_seen() -> None:
    found = search(60.0, 100.0).describe(ended_early=False)
    assert agrees_with_probes(found)
    assert not agrees_with_probes(replace(found, passes_qps=9999.0))
    assert not agrees_with_probes(replace(found, fails_qps=None))


def make_rounds(middles: list[float]) -> list[Capacity]:
    return [Capacity(passes_qps=m / 1.02, fails_qps=m * 1.02, limit_ms=10.0, percentile=99.0) for m in middles]


def test_six_rounds_show_what_is_faster_equivalent_or_not_shown() -> None:
    rng = np.random.default_rng(3)
    base = [100 * math.exp(0.01 * x) for x in rng.standard_normal(6)]
    like = [100 * math.exp(0.01 * x) for x in rng.standard_normal(6)]
    names = ("a", "b")

    def judge(candidate: list[float], count: int = 6) -> str:
        return compare_capacities(make_rounds(base[:count]), make_rounds(candidate[:count]), names).verdict

    assert judge([1.3 * x for x in like]) == "faster"
    assert judge([0.7 * x for x in like]) == "slower"
    assert judge(like) == "equivalent"
    assert judge([x * f for x, f in zip(like, (0.8, 1.3, 1.0, 0.9, 1.2, 1.05), strict=True)]) == "not_shown"
    few = compare_capacities(make_rounds(base[:2]), make_rounds(like[:2]), names)
    assert few.verdict == "not_shown" and few.trials_needed == 6


def test_capacities_that_were_not_disturbed_alike_say_so() -> None:
    base, candidate = make_rounds([100.0, 101.0] * 3), make_rounds([130.0, 131.0] * 3)
    quiet = compare_capacities(base, candidate, ("a", "b"))
    assert (quiet.verdict, quiet.ratio_validity, quiet.reasons) == ("faster", "good", ())
    noisy = compare_capacities(base, [replace(one, suspect=True) for one in candidate], ("a", "b"))
    assert (noisy.verdict, noisy.ratio_validity) == ("not_shown", "low") and "slowed one side more" in noisy.reasons[0]


def test_where_no_rate_passes_there_is_nothing_to_compare() -> None:
    nothing = [Capacity(passes_qps=None, fails_qps=1.0, limit_ms=10.0, percentile=99.0)]
    found = compare_capacities(nothing, make_rounds([100.0]), ("a", "b"))
    assert found.verdict == "not_comparable" and found.ratio is None


def test_rounds_are_joined_to_what_passed_in_all_and_failed_in_all() -> None:
    joined = join_capacities(make_rounds([100.0, 110.0]))
    assert joined is not None and joined.passes_qps == pytest.approx(100 / 1.02)
    assert joined.fails_qps == pytest.approx(110 * 1.02)


def cut_round(passes: float | None, fails: float | None) -> Capacity:
    return Capacity(passes_qps=passes, fails_qps=fails, limit_ms=10.0, percentile=99.0, ended="budget")


def test_a_round_that_the_time_ended_takes_nothing_from_those_that_came_to_their_ends() -> None:
    joined = join_capacities([*make_rounds([100.0, 102.0]), cut_round(None, 101.0)])
    assert joined is not None and joined.passes_qps == pytest.approx(100 / 1.02)
    assert joined.ended == "settled"
    alone = join_capacities([cut_round(60.0, None)])
    assert alone is not None and (alone.passes_qps, alone.ended) == (60.0, "budget")


def test_ends_that_have_not_met_are_no_capacity_to_compare() -> None:
    """The middle of 60 and 600 is where the time ran out."""
    base, candidate = make_rounds([100.0] * 6), make_rounds([130.0, 131.0, 129.0, 130.5, 130.0, 129.5])
    whole = compare_capacities(base, candidate, ("a", "b"))
    cut = compare_capacities([*base, cut_round(60.0, 600.0)], [*candidate, cut_round(60.0, 66.0)], ("a", "b"))
    assert whole.verdict == "faster" and cut == whole
    none = compare_capacities([cut_round(60.0, 600.0)], [cut_round(60.0, 66.0)], ("a", "b"))
    assert none.verdict == "not_comparable" and none.ratio is None and "--time-budget" in none.reasons[0]
