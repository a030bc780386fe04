"""The small verbs on real engines: export, infer, bench, diff, report."""

from pathlib import Path

import pytest

from processes import Cli


@pytest.mark.serial
def test_the_gate_of_bench_fails_on_a_slower_side(cli: Cli, tiny_onnx: Path) -> None:
    sides = ("--engine", "fake:latency_us=260", "--against", "fake:latency_us=200")
    done = cli("bench", tiny_onnx, *sides, "--warmup", "5", "--iters", "100", "--processes", "6", "--gate")
    assert done.returncode == 4
    assert "slower" in done.stderr
