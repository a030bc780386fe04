"""`bench --against` holds the answers of both sides against each other: what makes it say no, and what it then says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from processes import Cli

FAST = ("--warmup", "2", "--iters", "20", "--processes", "1")


def make_scale(
    path: Path,
    factor: float,
    *,
    given: str = "x",
    answer: str = "y",
    shape: tuple[int | str, ...] = ("n", 4),
    dtype: int = TensorProto.FLOAT,
) -> Path:
    """A graph y = factor * x."""
    np_dtype = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        [helper.make_node("Mul", [given, "factor"], [answer])],
        "scale",
        [helper.make_tensor_value_info(given, dtype, shape)],
        [helper.make_tensor_value_info(answer, dtype, shape)],
        [numpy_helper.from_array(np.array(factor, np_dtype), "factor")],
    )
    return save(path, graph)


def save(path: Path, graph: onnx.GraphProto) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def bench(cli: Cli, *args: object) -> dict[str, Any]:
    done = cli("bench", *args, *FAST, "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_the_same_function_in_two_files_agrees(cli: Cli, tmp_path: Path) -> None:
    one = make_scale(tmp_path / "a.onnx", 3)
    two = make_scale(tmp_path / "b.onnx", 3.0000001)
    document = bench(cli, one, "--engine", "openvino", "--against", f"ort@{two}")
    comparison = document["comparison"]
    assert (comparison["outputs_agree"], comparison["failures"]) == (True, [])
    assert document["row"]["max_abs_diff"] < 1e-5
    # Nothing was compared with the side that is the reference but itself.
    assert document["against"]["outputs_agree"] is document["against"]["max_abs_diff"] is None


def test_a_built_in_model_and_its_file_are_fed_alike(cli: Cli, tiny_onnx: Path) -> None:
    """By its name `digits-mlp` is fed digits, its file random arrays; that must not look like other answers."""
    for target, engine, other in (
        (tiny_onnx, "ort", "pytorch@digits-mlp"),
        ("digits-mlp", "pytorch", f"ort@{tiny_onnx}"),
    ):
        document = bench(cli, target, "--engine", engine, "--against", other)
        assert document["comparison"]["outputs_agree"] is True, document["comparison"]
        assert 0 < document["row"]["max_abs_diff"] < 1e-3
