"""What tests of several rooms share."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from enginebench.models.zoo import DATA_DIR
from processes import Cli, environment

# A shell that starts this session in the background has it ignore Ctrl-C, and every process that a test interrupts
# would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def tiny_onnx(tmp_path: Path) -> Path:
    """A small graph, alone in a folder whose name has a space and is not ASCII."""
    folder = tmp_path / "mödel ünd Co"
    folder.mkdir()
    path = folder / "tiny.onnx"
    path.write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    return path


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Runs `enginebench ARGS` as a process of its own in a scratch folder."""

    def run(*args: object, **kwargs: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "enginebench", *map(str, args)]
        options = {"cwd": tmp_path, "env": environment(tmp_path), "text": True, "timeout": 240, **kwargs}
        return subprocess.run(command, check=False, capture_output=True, **options)  # type: ignore[call-overload,no-any-return]

    return run
