"""The user's inputs and shapes through whole commands: what was given is what is fed, timed, compared and told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from processes import Cli

FAST = ("--warmup", 2, "--iters", 20, "--processes", 1)


def write_lines(folder: Path, batch: int | str = "batch") -> Path:
    """A convolution over lines of any width: OpenVINO refuses to compile it for a width of 1, where 3 is its least."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 8, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
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


def test_the_users_entries_are_compared_and_timed_and_their_shapes_told(cli: Cli, tmp_path: Path) -> None:
    """Three widths, five entries: all are compared, the first is timed; nothing is chosen, so no caveat says so."""
    path = write_lines(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for i, (n, width) in enumerate(((2, 11), (1, 7), (2, 11))):
        np.savez(folder / f"{i}.npz", x=draw(n, width, i))
    done = cli("run", path, "--engines", "ort,openvino", "--inputs", folder, "--out", "r", *FAST)
    assert done.returncode == 0, done.stderr
    assert "1x3x8x11" in done.stdout.replace("\n", "")
    rows = read_rows(tmp_path / "r")
    assert len(rows) == 2 and len(list((tmp_path / "r" / "artefacts" / "samples").glob("*.npz"))) == 5
    for row in rows.values():
        assert row["shapes"] == {"x": [1, 3, 8, 11]} and row["drift"]["n"] == 5
        assert not any(c["code"] == "chosen_shapes" for artifact in row["artifacts"] for c in artifact["caveats"])
    assert {row["engine"]["backend"]: row["axes"] for row in rows.values()} == {"ort": "open", "openvino": "fixed"}
    for name in ("report.html", "report.md", "table.csv"):
        assert "1x3x8x11" in (tmp_path / "r" / name).read_text(encoding="utf-8"), name
