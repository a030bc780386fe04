"""Two stored runs of six rows, an hour apart."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stored_run import make_results, write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of six rows, an hour apart."""
    for hour, name in ((10, "a"), (11, "tief/b")):
        results = [
            replace(
                r,
                measurements=tuple(
                    replace(m, started_utc=f"2026-11-01T{hour}:0{m.repetition}:00+00:00") for m in r.measurements
                ),
            )
            for r in make_results()
        ]
        write_run(tmp_path / "runs" / name, results)
    return tmp_path / "runs"
