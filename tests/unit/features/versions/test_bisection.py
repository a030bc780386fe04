"""Bisection over simulated versions, judged by the comparison that rows are judged by."""

import numpy as np
import pytest

from enginebench.core.records import Block, Measurement
from enginebench.features.versions.bisect import Judgement, find_first_bad
from enginebench.stats.compare import compare

VERSIONS = [f"1.{i}" for i in range(12)]


def measure(median_ns: float, repetition: int) -> Measurement:
    samples = [round(median_ns)] * 20
    block = Block(start=0, stop=20, duration_ns=sum(samples))
    return Measurement(clock="host", latency_ns=samples, blocks=(block,), stop_rule="settled", repetition=repetition)


def simulate(step_at: int, step: float, deviation: float, seed: int, margin: float) -> str | None:
    """The first bad version that is found where version `step_at` brings the step."""
    rng = np.random.default_rng(seed)

    def judge(version: str, repetitions: int) -> Judgement:
        slow = 1 + step if VERSIONS.index(version) >= step_at else 1.0
        base, cand = (
            [measure(1e6 * factor * np.exp(deviation * rng.standard_normal()), i) for i in range(repetitions)]
            for factor in (1.0, slow)
        )
        verdict = compare(base, cand, margin=margin).verdict
        if verdict == "not_shown":
            return "not_shown"
        return "bad" if verdict == "slower" else "good"

    return find_first_bad(VERSIONS, judge, repetitions=10)[1]


def test_a_hidden_step_is_found() -> None:
    """5 % in one of 12 versions, processes that scatter by 1 %: at least 95 of 100."""
    places = np.random.default_rng(0).integers(1, 12, 100)
    right = sum(simulate(int(place), 0.05, 0.01, seed, 0.02) == VERSIONS[place] for seed, place in enumerate(places))
    assert right >= 95, right


def test_without_a_step_nothing_is_blamed() -> None:
    blamed = [simulate(99, 0.05, 0.01, seed, 0.02) for seed in range(100)]
    assert sum(version is not None for version in blamed) <= 5


Found = tuple[str | None, str | None, tuple[str, ...]]


def judge_by(answers: dict[str, list[Judgement]]) -> tuple[list[tuple[str, int]], Found]:
    asked: list[tuple[str, int]] = []

    def judge(version: str, repetitions: int) -> Judgement:
        asked.append((version, repetitions))
        return answers[version].pop(0)

    return asked, find_first_bad(list(answers), judge, repetitions=6)


def test_what_is_not_shown_is_measured_with_more_repetitions() -> None:
    asked, found = judge_by({"1": [], "2": ["not_shown", "bad"], "3": ["bad"]})
    assert asked == [("3", 6), ("2", 6), ("2", 12)]
    assert found == ("1", "2", ())


def test_what_cannot_be_told_is_named_and_not_guessed() -> None:
    never: list[Judgement] = ["not_shown"] * 3
    asked, found = judge_by({"1": [], "2": ["good"], "3": list(never), "4": ["bad"], "5": ["bad"]})
    assert found == ("2", None, ("3", "4"))
    assert [count for version, count in asked if version == "3"] == [6, 12, 24]


@pytest.mark.parametrize("answer", ["good", "not_shown"])
def test_a_last_version_that_is_not_bad_ends_it(answer: Judgement) -> None:
    asked, found = judge_by({"1": [], "2": [], "3": [answer] * 3})
    assert found == (None, None, ())
    assert {version for version, _ in asked} == {"3"}


def test_neighbours_need_no_step() -> None:
    assert judge_by({"1": [], "2": ["bad"]})[1] == ("1", "2", ())
