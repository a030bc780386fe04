"""What a run does with a module before and while it is exported."""

from pathlib import Path
from typing import Any

import pytest

from enginebench.core.records import MeasureSpec
from enginebench.runs import building
from enginebench.runs.child.isolate import Child
from enginebench.runs.child.jobs import MeasureJob, PrepareJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.main_job import run_model
from enginebench.runs.results import BEFORE_EXPORT
from reporters import Silent

pytest.importorskip("torch")


def test_the_module_is_timed_before_the_export_and_checked_during_it(tmp_path: Path, monkeypatch) -> None:
    sent = list[Any]()
    monkeypatch.setattr(building, "count_workers", lambda machine: 2)
    send = Child._send

    def record(child: Child, message: Any) -> None:
        sent.append(message)
        send(child, message)

    monkeypatch.setattr(Child, "_send", record)
    measure = MeasureSpec(processes=1, iters=20)
    request = RunRequest(model="digits-mlp", engines=(("pytorch", {}), ("ort", {})), measure=measure)
    _, results = run_model(request, tmp_path / "r", reporter=Silent())
    kinds = [type(message).__name__ for message in sent[:3]]
    assert kinds == ["SourceJob", "MeasureJob", "PrepareJob"]
    assert isinstance(sent[1], MeasureJob) and sent[1].trial == BEFORE_EXPORT
    checks = [message.engine.backend for message in sent if isinstance(message, PrepareJob)]
    assert checks == ["pytorch", "ort"], "the check that was begun during the export is not repeated"
    assert [(result.status, [m.trial for m in result.measurements]) for result in results] == [("ok", [0])] * 2
    assert results[1].drift is not None and results[1].drift.reference == results[0].id
