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
    clean = {k: v for k, v in environment(bundle.parent).items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python, "-B", str(bundle / "predict.py"), *arguments],
        cwd=bundle.parent,
        env=clean,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


# Shares one predictor of the current folder between threads; prints how many calls gave another thread's outputs.
SHARING = """
from predict import load
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
sys.setswitchinterval(1e-6)
predict = load()
feeds = [{"input": np.full((1, 64), value, np.float32)} for value in range(6)]
expected = [predict(feed)["output"] for feed in feeds]
def count_wrong(place):
    calls = (predict(feeds[place])["output"] for _ in range(200))
    return sum(not np.allclose(output, expected[place], atol=1e-3) for output in calls)
with ThreadPoolExecutor(6) as threads:
    print(sum(threads.map(count_wrong, range(6))))
"""


def share_between_threads(bundle: Path) -> subprocess.CompletedProcess[str]:
    """Runs `SHARING` in a bundle, in a process that knows nothing of this package."""
    clean = {k: v for k, v in environment(bundle.parent).items() if k != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-B", "-c", SHARING],
        cwd=bundle,
        env=clean,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
