"""The C side really runs the same library, and the figures are those of the rounds."""

import math
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy import stats

from graphs import write_text
from scripts import load_script


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
