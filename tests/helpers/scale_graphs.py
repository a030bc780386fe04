"""Graphs y = factor * x, and what bench says of two of them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from graphs import write_text
from processes import Cli

FAST = ("--warmup", "2", "--iters", "20", "--processes", "1")


def make_scale(
    path: Path, factor: float, *, given: str = "x", answer: str = "y", shape: str = "n, 4", dtype: str = "float"
) -> Path:
    """A graph y = factor * x."""
    text = f"({dtype}[{shape}] {given}) => ({dtype}[{shape}] {answer}) {{ {answer} = Mul({given}, factor) }}"
    return write_text(path, text, {"factor": np.array(factor, np.float32 if dtype == "float" else np.float64)})


def bench(cli: Cli, *args: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(cli("bench", *args, *FAST, "--json", code=0).stdout)
    return document
