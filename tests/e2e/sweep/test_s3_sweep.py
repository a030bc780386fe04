"""A sweep whose store is a bucket, its children in this process: cut off, taken up, reported, followed."""

from collections import Counter
from typing import Any

import pytest

from enginebench.core.errors import UsageError
from enginebench.features.sweep.reading import find_rows_folder
from enginebench.features.sweep.reporting import report_sweep
from enginebench.features.sweep.spec import read_spec
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import MeasureJob
from enginebench.runs.history import read_history
from in_process import children
from reporters import Silent

__all__ = ["children"]

SPEC = """
engines = ["fake:latency_us=20", "fake:latency_us=10"]
batches = [1, 2]
processes = 2
iters = 3
warmup = 1
[[model]]
name = "one.onnx"
"""
ROWS, TRIALS = 4, 8


def test_a_sweep_on_s3_goes_on_from_there(children, s3, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "one.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (tmp_path / "sweep.toml").write_text(SPEC)
    spec, url = read_spec(tmp_path / "sweep.toml"), f"{s3}/whole"

    def stop(job: Any) -> None:
        if isinstance(job, MeasureJob) and len(children.of(MeasureJob)) > 3:
            raise KeyboardInterrupt

    children.before = stop
    with pytest.raises(KeyboardInterrupt):
        run_sweep(spec, url, reporter=Silent())
    (stopped,) = children.of(MeasureJob)[3:]
    children.jobs.remove(stopped)
    children.before = lambda job: None
    document = run_sweep(spec, url, reporter=Silent(), resume=True)
    assert {cell.row.status for cell in document.cells if cell.row} == {"ok"} and len(document.cells) == ROWS
    measured = Counter((str(j.engine.options), j.engine.batch, j.repetition) for j in children.of(MeasureJob))
    assert len(measured) == TRIALS and set(measured.values()) == {1}
    again, written = report_sweep(url, ("html", "csv", "json"), tmp_path / "page")
    assert again == document and all(path.is_file() for path in written.paths)
    with pytest.raises(UsageError, match="--out DIR is missing"):
        report_sweep(url, ("html",))
    assert len(read_history(find_rows_folder(url)).rows) == ROWS
