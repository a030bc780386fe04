"""A convolution over lines of any width, arrays for it, and the rows that a run stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FAST = ("--warmup", 2, "--iters", 20, "--processes", 1)


def write_lines(folder: Path, batch: int | str = "batch") -> Path:
    """A convolution over lines of any width: OpenVINO refuses to compile it for a width of 1, where 3 is its least."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 8, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, "wide"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4, 1, None])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "lines.onnx"
    )
    return folder / "lines.onnx"


def draw(n: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 3, 8, width)).astype(np.float32)


def read_rows(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / "rows").glob("*.json")}
