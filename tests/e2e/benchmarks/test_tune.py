"""How often a search finds the best and what it costs: the figures of `benchmarks/tune.py` on fewer searches."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "tune.py"


@pytest.fixture(scope="module")
def tune() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("tune_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tune_benchmark"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tune_benchmark"]


def test_searches_find_the_best_and_nothing_where_there_is_nothing(tune: ModuleType) -> None:
    missed = [figure for figure in tune.judge_searches(60) if not figure.passed]
    assert not missed


def test_a_race_that_believes_single_figures_would_be_seen(tune: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving by rank after one process each: it crowns noise often enough to miss the limit."""

    class ByRank:
        def __init__(self, names: list[str]) -> None:
            self.alive, self.over, self.leader = names, False, ""

        def list_turns(self) -> list[str]:
            return self.alive

        def add_round(self, costs: dict[str, float]) -> None:
            self.leader, self.over = min(costs, key=lambda name: costs[name]), True

    monkeypatch.setattr(tune, "Race", ByRank)
    found = next(iter(tune.judge_searches(60)))
    assert not found.passed
