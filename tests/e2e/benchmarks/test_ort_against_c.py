"""The C side really runs the same library, and the figures are those of the rounds."""

import importlib.util
import math
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy import stats

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "ort_against_c.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ort_against_c", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ort_against_c"] = module  # its records look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """relu(x @ w), with a dynamic batch, at a path with a blank and a non-ASCII letter."""
    weights = numpy_helper.from_array(np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", k]) for n, k in (("x", 8), ("y", 4))]
    model = helper.make_model(
        helper.make_graph(nodes, "tiny", ends[:1], ends[1:], [weights]),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=9,
    )
    path = tmp_path_factory.mktemp("graph") / "tiny é 1.onnx"
    onnx.save(model, path)
    return path


def test_both_sides_answer_alike_and_are_timed(benchmark: ModuleType, graph: Path, tmp_path: Path) -> None:
    code = benchmark.compile_bare_loop(tmp_path)
    rounds = benchmark.measure_rounds(code, graph, Namespace(rounds=2, pairs=1, threads=1))
    found = benchmark.compare_rounds("tiny", rounds)
    assert (found.rounds, found.pairs_per_round) == (2, 1)
    assert found.ours_us > 0
    assert found.bare_us > 0
    assert found.within_limits  # it has none
    assert "tiny" in benchmark.format_comparison(found)


def test_a_graph_that_cannot_be_read_gives_the_runtimes_own_words(benchmark: ModuleType, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a graph")
    code = benchmark.compile_bare_loop(tmp_path)
    with pytest.raises(RuntimeError, match=r"the C side failed: .*broken\.onnx"):
        benchmark.BareLoop(code, broken, 1, {}, {})


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


def test_limits_are_held_against_the_upper_end(benchmark: ModuleType) -> None:
    near = [[benchmark.Pair(100_900.0 + i, 100_000.0, None)] for i in range(4)]
    far = [[benchmark.Pair(101_100.0 + i, 100_000.0, None)] for i in range(4)]
    assert benchmark.compare_rounds("mobilenet_v3_small", near).within_limits
    assert not benchmark.compare_rounds("mobilenet_v3_small", far).within_limits
    assert benchmark.compare_rounds("digits-mlp", far).within_limits  # 1.1 us more
