"""The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation."""

import resource
from pathlib import Path

from processes import Cli, rows_of


def test_a_full_disk_loses_nothing_that_was_stored(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """A limit on the size of files stops a row's file from growing, as a full disk does."""
    limit = 30_000
    done = cli(
        "run", tiny_onnx, "--engines", "fake,fake:seed=2", "--warmup", "2", "--iters", "2400", "--processes", "6",
        "--out", "r", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert "cannot write" in done.stderr and "File too large" in done.stderr
    rows = rows_of(tmp_path / "r")
    assert sum(len(row["measurements"]) for row in rows.values()) >= 2
    assert not list((tmp_path / "r").rglob("*.tmp"))
    assert "seed=2" in done.stdout, "the table of what was measured is printed from memory"
    assert cli("run", tiny_onnx, "--resume", "--out", "r").returncode == 0
