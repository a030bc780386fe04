"""Running `enginebench` as a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginebench.core.store import find_cache
from enginebench.report.charts import bundle_path, load_vega

ROOT = Path(__file__).resolve().parents[2]

# Pictures and pages take as long as all else of a short run: a process has what draws them where its test looks.
UNDRAWN = ROOT / "tests" / "fakes" / "undrawn"

Cli = Callable[..., subprocess.CompletedProcess[str]]


def environment(folder: Path, *, draws: bool = False) -> dict[str, str]:
    """Variables of a process that finds the sources, locks and stores in `folder`, and writes 80 columns.

    Args:
        folder: the home of the process.
        draws: it can draw `report.html` and charts; else it is as without the extra `report`.
    """
    if draws:
        lend_chart_bundle(folder)
    path = os.pathsep.join(map(str, [ROOT / "src"] if draws else [UNDRAWN, ROOT / "src"]))
    own = {"PYTHONPATH": path, "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80"}
    return {**os.environ, **own}


def hide_packages(folder: Path, *names: str) -> dict[str, str]:
    """Variables of a process in which these cannot be imported, as where they are not installed."""
    (folder / "hidden").mkdir(parents=True, exist_ok=True)
    (folder / "hidden" / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({names})\n")
    variables = environment(folder)
    return variables | {"PYTHONPATH": f"{folder / 'hidden'}:{variables['PYTHONPATH']}"}


def lend_chart_bundle(home: Path) -> None:
    """Gives a new home the JavaScript of the charts: each would make it anew, which takes two seconds.

    `tests/unit/report/test_bundle.py` has it made in an empty one.
    """
    if find_spec("vl_convert") is None:
        return
    load_vega()
    kept = bundle_path(find_cache())
    lent = bundle_path(home / ".cache" / "enginebench")
    if kept.exists() and home.is_dir() and not lent.exists():
        lent.parent.mkdir(parents=True, exist_ok=True)
        lent.symlink_to(kept)


def run_cli(folder: Path, *args: object, code: int | None = None, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`enginebench ARGS` as a process of its own in a scratch folder, which must end with `code` where one is given."""
    command = [sys.executable, "-m", "enginebench", *map(str, args)]
    options = {"cwd": folder, "env": environment(folder), "text": True, "timeout": 240, **kwargs}
    done = subprocess.run(command, check=False, capture_output=True, **options)  # type: ignore[call-overload]
    assert code in (None, done.returncode), done.stderr
    return done  # type: ignore[no-any-return]


def start_cli(folder: Path, *args: object) -> subprocess.Popen[str]:
    """`enginebench ARGS` as a process that goes on while the test does something to it."""
    command = [sys.executable, "-m", "enginebench", *map(str, args)]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment(folder), **pipes)


def rows_of(run: Path) -> dict[str, dict[str, Any]]:
    """The stored rows of a run, by id."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((run / "rows").glob("*.json"))}


def wait_for_samples(run: Path, count: int) -> None:
    """Returns once the run has stored so many measurements."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if run.exists() and sum(len(row["measurements"]) for row in rows_of(run).values()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("nothing was stored")
