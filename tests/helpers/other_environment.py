"""An environment in which a child can live, and no engine but fake."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SITE = Path(sysconfig.get_path("purelib"))


FAST = ("--warmup", "2", "--iters", "10", "--processes", "2", "--time-limit", "1")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """An environment in which a child can live, and no engine but `fake`."""
    folder = tmp_path / "other environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for package in ("numpy", "msgspec", "psutil"):
        for path in SITE.glob(f"{package}*"):
            (site / path.name).symlink_to(path)
    return folder
