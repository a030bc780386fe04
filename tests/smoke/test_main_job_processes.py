"""A run from the request to its rows: what is stored when, who is told, and how it is continued."""

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from enginebench.core.records import MeasureSpec, Result
from enginebench.runs.folder import RunRecord, RunRequest, read_results
from enginebench.runs.main_job import run_model
from reporters import Silent

REQUEST = RunRequest(
    model="digits-mlp",
    engines=(("fake", {"seed": "1"}), ("fake", {"seed": "2"})),
    measure=MeasureSpec(warmup=1, iters=5, processes=2),
)


def run(folder: Path, request: RunRequest = REQUEST, **more: Any) -> tuple[RunRecord, list[Result]]:
    return run_model(request, folder, **{"reporter": Silent(), **more})


def test_with_real_processes_it_is_the_same(tmp_path: Path) -> None:
    """The other tests of this file do the children's jobs in this process."""
    one = replace(REQUEST, measure=replace(REQUEST.measure, processes=1))
    record, results = run(tmp_path / "r", one)
    assert [(r.status, [len(m.latency_ns) for m in r.measurements]) for r in results] == [("ok", [5])] * 2
    assert [r.drift.passed for r in results if r.drift] == [True, True]
    assert [r.scores[0].value.n for r in results if r.scores] == [450, 450]
    assert read_results(tmp_path / "r") == (record, results)
