"""Tests that run side by side: those marked `alone` have the room for themselves, and locks are a worker's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from processes import ROOT, environment

SUITE = """
import os, pathlib, tempfile, time
import pytest

HERE = pathlib.Path(__file__).parent
ME = os.environ["PYTEST_XDIST_WORKER"]

def note(what, name):
    with open(HERE / "log", "a") as log:
        log.write(f"{what} {ME}:{name}\\n")

def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)

@pytest.fixture(autouse=True)
def noted(request):
    note("begin", request.node.name)
    yield
    note("end", request.node.name)

def test_meets_the_other():
    (HERE / f"folder-{ME}").write_text(tempfile.gettempdir() + " " + os.environ["TMPDIR"])
    wait_for(HERE / {"gw0": "folder-gw1", "gw1": "folder-gw0"}[ME])

@pytest.mark.alone
@pytest.mark.parametrize("i", range(3))
def test_is_alone(i):
    time.sleep(0.2)

@pytest.mark.parametrize("i", range(3))
def test_runs(i):
    time.sleep(0.05)
"""


def test_whoever_wants_to_be_alone_is(tmp_path: Path) -> None:
    """Both workers run all of it, and begin with a test that waits for the other's."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = alone\n")
    (tmp_path / "test_suite.py").write_text(SUITE)
    variables = {name: value for name, value in environment(tmp_path).items() if not name.startswith("PYTEST_")}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "each", "."]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "14 passed" in done.stdout, done.stdout + done.stderr
    inside: set[str] = set()
    for line in (tmp_path / "log").read_text().splitlines():
        what, name = line.split()
        inside ^= {name}
        assert len(inside) < 2 or not any("alone" in other for other in inside), f"{what} {name} beside {inside}"
    left, right = ((tmp_path / f"folder-{name}").read_text().split() for name in ("gw0", "gw1"))
    assert left[0] == left[1] and right[0] == right[1] and left != right
