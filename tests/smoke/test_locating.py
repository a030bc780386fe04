"""What a run prints where an engine changes the outputs, typed: the node, the optimization, the way around."""

import shlex
from pathlib import Path

import numpy as np
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


@pytest.mark.feature("locate")
def test_what_differs_on_further_inputs_alone_is_searched_on_these(cli: Cli, tmp_path: Path) -> None:
    """The last line of a table, which only integers at the ends of their range reach."""
    text = "g (int64[n, 8] ids) => (float[n, 8, 4] y) { read = Gather (table, ids) y = Tanh (read) }"
    table = np.random.default_rng(0).standard_normal((100_000, 4), np.float32)
    for name, sign in (("first", 1), ("second", -1)):
        table[-1] *= sign
        write_graph(tmp_path / f"{name}.onnx", text, {"table": table})
    done = cli("drift", "ort@first.onnx", "ort@second.onnx", "--locate")
    assert done.returncode == 4, done.stderr
    assert "integers at the ends of their range" in done.stdout
    assert "its output read leaves the reference" in " ".join(done.stdout.split())
