"""What a run prints where an engine changes the outputs, typed: the node, the optimization, the way around."""

import shlex
from pathlib import Path

import pytest

from graphs import UNKEPT_NORM, write_graph
from processes import Cli


@pytest.mark.feature("locate")
def test_the_printed_command_locates_what_a_stored_run_changed(cli: Cli, tmp_path: Path) -> None:
    write_graph(tmp_path / "a norm.onnx", UNKEPT_NORM, opset=13)
    done = cli("run", "a norm.onnx", "--engines", "ort", "--quick", "--out", "the run")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "Locate it" in line]
    found = cli(*shlex.split(line.split("enginebench ", 1)[1]))
    assert found.returncode == 4, found.stderr
    assert "The first node is" in found.stdout and "LayerNormFusion" in found.stdout
    commands = [line.strip() for line in found.stdout.splitlines() if line.strip().startswith("enginebench bench")]
    assert commands and "ort:disable=" in commands[0]
    measured = cli(*shlex.split(commands[0])[1:], "--iters", "20", "--processes", "1", "--out", "b")
    assert measured.returncode == 0, measured.stderr
