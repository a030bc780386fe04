"""The scripts of `benchmarks`: what they print, their cases and their limits; not the figures of this machine."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from enginebench.models.zoo import packaged_onnx
from processes import ROOT
from scripts import load_script


def test_it_prints_one_line_of_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loop_overhead.py", "--json"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / "loop_overhead.py"), run_name="__main__")
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["ns_per_sample"] > 0
    assert found["within_limit"] is (found["ns_per_sample"] < 500)
    assert ended.value.code == (0 if found["within_limit"] else 1)


def test_a_case_reports_time_and_memory(tmp_path: Path) -> None:
    script = load_script("benchmarks/quantize.py")
    path = packaged_onnx("digits-cnn")
    assert path is not None
    large = np.ones(600_000_000, np.uint8)  # what the parent holds is none of the case's
    found = script.spawn_case("percentile", path, 4, tmp_path)
    assert found["seconds"] > 0 and found["cpu_seconds"] > 0 and 10_000_000 < found["peak_bytes"] < large.nbytes
    assert (tmp_path / "q.onnx").is_file()


def test_digits_keep_their_answers(tmp_path: Path) -> None:
    script = load_script("benchmarks/quantize.py")
    top1, base, cosine = script.quantize_digits("digits-cnn", "cpu", "minmax", tmp_path)
    row = {"model": "digits-cnn", "recipe": "cpu", "method": "minmax"}
    assert script.find_missed([{**row, "top1": top1, "top1_fp32": base, "centred_cosine": cosine}], []) == []


def test_searches_find_the_best_and_nothing_where_there_is_nothing() -> None:
    tune = load_script("benchmarks/tune.py")
    missed = [figure for figure in tune.judge_searches(60) if not figure.passed]
    assert not missed


def test_a_race_that_believes_single_figures_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving by rank after one process each: it crowns noise often enough to miss the limit."""
    tune = load_script("benchmarks/tune.py")

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


@pytest.mark.parametrize("paired", [True, False])
def test_verdicts_are_right_as_often_as_promised(paired: bool) -> None:
    verdicts = load_script("benchmarks/verdicts.py")
    missed = [f for f in verdicts.judge_verdicts(400, paired=paired) if not f.passed]
    assert not missed


def test_p50_interval_covers_what_it_says() -> None:
    verdicts = load_script("benchmarks/verdicts.py")
    # Three standard errors of 500 runs around 95 %.
    assert 0.921 <= verdicts.cover_p50(500, 6, seed=7) <= 0.979
