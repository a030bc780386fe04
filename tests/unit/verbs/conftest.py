"""One finished run for all tests that only look at one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from enginebench.models.zoo import DATA_DIR
from in_process import run_here as run_cli
from shared import make_once


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two rows of the fake engine, of a graph that lies in the user's home."""
    return make_once(tmp_path_factory, "mödel ünd Co", finish) / "r"


def finish(home: Path) -> None:
    (home / "tiny.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    done = run_cli(
        *(home, "run", home / "tiny.onnx", "--engines", "fake,fake:seed=2"),
        *("--warmup", "2", "--iters", "30", "--processes", "1", "--out", home / "r"),
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def copy_run(finished_run: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Puts a copy of the finished run into the scratch folder."""
    return lambda name: Path(shutil.copytree(finished_run, tmp_path / name))
