"""The script that weighs calibrating and quantizing: its cases and its limits, not the figures of this machine."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from enginebench.models.zoo import packaged_onnx

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "quantize.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_quantize", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_case_reports_time_and_memory(script: ModuleType, tmp_path: Path) -> None:
    path = packaged_onnx("digits-cnn")
    assert path is not None
    large = np.ones(600_000_000, np.uint8)  # what the parent holds is none of the case's
    found = script.spawn_case("percentile", path, 4, tmp_path)
    assert found["seconds"] > 0 and found["cpu_seconds"] > 0 and 10_000_000 < found["peak_bytes"] < large.nbytes
    assert (tmp_path / "q.onnx").is_file()


def test_digits_keep_their_answers(script: ModuleType, tmp_path: Path) -> None:
    top1, base, cosine = script.quantize_digits("digits-cnn", "cpu", "minmax", tmp_path)
    row = {"model": "digits-cnn", "recipe": "cpu", "method": "minmax"}
    assert script.find_missed([{**row, "top1": top1, "top1_fp32": base, "centred_cosine": cosine}], []) == []


@pytest.mark.parametrize(
    ("digits", "resources", "said"),
    [
        ({"top1": 0.98, "top1_fp32": 0.99, "centred_cosine": 1.0}, None, "top-1 98.00%"),
        ({"top1": 0.99, "top1_fp32": 0.99, "centred_cosine": 0.9}, None, "centred cosine 0.9"),
        (None, {"n": 256, "seconds": 181.0, "peak_bytes": 1}, "the limit is 180 s"),
        (None, {"n": 512, "seconds": 900.0, "peak_bytes": 2_100_000_000}, "the limit is 2 GB"),
    ],
)
def test_names_the_limit_that_was_missed(script: ModuleType, digits: Any, resources: Any, said: str) -> None:
    rows = [{"model": "digits-cnn", "recipe": "cpu", "method": "minmax", **digits}] if digits else []
    cases = [{"case": "entropy", **resources}] if resources else []
    (line,) = script.find_missed(rows, cases)
    assert said in line
