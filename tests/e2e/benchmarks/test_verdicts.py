"""How often verdicts are right and intervals cover: the figures of `benchmarks/verdicts.py` on fewer runs."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "verdicts.py"


@pytest.fixture(scope="module")
def verdicts() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("verdicts", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdicts"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["verdicts"]


@pytest.mark.parametrize("paired", [True, False])
def test_verdicts_are_right_as_often_as_promised(verdicts: ModuleType, paired: bool) -> None:
    missed = [f for f in verdicts.judge_verdicts(400, paired=paired) if not f.passed]
    assert not missed


def test_p50_interval_covers_what_it_says(verdicts: ModuleType) -> None:
    # Three standard errors of 500 runs around 95 %.
    assert 0.921 <= verdicts.cover_p50(500, 6, seed=7) <= 0.979


def test_limits_can_be_missed(verdicts: ModuleType) -> None:
    assert not verdicts.at_least("x", 0.94, 0.95).passed
    assert not verdicts.at_most("x", 0.05, 0.04).passed
    assert not verdicts.below("x", 0.001, 0.001).passed
