"""Configurations by what a process costs: its start, its calls, and what a user needs beside speed."""

import itertools
import random

import pytest
from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.stats.life import LifeCosts, find_leads
from enginebench.stats.ranking import Rules, rank_results
from samples import make_drift, make_result

AGREE = make_drift(1e-6)


def make_started(engine: str, median_ms: float, start_s: float, *, seed: int = 0, memory: int = 100_000_000) -> Result:
    """A configuration whose trials start in `start_s`, half of it in the import, within one percent."""
    result = make_result(engine, median_ms=median_ms, drift=AGREE, seed=seed)
    starts = random.Random(seed)
    measurements = [
        replace(
            m,
            import_s=start_s / 2,
            load_s=start_s / 4,
            first_run_s=start_s / 4 * starts.uniform(0.98, 1.02),
            peak_memory_bytes=memory,
        )
        for m in result.measurements
    ]
    return replace(result, measurements=tuple(measurements))


def find_named(rows: list[Result], **rules: object) -> str:
    (headline,) = rank_results(rows, Rules(**rules)).headlines  # type: ignore[arg-type]
    return headline.id


# 10 ms a call and 0.2 s to start, against 1 ms a call and 20 s: equal at 2,200 calls.
SLOW_CALLS, SLOW_START = make_started("ort", 10.0, 0.2, seed=1), make_started("pytorch-compile", 1.0, 20.0, seed=2)
ROWS = [make_started("pytorch", 40.0, 3.0, seed=3), SLOW_CALLS, SLOW_START]


@pytest.mark.parametrize(
    ("calls", "named"), [(None, SLOW_START.id), (1, SLOW_CALLS.id), (1500, SLOW_CALLS.id), (3000, SLOW_START.id)]
)
def test_the_calls_of_a_process_decide_which_one_is_named(calls: int | None, named: str) -> None:
    assert find_named(ROWS, for_calls=calls) == named


def test_the_time_of_a_process_is_its_start_and_its_calls() -> None:
    (headline,) = rank_results(ROWS, Rules(for_calls=300)).headlines
    assert headline.total_ms is not None and headline.total_ms.value == pytest.approx(200 + 300 * 10, rel=0.02)
    assert headline.total_ms.low is not None and headline.total_ms.low < headline.total_ms.value
    # Of PyTorch: 3 s and 300 calls of 40 ms.
    assert headline.ratio is not None and headline.ratio.value == pytest.approx(15 / 3.2, rel=0.02)


def test_what_the_table_shows_stays_that_of_a_call() -> None:
    plain, lives = (rank_results(ROWS, Rules(for_calls=calls)).assessments for calls in (None, 300))
    for one, other in zip(plain, lives, strict=True):
        assert one.summary == other.summary and one.speedup == other.speedup


def test_a_configuration_whose_start_is_unknown_is_not_named_for_its_calls() -> None:
    unknown = make_result("openvino", median_ms=0.5, drift=AGREE, seed=4)
    assert find_named([*ROWS, unknown]) == unknown.id
    assert find_named([*ROWS, unknown], for_calls=300) == SLOW_CALLS.id


def test_needs_decide_and_say_by_how_much_they_are_missed() -> None:
    rows = [*ROWS, make_started("openvino", 2.0, 0.98, seed=5, memory=612_000_000)]
    assert find_named(rows, needs={"memory": 700e6, "first-output": 1.0}) == rows[-1].id
    (headline,) = rank_results(rows, Rules(needs={"first-output": 0.5})).headlines
    assert headline.id == SLOW_CALLS.id and headline.rejected is not None
    assert (
        headline.rejected.id == SLOW_START.id and "20 s to its first output; needed: 0.5 s" in headline.rejected.reason
    )
    (headline,) = rank_results(rows, Rules(needs={"memory": 500e6, "first-output": 5.0})).headlines
    assert headline.id == SLOW_CALLS.id


def test_where_nothing_meets_the_needs_there_is_an_answer_that_says_so() -> None:
    (headline,) = rank_results(ROWS, Rules(needs={"memory": 1e6})).headlines
    assert headline.id == SLOW_START.id
    assert headline.unmet == ("takes 100 MB of memory; needed: 1 MB",)
    assert rank_results(ROWS, Rules(needs={"memory": 1e6})).recommended is None


def test_break_even_is_that_of_counting() -> None:
    """Against adding up what each configuration costs for every number of calls."""
    chance = random.Random(7)
    for _ in range(200):
        costs = [
            LifeCosts(
                id=str(i),
                build_s=chance.choice([0, 5, 40]),
                start_s=chance.uniform(0, 5),
                call_s=chance.uniform(1e-3, 0.2),
            )
            for i in range(chance.randint(1, 6))
        ]
        for with_build in (False, True):
            leads = find_leads(costs, with_build=with_build)
            assert leads[0].first == 1 and leads[-1].last is None
            assert all(one.last is not None and one.last + 1 == other.first for one, other in itertools.pairwise(leads))
            for lead in leads:
                for n in {lead.first, lead.last or lead.first + 1000}:
                    totals = {c.id: c.start_s + with_build * c.build_s + n * c.call_s for c in costs}
                    assert totals[lead.id] == pytest.approx(min(totals.values()), rel=1e-9), (n, leads)


def test_a_turn_that_rests_on_noise_is_not_sure() -> None:
    first = LifeCosts(id="a", build_s=0, start_s=0.1, call_s=1.0e-3, call_low_s=0.9e-3, call_high_s=1.1e-3)
    noisy = LifeCosts(id="b", build_s=0, start_s=0.5, call_s=0.98e-3, call_low_s=0.9e-3, call_high_s=1.05e-3)
    sure = LifeCosts(id="c", build_s=0, start_s=0.5, call_s=0.5e-3, call_low_s=0.4e-3, call_high_s=0.6e-3)
    assert [lead.sure for lead in find_leads([first, noisy])] == [True, False]
    assert [lead.sure for lead in find_leads([first, sure])] == [True, True]
