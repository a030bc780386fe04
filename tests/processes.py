"""Running `enginebench` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(folder: Path) -> dict[str, str]:
    """Variables of a process that finds the sources, locks and stores in `folder`, and writes 80 columns."""
    own = {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}
    return {**os.environ, **own}


def run_cli(folder: Path, *args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`enginebench ARGS` as a process of its own in a scratch folder."""
    command = [sys.executable, "-m", "enginebench", *map(str, args)]
    options = {"cwd": folder, "env": environment(folder), "text": True, "timeout": 240, **kwargs}
    return subprocess.run(command, check=False, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]
