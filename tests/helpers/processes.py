"""Running `enginebench` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from enginebench.report.bundle import bundle_path, find_cache, load_bundle

ROOT = Path(__file__).resolve().parents[2]

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(folder: Path, *, draws: bool = True) -> dict[str, str]:
    """Variables of a process that finds the sources, locks and stores in `folder`, and writes 80 columns."""
    if draws and folder != ROOT:
        lend_chart_bundle(folder)
    own = {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}
    return {**os.environ, **own}


def lend_chart_bundle(home: Path) -> None:
    """Gives a new home the JavaScript of the charts: each would make it anew, which takes two seconds.

    `tests/unit/report/test_bundle.py` has it made in an empty one.
    """
    if find_spec("vl_convert") is None:
        return
    load_bundle()
    kept = bundle_path(find_cache())
    lent = bundle_path(home / ".cache" / "enginebench")
    if kept.exists() and home.is_dir() and not lent.exists():
        lent.parent.mkdir(parents=True, exist_ok=True)
        lent.symlink_to(kept)


def run_cli(folder: Path, *args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`enginebench ARGS` as a process of its own in a scratch folder."""
    command = [sys.executable, "-m", "enginebench", *map(str, args)]
    options = {"cwd": folder, "env": environment(folder), "text": True, "timeout": 240, **kwargs}
    return subprocess.run(command, check=False, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]
