"""The scripts of `benchmarks`: what they print, their cases and their limits; not the figures of this machine."""

import json
import math
import runpy
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from enginebench.models.zoo import packaged_onnx
from graphs import write_text
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


def test_a_case_reports_time_and_memory_and_digits_keep_their_outputs(tmp_path: Path) -> None:
    script = load_script("benchmarks/quantize.py")
    path = packaged_onnx("digits-cnn")
    assert path is not None
    large = np.ones(600_000_000, np.uint8)  # what the parent holds is none of the case's
    found = script.spawn_case("percentile", path, 4, tmp_path)
    assert found["seconds"] > 0 and found["cpu_seconds"] > 0 and 10_000_000 < found["peak_bytes"] < large.nbytes
    assert (tmp_path / "q.onnx").is_file()
    script = load_script("benchmarks/quantize.py")
    top1, base, cosine = script.quantize_digits("digits-cnn", "cpu", "minmax", tmp_path)
    row = {"model": "digits-cnn", "recipe": "cpu", "method": "minmax"}
    assert script.find_missed([{**row, "top1": top1, "top1_fp32": base, "centred_cosine": cosine}], []) == []


def test_searches_find_the_best_and_believing_single_figures_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tune = load_script("benchmarks/tune.py")
    missed = [figure for figure in tune.judge_searches(60) if not figure.passed]
    assert not missed
    # Halving by rank after one process each: it crowns noise often enough to miss the limit.
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
def test_verdicts_are_right_and_intervals_cover_as_often_as_promised(paired: bool) -> None:
    verdicts = load_script("benchmarks/verdicts.py")
    missed = [f for f in verdicts.judge_verdicts(400, paired=paired) if not f.passed]
    assert not missed
    verdicts = load_script("benchmarks/verdicts.py")
    # Three standard errors of 500 runs around 95 %.
    assert 0.921 <= verdicts.cover_p50(500, 6, seed=7) <= 0.979


@pytest.mark.parametrize("cover", ["cover_mix", "cover_mix_ratio"])
def test_intervals_of_a_mix_cover_as_often_as_promised(cover: str) -> None:
    verdicts = load_script("benchmarks/verdicts.py")
    assert 0.921 <= getattr(verdicts, cover)(500, verdicts.MIXES["70 % of 1, 30 % of 8"]) <= 0.985


# The C side really runs the same library, and the figures are those of the rounds.


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load_script("benchmarks/ort_against_c.py")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(x @ w), with a dynamic batch, at a path with a blank and a non-ASCII letter."""
    text = "(float[batch, 8] x) => (float[batch, 4] y) { h = MatMul(x, w) y = Relu(h) }"
    weights = {"w": np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)}
    return write_text(tmp_path_factory.mktemp("graph") / "tiny é 1.onnx", text, weights, opset=20)


def test_both_sides_answer_alike_and_are_timed(benchmark: ModuleType, graph: Path, tmp_path: Path) -> None:
    code = benchmark.compile_bare_loop(tmp_path)
    rounds = benchmark.measure_rounds(code, graph, Namespace(rounds=2, pairs=1, threads=1))
    found = benchmark.compare_rounds("tiny", rounds)
    assert (found.rounds, found.pairs_per_round) == (2, 1)
    assert found.ours_us > 0
    assert found.bare_us > 0
    assert found.within_limits  # it has none
    assert "tiny" in benchmark.format_comparison(found)


def test_intervals_are_taken_over_rounds(benchmark: ModuleType) -> None:
    ratios = [1.00, 1.02, 1.01, 0.99]
    rounds = [[benchmark.Pair(1000.0 * r, 1000.0, 0.5)] * 3 for r in ratios]
    found = benchmark.compare_rounds("mobilenet_v3_small", rounds)
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, 3) * stats.sem(logs)
    assert found.ratio.value == pytest.approx(math.exp(logs.mean()))
    assert found.ratio.high == pytest.approx(math.exp(logs.mean() + half))
    assert found.added_us.value == pytest.approx(0.005)
    assert found.foreign_cpu_cores == 0.5
    assert not found.within_limits
