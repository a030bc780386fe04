"""Two stored runs of six rows, an hour apart."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from stored_run import make_results, write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of six rows, an hour apart."""
    for hour, name in ((10, "a"), (11, "tief/b")):
        results = make_results()
        for i, row in enumerate(results):
            times = [f"2026-11-01T{hour}:0{m.trial}:00+00:00" for m in row.measurements]
            dated = (replace(m, started_utc=at) for m, at in zip(row.measurements, times, strict=True))
            results[i] = replace(row, measurements=tuple(dated))
        write_run(tmp_path / "runs" / name, results)
    return tmp_path / "runs"
