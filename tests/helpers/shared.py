"""What is made once for all workers of pytest-xdist, where a fixture of a session makes one for each."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def make_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name that `make` has filled, by whichever worker came first."""
    base = factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with home.with_name(f".{name}.made").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        if not os.fstat(mark.fileno()).st_size:
            home.mkdir(exist_ok=True)
            make(home)
            mark.write("made")
    return home
