"""`budget` for programs: the same as on the command line, and read again from a file."""

from pathlib import Path

import msgspec
from click.testing import CliRunner

import enginebench
from enginebench.core.store import encode
from enginebench.features.fpga.budget import Budget, command


def test_a_budget_by_function_is_that_of_the_command_line(tmp_path: Path) -> None:
    made = enginebench.budget(t_compute_ms=0.5, bytes_in=64, bytes_out=10, link="uart:115200", batch=4)
    options = "--t-compute-ms 0.5 --bytes-in 64 --bytes-out 10 --link uart:115200 --batch 4 --json"
    printed = CliRunner().invoke(command, options.split())
    assert msgspec.json.decode(printed.output, type=Budget) == made
    path = tmp_path / "document.json"
    path.write_bytes(encode(made))
    assert enginebench.read(path) == made
