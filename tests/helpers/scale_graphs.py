"""Graphs y = factor * x, and what bench says of two of them."""

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
