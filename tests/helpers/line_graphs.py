"""A convolution over lines of any width, arrays for it, and the rows that a run stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from graphs import write_text

FAST = ("--warmup", 2, "--iters", 20, "--processes", 1)


def write_lines(folder: Path, batch: int | str = "batch") -> Path:
    """A convolution over lines of any width: OpenVINO refuses to compile it for a width of 1, where 3 is its least."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 8, 3)).astype(np.float32)
    text = "(float[BATCH, 3, 8, wide] x) => (float[BATCH, 4, 1, out] y) { c = Conv(x, w) y = Relu(c) }"
    return write_text(folder / "lines.onnx", text.replace("BATCH", str(batch)), {"w": weights})


def draw(n: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 3, 8, width)).astype(np.float32)


def read_rows(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in (folder / "rows").glob("*.json")}
