"""Runs that are measured just enough to have rows, and bundles of those rows asked from outside."""

import subprocess
import sys
from pathlib import Path

from processes import environment, run_cli

FAST = ("--threads", "1", "--warmup", "1", "--iters", "20", "--processes", "2")


def make_run(folder: Path, *arguments: str, model: str = "digits-mlp") -> Path:
    """The folder of a run."""
    run_cli(folder, "run", model, *FAST, *arguments, "--out", "run", code=0, timeout=900)
    return folder / "run"


def name(engine: str, precision: str = "fp32") -> str:
    """The id of a row of `make_run`."""
    return f"{engine}-{precision}-b1-compute-t1-hot"


def ask(bundle: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """`predict.py ARGUMENTS` of a bundle, in a process that knows nothing of this package and leaves nothing in it."""
    clean = {k: v for k, v in environment(bundle.parent, draws=False).items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, "-B", str(bundle / "predict.py"), *arguments],
        cwd=bundle.parent, env=clean, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
