"""Environments that have some packages of this one, and nothing else."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

FAST = ("--warmup", "2", "--iters", "10", "--processes", "2", "--time-limit", "1")
NEEDED = ("numpy", "msgspec", "psutil")  # by every child


def make_environment(folder: Path, *packages: str) -> Path:
    """A virtual environment with these packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in packages:
        for path in Path(sysconfig.get_path("purelib")).glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An environment in which a child can live, and no engine but `fake`."""
    return make_environment(tmp_path / "other environment", *NEEDED)
